(function_item name: (_) @name) @function
(function_signature_item name: (_) @name) @function
(struct_item name: (_) @name) @struct
(union_item name: (_) @name) @union
(enum_item name: (_) @name) @enum
(trait_item name: (_) @name) @trait
(type_item name: (_) @name) @type
(mod_item name: (_) @name) @module
(impl_item type: [(type_identifier) @name (generic_type type: (_) @name) (scoped_type_identifier name: (_) @name)]) @scope
(const_item name: (_) @name) @constant
(static_item name: (_) @name) @variable
(macro_definition name: (_) @name) @macro
(use_declaration argument: (_) @import)
(call_expression function: [
  (identifier) @call (field_expression field: (_) @call) (scoped_identifier name: (_) @call)
  (generic_function function: [(identifier) @call (scoped_identifier name: (_) @call) (field_expression field: (_) @call)])])
(macro_invocation macro: [(identifier) @call (scoped_identifier name: (_) @call)])
[(identifier) (type_identifier) (field_identifier)] @ref
