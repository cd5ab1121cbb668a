"""What a terminal is asked, and what its answers mean. The terminals are real pseudo-terminals."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time

import pytest

from pilotfish.agent.tui.terminal import Terminal, find_out, read_answer

_ASK = """
import sys
from pilotfish.agent.tui.terminal import find_out, textual_image
found = find_out()
textual_image(found)
from textual_image._terminal import get_cell_size
print("FOUND", found.pictures, *get_cell_size(), flush=True)
"""


def _on_terminal(answer: bytes, **environ: str) -> tuple[str, bytes, float]:
    """What a process finds out on a terminal that answers so; all that the terminal was sent; seconds."""
    leader, follower = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("TMUX", "STY", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", _ASK], stdin=follower, stdout=follower, stderr=follower, env=kept | environ
    )
    os.close(follower)
    sent, answered, asked_at = b"", False, 0.0
    end = time.monotonic() + 60
    while time.monotonic() < end and b"FOUND" not in sent.rpartition(b"\n")[0]:
        if not select.select([leader], [], [], 1)[0]:
            continue
        try:
            sent += os.read(leader, 65536)
        except OSError:
            break
        if not answered and b"\x1b[c" in sent:
            os.write(leader, answer)
            answered, asked_at = True, time.monotonic()
    waited = time.monotonic() - asked_at if answered else 0.0
    process.wait(30)
    os.close(leader)
    found = sent.partition(b"FOUND ")[2].split(b"\r\n")[0].decode()
    return found, sent, waited


@pytest.mark.parametrize(
    ("term", "answer", "found"),
    [
        ("xterm-kitty", b"\x1b_Gi=1;OK\x1b\\\x1b[6;22;11t\x1b[?62;c", "kitty 11 22"),
        ("xterm-256color", b"\x1b[6;20;8t\x1b[?62;4;22c", "sixel 8 20"),
        ("xterm-256color", b"", "blocks 10 20"),
    ],
)
def test_a_terminal_is_asked_once_and_never_waited_for_long(term: str, answer: bytes, found: str) -> None:
    said, sent, waited = _on_terminal(answer, TERM=term)
    assert said == found
    assert sent.count(b"\x1b[c") == 1
    assert waited < 20


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"TERM": "dumb"}, "words 10 20"),
        ({"TERM": "xterm-256color", "TMUX": "/tmp/x,1,0"}, "blocks 10 20"),
    ],
)
def test_a_terminal_that_could_print_the_question_is_not_asked(environ: dict[str, str], found: str) -> None:
    said, sent, _ = _on_terminal(b"", **environ)
    assert said == found
    assert b"\x1b" not in sent


def test_without_colour_there_are_words() -> None:
    assert find_out({"TERM": "dumb"}) == Terminal(
        "words", why="TERM is 'dumb'; set it to the kind of your terminal"
    )
    assert read_answer("\x1b[?1;2c", Terminal("words")).pictures == "words"


def test_answers_that_make_no_sense_change_nothing() -> None:
    blocks = Terminal("blocks")
    for answer in ("", "\x1b[?c", "\x1b[6;0;0t", "\x1b_Gi=1;EINVAL\x1b\\", "yes\x1b", "\x1b[?64;14c"):
        assert read_answer(answer, blocks) == blocks
