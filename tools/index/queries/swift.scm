(class_declaration name: [(type_identifier) @name (user_type (type_identifier) @name)]) @class
(protocol_declaration name: (_) @name) @interface
(function_declaration name: (simple_identifier) @name) @function
(protocol_function_declaration name: (simple_identifier) @name) @method
(source_file (property_declaration name: (pattern bound_identifier: (_) @name)) @variable)
(class_body (property_declaration name: (pattern bound_identifier: (_) @name)) @field)
(typealias_declaration name: (type_identifier) @name) @type
(import_declaration (identifier) @import)
(call_expression [(simple_identifier) @call (navigation_expression suffix: (navigation_suffix suffix: (_) @call))])
[(simple_identifier) (type_identifier)] @ref
