(package_statement name: (_) @name) @module
(subroutine_declaration_statement name: (_) @name) @function
(use_statement module: (_) @import)
(function_call_expression function: (_) @call)
(ambiguous_function_call_expression function: (_) @call)
(method_call_expression method: (_) @call)
[(function) (method) (package)] @ref
