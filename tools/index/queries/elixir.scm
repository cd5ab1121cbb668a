(call target: (identifier) @_module (arguments (alias) @name) (#any-of? @_module "defmodule" "defprotocol" "defimpl")) @module
(call target: (identifier) @_def (arguments [(call target: (identifier) @name) (identifier) @name
  (binary_operator left: (call target: (identifier) @name))])
  (#any-of? @_def "def" "defp" "defdelegate" "defguard")) @function
(call target: (identifier) @_macro (arguments (call target: (identifier) @name)) (#any-of? @_macro "defmacro" "defmacrop")) @macro
(call target: (identifier) @_import (arguments . (alias) @import) (#any-of? @_import "alias" "import" "use" "require"))
(call target: [(identifier) @call (dot right: (identifier) @call)])
[(identifier) (alias)] @ref
