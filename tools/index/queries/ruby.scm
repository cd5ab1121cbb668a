(module name: (_) @name) @module
(class name: (_) @name) @class
(method name: (_) @name) @method
(singleton_method name: (_) @name) @method
(assignment left: (constant) @name) @constant
(call method: (identifier) @_require arguments: (argument_list . (string) @import)
  (#any-of? @_require "require" "require_relative" "load" "autoload"))
(call method: (_) @call)
[(identifier) (constant)] @ref
