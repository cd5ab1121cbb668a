"""Web pages, desktops and workspaces start as their task says, and show a model nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.sandbox import Sandbox
from pilotfish.tasks.environment import End, StartError
from pilotfish.tasks.environments import WebPage, environment_for, skip_reason
from pilotfish.tasks.format import Task
from pilotfish.tasks.load import find_task, load_task
from pilotfish.tasks.windows import wait_for_windows, window_count
from pilotfish.tools.grid import Screen


def task_file(folder: Path, text: str) -> Task:
    path = folder / "task.yaml"
    path.write_text("instruction: Do it\n" + text)
    return load_task(path)


async def test_a_code_task_starts_with_its_folder_and_then_its_files(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "deep" / "blob.bin").write_bytes(bytes(range(256)))
    (tmp_path / "src" / "a.txt").write_text("from the folder")
    (tmp_path / "src" / "deep" / "it's run.sh").write_text("#!/bin/sh\necho runs\n")
    (tmp_path / "src" / "deep" / "it's run.sh").chmod(0o755)
    task = task_file(
        tmp_path,
        "environment: {kind: code, folder: src}\ntools: [shell]\n"
        "setup:\n  files: {a.txt: from the task}\n  commands: [cat a.txt > b.txt]\n"
        "graders: [{kind: file_absent, path: a.txt}]\n",
    )
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        assert await environment.start(box) == "Do it"
        assert environment.screen(box) is None
        assert box.files.read_bytes("deep/blob.bin") == bytes(range(256))
        assert box.files.read_text("b.txt") == "from the task"
        assert [entry.name for entry in box.files.list()] == ["a.txt", "b.txt", "deep"]
        assert not await environment.finished(box)
        assert (await box.shell.run("./deep/it*; rm a.txt")).output == "runs\n"
        assert (await environment.grade(box, End())).passed


LINGER = "(setsid sh -c 'while :; do touch late; sleep 0.01; done' >/dev/null 2>&1 &); sleep 0.1; rm -f late"


async def test_what_the_model_left_running_changes_nothing_while_it_is_judged(tmp_path: Path) -> None:
    task = task_file(
        tmp_path,
        "environment: {kind: code}\ntools: [shell]\n"
        "setup: {serve: [{run: [python3, -m, http.server, '8000'], port: 8000}]}\n"
        "graders: [{kind: command, run: 'rm -f late; sleep 0.3; ls; curl -s -o /dev/null localhost:8000'}]\n",
    )
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        await environment.start(box)
        await box.shell.run(LINGER)
        await box.shell.run(LINGER, session="two")
        assert (await environment.grade(box, End())).passed  # the server of the set-up still serves
        assert [entry.name for entry in box.files.list()] == []


async def test_on_a_desktop_it_only_stops_and_keeps_its_windows(tmp_path: Path) -> None:
    task = task_file(
        tmp_path,
        "environment: {kind: desktop}\ntools: [shell]\nsetup: {launch: [[xterm]]}\n"
        "graders: [{kind: command, run: 'rm -f late; sleep 0.3; ! ls late'}]\n",
    )
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        await environment.start(box)
        windows = window_count(box.display.name)
        await box.shell.run(f"{LINGER}; xterm &")
        assert await wait_for_windows(box.display.name, windows + 1, 20, lambda: False)
        grade = await environment.grade(box, End())
        assert grade.passed, grade.reason
        assert window_count(box.display.name) == windows + 1
        states = await box.shell.run("ps -C xterm -o stat= | cut -c1")
        assert states.output.split() == ["S", "t"]


@pytest.mark.parametrize(
    ("setup", "says"),
    [
        (
            "commands: [echo why >&2; exit 3]",
            "the command 'echo why >&2; exit 3' ended with status 3, saying 'why'",
        ),
        ("files: {a: x, a/b: y}", "a file of the set-up cannot be written"),
        (
            "serve: [{run: [sh, -c, 'echo no; exit 1'], port: 8000}]",
            "sh does not listen on port 8000, saying 'no'",
        ),
        ("serve: [{run: [no-such-server], port: 8000}]", "no-such-server cannot be started"),
    ],
)
async def test_a_set_up_that_fails_stops_the_task(tmp_path: Path, setup: str, says: str) -> None:
    task = task_file(
        tmp_path,
        f"environment: {{kind: shell}}\ntools: [shell]\nsetup: {{{setup}}}\n"
        "graders: [{kind: file_absent, path: x}]\n",
    )
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        with pytest.raises(StartError) as caught:
            await environment.start(box)
        assert says in str(caught.value)


async def test_a_program_without_a_window_stops_the_task(tmp_path: Path) -> None:
    task = task_file(
        tmp_path,
        "environment: {kind: desktop}\nsetup: {launch: [[sh, -c, 'echo no such thing; exit 1']]}\n"
        "graders: [{kind: file_absent, path: x}]\n",
    )
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        with pytest.raises(StartError, match=r"sh showed no window, saying 'no such thing'\.$"):
            await environment.start(box)


def test_a_missing_program_is_a_reason_to_skip(tmp_path: Path) -> None:
    task = task_file(
        tmp_path,
        "environment: {kind: desktop}\nsetup: {launch: [[no-such-editor, a.txt]]}\n"
        "graders: [{kind: file_absent, path: x}]\n",
    )
    assert skip_reason(task) == f"{task.name} needs no-such-editor: apt-get install no-such-editor"
    assert skip_reason(find_task("shell/sort-photos")) is None


async def test_a_web_task_fills_the_display_and_hides_its_task_file(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        "<!doctype html><title>x</title><link rel=stylesheet href='look.css'>"
        "<body><script>const state = {n: 1, list: [true, null]};</script>"
    )
    (tmp_path / "look.css").write_text("body { background: rgb(10, 20, 30); }")
    (tmp_path.parent / "outside.txt").write_text("not served")
    task = task_file(
        tmp_path,
        "environment: {kind: web, page: page.html}\n"
        "graders: [{kind: page_state, expression: state, equals: {list: [true, null], n: 1}}]\n",
    )
    environment = environment_for(task)
    assert isinstance(environment, WebPage)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        await environment.start(box)
        assert environment.screen(box) == Screen(box.display.name, 0, 0, 336, 420)
        page = environment.page
        assert page is not None
        assert await page.evaluate("[innerWidth, innerHeight, devicePixelRatio]") == [168, 210, 2]
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(10, 20, 30)"
        status = "async (url) => (await fetch(url)).status"
        assert await page.evaluate(status, "/look.css") == 200
        for secret in ("/task.yaml", "/%2e%2e/outside.txt", "/..%2foutside.txt", "/", "/gone"):
            assert await page.evaluate(status, secret) == 404, secret
        assert box.files.list() == []
        assert (await environment.grade(box, End())).passed
        assert not (await environment.grade(box, End("infeasible"))).passed
        await page.evaluate("state.list[0] = 1")
        assert (await environment.grade(box, End())).reason.startswith("The page says ")
        await page.evaluate("void (state.toJSON = () => undefined.x)")
        assert "cannot answer 'state'" in (await environment.grade(box, End())).reason
        await page.close()
        assert (await environment.grade(box, End())).score == 0


async def test_a_server_goes_on_for_as_long_as_the_task(tmp_path: Path) -> None:
    task = task_file(
        tmp_path,
        "environment: {kind: shell}\ntools: [shell]\nsetup:\n  files: {a.txt: served}\n"
        "  serve: [{run: [python3, -m, http.server, '8000', --bind, 127.0.0.1], port: 8000}]\n"
        "graders: [{kind: command, run: \"python3 -c 'from urllib.request import urlopen;"
        ' print(urlopen(chr(104) + \\"ttp://127.0.0.1:8000/a.txt\\").read().decode())\'", stdout: served}]\n',
    )
    environment = environment_for(task)
    async with Sandbox.open(environment.sandbox_spec()) as box:
        await environment.start(box)
        grade = await environment.grade(box, End())
        assert grade.passed, grade.reason
