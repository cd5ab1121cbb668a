"""Sums over answers of which more or less is known, and the line that tells how far a prompt is."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from pilotfish.agent import events as log
from pilotfish.agent.accounts import in_words, totals
from pilotfish.model.protocol import Usage


def test_what_is_not_known_adds_nothing_and_is_never_zero() -> None:
    assert totals([]).input_tokens is None
    usages = [
        Usage(input_tokens=1000, cached_tokens=0, output_tokens=5, prefill_s=0.5, cache_bytes=1 << 20),
        Usage(input_tokens=1500, output_tokens=7, prefill_s=0.25, sequences=3, device="cuda:0"),
        Usage(output_tokens=1, cache_bytes=2 << 20, device="cpu", retries=2),
    ]
    events: list[log.Event] = [log.Answered(step=n, usage=usage, seconds=1) for n, usage in enumerate(usages)]
    found = totals([*events, log.Told(step=1, text="x")])
    assert (found.answers, found.input_tokens, found.cached_tokens, found.output_tokens) == (3, 2500, 0, 13)
    assert (found.queue_s, found.vision_s, found.prefill_s, found.decode_s) == (None, None, 0.75, None)
    assert (found.cache_bytes, found.sequences, found.devices) == (2 << 20, 3, ("cuda:0", "cpu"))
    assert (found.retries, found.seconds) == (2, 3)
    words = "2,500 tokens in (0 cached), 13 out; prefill 0.75 s; cache 2.0 MiB; cuda:0; cpu"
    assert "; ".join(in_words(found)) == f"{words}; 3 conversations at once; asked again 2 times"
    assert in_words(usages[2])[0] == "1 token out"
    assert in_words(Usage()) == []


READ = """
import sys, time
from pilotfish.agent.events import Told
from pilotfish.agent.show import Narrator
from pilotfish.model.protocol import ProgressChunk, Usage
narrate = Narrator(sys.stdout)
narrate.on_progress(ProgressChunk(0, 4000))
narrate.on_progress(ProgressChunk(1000, 4000))
time.sleep(1.2)
narrate.on_progress(ProgressChunk(2000, 4000))
narrate(Told(step=1, text="hello"))
narrate.on_progress(ProgressChunk(3000, 4000))
narrate.on_progress(ProgressChunk(4000, 4000))
narrate.on_progress(ProgressChunk(0, 5000))
"""


def test_a_long_prompt_is_told_on_a_terminal_and_taken_back() -> None:
    mine, theirs = pty.openpty()
    terminal = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", READ], stdout=theirs, stderr=theirs, env=terminal, timeout=60
    )
    os.close(theirs)
    shown = os.read(mine, 65536).decode()
    os.close(mine)
    assert done.returncode == 0, shown
    clear = "\r\x1b[2K"
    lines = [f"      reading {tokens} of 4,000 tokens" for tokens in ("2,000", "3,000")]
    assert shown == f"{clear}{lines[0]}{clear}      told: hello\r\n{clear}{lines[1]}{clear}"


def test_where_there_is_no_terminal_nothing_is_told_of_a_prompt() -> None:
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("      told: hello\n", "")
