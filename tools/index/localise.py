"""How often the index names the file and the symbol that a change touches, beside others:
`python -m pilotfish.tools.index.localise`.

The questions are built from the packages installed beside this Python and from its own library (see
`questions.py`), with `--history REPOSITORY` also from a repository's commits. Every second package is for
tuning, the others for reporting. Compared are what the index takes a text to be about (`Index.likely`), its
rank with what the text mentions, plain text search (BM25 over whole files), and with `--aider PYTHON` what
aider's map shows first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pilotfish.tools.index.bench_peers import AIDER_ANSWERS
from pilotfish.tools.index.listing import list_files
from pilotfish.tools.index.questions import KINDS, Tree, tree_of_package
from pilotfish.tools.index.questions_history import trees_of_history
from pilotfish.tools.index.repository import Index

PACKAGES = (
    "_pytest",
    "PIL",
    "anyio",
    "asyncio",
    "email",
    "fsspec",
    "httpx2",
    "huggingface_hub",
    "hypothesis",
    "jinja2",
    "jsonschema",
    "mpmath",
    "mypy",
    "networkx",
    "numpy",
    "pip",
    "playwright",
    "pydantic",
    "pygments",
    "rich",
    "setuptools",
    "unittest",
)
"""Taken where they are installed."""
_AT = (1, 5, 10)
_MOST = max(_AT)

Answer = tuple[list[str], list[tuple[str, str]]]
"""The likeliest paths, and the likeliest (path, name)."""


@dataclass(frozen=True)
class Result:
    """One system's answers: the parts of the right files and symbols that are among the first 1, 5 and 10,
    on average over the questions of a part and kind.
    """

    system: str
    part: str
    kind: str
    questions: int
    files: tuple[float, ...]
    symbols: tuple[float, ...]


def installed_texts(name: str) -> dict[str, bytes]:
    """The Python files of an installed package, or of one of the library, by path; with the library's tests
    of that package.
    """
    paths = sysconfig.get_paths()
    for base in (Path(paths["purelib"]), Path(paths["stdlib"])):
        folders = [folder for folder in (base / name, base / "test" / f"test_{name}") if folder.is_dir()]
        if folders and folders[0] == base / name:
            return {
                f"{folder.relative_to(base)}/{os.fsdecode(entry.path)}": (
                    folder / os.fsdecode(entry.path)
                ).read_bytes()
                for folder in folders
                for entry in list_files(folder, above=False).entries
                if entry.path.endswith(b".py")
            }
    return {}


def ours(folder: Path, scratch: Path, texts: Sequence[str]) -> dict[str, list[Answer]]:
    """What the index answers, in two ways."""
    found: dict[str, list[Answer]] = {"index": [], "index, rank": []}
    with Index(folder, scratch / "index.sqlite", above=False) as index:
        index.update()
        for text in texts:
            likely = index.likely(text, _MOST)
            symbols = [(one.path, one.qualified) for one in likely.symbols]
            found["index"].append(([one.path for one in likely.files], symbols))
            ranked = index.ranking(*index.mentioned(text))[:_MOST]
            found["index, rank"].append(([one.path for one in ranked], []))
    return found


def text_search(folder: Path, _: Path, texts: Sequence[str]) -> dict[str, list[Answer]]:
    """BM25 (k1 1.2, b 0.75) over whole files, their words also as the parts of names, endings of plurals and
    verbs off; paths count as text.
    """
    paths = [os.fsdecode(entry.path) for entry in list_files(folder, above=False).entries]
    words = [Counter(_terms(f"{path} {(folder / path).read_text('utf-8', 'replace')}")) for path in paths]
    sizes = [sum(some.values()) for some in words]
    usual = sum(sizes) / max(1, len(sizes))
    spread = Counter(word for some in words for word in some)
    answers: list[Answer] = []
    for text in texts:
        scores: dict[str, float] = defaultdict(float)
        for word in set(_terms(text)) & spread.keys():
            weight = math.log(1 + (len(paths) - spread[word] + 0.5) / (spread[word] + 0.5))
            for path, some, size in zip(paths, words, sizes, strict=True):
                if often := some[word]:
                    scores[path] += weight * often * 2.2 / (often + 1.2 * (0.25 + 0.75 * size / usual))
        answers.append((sorted(scores, key=lambda path: (-scores[path], path))[:_MOST], []))
    return {"text search": answers}


def _terms(text: str) -> list[str]:
    terms = []
    for word in re.findall(r"[^\W\d_]+(?:_[^\W\d]+)*\w*", text):
        parts = [word, *re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", word)]
        terms += [
            re.sub(r"(?:ing|ed|es|s)$", "", part.lower()) for part in dict.fromkeys(parts) if len(part) > 1
        ]
    return terms


def aider_with(python: str) -> Callable[[Path, Path, Sequence[str]], dict[str, list[Answer]]]:
    """aider's answers, by a Python that has it."""

    def answers(folder: Path, _: Path, texts: Sequence[str]) -> dict[str, list[Answer]]:
        paths = [os.fsdecode(entry.path) for entry in list_files(folder, above=False).entries]
        asked = json.dumps([str(folder), paths, list(texts), _MOST])
        done = subprocess.run(
            [python, "-c", AIDER_ANSWERS],
            input=asked,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        said = json.loads(done.stdout.strip().splitlines()[-1])
        return {"aider's map": [(files, [(path, name) for path, name in symbols]) for files, symbols in said]}

    return answers


def share_among(right: Sequence[object], answer: Sequence[object], first: int) -> float:
    """The part of what is right that is among the first so many of an answer."""
    return len(set(right) & set(answer[:first])) / len(set(right))


def _bare(symbols: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Symbols by the last part of their names, as not everyone tells more."""
    return list(dict.fromkeys((path, name.rpartition(".")[2]) for path, name in symbols))


def measure(
    trees: Sequence[tuple[str, Tree]], systems: Sequence[Callable[..., dict[str, list[Answer]]]]
) -> list[Result]:
    """All answers, averaged. trees: each with the part that it is of."""
    files: dict[tuple[str, str, str], list[list[float]]] = defaultdict(list)
    symbols: dict[tuple[str, str, str], list[list[float]]] = defaultdict(list)
    for part, tree in trees:
        with tempfile.TemporaryDirectory(prefix="pilotfish-localise-") as temporary:
            folder, scratch = Path(temporary, "tree"), Path(temporary, "scratch")
            scratch.mkdir()
            tree.write(folder)
            texts = [question.text for question in tree.questions]
            for system in systems:
                for name, answers in system(folder, scratch, texts).items():
                    for question, (paths, named) in zip(tree.questions, answers, strict=True):
                        for kind in (question.kind, "all"):
                            key = part, name, kind
                            files[key].append([share_among(question.files, paths, at) for at in _AT])
                            if question.symbols and named:
                                right, told = _bare(question.symbols), _bare(named)
                                symbols[key].append([share_among(right, told, at) for at in _AT])
        print(f"{tree.name}: {len(tree.questions)} questions", file=sys.stderr, flush=True)

    def means(rows: list[list[float]]) -> tuple[float, ...]:
        return tuple(round(sum(column) / len(rows), 3) for column in zip(*rows, strict=True))

    return [
        Result(
            name,
            part,
            kind,
            len(files[part, name, kind]),
            means(files[part, name, kind]),
            means(symbols[part, name, kind]),
        )
        for part, name, kind in sorted(files, key=lambda key: (key[0], [*KINDS, "all"].index(key[2])))
    ]


def table(results: Sequence[Result]) -> str:
    """The results as text."""
    heads = "".join(f"{f'@{at}':>6}" for at in _AT)
    lines = [f"{'':9} {'':14} {'':13} {'questions':>9} files{heads[5:]}  symbols{heads[3:]}"]
    for one in results:
        numbers = "".join(f"{100 * share:6.0f}" for share in one.files)
        named = "".join(f"{100 * share:6.0f}" for share in one.symbols)
        lines.append(f"{one.part:9} {one.kind:14} {one.system:13} {one.questions:9} {numbers}    {named}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m pilotfish.tools.index.localise",
        description="Measure how well changes are located in installed packages.",
    )
    parser.add_argument("packages", nargs="*", help="installed packages, by default two dozen known ones")
    parser.add_argument("--aider", metavar="PYTHON", help="a Python that has aider-chat")
    parser.add_argument("--history", metavar="REPOSITORY", type=Path, help="ask for its commits too")
    parser.add_argument("--each", type=int, default=4, help="questions of each kind about a package")
    parser.add_argument("--commits", type=int, default=40, help="commits of the history")
    parser.add_argument("--part", choices=("tuning", "reported"), help="only this half of the packages")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of the packages' own code
    trees = []
    found = [(name, texts) for name in options.packages or PACKAGES if (texts := installed_texts(name))]
    for number, (name, texts) in enumerate(found):
        part = ("tuning", "reported")[number % 2]
        if options.part in (None, part):
            trees.append((part, tree_of_package(name, texts, options.each)))
    if options.history is not None:
        for number, tree in enumerate(trees_of_history(options.history, options.commits)):
            part = ("tuning", "reported")[number % 2]
            if options.part in (None, part):
                trees.append((part, tree))
    systems = [ours, text_search, *([aider_with(options.aider)] if options.aider else [])]
    results = measure(trees, systems)
    print(json.dumps([asdict(one) for one in results]) if options.json else table(results))


if __name__ == "__main__":
    main()
