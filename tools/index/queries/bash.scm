(function_definition name: (word) @name) @function
(program (variable_assignment name: (variable_name) @name) @variable)
(program (declaration_command (variable_assignment name: (variable_name) @name) @variable))
(command name: (command_name (word) @_source) argument: (word) @import (#any-of? @_source "source" "."))
(command name: (command_name (word) @call))
[(variable_name)] @ref
