(module_attribute name: (_) @name) @module
(fun_decl clause: (function_clause name: (_) @name)) @function
(record_decl name: (_) @name) @struct
(pp_define lhs: (macro_lhs name: (_) @name)) @macro
(pp_include file: (_) @import)
(import_attribute module: (_) @import)
(call expr: [(atom) @call (remote fun: (atom) @call)])
(atom) @ref
