(value_specification (value_name) @name) @function
(type_binding name: (_) @name) @type
(module_binding (module_name) @name) @module
(module_type_definition (module_type_name) @name) @interface
(open_module module: (_) @import)
[(type_constructor) (constructor_name) (module_name)] @ref
