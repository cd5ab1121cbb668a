"""Procedural tasks in windows as a desktop has them: an editor, a terminal, a file manager, a calculator."""

from __future__ import annotations

import json
import random

from pilotfish.tasks.episodes import words
from pilotfish.tasks.episodes.desktops import Desktop, focus, show, write
from pilotfish.tasks.episodes.pages import Screen
from pilotfish.tasks.episodes.procedural import Scene
from pilotfish.tasks.episodes.sites import demands, person
from pilotfish.tasks.episodes.steps import Steps, click, done, key, type_text
from pilotfish.tasks.episodes.widgets import element

ENDINGS = ("txt", "txt", "md", "csv", "log", "dat", "ini")


def file_name(rng: random.Random, taken: tuple[str, ...] | dict[str, str | None] = ()) -> str:
    """A short name of a file that is not there yet."""
    while True:
        stem = words.word(rng).lower()[:9] + rng.choice(("", "", "", f"-{rng.randint(1, 99)}", "_old"))
        name = f"{stem}.{rng.choice(ENDINGS)}"
        if name not in taken:
            return name


def room(rng: random.Random, wide: tuple[int, int], high: tuple[int, int]) -> tuple[int, int, int, int]:
    """Where a window lies: left, top, width and height in CSS pixels."""
    width, height = rng.randint(*wide), rng.randint(*high)
    return rng.randint(0, 166 - width), rng.randint(0, 208 - height), width, height


def line_of(rng: random.Random) -> str:
    """A line of text to write."""
    return rng.choice(
        (
            words.sentence(rng, rng.randint(2, 6)),
            f"{words.word(rng).capitalize()}: {rng.randint(1, 999)}",
            person(rng),
            f"{words.word(rng).capitalize()} at {rng.randint(1, 12)}:{rng.randint(10, 59)}.",
            words.entry(rng),
        )
    )


def editor_scene(rng: random.Random, seed: int) -> Scene:
    """Write a line into a file, or in place of what it holds, and save it by keys or by the menu."""
    desk = Desktop(rng)
    name, text = file_name(rng), line_of(rng)
    old = "" if rng.random() < 0.6 else line_of(rng)
    replace = old != "" and rng.random() < 0.5
    old += "\n" if old and not replace else ""
    desk.files = {name: old}
    window, body, menu = desk.editor(name, room(rng, (100, 160), (70, 150)))
    desk.active = window
    if rng.random() < 0.25:  # something else has the keys
        left, top, *_ = room(rng, (60, 80), (50, 70))
        desk.active = desk.terminal((left, max(top, 120), 60, 60))[0]
    by_menu = rng.random() < 0.25
    desk.needed += [body, menu["Save"][0]]
    wanted = text if replace else old + text
    quoted = rng.choice((f'"{text}"', f'"{text}"', f"the line {text}" if not replace else f"“{text}”"))
    what = rng.choice(
        ("the text editor shows {}", "the file {} is open in the editor", "in the editor is {}")
    ).format(name)
    if replace:
        parts = [
            rng.choice(
                ("put {} in place of its text", "replace all it holds with {}", "make {} its only text")
            )
        ]
    else:
        parts = [
            rng.choice(
                ("write {} into it", "type {}", "add {} at its end" if old else "enter {}", "note {} in it")
            )
        ]
    parts = [parts[0].format(quoted)]
    parts.append(
        rng.choice(("save it with the File menu", "choose Save in the File menu")) if by_menu else "save it"
    )
    instruction = what[:1].upper() + what[1:] + ". " + demands(rng, parts)
    if rng.random() < 0.3:
        verb = "Replace the text of" if replace else "Write into"
        instruction = f'{verb} {name}: "{text}". {demands(rng, parts[1:])}'

    async def expert(s: Screen) -> Steps:
        async for step in focus(s, window, body):
            yield step
        async for step in write(s, window, text, "" if replace else old):
            yield step
        if by_menu:
            head, entry = menu["Save"]
            if not await s.js(f"pf.shown({element(entry)})"):
                yield click(await s.target(element(head)))
            yield click(await s.target(element(entry)))
        else:
            yield key("ctrl+s")
        yield done()

    return show(
        "desk-editor", seed, desk, instruction, f"files[{json.dumps(name)}] === {json.dumps(wanted)}", expert
    )


