(function_declaration name: (_) @name) @function
(assignment_statement (variable_list . name: (_) @name) (expression_list . value: (function_definition))) @function
(chunk (variable_declaration (assignment_statement (variable_list . name: (identifier) @name))) @variable)
(function_call name: (identifier) @_require arguments: (arguments . (string) @import) (#eq? @_require "require"))
(function_call name: [(identifier) @call (dot_index_expression field: (_) @call) (method_index_expression method: (_) @call)])
(identifier) @ref
