(contract_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(library_declaration name: (_) @name) @module
(function_definition name: (_) @name) @function
(modifier_definition name: (_) @name) @function
(struct_declaration name: (_) @name) @struct
(enum_declaration name: (_) @name) @enum
(event_definition name: (_) @name) @type
(state_variable_declaration name: (_) @name) @field
(import_directive source: (_) @import)
(call_expression function: (expression [(identifier) @call (member_expression property: (_) @call)]))
(identifier) @ref
