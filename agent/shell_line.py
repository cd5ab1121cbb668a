"""The commands in a shell line, as far as its text tells."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SEPARATORS = re.compile(r"\|\||&&|;;?|\|&?|&(?![>&])|\n|[(){}`]|\$\(")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=.*", re.DOTALL)
_PLAIN_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=\S*")
_REDIRECTION = re.compile(r"(?:\d*|&|\{\w+\})(?:<<?<?|>>?|<>|>\||[<>]&)-?")
_LEADING = {"!", "coproc", "do", "elif", "else", "if", "in", "then", "until", "while"}
_WRAPPER = re.compile(
    r"builtin|busybox|chroot|chrt|command|doas|env|eval|exec|find|flock|ionice|ltrace|nice|nohup|nsenter|parallel"
    r"|script|setarch|setsid|ssh|stdbuf|strace|su|sudo|systemd-run|taskset|time|timeout|toybox|trap|unshare|watch"
    r"|xargs"
)
"""Programs, and builtins of the shell, that run a command which their operands spell."""
_SHELL = re.compile(r"(?:a|ba|da|k|z|)sh")
_ADD_OPERANDS = {"find", "parallel", "xargs"}
_GIT_VALUES = {"-C", "-c", "--config-env", "--exec-path", "--git-dir", "--namespace", "--work-tree"}
"""Options before git's command that take the next word."""
_MOST_STARTS = 50
"""Operands of a wrapper at which a command is looked for."""
_MOST_WITHIN = 4


def simple_commands(line: str) -> list[str]:
    """A shell line cut at every operator that could start another command, quoted or not.

    Cutting inside quotes as well errs on the side of asking: an allow rule then sees a part it does not
    match.
    """
    return [part.strip() for part in _SEPARATORS.split(line) if part.strip()]


def hides_commands(line: str) -> bool:
    """Whether a line can run or overwrite something that its parts do not show: substitution and
    redirection.
    """
    return any(mark in line for mark in ("$(", "`", "<(", ">(", ">", "<<", "\\\n", "\0"))


def spellings(line: str) -> set[str]:
    """The whole line, its commands, and each of them in the plain spelling that a pattern is written for.

    That is without quotes, with single blanks, without assignments, redirections and words such as `then` in
    front of it, by the name of the program alone, and out of programs that run another one (`env`, `sh -c`).
    """
    found = {line.strip()}
    for text in {line, line.replace("\\\n", "")}:
        for part in dict.fromkeys(simple_commands(text)):
            found |= {part, *_plain(part, 0)}
    return found


def _plain(part: str, depth: int) -> Iterator[str]:
    words = _without_what_leads(plain_words(part))
    if not words:
        return
    yield " ".join(words)
    yield _named(words)
    program = words[0].rpartition("/")[2]
    wraps = _WRAPPER.fullmatch(program)
    if not (wraps or _SHELL.fullmatch(program)) or depth == _MOST_WITHIN:
        return
    more = ["{}"] if program in _ADD_OPERANDS else []
    starts = [
        at
        for at, word in enumerate(words)
        if at and not _PLAIN_ASSIGNMENT.fullmatch(word) and word[:1] != "-"
    ]
    for at in starts[:_MOST_STARTS]:
        if re.search(r"\s", words[at]):
            for inner in simple_commands(words[at]):
                yield from _plain(inner, depth + 1)
        elif wraps:
            yield _named([*words[at:], *more])


def _named(words: list[str]) -> str:
    """A command by its program's name alone, and git's without what stands before its command."""
    program, at = words[0].rpartition("/")[2], 1
    while program == "git" and at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in _GIT_VALUES else 1
    return " ".join([program, *words[at:]])


def plain_words(line: str, ends: str = "") -> list[str]:
    """The words of a line without their quotes. A quote without an end is passed over.

    ends: what ends a word beside blanks.
    """
    line = re.sub(r"\\\n|\$(?=['\"])", "", line)
    word = rf"""(?:\\.|'[^']*'|"(?:[^"\\]|\\.)*+"|[^\s'"\\{re.escape(ends)}])++"""
    return [_QUOTED.sub(_unquoted, found) for found in re.findall(word, line, re.DOTALL)]


_QUOTED = re.compile(r"""\\(.)|'([^']*)'|"((?:[^"\\]|\\.)*+)\"""", re.DOTALL)


def _unquoted(found: re.Match[str]) -> str:
    escaped, single, double = found.groups()
    if double is not None:
        return re.sub(r'\\([$`"\\])', r"\1", double)
    return str(single if escaped is None else escaped)


def _without_what_leads(words: list[str]) -> list[str]:
    """The words from the program on. A number in front is what a cut at the `&` of `2>&1` has left."""
    at = 1 if words and re.fullmatch(r"\d+|-", words[0]) else 0
    while at < len(words):
        redirects = _REDIRECTION.match(words[at])
        if redirects is not None:
            at += 2 if redirects.end() == len(words[at]) else 1
        elif words[at] in _LEADING or _ASSIGNMENT.fullmatch(words[at]):
            at += 1
        else:
            break
    return words[at:]
