import pytest

from pilotfish.tools.base import ToolContext, ToolResult, validate
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
    assert (await run(box, command="echo no; exit 3")).text == "no\nexit status 3"
    assert (await run(box, command="false")).text == "exit status 1"
    assert (await run(box, command="kill -9 $BASHPID")).text.endswith("exit status 137")


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
    assert "�" in (await run(box, command=r"printf '\xff\xfe'")).text


async def test_a_background_job_does_not_hold_the_call(box):
    assert (await run(box, command="sleep 30 & echo started")).text == "started"


async def test_a_null_byte_is_one_sentence(box):
    result = await run(box, command="echo a\0b")
    assert not result.ok
    assert "null byte" in result.text


async def test_half_a_character_is_one_sentence(box):
    result = await run(box, command="echo \ud800")
    assert not result.ok
    assert "half a character" in result.text


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
