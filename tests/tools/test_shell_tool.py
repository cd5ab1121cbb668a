import json

import pytest

from pilotfish.tools.base import ToolContext, ToolResult, tool_schema, validate
from pilotfish.tools.shell import ShellTool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


async def run(box, **arguments):
    tool = ShellTool()
    args = validate(tool, arguments)
    assert not isinstance(args, ToolResult), args
    return await tool.run(args, ToolContext(box))


async def test_output_is_the_text(box):
    result = await run(box, command="echo one; echo two >&2")
    assert (result.ok, result.text) == (True, "one\ntwo")


async def test_silence_is_ok(box):
    assert (await run(box, command="true")).text == "ok"


async def test_a_status_other_than_0_is_a_line(box):
    assert (await run(box, command="echo no; (exit 3)")).text == "no\nexit status 3"
    assert (await run(box, command="false")).text == "exit status 1"
    assert (await run(box, command="kill -9 $BASHPID")).text.startswith("exit status 137\n[bash ended")


async def test_a_failing_command_is_a_result_of_a_tool_that_worked(box):
    assert (await run(box, command="false")).ok


async def test_folder_and_variables_stay(box):
    await run(box, command="mkdir -p sub && cd sub && export WORD=kept")
    assert (await run(box, command="echo $WORD; basename $PWD; cd ..")).text == "kept\nsub"


async def test_a_time_out_keeps_the_output_and_says_what_to_do(box):
    result = await run(box, command="echo before; sleep 100", timeout="0.5")
    assert not result.ok
    assert result.text.startswith("before\n")
    assert "0.5 s" in result.text
    assert "`timeout`" in result.text
    assert (await run(box, command="echo after")).text == "after"


async def test_what_is_dropped_is_stated(box):
    result = await run(box, command="yes 0123456789 | head -c 3000000")
    assert len(result.text) < 50_000
    missing = 3_000_000 - 32_768
    assert any(str(missing + slack) in result.text.replace(",", "") for slack in range(-20, 20))


async def test_bytes_that_are_not_text_do_no_harm(box):
    result = await run(box, command=r"printf 'a\xff\xfe\0\033]52;c;aGk=\a\033[1mb\n10%%\r100%%'")
    assert result.text == "a\\xff\\xfe\\x00b\n100%"


async def test_a_background_job_does_not_hold_the_call(box):
    assert (await run(box, command="sleep 30 & echo started")).text.endswith("\nstarted")


async def test_a_null_byte_is_one_sentence(box):
    result = await run(box, command="echo a\0b")
    assert not result.ok
    assert "null byte" in result.text


async def test_half_a_character_is_one_sentence(box):
    result = await run(box, command="echo \ud800")
    assert not result.ok
    assert "half a character" in result.text


async def test_a_shell_that_ends_is_a_line(box):
    result = await run(box, command="cd /tmp; V=1; exit 3")
    note = "[bash ended, and a new one goes on in /tmp with the same variables and functions]"
    assert (result.ok, result.text) == (True, f"exit\nexit status 3\n{note}")
    assert (await run(box, command="echo $V; cd /workspace")).text == "1"


async def test_a_program_that_asks_is_answered(box):
    asked = await run(box, command="read -p 'Name? ' name; echo \"Hello $name\"")
    assert (asked.ok, asked.text) == (
        True,
        "Name? \n[bash waits for input; give `input`, or `key` to stop it]",
    )
    assert (await run(box, input="Ada")).text == "Ada\nHello Ada"
    hidden = await run(box, command="read -sp 'Password: ' word; echo; echo ${#word}")
    assert "waits for input and will not show it" in hidden.text
    assert (await run(box, input="geheim")).text == "\n6"


async def test_a_program_that_waits_blocks_its_session_only_and_can_be_stopped(box):
    await run(box, command="cat")
    refused = await run(box, command="echo no")
    assert not refused.ok
    assert refused.text.startswith("shell: cat still waits for input in session 'main':")
    assert (await run(box, command="echo yes", session="other")).text == "yes"
    assert (await run(box, input="one")).text.startswith("one\none\n[cat waits")
    assert (await run(box, key="ctrl-d")).text == "ok"
    await run(box, command="cat; echo not reached")
    assert (await run(box, input="", key="ctrl-c")).text == "^C\nexit status 130"
    await run(box, command="python3 -c 'import signal; signal.signal(2, signal.SIG_IGN); input()'")
    assert "waits for input" in (await run(box, key="ctrl-c")).text
    assert (await run(box, key="kill")).text == "exit status 137"


