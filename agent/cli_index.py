"""The commands that ask about a repository's code: `pilotfish index` and what goes with it."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pilotfish.agent.cli_output import Json, print_result

if TYPE_CHECKING:
    from pilotfish.tools.index.repository import Index, Progress
    from pilotfish.tools.index.results import Found


class _Commands(TyperGroup):
    """A folder instead of a command means `update`; a folder named before the command is the command's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            near = difflib.get_close_matches(args[0], self.commands, n=1)
            if near and not Path(args[0]).exists():
                raise typer.BadParameter(
                    f"there is no command or folder {args[0]!r}; did you mean {near[0]}?"
                )
            args = ["-C" if args[1:2] and args[1] in self.commands else "update", *args]
        if args and args[0] in ("-C", "--repo"):
            command = args[2] if args[2:] and args[2] in self.commands else "update"
            args = [command, *args[:2], *args[3 if command in args[2:3] else 2 :]]
        return super().parse_args(ctx, args)


index_app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    help="Index the code of a folder (pilotfish index REPO) and look things up in it.",
    rich_markup_mode=None,
)

Repo = Annotated[Path, typer.Option("--repo", "-C", help="The folder.")]
Name = Annotated[str, typer.Argument(help="A name, or Class.method.")]
IndexedPath = Annotated[str, typer.Argument(help="A file, relative to the folder.")]
Limit = Annotated[int, typer.Option(min=1, help="At most so many results.")]
About = Annotated[str, typer.Option(help="What the task is: what this is about comes first.")]
Counted = Annotated[
    str, typer.Option(help="The model whose tokens are counted: a name or a checkpoint's folder.")
]
_HERE = Path()


def _counter(tokenizer: str) -> Callable[[str], int]:
    from pilotfish.model.folder import find_folder
    from pilotfish.model.tokenizer import Tokenizer

    counter = Tokenizer.from_folder(find_folder(tokenizer))
    return lambda text: len(counter.encode(text))


def _opened(repo: Path) -> Index:
    """The folder's index, brought up to date; progress is shown on a terminal."""
    from pilotfish.tools.index.repository import Index

    index = Index(repo)
    try:
        index.update(progress=_progress())
    except BaseException:
        index.close()
        raise
    return index


def _progress() -> Callable[[Progress], None]:
    if not sys.stderr.isatty():
        return lambda _: None

    def show(progress: Progress) -> None:
        end = "\r\x1b[2K" if progress.done == progress.total else ""
        text = f"\r\x1b[2Kindexing: {progress.done} of {progress.total} files"
        print(end or text, end="", file=sys.stderr, flush=True)

    return show


def _print_found(found: Found, as_json: bool) -> None:
    print_result(asdict(found), as_json, found.lines())


@index_app.command("update")
def update(
    folder: Annotated[Path | None, typer.Argument(help="The folder. Default: the one you are in.")] = None,
    repo: Annotated[Path | None, typer.Option("--repo", "-C", help="The same.")] = None,
    as_json: Json = False,
) -> None:
    """Bring the index of a folder up to date and say what is in it; the same as `pilotfish index REPO`.

    Only files that changed are read. An index that was interrupted can be used, and goes on the next time.
    """
    from pilotfish.tools.index.repository import Index

    if folder is not None and repo is not None:
        raise typer.BadParameter(f"two folders were given, {folder} and {repo}; leave one out")
    root = folder or repo or _HERE
    with Index(root) as index:
        done = index.update(progress=_progress())
        counted = index.counted()
        result = {
            "repo": str(root),
            "index": str(index.path),
            "read": done.read,
            "changed": done.changed,
            "left_out": done.left_out,
            "removed": done.removed,
            "seconds": round(done.seconds, 3),
            "files": {state: {"files": files, "lines": lines} for state, (files, lines) in counted.items()},
            "notes": done.notes,
        }
        lines = [f"{state:11} {files:7} files {number:9} lines" for state, (files, number) in counted.items()]
        unread = f", {done.left_out} left out unread" if done.left_out else ""
        new = f"{done.read} read, {done.changed} changed{unread}"
        lines.append(f"{new}, {done.removed} gone, {done.seconds:.2f} s")
        print_result(result, as_json, lines + done.notes)


