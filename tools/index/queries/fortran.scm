(module (module_statement (name) @name)) @module
(subroutine (subroutine_statement name: (_) @name)) @function
(function (function_statement name: (_) @name)) @function
(program (program_statement (name) @name)) @module
(derived_type_definition (derived_type_statement (type_name) @name)) @struct
(use_statement (module_name) @import)
(subroutine_call subroutine: (identifier) @call)
(call_expression . (identifier) @call)
(identifier) @ref
