(FnProto function: (IDENTIFIER) @name) @function
(source_file (Decl (VarDecl variable_type_function: (IDENTIFIER) @name) @variable))
(SuffixExpr (BUILTINIDENTIFIER) @_import (FnCallArguments (ErrorUnionExpr (SuffixExpr (STRINGLITERALSINGLE) @import)))
  (#eq? @_import "@import"))
(SuffixExpr variable_type_function: (IDENTIFIER) @call . (FnCallArguments))
(FieldOrFnCall function_call: (IDENTIFIER) @call)
(IDENTIFIER) @ref
