(block (identifier) (string_lit (template_literal) @name) . (block_start)) @variable
(get_attr (identifier) @ref)
