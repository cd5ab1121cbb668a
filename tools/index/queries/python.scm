(function_definition name: (identifier) @name) @function
(class_definition name: (identifier) @name) @class
(module [(assignment left: (identifier) @name) @variable (expression_statement (assignment left: (identifier) @name) @variable)])
(class_definition body: (block [(assignment left: (identifier) @name) @field (expression_statement (assignment left: (identifier) @name) @field)]))
(type_alias_statement left: (type (identifier) @name)) @type
(import_statement name: [(dotted_name) @import (aliased_import name: (dotted_name) @import)])
(import_from_statement module_name: (_) @import)
(call function: [(identifier) @call (attribute attribute: (identifier) @call)])
(identifier) @ref
