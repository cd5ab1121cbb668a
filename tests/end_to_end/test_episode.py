"""Whole episodes: a real sandbox, a real page on a real display, and a model that follows a script."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotfish.agent.events import Answered, EpisodeEnded, Intended, Resulted, Told, read_run
from pilotfish.agent.loop import Episode
from pilotfish.agent.player import sampling
from pilotfish.agent.policy import Policy, Rule
from pilotfish.agent.prompt import DEVELOPER, NO_CALL, NOT_EXECUTED
from pilotfish.agent.settings import load_settings
from pilotfish.model.protocol import (
    CallChunk,
    Chunk,
    Clip,
    EndChunk,
    Limits,
    Message,
    ModelError,
    ProgressChunk,
    TextChunk,
    ToolCall,
    ToolSpec,
    Usage,
)
from pilotfish.model.scripted import ScriptedModel
from pilotfish.tasks.format import Limits as TaskLimits
from pilotfish.tasks.format import Task
from pilotfish.tasks.load import find_task
from pilotfish.tasks.run_solution import solution_calls

from .conftest import Open, call, turn

YES = call(action="left_click", coordinate=[500, 200], id="yes")
DONE = call(action="done", id="done")


def told(episode: Episode) -> list[Message]:
    return [message for message in episode.conversation.messages if message.role == "tool"]


async def test_a_page_is_clicked_and_graded(web_task: Task, open_episode: Open, tmp_path: Path) -> None:
    model = ScriptedModel([turn(YES, text="I press it.", reasoning="It is on top."), turn(DONE)])
    async with open_episode(web_task, model) as episode:
        outcome = await episode.run()
    assert (outcome.end, outcome.grade.passed, outcome.steps) == ("done", True, 2)
    first, second = (conversation for conversation, _ in model.requests)
    developer, user = first
    assert developer.parts == (DEVELOPER,)
    assert isinstance(user.parts[0], Clip)
    assert user.parts[1] == "Press the Yes button."
    assert second[:2] == first, "the conversation grows at its end only"
    assistant, tool = second[2:]
    assert (assistant.reasoning, assistant.parts, assistant.tool_calls) == (
        "It is on top.",
        ("I press it.",),
        (YES,),
    )
    text, clip = tool.parts
    assert text == "ok\nsettled"
    assert isinstance(clip, Clip)
    assert np.array_equal(clip.frames[0], user.parts[0].frames[3]), "a clip starts where the last one ended"
    between = clip.frames[:, 210, 5].tolist()
    assert between[0] == [255, 255, 255]
    assert between[3] == [0, 255, 0]
    run = read_run(tmp_path / "run")
    kinds = [event.type for event in run.events]
    assert kinds == [
        "episode_started",
        *["answered", "intended", "resulted"] * 2,
        "episode_ended",
    ]
    result = run.events[3]
    assert isinstance(result, Resulted)
    assert result.clip is not None
    assert np.array_equal(run.frames.get(result.clip.frames[3]), clip.frames[3])


async def test_a_wrong_click_does_not_pass(web_task: Task, open_episode: Open) -> None:
    no = call(action="left_click", coordinate=[500, 700])
    async with open_episode(web_task, [turn(no), turn(DONE)]) as episode:
        outcome = await episode.run()
    assert (outcome.end, outcome.grade.passed) == ("done", False)


async def test_a_shell_task_needs_no_clip_and_ends_with_text(shell_task: Task, open_episode: Open) -> None:
    script = [turn(call("shell", command="echo done > result.txt")), turn(text="Written.")]
    async with open_episode(shell_task, script) as episode:
        outcome = await episode.run()
        assert not any(isinstance(part, Clip) for m in episode.conversation.messages for part in m.parts)
    assert (outcome.end, outcome.answer, outcome.grade.passed) == ("answered", "Written.", True)


async def test_only_the_first_call_of_a_turn_runs(shell_task: Task, open_episode: Open) -> None:
    touch = [call("shell", command=f"touch {name}", id=name) for name in ("one", "two", "three")]
    async with open_episode(shell_task, [turn(*touch), turn(text="Done.")]) as episode:
        await episode.run()
        assert sorted(path.name for path in episode.box.workspace.iterdir()) == ["one"]
        assert [message.parts[0] for message in told(episode)[1:]] == [NOT_EXECUTED] * 2


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (call("compute", action="done"), "no tool"),
        (call("shell", comand="ls"), "comand"),
        (call("shell", command=["ls"]), "must be a string"),
        (call("shell"), "missing"),
    ],
)
async def test_a_call_that_makes_no_sense_is_explained(
    shell_task: Task, open_episode: Open, bad: ToolCall, says: str
) -> None:
    async with open_episode(shell_task, [turn(bad), turn(text="I give up.")]) as episode:
        outcome = await episode.run()
        assert says in str(told(episode)[0].parts[0])
    assert outcome.end == "answered"


async def test_after_a_senseless_call_the_model_sees_the_screen(web_task: Task, open_episode: Open) -> None:
    bad = call(action="left_click", coordinate=[500, 2000])
    async with open_episode(web_task, [turn(bad), turn(DONE)]) as episode:
        await episode.run()
        text, clip = told(episode)[0].parts
    assert "2000" in str(text)
    assert str(text).endswith("\nunchanged")
    assert isinstance(clip, Clip)


async def test_three_senseless_calls_in_a_row_end_it(
    shell_task: Task, open_episode: Open, tmp_path: Path
) -> None:
    bad, good = turn(call("nothing")), turn(call("shell", command="true"))
    async with open_episode(shell_task, [bad, bad, good, bad, bad, bad]) as episode:
        outcome = await episode.run()
    assert (outcome.end, outcome.steps) == ("format_limit", 6)
    assert "3 calls in a row" in outcome.reason
    assert sum(isinstance(event, Intended) for event in read_run(tmp_path / "run").events) == 1


async def test_a_reply_without_a_call_is_sampled_again(
    web_task: Task, open_episode: Open, tmp_path: Path
) -> None:
    model = ScriptedModel([turn(text="Let me see."), turn(reasoning="hm"), turn(DONE)])
    async with open_episode(web_task, model) as episode:
        outcome = await episode.run()
    assert outcome.end == "done"
    assert [len(conversation) for conversation, _ in model.requests] == [2, 3, 3]
    assert model.requests[1][0][-1] == Message("user", (NO_CALL,))
    assert [message.role for message in episode.conversation.messages] == [
        "developer",
        "user",
        "assistant",
        "tool",
    ]
    events = read_run(tmp_path / "run").events
    assert [event.kept for event in events if isinstance(event, Answered)] == [False, False, True]
    assert sum(isinstance(event, Told) for event in events) == 2


async def test_a_call_that_cannot_be_read_is_explained(
    shell_task: Task, open_episode: Open, tmp_path: Path
) -> None:
    ns = "]<]minimax[>["
    broken = f'I look. {ns}<tool_call>\n{ns}<invoke name="shell">{ns}<command>ls'
    model = ScriptedModel([broken, turn(call("shell", command="true")), turn(text="finished")])
    async with open_episode(shell_task, model) as episode:
        outcome = await episode.run()
    assert outcome.answer == "finished"
    said = [event.text for event in read_run(tmp_path / "run").events if isinstance(event, Told)]
    assert "not executed" in said[0]
    assert said[0].endswith(NO_CALL)
    assert model.requests[1][0][-1] == Message("user", (said[0],))


async def test_what_was_wrong_with_the_last_call_ends_it(shell_task: Task, open_episode: Open) -> None:
    broken = 'I look. ]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="shell">]<]minimax[>[<command>ls'
    async with open_episode(shell_task, [broken] * 3) as episode:
        outcome = await episode.run()
    assert (outcome.end, outcome.answer) == ("format_limit", "")
    assert outcome.reason == (
        "The model made no call in 3 replies; what was wrong with the last: "
        "the answer ended inside a tool call, which was not executed."
    )


@pytest.mark.parametrize("kind", ["shell", "web"])
@pytest.mark.parametrize("reason", ["length", "time"])
async def test_an_answer_that_was_cut_off_is_none(
    request: pytest.FixtureRequest, open_episode: Open, tmp_path: Path, kind: str, reason: Any
) -> None:
    task = request.getfixturevalue(f"{kind}_task")
    cut: list[Chunk] = [TextChunk("I have written"), EndChunk(reason, Usage(output_tokens=3))]
    async with open_episode(task, ScriptedModel([cut] * 3)) as episode:
        outcome = await episode.run()
    ended, why = ("token_limit", "3 answers in a row were cut off at 512 tokens, which answer_tokens raises")
    if reason == "time":
        ended, why = "format_limit", "made no call in 3 replies"
    assert (outcome.end, outcome.answer) == (ended, "")
    assert why in outcome.reason
    events = read_run(tmp_path / "run").events
    assert not any(event.kept for event in events if isinstance(event, Answered))
    after = "3 tokens" if reason == "length" else r"\d+\.\d s"
    said = [event.text for event in events if isinstance(event, Told)]
    assert re.match(f"The reply was cut off after {after}, so it is no answer; be brief.", said[0])


async def test_an_answer_cut_off_by_the_limit_of_the_episode_ends_it(
    shell_task: Task, open_episode: Open
) -> None:
    """Here in the last of the replies that are sampled again."""
    limits = TaskLimits(steps=5, seconds=60, tokens=6)
    model = ScriptedModel([turn(text="one two three")] * 3)
    async with open_episode(shell_task, model, limits=limits, sampling=Limits(max_tokens=2)) as episode:
        outcome = await episode.run()
    assert (outcome.end, outcome.answer) == ("token_limit", "")


@pytest.mark.parametrize(("text", "end"), [("I am stuck.", "answered"), ("", "format_limit")])
async def test_a_model_that_makes_no_call_ends(
    web_task: Task, open_episode: Open, text: str, end: str
) -> None:
    async with open_episode(web_task, [turn(text=text)] * 3) as episode:
        outcome = await episode.run()
    assert (outcome.end, outcome.answer) == (end, text)


@pytest.mark.parametrize(
    ("limits", "end"),
    [
        (TaskLimits(steps=2, seconds=60), "step_limit"),
        (TaskLimits(steps=50, seconds=2), "time_limit"),
        (TaskLimits(steps=50, seconds=60, tokens=3), "token_limit"),
    ],
)
async def test_limits(shell_task: Task, open_episode: Open, limits: TaskLimits, end: str) -> None:
    script = [turn(call("shell", command="sleep 0.2"))] * 50
    async with open_episode(shell_task, script, limits=limits) as episode:
        outcome = await episode.run()
    assert outcome.end == end
    assert not outcome.grade.passed


async def test_a_call_that_takes_too_long_is_cut_off(shell_task: Task, open_episode: Open) -> None:
    limits = TaskLimits(steps=5, seconds=1)
    async with open_episode(shell_task, [turn(call("shell", command="sleep 30"))], limits=limits) as episode:
        outcome = await episode.run()
    assert outcome.end == "time_limit"
    assert outcome.seconds < 10


async def test_a_denied_call_does_not_run(shell_task: Task, open_episode: Open, tmp_path: Path) -> None:
    policy = Policy([Rule(verdict="deny", command="touch*")])
    script = [turn(call("shell", command="touch x")), turn(text="I may not.")]
    async with open_episode(shell_task, script, policy) as episode:
        await episode.run()
        assert "denied" in str(told(episode)[0].parts[0])
        assert not any(episode.box.workspace.iterdir())
    assert not any(isinstance(event, Intended) for event in read_run(tmp_path / "run").events)


async def test_how_far_a_prompt_is_computed_is_told_and_not_logged(
    shell_task: Task, open_episode: Open, tmp_path: Path
) -> None:
    progress = [ProgressChunk(0, 40), ProgressChunk(40, 40)]
    model = ScriptedModel([[*progress, TextChunk("There is nothing to do.")]])
    told: list[ProgressChunk] = []
    async with open_episode(shell_task, model, on_progress=told.append) as episode:
        outcome = await episode.run()
    assert (outcome.end, told) == ("answered", progress)
    (answered,) = (e for e in read_run(tmp_path / "run").events if isinstance(e, Answered))
    assert answered.text == "There is nothing to do."
    assert answered.usage.input_tokens is None, "a script knows nothing of a prompt"


async def test_how_sure_the_model_was_is_logged_with_what_it_does(
    shell_task: Task, open_episode: Open, tmp_path: Path
) -> None:
    sure = CallChunk(call("shell", command="echo done > result.txt"), 0.93456)
    script = [[sure, EndChunk("end", logprobs=(-0.25, -1.5))], [TextChunk("Done.")]]
    async with open_episode(shell_task, ScriptedModel(script)) as episode:
        assert (await episode.run()).grade.passed
    events = read_run(tmp_path / "run").events
    first, last = (event for event in events if isinstance(event, Answered))
    (intended,) = (event.call for event in events if isinstance(event, Intended))
    assert first.calls == [intended]
    assert intended.confidence == 0.9346
    assert (first.logprobs, last.logprobs) == ([-0.25, -1.5], None)
    assert sampling(load_settings({"logprobs": True}), None).logprobs
    assert not sampling(load_settings({}), None).logprobs, "only where it is asked for"


class Broken:
    """A model that fails in the middle of an answer."""

    name = "broken"

    async def respond(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        stop: asyncio.Event,
        limits: Limits,
    ) -> AsyncIterator[Chunk]:
        yield TextChunk("I will")
        raise ModelError("The weights are gone; load them again.")


async def test_a_model_that_fails_ends_the_episode(
    shell_task: Task, open_episode: Open, tmp_path: Path
) -> None:
    async with open_episode(shell_task, Broken()) as episode:
        outcome = await episode.run()
    assert (outcome.end, outcome.reason) == ("model_error", "The weights are gone; load them again.")
    assert isinstance(read_run(tmp_path / "run").events[-1], EpisodeEnded)


def processes_of(box_id: str) -> list[int]:
    """The host's processes inside a sandbox: they share a process namespace with one that bears its mark."""
    marked, spaces = f"PILOTFISH_BOX={box_id}".encode(), {}
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            spaces[int(folder.name)] = space = (folder / "ns" / "pid").readlink()
            if marked in (folder / "environ").read_bytes():
                found.add(space)
    return [pid for pid, space in spaces.items() if space in found]


