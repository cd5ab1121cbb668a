(class_declaration name: (_) @name) @class
(record_declaration name: (_) @name) @class
(struct_declaration name: (_) @name) @struct
(interface_declaration name: (_) @name) @interface
(enum_declaration name: (_) @name) @enum
(delegate_declaration name: (_) @name) @type
(namespace_declaration name: (_) @name) @module
(method_declaration name: (_) @name) @method
(constructor_declaration name: (_) @name) @method
(property_declaration name: (_) @name) @field
(local_function_statement name: (_) @name) @function
(field_declaration (variable_declaration (variable_declarator name: (_) @name))) @field
(event_field_declaration (variable_declaration (variable_declarator name: (_) @name))) @field
(using_directive [(qualified_name) (identifier)] @import)
(invocation_expression function: [(identifier) @call (member_access_expression name: (identifier) @call)
  (generic_name (identifier) @call) (member_access_expression name: (generic_name (identifier) @call))])
(object_creation_expression type: [(identifier) @call (generic_name (identifier) @call)])
(identifier) @ref
