(class_definition name: (_) @name) @class
(mixin_declaration (identifier) @name) @class
(extension_declaration name: (_) @name) @class
(enum_declaration name: (_) @name) @enum
(function_signature name: (_) @name) @function
(constructor_signature name: (_) @name) @method
(getter_signature name: (_) @name) @method
(setter_signature name: (_) @name) @method
(program (static_final_declaration_list (static_final_declaration (identifier) @name)) @variable)
(type_alias . (type_identifier) @name) @type
(import_specification (configurable_uri) @import)
((identifier) @call . (selector (argument_part)))
[(identifier) (type_identifier)] @ref
