; What JavaScript and TypeScript share.
(function_declaration name: (_) @name) @function
(generator_function_declaration name: (_) @name) @function
(class_declaration name: (_) @name) @class
(class name: (_) @name) @class
(method_definition name: (_) @name) @method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression) (generator_function)]) @function
(assignment_expression left: (member_expression property: (_) @name)
  right: [(arrow_function) (function_expression) (generator_function)]) @function
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @method
(program [(lexical_declaration (variable_declarator name: (identifier) @name) @variable)
          (variable_declaration (variable_declarator name: (identifier) @name) @variable)])
(program (export_statement (lexical_declaration (variable_declarator name: (identifier) @name) @variable)))
(import_statement source: (string) @import)
(export_statement source: (string) @import)
(call_expression function: (identifier) @_require arguments: (arguments . (string) @import) (#eq? @_require "require"))
(call_expression function: (import) arguments: (arguments . (string) @import))
(call_expression function: [(identifier) @call (member_expression property: (_) @call)])
(new_expression constructor: [(identifier) @call (member_expression property: (_) @call)])
[(identifier) (property_identifier) (private_property_identifier) (shorthand_property_identifier)] @ref
