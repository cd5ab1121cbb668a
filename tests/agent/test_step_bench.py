"""The bench of a step, on the model that ships and small screens."""

from __future__ import annotations

import pytest

from pilotfish.agent.step_bench import main


def test_a_step_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--sizes", "112x112", "--steps", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    size, steps, p50, p95, vision, prompt, writing, new, written = said[-1].split()
    assert (size, steps) == ("112x112", "1")
    assert p50 == p95
    assert float(p50) > 0.9 * (float(vision) + float(prompt) + float(writing)) - 0.02
    assert float(new) > 0
    assert float(written) > 1


def test_what_is_wrong_with_the_command_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--sizes", "320"], "--sizes has '320'"),
        (["--sizes", "9x9"], "56 to 4096"),
        (["--steps", "0"], "--steps is at least 1"),
        (["--model", "nono"], "there is no model 'nono'"),
    ):
        assert main(words) == 2
        told = capsys.readouterr().err
        assert said in told
