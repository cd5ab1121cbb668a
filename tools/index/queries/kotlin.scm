(class_declaration (type_identifier) @name) @class
(object_declaration (type_identifier) @name) @class
(function_declaration (simple_identifier) @name) @function
(source_file (property_declaration (variable_declaration (simple_identifier) @name)) @variable)
(class_body (property_declaration (variable_declaration (simple_identifier) @name)) @field)
(type_alias (type_identifier) @name) @type
(import_header (identifier) @import)
(call_expression [(simple_identifier) @call (navigation_expression (navigation_suffix (simple_identifier) @call))])
[(simple_identifier) (type_identifier)] @ref