@index_app.command("map")
def repository_map(
    repo: Repo = _HERE,
    tokens: Annotated[int, typer.Option(min=1, help="At most so many tokens.")] = 4096,
    tokenizer: Counted = "nano",
    about: About = "",
    as_json: Json = False,
) -> None:
    """Print the definitions that matter most, within a budget of tokens that is never exceeded."""
    count = _counter(tokenizer)
    with _opened(repo) as index:
        files, names = index.about(about) if about else ([], [])
        found = index.map(tokens, count, files, names)
        last = f"[{found.tokens} tokens, {found.left_out} definitions left out]"
        print_result(asdict(found), as_json, [*found.text.splitlines(), last])


@index_app.command("likely")
def likely(
    text: Annotated[str, typer.Argument(help="What is to be changed, in words.")],
    repo: Repo = _HERE,
    limit: Limit = 10,
    as_json: Json = False,
) -> None:
    """Print the files and definitions that a change asked for in words would likely touch."""
    with _opened(repo) as index:
        found = index.likely(text, limit)
        print_result(asdict(found), as_json, found.lines())


@index_app.command("layout")
def layout(
    repo: Repo = _HERE,
    tokens: Annotated[int, typer.Option(min=0, help="At most so many tokens.")] = 32_768,
    tokenizer: Counted = "nano",
    as_json: Json = False,
) -> None:
    """Print the folder as a model would read it whole: tree, map, then files, the most important first.

    The budget of tokens is never exceeded; the last line says what was left out.
    """
    from pilotfish.tools.index.layout import lay_out

    count = _counter(tokenizer)
    with _opened(repo) as index:
        laid = lay_out(index, tokens, count)
        result = {
            "text": laid.text,
            "tokens": laid.tokens,
            "files": list(laid.files),
            "left_out": laid.left_out,
            "symbols_left_out": laid.symbols_left_out,
        }
        lines = laid.text.removesuffix("\n").split("\n") if laid.text else []
        print_result(result, as_json, [*lines, f"[{laid.tokens} tokens, {laid.left_out} files left out]"])


@index_app.command("rank")
def rank(repo: Repo = _HERE, limit: Limit = 50, about: About = "", as_json: Json = False) -> None:
    """Print the files from the most important on, with their share of the whole."""
    with _opened(repo) as index:
        files, names = index.about(about) if about else ([], [])
        ranked = index.ranking(files, names)
        result = {"files": [asdict(one) for one in ranked[:limit]], "left_out": max(0, len(ranked) - limit)}
        print_result(result, as_json, [f"{one.rank:.6f} {one.path}" for one in ranked[:limit]])


@index_app.command("find")
def find(name: Name, repo: Repo = _HERE, limit: Limit = 50, as_json: Json = False) -> None:
    """Find where a name is defined; if it is not, names that contain it."""
    with _opened(repo) as index:
        _print_found(index.find(name, limit), as_json)


@index_app.command("references")
def references(name: Name, repo: Repo = _HERE, limit: Limit = 100, as_json: Json = False) -> None:
    """Find where a name is used."""
    with _opened(repo) as index:
        _print_found(index.references(name, limit), as_json)


@index_app.command("callers")
def callers(name: Name, repo: Repo = _HERE, limit: Limit = 100, as_json: Json = False) -> None:
    """Find where a name is called, and in which definition."""
    with _opened(repo) as index:
        _print_found(index.callers(name, limit), as_json)


@index_app.command("outline")
def outline(path: IndexedPath, repo: Repo = _HERE, as_json: Json = False) -> None:
    """List the definitions of a file."""
    with _opened(repo) as index:
        _print_found(index.outline(path), as_json)


@index_app.command("search")
def search(
    pattern: Annotated[str, typer.Argument(help="What to look for in the files' lines.")],
    repo: Repo = _HERE,
    regex: Annotated[bool, typer.Option("--regex", "-e", help="It is a regular expression.")] = False,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Upper case is lower.")] = False,
    within: Annotated[str, typer.Option(help="Only in paths that begin with this.")] = "",
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """Search the indexed files for a text or, with --regex, a regular expression."""
    with _opened(repo) as index:
        found = index.search(pattern, regex=regex, ignore_case=ignore_case, within=within, limit=limit)
        _print_found(found, as_json)


@index_app.command("read")
def read(
    path: IndexedPath,
    repo: Repo = _HERE,
    first: Annotated[int, typer.Option(min=1, help="The first line.")] = 1,
    last: Annotated[int | None, typer.Option(min=1, help="The last line. Default: the end.")] = None,
    as_json: Json = False,
) -> None:
    """Print an indexed file with the numbers of its lines."""
    with _opened(repo) as index:
        piece = index.read(path, first, last)
        print_result(asdict(piece), as_json, piece.lines())
