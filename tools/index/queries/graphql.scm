(object_type_definition (name) @name) @class
(interface_type_definition (name) @name) @interface
(input_object_type_definition (name) @name) @struct
(enum_type_definition (name) @name) @enum
(union_type_definition (name) @name) @union
(scalar_type_definition (name) @name) @type
(field_definition (name) @name) @field
(named_type (name) @ref)
