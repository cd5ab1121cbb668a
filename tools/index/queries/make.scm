(rule (targets (word) @name)) @function
(makefile (variable_assignment name: (word) @name) @variable)
(include_directive filenames: (list (word) @import))
(prerequisites (word) @ref)
(variable_reference (word) @ref)
