(create_table (object_reference name: (_) @name)) @class
(create_view (object_reference name: (_) @name)) @class
(create_function (object_reference name: (_) @name)) @function
(create_index column: (_) @name) @variable
(invocation (object_reference name: (_) @call))
(object_reference name: (_) @ref)
