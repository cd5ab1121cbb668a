"""Options, traps, folders and limits that meet the shell's own lines between commands."""

from __future__ import annotations

import pytest

from pilotfish.sandbox import Limits, Sandbox, SandboxError, SandboxSpec, Shell

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


@pytest.mark.parametrize("mode", ["vi", "emacs"])
@pytest.mark.parametrize("form", ["set -o {}", "set -euo {}", "set -o '{}'", "f() {{ set -o {}; }}; f"])
async def test_line_editing_does_no_harm(shell: Shell, form: str, mode: str) -> None:
    await shell.run("V=kept; sleep 1101 &")
    result = await shell.run(form.format(mode) + "; echo $V; set +eu")
    assert (result.output, result.exit_code, result.note) == ("kept\n", 0, "")
    after = await shell.run("set -o | grep -w on | grep -Ec '^(vi|emacs)'; jobs")
    assert after.output.split()[:4] == ["1", "[1]+", "Running", "sleep"]
    for command, status in (("(exit 3)", 3), ("return 4", 4), ("echo ${no:?set}", 1), ("echo 'open", 2)):
        assert (await shell.run(command)).exit_code == status
    assert (await shell.run("sleep 50", timeout_s=0.2)).timed_out
    assert (await shell.run("read -p '? ' x")).waiting == "bash"
    assert (await shell.type("y\n")).exit_code == 0
    assert (await shell.run("echo $V $x")).output == "kept y\n"


@pytest.mark.parametrize(
    "command",
    [
        "x=emacs; set +o $x",
        'x=vi; eval "set -o $x"',
        "a=-o b=v; set $a ${b}i",
        "shopt -o -s vi",
        'x=`echo vi`; f() { shopt -so "$x"; }; f; set +o $x',
        "x=noexec; set -o $x",
        "x='emacs; exit 9'; set -o $x 2>/dev/null",
    ],
)
async def test_options_of_any_value_do_no_harm(shell: Shell, command: str) -> None:
    result = await shell.run(f"cd /tmp; {command}; echo on")
    assert (result.output, result.exit_code, result.note) == ("on\n", 0, "")
    assert (await shell.run("pwd")).output == "/tmp\n"


@pytest.mark.parametrize("command", ["s=se v=vi; ${s}t -o $v", "kill -SEGV $$"])
async def test_a_bash_that_crashes_is_replaced_where_it_was(shell: Shell, command: str) -> None:
    crashed = await shell.run(f"cd /tmp; V=kept; {command}")
    assert crashed.note.startswith("bash ended, and a new one goes on in /tmp")
    assert (await shell.run("pwd; echo $V")).output == "/tmp\nkept\n"


async def test_a_restricted_bash_goes_on(shell: Shell) -> None:
    assert (await shell.run("set -r; echo on")).output == "on\n"
    refused = await shell.run("cd /")
    assert (refused.output, refused.exit_code) == ("bash: cd: restricted\n", 1)
    with pytest.raises(SandboxError, match=r"'/tmp' could not be entered \(Operation not permitted\)"):
        await shell.run("pwd", cwd="/tmp")
    assert (await shell.run("pwd")).output == "/workspace\n"


@pytest.mark.parametrize(
    ("command", "first", "second"),
    [
        ("set -v", "", "echo a\na\n"),
        ("set -x; true", "++ true\n", "++ echo a\na\n"),
        ("set -vx", "", "echo a\n++ echo a\na\n"),
        ("trap 'echo \"<$BASH_COMMAND>\"' DEBUG; true", "<true>\n", "<echo a>\na\n"),
        ("trap 'echo failed' ERR; false", "failed\n", "a\n"),
        ("set -T; trap 'echo returned' RETURN", "", "a\n"),
        ("PS4=; set -x", "", "echo a\na\n"),
    ],
)
async def test_tracing_shows_the_commands_and_nothing_of_ours(
    shell: Shell, command: str, first: str, second: str
) -> None:
    assert (await shell.run(command)).output == first
    for _ in range(2):
        result = await shell.run("echo a")
        assert (result.output, result.background, result.exit_code) == (second, "", 0)
    await shell.run("set +vx; trap - DEBUG ERR RETURN")
    assert (await shell.run("echo b; trap -p")).output.startswith("b\ntrap -- '__pilotfish_save' EXIT\n")


