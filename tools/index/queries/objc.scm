(class_interface . (identifier) @name) @class
(class_implementation . (identifier) @name) @class
(protocol_declaration . (identifier) @name) @interface
(method_declaration (method_type) . (identifier) @name) @prototype
(method_definition (method_type) . (identifier) @name) @method
(message_expression method: (identifier) @call)
