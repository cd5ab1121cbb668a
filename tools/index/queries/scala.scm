(class_definition name: (_) @name) @class
(object_definition name: (_) @name) @class
(trait_definition name: (_) @name) @trait
(enum_definition name: (_) @name) @enum
(function_definition name: (_) @name) @function
(function_declaration name: (_) @name) @function
(type_definition name: (_) @name) @type
(template_body (val_definition pattern: (identifier) @name) @field)
(template_body (var_definition pattern: (identifier) @name) @field)
(compilation_unit (val_definition pattern: (identifier) @name) @variable)
(import_declaration) @import
(call_expression function: [(identifier) @call (field_expression field: (identifier) @call)])
(instance_expression (type_identifier) @call)
[(identifier) (type_identifier)] @ref
