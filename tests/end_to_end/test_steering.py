"""People beside an episode: what they approve is what runs, what they say is told, and their time is free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.control.client import ControlError, RunClient
from pilotfish.agent.control.server import serving
from pilotfish.agent.control.steering import Steering
from pilotfish.agent.control.wire import (
    Decide,
    Delta,
    Pause,
    Question,
    State,
    Tell,
    call_digest,
)
from pilotfish.agent.conversation import Conversation
from pilotfish.agent.events import (
    Asked,
    Decided,
    FrameStore,
    Intended,
    Resulted,
    RuleAdded,
    Spoken,
    read_run,
)
from pilotfish.agent.policy import Policy, Rule
from pilotfish.agent.resume import standing
from pilotfish.agent.subtask import hand_over
from pilotfish.model.scripted import ScriptedModel
from pilotfish.tasks.format import Limits, Task

from .conftest import Open, call, shell, turn

ASKS = Policy(default="ask")


Person = Callable[[RunClient], Coroutine[Any, Any, None]]


async def questions(client: RunClient) -> AsyncIterator[Question]:
    async for message in client.messages():
        if isinstance(message, Question):
            yield message


def answer(question: Question, verdict: Any, **fields: Any) -> Decide:
    digest = call_digest(question.call.name, question.call.arguments)
    return Decide(question=question.question, verdict=verdict, digest=digest, **fields)


async def supervised(episode: Any, run: Path, person: Person) -> Any:
    """Play an episode with somebody connected; how it went."""
    async with serving(run, episode.steering):
        client = await RunClient.connect(run)
        acting = asyncio.create_task(person(client))
        outcome = await episode.run()
        await client.close()
        await asyncio.wait_for(acting, 20)
    return outcome


async def test_what_a_person_approves_is_what_runs(
    shell_task: Task, open_episode: Open, tmp_path: Path
) -> None:
    commands = ["echo a > a", "echo b > b", "echo c > c", "echo d >> d; true", "echo d >> d; true"]
    script = [shell(command, id=f"c{n}") for n, command in enumerate(commands)]
    seen: list[Question] = []

    async def person(client: RunClient) -> None:
        answers: list[dict[str, Any]] = [
            {"verdict": "once"},
            {"verdict": "deny", "reason": "there is a b already"},
            {"verdict": "once", "arguments": {"command": "echo C > c"}},
            {"verdict": "task"},
        ]
        async for question in questions(client):
            seen.append(question)
            fields = answers[len(seen) - 1]
            if "arguments" in fields:
                with pytest.raises(ControlError, match=r"do not fit: shell: .*comand"):
                    await client.ask(answer(question, "once", arguments={"comand": "x"}))
                with pytest.raises(ControlError, match=r"denied \(a rule says deny: command = \"rm \*\"\)"):
                    await client.ask(answer(question, "once", arguments={"command": "ls; rm x"}))
            await client.ask(answer(question, **fields))
            if len(seen) == len(answers):
                return

    policy = Policy([Rule(verdict="deny", command="rm *")], default="ask")
    async with open_episode(
        shell_task, [*script, turn(text="Done.")], policy, steering=Steering(run_warning="!")
    ) as episode:
        await supervised(episode, tmp_path / "run", person)
        made = {path.name: path.read_text() for path in episode.box.workspace.iterdir()}
        words = [str(m.parts[0]) for m in episode.conversation.messages if m.role == "tool"]
    assert made == {"a": "a\n", "c": "C\n", "d": "d\nd\n"}
    assert words[1] == "The user denied this call of shell: there is a b already"
    assert words[2].startswith(
        '[the user changed this call before it ran; what ran: shell {"command": "echo C > c"}]\n'
    )
    assert [question.step for question in seen] == [1, 2, 3, 4]
    assert seen[0].why == "no rule names it, and such calls are asked about"
    assert seen[0].rule == {"verdict": "allow", "tool": "shell", "command": "echo a > a"}
    assert seen[0].run_warning == "!"
    events = read_run(tmp_path / "run").events
    assert [e.call.arguments["command"] for e in events if isinstance(e, Asked)] == commands[:4]
    decided = [e for e in events if isinstance(e, Decided)]
    assert [e.verdict for e in decided] == ["once", "deny", "once", "task"]
    assert [e.arguments for e in decided if e.arguments] == [{"command": "echo C > c"}]
    intended = [e.call.arguments["command"] for e in events if isinstance(e, Intended)]
    assert intended == ["echo a > a", "echo C > c", *commands[3:]]
    assert [e.rule["command"] for e in events if isinstance(e, RuleAdded)] == ["echo d >> d; true"]
    (group,) = read_run(tmp_path / "run").episodes()
    again = standing(group, FrameStore(tmp_path / "run" / "frames"), Conversation()).conversation
    assert [m.parts for m in again.messages] == [m.parts for m in episode.conversation.messages[:-1]]


async def test_an_edit_is_shown_as_what_it_would_change(
    shell_task: Task, open_episode: Open, tmp_path: Path
) -> None:
    create = call("edit", command="create", path="new/a.txt", new_text="one\ntwo", id="1")
    replace = call("edit", command="replace", path="old.txt", old_text="b\n", new_text="B\n", id="2")
    fails = call("edit", command="replace", path="old.txt", old_text="x", new_text="y", id="3")
    delete = call("edit", command="delete", path="old.txt", id="4")
    move = call("edit", command="move", path="old.txt", to="c/d.txt", id="5")
    script = [turn(one) for one in (create, replace, fails, delete, move)]
    diffs: list[str] = []

    async def person(client: RunClient) -> None:
        async for question in questions(client):
            diffs.append(question.diff)
            await client.ask(answer(question, "deny"))
            if len(diffs) == len(script):
                return

    task = shell_task.model_copy(update={"tools": ("edit",)})
    async with open_episode(task, [*script, turn(text="Done.")], ASKS, steering=Steering()) as episode:
        episode.box.files.write_text("old.txt", "a\nb\nc\n")
        await supervised(episode, tmp_path / "run", person)
        assert {path.name for path in episode.box.workspace.iterdir()} == {"old.txt"}
        assert episode.box.files.read_text("old.txt") == "a\nb\nc\n"
    assert diffs == [
        "--- /dev/null\n+++ new/a.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n",
        "--- old.txt\n+++ old.txt\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n",
        diffs[2],
        "--- old.txt\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-a\n-b\n-c\n",
        "rename from old.txt\nrename to c/d.txt\n",
    ]
    assert diffs[2].startswith("(this would change nothing: edit: `old_text` is not in old.txt")


async def test_the_pixel_under_a_click_is_told(web_task: Task, open_episode: Open, tmp_path: Path) -> None:
    script = [turn(call(action="left_click", coordinate=[500, 1000])), turn(call(action="done"))]
    places = []

    async def person(client: RunClient) -> None:
        async for question in questions(client):
            places.append(question.pixel)
            await client.ask(answer(question, "once"))
            if len(places) == 2:
                return

    async with open_episode(web_task, script, ASKS, steering=Steering()) as episode:
        await supervised(episode, tmp_path / "run", person)
        screen = episode.environment.screen(episode.box)
    assert screen is not None
    assert places == [(screen.width // 2, screen.height - 1), None]


async def test_what_is_said_in_the_last_turn_is_not_lost(
    shell_task: Task, open_episode: Open, tmp_path: Path
) -> None:
    steering = Steering()

    async def next_answer(conversation: Any, tools: Any) -> Any:
        turns = [str(m.parts[0]) for m in conversation if m.role == "user"]
        if len(turns) == 1:
            steering.tell("Write it in capitals too.")
            return turn(text="I have finished.")
        if len(conversation) == 4:
            return turn(call("shell", command="echo done > result.txt"))
        return turn(text=f"Heard: {turns[-1]}")

    async with open_episode(shell_task, ScriptedModel(next_answer), steering=steering) as episode:
        outcome = await episode.run()
    assert (outcome.end, outcome.answer) == ("answered", "Heard: Write it in capitals too.")
    roles = [message.role for message in episode.conversation.messages]
    assert roles == ["developer", "user", "assistant", "user", "assistant", "tool", "assistant"]
    run = read_run(tmp_path / "run")
    assert [event.text for event in run.events if isinstance(event, Spoken)] == ["Write it in capitals too."]
    (group,) = run.episodes()
    again = standing(group, run.frames, Conversation())
    assert [m.parts for m in again.conversation.messages] == [
        m.parts for m in episode.conversation.messages[:-1]
    ]


async def test_a_persons_time_is_not_the_tasks(shell_task: Task, open_episode: Open, tmp_path: Path) -> None:
    phases: list[str] = []

    async def person(client: RunClient) -> None:
        await client.ask(Pause())
        pieces = ""
        async for message in client.messages():
            if isinstance(message, State) and message.phase != (phases or [""])[-1]:
                phases.append(message.phase)
                if message.phase == "paused":
                    await asyncio.sleep(2)
                    await client.ask(Pause(on=False))
            if isinstance(message, Question):
                await asyncio.sleep(2)
                await client.ask(answer(message, "once"))
            if isinstance(message, Delta):
                pieces = message.text if message.start else pieces + message.text
            if isinstance(message, State) and message.phase == "grading":
                break
        assert pieces == "All is well."

    limits = Limits(steps=3, seconds=3, tokens=100)
    script = [shell("true"), turn(text="All is well.")]
    async with open_episode(shell_task, script, ASKS, limits=limits, steering=Steering()) as episode:
        outcome = await supervised(episode, tmp_path / "run", person)
    assert outcome.end == "answered"
    assert outcome.seconds < 3
    assert [phase for phase in phases if phase != "starting"] == [
        "paused",
        "thinking",
        "asking",
        "acting",
        "thinking",
        "grading",
    ]
    (result,) = (e for e in read_run(tmp_path / "run").events if isinstance(e, Resulted))
    assert result.seconds < 2


async def test_a_person_is_asked_about_and_heard_in_a_sub_task(
    shell_task: Task, open_episode: Open, tmp_path: Path
) -> None:
    steering = Steering()
    heard: list[list[str]] = []

    def next_answer(conversation: Any, tools: Any) -> Any:
        users = [str(m.parts[0]) for m in conversation if m.role == "user"]
        heard.append([user.splitlines()[0] for user in users])
        is_part = users[0].startswith("the part")
        turns = len(conversation)
        if is_part:
            return shell("sleep 0.1") if turns == 2 else turn(text="Part done.")
        if turns == 2:
            return turn(call("plan", subtask="the part"))
        return turn(text="Done.")

    async def person(client: RunClient) -> None:
        async for question in questions(client):
            await asyncio.sleep(2.5)
            if question.call.name == "shell":
                await client.ask(Tell(text="Be quick."))
            await client.ask(answer(question, "once"))
            if question.call.name == "shell":
                return

    task = shell_task.model_copy(update={"tools": ("shell", "plan")})
    async with open_episode(
        task,
        ScriptedModel(next_answer),
        ASKS,
        steering=steering,
        hand_over=hand_over,
        limits=Limits(steps=5, seconds=3, tokens=1000),
    ) as episode:
        outcome = await supervised(episode, tmp_path / "run", person)
    assert outcome.end == "answered", outcome.reason
    instruction = "Write the word done to result.txt."
    assert heard[-2:] == [["the part", "Be quick."], [instruction, "Be quick."]]


async def test_a_stop_is_heeded_while_a_person_is_asked(
    shell_task: Task, open_episode: Open, tmp_path: Path
) -> None:
    async with open_episode(shell_task, [shell("echo x > x")], ASKS) as episode:
        episode.steering = Steering(episode.stop, supervised=True, events=episode.events)
        playing = asyncio.create_task(episode.run())
        async with serving(tmp_path / "run", episode.steering):
            client = await RunClient.connect(tmp_path / "run")
            async for question in questions(client):
                assert question.call.name == "shell"
                break
            await client.ask(Tell(text="Another way, please."))
            episode.stop.set()
            outcome = await asyncio.wait_for(playing, 10)
            await client.close()
        assert not any(episode.box.workspace.iterdir())
    assert outcome.end == "stopped"
    (group,) = read_run(tmp_path / "run").episodes()
    here = standing(group, FrameStore(tmp_path / "run" / "frames"), Conversation())
    assert here.pending is not None
    assert here.pending.calls[0].call.arguments == {"command": "echo x > x"}
    assert [m.parts for m in here.later] == [("Another way, please.",)]

    async def person(client: RunClient) -> None:
        async for question in questions(client):
            assert question.call.arguments == {"command": "echo x > x"}
            await client.ask(answer(question, "deny", reason="not now"))
            return

    script = [turn(text="Then not.")]
    steering = Steering(supervised=True)
    async with open_episode(shell_task, script, ASKS, resumed=here, steering=steering) as episode:
        outcome = await supervised(episode, tmp_path / "run", person)
    assert (outcome.end, outcome.answer, outcome.steps) == ("answered", "Then not.", 1)
    assert [(message.role, message.parts) for message in episode.conversation.messages[3:]] == [
        ("tool", ("The user denied this call of shell: not now",)),
        ("user", ("Another way, please.",)),
        ("assistant", ("Then not.",)),
    ]