def running(box_id: str, program: str) -> list[int]:
    """The processes inside a sandbox whose name holds `program`."""
    found = []
    for pid in processes_of(box_id):
        with contextlib.suppress(OSError):
            if program in Path(f"/proc/{pid}/comm").read_text():
                found.append(pid)
    return found


def wait_for(box_id: str, program: str) -> None:
    """Wait until a sandbox runs a program."""
    while not running(box_id, program):
        time.sleep(0.02)


@pytest.mark.parametrize("program", ["Xvfb", "chrom"])
async def test_a_display_or_browser_that_dies_is_a_typed_end(
    web_task: Task, open_episode: Open, tmp_path: Path, program: str
) -> None:
    def kill(conversation: object, tools: object) -> Message:
        for pid in running(episode.box.id, program):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return turn(YES)

    async with open_episode(web_task, ScriptedModel(kill), limits=TaskLimits(steps=3, seconds=40)) as episode:
        outcome = await episode.run()
    assert (outcome.end, outcome.grade.passed) == ("sandbox_error", False)
    assert ("display" if program == "Xvfb" else "browser") in outcome.reason
    events = read_run(tmp_path / "run").events
    assert isinstance(events[-1], EpisodeEnded)
    assert isinstance(events[1], Answered)


async def test_stopping_takes_less_than_a_second_and_leaves_nothing(
    shell_task: Task, open_episode: Open
) -> None:
    async with open_episode(shell_task, [turn(call("shell", command="sleep 77"))]) as episode:
        box = episode.box
        playing = asyncio.create_task(episode.run())
        await asyncio.to_thread(wait_for, box.id, "sleep")
        episode.stop.set()
        outcome = await asyncio.wait_for(playing, 1.0)
    assert outcome.end == "stopped"
    assert processes_of(box.id) == []


