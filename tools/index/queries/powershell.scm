(function_statement (function_name) @name) @function
(class_statement . (simple_name) @name) @class
(class_method_definition (simple_name) @name) @method
(command command_name: (command_name) @call)
(command_name) @ref
