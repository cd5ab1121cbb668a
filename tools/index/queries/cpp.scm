(class_specifier name: (_) @name body: (_)) @class
(namespace_definition name: (_) @name) @module
(alias_declaration name: (_) @name) @type
(concept_definition name: (_) @name) @type
(function_definition declarator: (reference_declarator (function_declarator declarator: (_) @name))) @function
(field_declaration declarator: [
  (function_declarator declarator: (field_identifier) @name)
  (pointer_declarator declarator: (function_declarator declarator: (field_identifier) @name))
  (reference_declarator (function_declarator declarator: (field_identifier) @name))]) @prototype
(call_expression function: [
  (qualified_identifier name: (identifier) @call)
  (qualified_identifier name: (qualified_identifier name: (identifier) @call))
  (template_function name: (identifier) @call)])
(new_expression type: (type_identifier) @call)
(namespace_identifier) @ref
