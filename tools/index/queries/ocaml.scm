(compilation_unit (value_definition (let_binding pattern: (value_name) @name) @function))
(structure (value_definition (let_binding pattern: (value_name) @name) @function))
(type_binding name: (_) @name) @type
(module_binding (module_name) @name) @module
(module_type_definition (module_type_name) @name) @interface
(class_binding (class_name) @name) @class
(method_definition (method_name) @name) @method
(exception_definition (constructor_declaration (constructor_name) @name)) @type
(external (value_name) @name) @function
(open_module module: (_) @import)
(application_expression function: (value_path (value_name) @call))
[(value_name) (type_constructor) (constructor_name) (module_name)] @ref
