(binary_operator lhs: (identifier) @name rhs: (function_definition)) @function
(program (binary_operator lhs: (identifier) @name operator: ["<-" "="]) @variable)
(call function: (identifier) @_library arguments: (arguments . (argument value: (_) @import))
  (#any-of? @_library "library" "require" "source"))
(call function: [(identifier) @call (namespace_operator rhs: (identifier) @call)])
(identifier) @ref
