(module_definition name: (_) @name) @module
(function_definition (signature [(call_expression . (identifier) @name)
  (typed_expression (call_expression . (identifier) @name))
  (where_expression (call_expression . (identifier) @name))])) @function
(assignment . (call_expression . (identifier) @name)) @function
(macro_definition (signature (call_expression . (identifier) @name))) @macro
(struct_definition (type_head [(identifier) @name (binary_expression . (identifier) @name)
  (parametrized_type_expression . (identifier) @name)])) @struct
(abstract_definition (type_head [(identifier) @name (binary_expression . (identifier) @name)])) @type
(const_statement (assignment . (identifier) @name)) @constant
(using_statement [(import_path) (identifier)] @import)
(import_statement [(import_path) (identifier)] @import)
(selected_import . [(import_path) (identifier)] @import)
(call_expression . [(identifier) @call (field_expression (identifier) @call .)])
(identifier) @ref