def terminal_scene(rng: random.Random, seed: int) -> Scene:
    """One command in a terminal: a sum, a line, files and folders."""
    desk = Desktop(rng)
    for _ in range(rng.randint(1, 3)):
        desk.files[file_name(rng, desk.files)] = line_of(rng) + "\n"
    here, new = rng.choice(list(desk.files)), file_name(rng, desk.files)
    folder = words.word(rng).lower()
    after = dict(desk.files)
    match rng.choice(("sum", "sum", "sum", "line", "folder", "copy", "move", "remove", "touch")):
        case "sum":
            a, b, sign = rng.randint(2, 9999), rng.randint(2, 999), rng.choice("+-*")
            command = f"echo $(({a} {sign} {b})) > {new}"
            after[new] = f"{a * b if sign == '*' else a + b if sign == '+' else a - b}\n"
            spoken = {
                "*": (f"multiply {a} by {b}", f"calculate {a} times {b}", f"compute {a} * {b}"),
                "+": (f"add {a} and {b}", f"calculate {a} plus {b}", f"compute {a} + {b}"),
                "-": (f"subtract {b} from {a}", f"calculate {a} minus {b}", f"compute {a} - {b}"),
            }
            ending = rng.choice(
                ("write the result into {}", "put the result into the file {}", "store it in {}")
            )
            parts = [rng.choice(spoken[sign]), ending.format(new)]
        case "line":
            text = " ".join(words.word(rng) for _ in range(rng.randint(1, 3)))
            command = f'echo "{text}" > {new}'
            after[new] = text + "\n"
            parts = [f'write "{text}" into the file {new}']
        case "folder":
            command, after[folder] = f"mkdir {folder}", None
            parts = [rng.choice(("make a folder called {}", "create the folder {}")).format(folder)]
        case "copy":
            command, after[new] = f"cp {here} {new}", after[here]
            parts = [rng.choice(("copy {} to {}", "make a copy of {} called {}")).format(here, new)]
        case "move":
            command, after[new] = f"mv {here} {new}", after.pop(here)
            parts = [rng.choice(("rename {} to {}", "give the file {} the name {}")).format(here, new)]
        case "remove":
            command = f"rm {here}"
            del after[here]
            parts = [rng.choice(("delete {}", "remove the file {}")).format(here)]
        case _:
            command, after[new] = f"touch {new}", ""
            parts = [rng.choice(("make an empty file {}", "create an empty file called {}")).format(new)]
    window, body = desk.terminal(room(rng, (110, 160), (60, 130)))
    desk.active = window
    other = rng.random() < 0.35
    if other:
        desk.active = desk.calculator((rng.randint(0, 110), 140, 54, 68))[0]
    desk.needed.append(body)
    parts[0] = rng.choice(("in the terminal, {}", "{} in the terminal", "use the terminal: {}")).format(
        parts[0]
    )
    instruction = demands(rng, parts)
    test = f"JSON.stringify(Object.entries(files).sort()) === {json.dumps(compact(after))}"

    async def expert(s: Screen) -> Steps:
        async for step in focus(s, window, body):
            yield step
        if await s.js(f"{window_text(window)} !== ''"):
            yield key("ctrl+u")
        yield type_text(command + "\n")
        yield done()

    return show("desk-terminal", seed, desk, instruction, test, expert)


def compact(files: dict[str, str | None]) -> str:
    """What `JSON.stringify` makes of the sorted entries of `files`."""
    return json.dumps(
        sorted([name, text] for name, text in files.items()), separators=(",", ":"), ensure_ascii=False
    )


def window_text(window: str) -> str:
    """JavaScript for what has been typed into a window."""
    return f"window.__pfWins.{window}.t.value"


def files_scene(rng: random.Random, seed: int) -> Scene:
    """Rename, delete or open a file of a file manager."""
    desk = Desktop(rng)
    for _ in range(rng.choice((1, 2, 3, 4, 6))):
        desk.files[file_name(rng, desk.files)] = words.word(rng)
    for _ in range(rng.randint(0, 2)):
        desk.files[words.word(rng).lower()[:9]] = None
    name, new = (
        rng.choice([name for name, text in desk.files.items() if text is not None]),
        file_name(rng, desk.files),
    )
    window, grid, yes = desk.manager(room(rng, (110, 164), (120, 190)))
    desk.active = window
    if rng.random() < 0.25:
        desk.active = desk.terminal((rng.randint(0, 90), 160, 76, 48))[0]
    after = dict(desk.files)
    kind = rng.choice(("rename", "rename", "rename", "delete", "open"))
    if kind == "rename":
        after[new] = after.pop(name)
        said: tuple[str, ...] = (
            "rename {0} to {1}",
            "rename the file {0} to {1}",
            "give {0} the new name {1}",
            "change the name {0} to {1}",
        )
    elif kind == "delete":
        del after[name]
        said = ("delete {0}", "delete the file {0}", "remove {0}")
    else:
        said = ("open {0}", "open the file {0} with a double click")
    text = rng.choice(said).format(name, new)
    instruction = demands(
        rng, [rng.choice(("in the file manager, {}", "{} in the file manager", "{}")).format(text)]
    )
    test = f"JSON.stringify(Object.entries(files).sort()) === {json.dumps(compact(after))}"
    test += f" && String(wins.{window}.opened) === {json.dumps(name if kind == 'open' else '')}"
    icon = f"pf.all('#{grid} .file').find((e) => e.dataset.name === {json.dumps(name)})"
    desk.needed.append(grid)

    async def expert(s: Screen) -> Steps:
        asked = f"window.__pfWins.{window}.asked"
        if kind == "open":
            yield click(await s.target(icon), "double_click")
            yield done()
            return
        if not await s.js(asked):
            if await s.js(f"window.__pfWins.{window}.chosen !== {json.dumps(name)}"):
                yield click(await s.target(icon))
            else:
                async for step in focus(s, window, grid):
                    yield step
            yield key("F2" if kind == "rename" else "Delete")
        if kind == "delete":
            yield click(await s.target(element(yes)))
        else:
            if await s.js(f"{window_text(window)} !== ''"):
                yield key("ctrl+a")
            yield type_text(new + "\n")
        yield done()

    return show("desk-files", seed, desk, instruction, test, expert)


