(data_type name: (_) @name) @type
(newtype name: (_) @name) @type
(type_synomym name: (_) @name) @type
(class name: (_) @name) @class
(declarations (signature name: (_) @name) @function)
(class_declarations (signature name: (_) @name) @method)
(data_constructor constructor: (prefix name: (constructor) @name)) @constant
(import module: (_) @import)
(apply function: (variable) @call)
[(variable) (name) (constructor)] @ref