async def test_a_debug_trap_runs_for_few_of_our_own_commands(shell: Shell) -> None:
    await shell.run("trap 'echo >> /tmp/runs' DEBUG")
    await shell.run("true")
    await shell.run("trap - DEBUG")
    assert int((await shell.run("wc -l < /tmp/runs")).output) <= 8


async def test_the_status_of_the_command_before_is_no_failure(shell: Shell) -> None:
    await shell.run("set -E; trap 'echo failed' ERR")
    await shell.run("(exit 7)")
    assert (await shell.run("echo $?")).output == "7\n"


@pytest.mark.parametrize(
    "command", ["sleep 50", "while :; do :; done", "echo a; sleep 50; echo b", "sleep 1"]
)
@pytest.mark.parametrize("limit", [0.000001, 0.001, 0.003, 0.01])
async def test_a_very_short_time_limit_ends_the_command_only(
    shell: Shell, limit: float, command: str
) -> None:
    for _ in range(3):  # the first of a session and others
        result = await shell.run(command, timeout_s=limit)
        assert (result.timed_out, result.note) == (True, "")
    assert (await shell.run("echo on")).output == "on\n"


async def test_a_folder_whose_path_is_too_long_to_be_entered(box: Sandbox, shell: Shell) -> None:
    deep = "d" * 200
    down = f"cd /tmp; for i in $(seq 30); do mkdir -p {deep}; cd {deep}; done; pwd | wc -c"
    assert (await shell.run(down)).output == f"{4 + 201 * 30 + 1}\n"
    assert (await shell.run("echo there; pwd | wc -c")).output == f"there\n{4 + 201 * 30 + 1}\n"
    ended = await shell.run("kill -9 $$")
    assert ended.note == "bash ended, and a new one goes on in /workspace without its variables and functions"
    assert (await shell.run("pwd")).output == "/workspace\n"
    await shell.run("PWD=$(head -c 300000 /dev/zero | tr '\\0' x)")
    assert (await shell.run("echo on")).output == "on\n"
    await shell.run("rm -rf /tmp/d*")


@pytest.mark.parametrize(
    ("cwd", "words"),
    [
        ("/tmp\0", "holds a null byte"),
        ("/tmp/\ud800", "holds '.ud800', half a character"),
        ("/" + "x" * 100_000, "has 100001 bytes, 1 to 4095 can be entered"),
        ("/" + "x" * 1000, "could not be entered .File name too long."),
        ("", "has 0 bytes"),
        ("/tmp/\udcff", "could not be entered .No such file or directory."),
    ],
)
async def test_a_folder_that_cannot_be_is_one_sentence(shell: Shell, cwd: str, words: str) -> None:
    await shell.run("V=kept")
    with pytest.raises(SandboxError, match=words) as caught:
        await shell.run("pwd", cwd=cwd)
    str(caught.value).encode()
    assert (await shell.run("echo $V")).output == "kept\n"


async def test_a_folder_whose_name_is_no_text(shell: Shell) -> None:
    await shell.run("mkdir $'/tmp/\\xff'; cd $'/tmp/\\xff'; V=1")
    ended = await shell.run("kill -9 $$")
    assert "goes on in /tmp/\\udcff without" in ended.note
    assert (await shell.run("pwd")).output == "/tmp/\\xff\n"


async def test_a_full_folder_of_temporary_files_stops_no_command() -> None:
    spec = SandboxSpec(desktop=False, limits=Limits(tmp_folder=1 << 20))
    async with Sandbox.open(spec) as box:
        filled = await box.shell.run("cat /dev/zero > /tmp/all; echo on")
        assert "No space left on device" in filled.output
        long = await box.shell.run("seq 100000")
        assert "bytes left out ...]" in long.output, "no file is named that holds a part only"
        fresh = await box.shell.run("echo fine; exit 3", session="fresh")
        assert (fresh.output.splitlines()[0], fresh.exit_code) == ("fine", 3)
        assert "without its variables" in fresh.note
        assert (await box.shell.run("set -o vi; echo fine", session="other")).output.startswith("fine")
        await box.shell.run("rm /tmp/all")
        long = await box.shell.run("seq 100000; echo >/dev/null")
        assert "everything is in /tmp/" in long.output
