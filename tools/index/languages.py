"""The languages whose files are parsed: by which names a file is known, which grammar reads it, which queries
find its definitions.

The queries lie in `queries/`, one file per language. A pattern marks a definition with its kind (`@function`)
and, inside, its `@name`, perhaps also the `@owner` it belongs to; `@scope` is a definition that only
qualifies what stands in it. `@call` is a name that is called, `@ref` any use of a name, `@import` what is
imported.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Parser, Query

_QUERIES = Path(__file__).parent / "queries"
_C_LIKE = ("//", "/*", "*")
_HASH = ("#",)
_DASHES = ("--",)


@dataclass(frozen=True)
class Language:
    """How files of a language are parsed.

    grammar: its name in tree-sitter-language-pack. queries: the files that make up its query. comments:
    what a line of a comment begins with. docstrings: the first string of a body documents it.
    """

    grammar: str
    queries: tuple[str, ...]
    comments: tuple[str, ...] = _C_LIKE
    docstrings: bool = False


def _same(name: str, comments: tuple[str, ...] = _C_LIKE, docstrings: bool = False) -> Language:
    return Language(name, (name,), comments, docstrings)


LANGUAGES: dict[str, Language] = {
    "bash": _same("bash", _HASH),
    "c": _same("c"),
    "cmake": _same("cmake", _HASH),
    "cpp": Language("cpp", ("c", "cpp")),
    "csharp": _same("csharp"),
    "css": _same("css"),
    "cuda": Language("cuda", ("c", "cpp")),
    "dart": _same("dart"),
    "elisp": _same("elisp", (";",)),
    "elixir": _same("elixir", _HASH),
    "erlang": _same("erlang", ("%",)),
    "fortran": _same("fortran", ("!",)),
    "go": _same("go"),
    "graphql": _same("graphql", _HASH),
    "haskell": _same("haskell", _DASHES),
    "hcl": _same("hcl", _HASH),
    "java": _same("java"),
    "javascript": Language("javascript", ("ecma", "javascript")),
    "julia": _same("julia", _HASH),
    "kotlin": _same("kotlin"),
    "lua": _same("lua", _DASHES),
    "make": _same("make", _HASH),
    "markdown": _same("markdown", ()),
    "objc": Language("objc", ("c", "objc")),
    "ocaml": _same("ocaml", ("(*",)),
    "ocaml_interface": _same("ocaml_interface", ("(*",)),
    "perl": _same("perl", _HASH),
    "php": _same("php", (*_C_LIKE, "#")),
    "powershell": _same("powershell", _HASH),
    "proto": _same("proto"),
    "python": _same("python", _HASH, docstrings=True),
    "r": _same("r", _HASH),
    "ruby": _same("ruby", _HASH),
    "rust": _same("rust"),
    "scala": _same("scala"),
    "solidity": _same("solidity"),
    "sql": _same("sql", _DASHES),
    "swift": _same("swift"),
    "tsx": Language("tsx", ("ecma", "typescript")),
    "typescript": Language("typescript", ("ecma", "typescript")),
    "zig": _same("zig"),
}

_BY_SUFFIX = {
    suffix: language
    for language, suffixes in {
        "bash": "sh bash zsh ksh bats",
        "c": "c",
        "cmake": "cmake",
        "cpp": "cc cpp cxx c++ h hh hpp hxx h++ ipp inl tpp",
        "csharp": "cs",
        "css": "css scss",
        "cuda": "cu cuh",
        "dart": "dart",
        "elisp": "el",
        "elixir": "ex exs",
        "erlang": "erl hrl",
        "fortran": "f90 f95 f03 f08",
        "go": "go",
        "graphql": "graphql gql",
        "haskell": "hs",
        "hcl": "tf hcl",
        "java": "java",
        "javascript": "js mjs cjs jsx",
        "julia": "jl",
        "kotlin": "kt kts",
        "lua": "lua",
        "make": "mk mak",
        "markdown": "md markdown",
        "objc": "m mm",
        "ocaml": "ml",
        "ocaml_interface": "mli",
        "perl": "pl pm t",
        "php": "php",
        "powershell": "ps1 psm1",
        "proto": "proto",
        "python": "py pyi pyw",
        "r": "r",
        "ruby": "rb rake gemspec",
        "rust": "rs",
        "scala": "scala sc",
        "solidity": "sol",
        "sql": "sql",
        "swift": "swift",
        "tsx": "tsx",
        "typescript": "ts mts cts",
        "zig": "zig",
    }.items()
    for suffix in suffixes.split()
}
_BY_NAME = {
    "cmakelists.txt": "cmake",
    "gemfile": "ruby",
    "gnumakefile": "make",
    "makefile": "make",
    "rakefile": "ruby",
}
_BY_PROGRAM = {
    b"bash": "bash",
    b"dash": "bash",
    b"node": "javascript",
    b"perl": "perl",
    b"php": "php",
    b"python": "python",
    b"ruby": "ruby",
    b"sh": "bash",
    b"zsh": "bash",
}


def language_of(path: str, head: bytes) -> str | None:
    """The language of a file by its name, or by the program that its first line names; None for any other."""
    name = path.rpartition("/")[2].lower()
    found = _BY_NAME.get(name) or _BY_SUFFIX.get(name.rpartition(".")[2] if "." in name else "")
    if found is None and head.startswith(b"#!") and "." not in name:
        words = head[2:].split(b"\n", 1)[0].replace(b"/", b" ").split()
        programs = [word.rstrip(b"0123456789.") for word in words]
        found = next((_BY_PROGRAM[program] for program in programs if program in _BY_PROGRAM), None)
    return found


@functools.cache
def parser_of(language: str) -> Parser:
    """A parser for a language of `LANGUAGES`."""
    from tree_sitter import Parser
    from tree_sitter_language_pack import get_language

    return Parser(get_language(LANGUAGES[language].grammar))  # type: ignore[arg-type]


@functools.cache
def query_of(language: str) -> Query:
    """The query of a language of `LANGUAGES`."""
    from tree_sitter import Query
    from tree_sitter_language_pack import get_language

    found = LANGUAGES[language]
    patterns = "".join((_QUERIES / f"{name}.scm").read_text() for name in found.queries)
    return Query(get_language(found.grammar), patterns)  # type: ignore[arg-type]
