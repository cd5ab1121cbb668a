(class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(annotation_type_declaration name: (_) @name) @interface
(enum_declaration name: (_) @name) @enum
(record_declaration name: (_) @name) @class
(method_declaration name: (_) @name) @method
(constructor_declaration name: (_) @name) @method
(field_declaration declarator: (variable_declarator name: (_) @name)) @field
(import_declaration [(scoped_identifier) (identifier)] @import)
(method_invocation name: (_) @call)
(object_creation_expression type: [(type_identifier) @call (generic_type (type_identifier) @call)])
[(identifier) (type_identifier)] @ref
