; C, and what C++, CUDA and Objective-C share with it.
(function_definition declarator: [
  (function_declarator declarator: (_) @name)
  (pointer_declarator declarator: (function_declarator declarator: (_) @name))
  (pointer_declarator declarator: (pointer_declarator declarator: (function_declarator declarator: (_) @name)))]) @function
(declaration declarator: [
  (function_declarator declarator: (identifier) @name)
  (pointer_declarator declarator: (function_declarator declarator: (identifier) @name))]) @prototype
(struct_specifier name: (_) @name body: (_)) @struct
(union_specifier name: (_) @name body: (_)) @union
(enum_specifier name: (_) @name body: (_)) @enum
(type_definition declarator: [
  (type_identifier) @name (pointer_declarator declarator: (type_identifier) @name)
  (function_declarator declarator: (parenthesized_declarator (pointer_declarator declarator: (type_identifier) @name)))]) @type
(preproc_def name: (_) @name) @macro
(preproc_function_def name: (_) @name) @macro
(translation_unit (declaration declarator: [(identifier) @name (init_declarator declarator: [
  (identifier) @name (array_declarator declarator: (identifier) @name) (pointer_declarator declarator: (identifier) @name)])]) @variable)
(preproc_include path: (_) @import)
(call_expression function: [(identifier) @call (field_expression field: (field_identifier) @call)])
[(identifier) (type_identifier) (field_identifier)] @ref
