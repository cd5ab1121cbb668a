"""What a log's records amount to."""

from __future__ import annotations

import random
from pathlib import Path

from pilotfish.agent import events as log
from pilotfish.agent.tui.document import Document
from pilotfish.agent.tui.model import RunModel
from pilotfish.agent.tui.words import Part, head, mark, parts, text_of

from . import made_runs


def _model(*groups: list[log.Event]) -> RunModel:
    model = RunModel()
    model.take(
        event.model_copy(update={"n": number, "t": float(number)})
        for number, event in enumerate([event for group in groups for event in group], 1)
    )
    return model


def test_rows_plan_and_cost_of_a_run() -> None:
    plan = log.Planned(step=1, items=[log.PlanItem(title="Look", status="doing")])
    model = _model(
        made_runs.start(Path("r")),
        [*made_runs.step(1, "ls", "a"), plan],
        made_runs.step(2, "false", "failed", ok=False),
        made_runs.end(2),
    )
    assert [row.kind for row in model.rows] == ["note", "task", "step", "step", "end"]
    assert [mark(row) for row in model.rows if row.kind == "step"] == ["+", "!"]
    assert head(model.rows[2]) == "shell ls"
    assert [item.title for item in model.plan] == ["Look"]
    assert (model.cost.tokens_in, model.cost.cached, model.cost.tokens_out) == (2003, 1900, 80)
    assert model.word == "done"


def test_steps_that_were_undone_are_marked_and_their_plan_is_gone() -> None:
    def plan(step: int, title: str) -> list[log.Event]:
        return [log.Planned(step=step, items=[log.PlanItem(title=title)])]

    model = _model(
        made_runs.start(Path("r")),
        [*made_runs.step(1, "one", ""), *plan(1, "first")],
        [*made_runs.step(2, "two", ""), *plan(2, "second")],
        made_runs.step(3, "three", ""),
        [log.SteppedBack(step=4, to=2, over=False), log.SteppedBack(step=4, to=2)],
        made_runs.step(2, "again", ""),
    )
    steps = [(row.step, row.undone) for row in model.rows if row.kind == "step"]
    assert steps == [(1, False), (2, True), (3, True), (2, False)]
    assert sum(row.kind == "mark" for row in model.rows) == 1
    assert [item.title for item in model.plan] == ["first"]
    assert model.cost.answers == 4


OF_THE_RUN: list[log.Event] = [
    log.RunEnded(status="interrupted", reason="Ctrl-C"),
    log.Resumed(note="It goes on."),
    log.RuleAdded(rule={"verdict": "ask"}),
    log.Paused(step=1, on=True),
    log.Networked(),
]
"""Some records that no step back undoes."""


def test_the_model_and_the_log_agree_on_what_is_undone() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        groups, number = [made_runs.start(Path("r"))], 0
        for _ in range(chance.randrange(2, 25)):
            if number and chance.random() < 0.3:
                to = chance.randrange(1, number + 2)
                groups.append([log.SteppedBack(step=number + 1, to=to, over=False)])
                groups.append([log.SteppedBack(step=number + 1, to=to)])
                number = min(number, to - 1)
            elif chance.random() < 0.2:
                groups.append([log.Spoken(step=number + 1, text="do")])
            elif chance.random() < 0.3:
                groups.append([chance.choice(OF_THE_RUN)])
            else:
                number += 1
                groups.append(made_runs.step(number, f"c{number}", ""))
        model = _model(*groups)
        gone = log.undone(model.events)
        told = {event.n for row in model.rows if row.undone for event in row.events}
        assert told == gone, seed


def test_lanes_and_sub_tasks_keep_their_steps_apart() -> None:
    first = [event.model_copy(update={"lane": 1}) for event in made_runs.start(Path("r"))[1:]]
    second = [event.model_copy(update={"lane": 2}) for event in made_runs.start(Path("r"))[1:]]
    one = [event.model_copy(update={"lane": 1}) for event in made_runs.step(1, "one", "1")]
    two = [event.model_copy(update={"lane": 2}) for event in made_runs.step(1, "two", "2")]
    part = [event.model_copy(update={"lane": 1, "parent": 4}) for event in made_runs.step(1, "part", "p")]
    mixed = [one[0], two[0], one[1], part[0], part[1], part[2], two[1], one[2], two[2]]
    model = _model(first, second, mixed)
    told = {head(row): (row.lane, row.depth, row.results[0].text) for row in model.rows if row.kind == "step"}
    assert told == {"shell one": (1, 0, "1"), "shell two": (2, 0, "2"), "shell part": (1, 1, "p")}
    assert model.lanes == {1, 2}


def test_details_have_every_word_of_a_step_and_search_finds_it() -> None:
    model = _model(made_runs.start(Path("r")), made_runs.step(1, made_runs.NASTY, "out", thinking="hm [/b]"))
    text = text_of(model.rows[-1])
    assert made_runs.NASTY in text
    assert "hm [/b]" in text
    assert [part.tone for part in parts(model.rows[-1])] == ["head", "thinking", "call", "result", "faint"]


def test_a_document_shows_every_character_at_any_width() -> None:
    text = "a long line " * 30 + "\n\n" + "日本語テキスト" * 9 + "\n" + "x" * 200 + "\n" + made_runs.NASTY
    for width in (1, 2, 7, 20, 33, 80, 500):
        for tone in ("plain", "result"):
            document = Document.of([Part("", text, tone)])  # type: ignore[arg-type]
            document.wrap(width)
            shown: dict[int, str] = {}
            for y in range(document.rows):
                line, piece = document.row(y)
                shown[id(line)] = shown.get(id(line), "") + piece
            assert list(shown.values()) == [line.text for line in document.lines]
            assert "\x1b" not in "".join(shown.values())
            assert "\\x1b[31mred" in "".join(shown.values())
