(message (message_name) @name) @class
(enum (enum_name) @name) @enum
(service (service_name) @name) @interface
(rpc (rpc_name) @name) @method
(import path: (_) @import)
(message_or_enum_type (identifier) @ref)