async def test_the_browser_tool_in_a_whole_episode(open_episode: Open) -> None:
    task = find_task("browser/hand-in")
    calls = [call(name, id=f"c{n}", **arguments) for n, (name, arguments) in enumerate(solution_calls(task))]
    model = ScriptedModel([*(turn(one) for one in calls), turn(call(action="done"))])
    async with open_episode(task, model) as episode:
        outcome = await episode.run()
    assert (outcome.end, outcome.grade.passed) == ("done", True), outcome.grade.reason
    texts = [str(message.parts[0]) for message in told(episode)]
    assert '[e2 link "Exercise 2" -> /exercise/2]' in texts[1]
    assert "[saving 'exercise-2.txt': see downloads]" in texts[2]
    assert "a dialog is open (confirm): 'This cannot be undone. Hand in?'" in texts[6]


async def test_a_browser_that_dies_under_its_tool_is_started_again(open_episode: Open) -> None:
    task = find_task("browser/best-price")
    home = call("browser", action="navigate", url="localhost:8000", id="home")

    async def kill_before_the_second(conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        step = len(told(episode))
        if step == 1:
            await episode.box.shell.run("pkill -9 -o -x chromium; sleep 0.5")
        return turn(home if step < 2 else call(action="done"))

    async with open_episode(task, ScriptedModel(kill_before_the_second)) as episode:
        outcome = await episode.run()
    assert outcome.end == "done"
    assert "was started again" in str(told(episode)[1].parts[0])