async def test_a_fork_bomb_in_the_background_can_be_reset(box):
    bomb = "V=1; ulimit -u 60; (while :; do sleep 60 & done) >/dev/null 2>&1 &"
    assert (await run(box, command=bomb, session="bomb")).ok
    await run(box, command="until [ $(pgrep -fc '^sleep 60') -gt 45 ]; do sleep 0.1; done", timeout=20)
    stuck = await run(
        box, command="for i in 1 2 3; do sleep 0.1 | cat | cat; done", session="bomb", timeout=4
    )
    assert "Resource temporarily unavailable" in stuck.text
    assert "[`key` reset ends all that was ever started in this session]" in stuck.text
    ended = await run(box, key="reset", session="bomb")
    assert (ended.ok, ended.text) == (True, "ok; session bomb starts anew in the workspace")
    assert (await run(box, command="pgrep -fc '^sleep 60'")).text.startswith("0")
    assert (await run(box, command="echo [$V]; pwd", session="bomb")).text == "[]\n/workspace"


async def test_names_that_are_no_text_reach_the_model_as_text(box):
    from pilotfish.tools.edit import EditTool

    await run(
        box, command="cd /workspace; echo x > $'caf\\xe9.txt'; mkdir $'d\\xff'; echo y > $'d\\xff/one.txt'"
    )
    assert r"caf\xe9.txt" in (await run(box, command="printf '%s\\n' *")).text
    edit = EditTool()
    for path in ("cafe.txt", "d\udcff/two.txt", "d\udcff", "no\udce9", "x\ud800y", "d\udcff/one.txt"):
        for more in ({"command": "view"}, {"command": "create", "new_text": "\ud83d"}):
            args = validate(edit, {"path": path, **more})
            result = args if isinstance(args, ToolResult) else await edit.run(args, ToolContext(box))
            result.text.encode()
    assert (
        r"caf\xe9.txt"
        in (await edit.run(validate(edit, {"command": "view", "path": "cafx.txt"}), ToolContext(box))).text
    )
    assert ToolResult(True, "a\udcff\ud83db").text == r"a\xff\ud83db"


async def test_nothing_waits(box):
    for more in ({"input": "x"}, {"key": "ctrl-c"}, {"key": "kill"}, {"input": "", "session": "new"}):
        result = await run(box, **more)
        assert not result.ok
        assert "nothing waits for input in session" in result.text
        assert "\n" not in result.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "`command` is missing"),
        ({"command": "ls", "input": "x"}, "`command` goes without"),
        ({"key": "kill", "input": "x"}, "leave out `input`"),
        ({"key": "ctrl-x"}, "ctrl-c, ctrl-d, ctrl-z, kill, reset"),
        ({"key": "reset", "input": "x"}, "leave out `input`"),
        ({"command": "ls", "sesion": "x"}, "did you mean session"),
    ],
)
async def test_wrong_arguments_are_one_sentence(arguments, words):
    result = validate(ShellTool(), arguments)
    assert isinstance(result, ToolResult)
    assert words in result.text
    assert "\n" not in result.text


async def test_a_wrong_session_is_one_sentence(box):
    result = await run(box, command="true", session="../x")
    assert result.text == (
        "shell: session '../x' is no name, use 1 to 32 letters, digits, '-' and '_', such as 'server'."
    )


async def test_the_schema_is_small():
    text = json.dumps(tool_schema(ShellTool()))
    assert len(text) < 650
    for word in ("title", "$defs", "null", 'default"', "anyOf"):
        assert word not in text


@pytest.mark.parametrize("limit", [0, -1, 601, "soon", float("nan"), True])
async def test_a_wrong_time_limit_is_named(limit):
    result = validate(ShellTool(), {"command": "true", "timeout": limit})
    assert isinstance(result, ToolResult)
    assert "`timeout`" in result.text
    assert "seconds" in result.text


async def test_without_a_sandbox_it_says_so():
    args = validate(ShellTool(), {"command": "true"})
    assert not isinstance(args, ToolResult)
    assert "no sandbox" in (await ShellTool().run(args, ToolContext())).text