def calculator_scene(rng: random.Random, seed: int) -> Scene:
    """Work out something in a calculator, and perhaps take the result to a file in the editor."""
    desk = Desktop(rng)
    a, b = rng.choice((rng.randint(2, 999), rng.randint(20, 400) / 10)), rng.randint(2, 99)
    sign, spoken = rng.choice((("+", "plus"), ("-", "minus"), ("*", "times")))
    sum_of = f"{a:g}{sign}{b}"
    carried = rng.random() < 0.65
    name = file_name(rng)
    desk.files = {name: ""}
    left = rng.random() < 0.5
    window = body = ""
    if carried or rng.random() < 0.3:
        high = rng.randint(70, 100)
        window, body, _ = desk.editor(name, (4 + 50 * left, rng.randint(0, 12), rng.randint(100, 110), high))
    calc, screen, knobs = desk.calculator((rng.randint(0, 20) if left else rng.randint(70, 90), 105, 76, 100))
    desk.active = calc if rng.random() < 0.8 or not window else window
    by_mouse = len(sum_of) < 6 and not carried and rng.random() < 0.5
    said = rng.choice(("work out {0} {2} {1}", "calculate {0} {3} {1}", "find {0} {2} {1}")).format(
        f"{a:g}", b, spoken, sign
    )
    parts = [
        rng.choice(("with the calculator, {}", "{} in the calculator", "in the calculator, {}")).format(said)
    ]
    if by_mouse:
        parts[0] = rng.choice(("{} with the keys of the calculator", "{} by clicking the calculator")).format(
            said
        )
    if carried:
        parts.append(
            rng.choice(("put the result into {}", "copy it to {}", "take the result over to {}")).format(name)
        )
        parts.append(rng.choice(("save the file", "save it", f"save {name}")))
    test = f"String(wins.{calc}.t.value) === String(+({sum_of}).toFixed(6)) && wins.{calc}.t.fresh"
    if carried:
        test += f" && files[{json.dumps(name)}] === String(+({sum_of}).toFixed(6))"
    result = f"String(+({sum_of}).toFixed(6))"
    desk.needed += [screen, *([body] if body else [])]

    async def expert(s: Screen) -> Steps:
        worked = await s.js(f"{window_text(calc)} === {result}")
        held = await s.js(f"window.__pfState.clip === {result}") if carried else False
        if not worked:
            async for step in focus(s, calc, screen):
                yield step
            if await s.js(f"{window_text(calc)} !== '0'"):
                yield key("Escape")
            if by_mouse:
                for sign_of in sum_of + "=":
                    yield click(await s.target(element(knobs[sign_of])))
            else:
                yield type_text(sum_of + "=")
        if carried:
            if not held:
                async for step in focus(s, calc, screen):
                    yield step
                yield key("ctrl+c")
            async for step in focus(s, window, body):
                yield step
            if await s.js(f"{window_text(window)} !== {result}"):
                if await s.js(f"{window_text(window)} !== ''"):
                    yield key("ctrl+a")
                yield key("ctrl+v")
            yield key("ctrl+s")
        yield done()

    return show("desk-calculator", seed, desk, demands(rng, parts), test, expert)


SCENES = {
    "desk-editor": (editor_scene, 0.0),
    "desk-terminal": (terminal_scene, 0.0),
    "desk-files": (files_scene, 0.0),
    "desk-calculator": (calculator_scene, 0.0),
}
