(function_definition name: (_) @name) @function
(macro_definition name: (_) @name) @macro
(special_form . "defvar" . (symbol) @name) @variable
(list . (symbol) @_require . (quote (symbol) @import) (#eq? @_require "require"))
(list . (symbol) @call)
(symbol) @ref
