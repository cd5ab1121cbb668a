(rule_set (selectors . [(class_selector (class_name) @name) (id_selector (id_name) @name)])) @rule
(keyframes_statement (keyframes_name) @name) @rule
(import_statement [(string_value) (call_expression)] @import)
