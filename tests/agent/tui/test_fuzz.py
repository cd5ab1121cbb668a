"""10,000 hostile strings through every kind of widget: no crash, no markup, no control code, nothing lost."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

import pytest
from rich.text import Text
from textual import markup as textual_markup
from textual.app import App, ComposeResult
from textual.content import Content
from textual.geometry import Region
from textual.notifications import Notification
from textual.widgets._toast import Toast

from pilotfish.agent.control.wire import Decide, Question, call_digest
from pilotfish.agent.events import CallData
from pilotfish.agent.safetext import all_encodable, visible
from pilotfish.agent.tui import text
from pilotfish.agent.tui.approval import ApprovalDialog
from pilotfish.agent.tui.exact_view import ExactView
from pilotfish.agent.tui.fields import PlainArea, PlainInput
from pilotfish.agent.tui.proposal import proposal
from pilotfish.agent.tui.question_text import question_lines
from pilotfish.agent.tui.terminal import Terminal
from pilotfish.agent.tui.text import Plain, PlainOptions, plain
from pilotfish.agent.tui.text_view import TextView
from pilotfish.agent.tui.words import Part

from .fuzz import MARK, strings
from .screens import call, question

STRINGS = strings(10_000)


@pytest.fixture(autouse=True)
def parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was parsed as markup, by either parser; none of it may be a fuzzed string."""
    found: list[str] = []
    content, rich = textual_markup.to_content, Text.from_markup

    def to_content(words: str, *rest: object, **more: object) -> Content:
        found.append(words)
        return content(words, *rest, **more)  # type: ignore[arg-type]

    def from_markup(words: str, *rest: object, **more: object) -> Text:
        found.append(words)
        return rich(words, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(textual_markup, "to_content", to_content)
    monkeypatch.setattr(Text, "from_markup", from_markup)
    yield found
    assert not [words for words in found if MARK in words]


def _shows_itself(char: str) -> bool:
    return char == " " or (visible(char, one_line=True) == char and not char.isspace())


def _is_shown(shown: str) -> bool:
    """Whether a terminal shows all of it as itself."""
    return shown.isprintable() or all(
        char == "\n" or visible(char, one_line=True) == char or unicodedata.category(char) == "Zs"
        for char in shown
    )


def test_the_instrument_sees_markup(parsed: list[str]) -> None:
    Content.from_markup("[b]x[/b]")
    Text.from_markup("y")
    assert parsed == ["[b]x[/b]", "y"]


def test_content_shows_every_character_or_spells_it_out() -> None:
    for string in STRINGS:
        assert _is_shown(plain(string).plain), ascii(string)
        exact = plain(string, one_line=True, exact=True)
        marked = {index for span in exact.spans for index in range(span.start, span.end)}
        assert _is_shown(exact.plain)
        rest = "".join(char for index, char in enumerate(exact.plain) if index not in marked)
        assert rest == "".join(char for char in string if _shows_itself(char))
        assert _is_shown(text.sentence(ValueError(string)))


class _Widgets(App[None]):
    def compose(self) -> ComposeResult:
        yield Plain()
        yield PlainOptions()
        yield TextView(id="text")
        yield PlainInput()
        yield PlainArea()


async def test_every_widget_shows_every_string() -> None:
    app = _Widgets()
    async with app.run_test(size=(60, 40)) as pilot:
        await pilot.pause()
        app.query_one(PlainOptions).add_options([string[:200] for string in STRINGS])
        app.query_one(TextView).show([Part(string[:60], string[:2000]) for string in STRINGS[::10]])
        static, field, area = app.query_one(Plain), app.query_one(PlainInput), app.query_one(PlainArea)
        await pilot.pause()
        for string in STRINGS:
            static.update(string, layout=False)
            assert _is_shown(str(static.visual))
            with field.prevent(PlainInput.Changed):
                field.value = string
            assert field.value == string
            assert _is_shown(field._value.plain)
            toast = Toast(Notification(text.shortened(string, 400), markup=False)).render()
            assert _is_shown(toast.plain)
            said = proposal(call(action="type", text=string), 640, 400, (1, 1))
            assert _is_shown(said.words + said.label)
        for string in STRINGS[::50]:
            if PlainArea.can_edit(string):
                area.text = string
                assert area.text == string
        for widget in (app.query_one(PlainOptions), app.query_one(TextView)):
            for end in range(4):
                widget.scroll_to(y=widget.max_scroll_y * end / 3, animate=False, force=True)
                await pilot.pause()
                size = widget.outer_size
                for strip in widget.render_lines(Region(0, 0, size.width, size.height)):
                    assert _is_shown(strip.text)
                    assert strip.cell_length == size.width


def _read_back(view: ExactView) -> list[str]:
    """The texts in numbered lines, as a person reads them: what is in reverse video is an escape."""
    texts: list[str] = []
    for y in range(view.rows):
        mark, found, line = view.row(y)
        if line.number is None:
            continue
        assert all(_is_shown(piece) for piece, _ in found)
        row = "".join(
            piece if not marked or not piece.strip(" ") else piece.encode("ascii").decode("unicode_escape")
            for piece, marked in found
        )
        if mark.strip() == "1":
            texts.append(row)
        else:
            texts[-1] += row if mark.strip() == "·" else "\n" + row
    return texts


class _Exact(App[None]):
    def compose(self) -> ComposeResult:
        yield ExactView()


async def test_what_a_person_reads_is_what_is_asked_character_for_character() -> None:
    app = _Exact()
    async with app.run_test(size=(77, 20)) as pilot:
        await pilot.pause()
        view = app.query_one(ExactView)
        for start in range(0, len(STRINGS), 1000):
            arguments = {f"a{index}": text for index, text in enumerate(STRINGS[start : start + 1000])}
            asked = question(CallData(id="c", name="shell", arguments=arguments))
            view.show(question_lines(asked, asked.call))
            read = _read_back(view)
            assert read == list(asked.call.arguments.values())
            names = list(asked.call.arguments)
            assert call_digest("shell", dict(zip(names, read, strict=True))) == call_digest(
                "shell", asked.call.arguments
            )


class _Asking(App[None]):
    def __init__(self, asked: Question) -> None:
        super().__init__()
        self.terminal = Terminal("blocks")
        self.dialog = ApprovalDialog(asked)
        self.answers: list[Decide | None] = []

    def on_mount(self) -> None:
        self.push_screen(self.dialog, self.answers.append)


async def test_the_dialog_approves_what_it_was_asked() -> None:
    words = STRINGS[:60]
    arguments = all_encodable({f"[b]{index}": string for index, string in enumerate(words)})
    asked = question(
        CallData(id="c", name=words[0], arguments=arguments),
        why=words[1],
        diff=words[2],
        run_warning=words[3],
        warnings=words[4:8],
        rule={"verdict": words[8]},
    )
    app = _Asking(asked)
    async with app.run_test(size=(60, 20)) as pilot:
        for _ in range(400):
            await pilot.pause(0.05)
            if app.dialog.listening:
                break
        view = app.dialog.query_one(ExactView)
        while view.below:
            for strip in view.render_lines(Region(0, 0, *view.outer_size)):
                assert _is_shown(strip.text)
            view.scroll_page_down(animate=False)
            await pilot.pause()
        assert view.end_seen
        await pilot.press("y")
    assert app.answers == [
        Decide(question=7, verdict="once", digest=call_digest(asked.call.name, asked.call.arguments))
    ]
