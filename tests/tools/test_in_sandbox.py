"""The tools together on a whole sandbox: a terminal, a page, the same files."""

import asyncio
import os

import pytest
import pytest_asyncio

from pilotfish.sandbox import Sandbox, SandboxSpec
from pilotfish.tools.base import Screen, ToolContext, find_tool, validate
from pilotfish.tools.computer import ComputerTool
from pilotfish.tools.edit import EditTool
from pilotfish.tools.shell import ShellTool
from pilotfish.tools.typing_check import PAINTED

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def call():
    """Call a tool by its name, as the agent does; gives the result's text."""
    tools = [ComputerTool(), ShellTool(), EditTool()]
    async with Sandbox.open(SandboxSpec(width=800, height=600)) as box:
        screen = Screen(box.display.name, 0, 0, box.display.width, box.display.height)

        async def run(name, **arguments):
            tool = find_tool(tools, name)
            result = await tool.run(validate(tool, arguments), ToolContext(box, screen))
            assert result.ok, result.text
            return result.text

        run.box = box
        yield run
        for tool in tools:
            await tool.close()


async def eventually(condition):
    for _ in range(1000):
        if await condition():
            return
        await asyncio.sleep(0.02)
    pytest.fail("waited in vain")


async def test_what_is_typed_in_a_terminal_is_in_the_file(call):
    text = "Spaß 测试中文 a<b>c '); import os"
    process = await call.box.run(
        ["xterm", "-u8", "-geometry", "80x20+0+0", "-e", "sh", "-c", "echo > ready; cat > typed.txt"],
        env={"LANG": "C.UTF-8"},
    )
    await eventually(lambda: asyncio.to_thread((call.box.workspace / "ready").exists))
    assert await call("computer", action="left_click", coordinate=[200, 200]) == "ok"
    await call("computer", action="type", text=text + "\n")
    await eventually(
        lambda: asyncio.to_thread(lambda: "\n" in (call.box.workspace / "typed.txt").read_text())
    )
    assert await call("edit", command="view", path="typed.txt") == f"     1\t{text}"
    await call("edit", command="replace", path="typed.txt", old_text="a<b>c", new_text="done")
    assert await call("shell", command="cut -d' ' -f3 typed.txt") == "done"
    await process.kill()


async def test_a_page_gets_clicks_keys_and_text(call):
    page = await call.box.browser.open(
        "data:text/html,<body style='margin:0'><input autofocus style='position:fixed;inset:0;width:400px'>"
    )
    await page.evaluate(PAINTED)
    assert (await call("computer", action="left_click", coordinate=[100, 400])) == "ok"
    await call("computer", action="type", text="größer 😀")
    await call("computer", action="key", text="Home")
    await call("computer", action="key", text="shift+Right")
    await call("computer", action="type", text="G")
    value = "document.querySelector('input').value"

    async def arrived():
        return await page.evaluate(value) == "Größer 😀"

    await eventually(arrived)


PAGE = """<!doctype html><meta charset="utf-8">
<textarea autofocus style="position:fixed;inset:0"></textarea><script>
document.querySelector("textarea").addEventListener("keydown", event => {
    if (event.key != "Tab") return
    event.preventDefault()
    document.execCommand("insertText", false, "\\t")
})</script>"""


async def test_a_page_gets_every_text_exactly(call):
    text = 'Spaß & a<b>c\n\t测试中文 😀 _"@ на 漢字仮名交じり文の長い例文\n' + "The quick brown fox.\n" * 50
    await call("edit", command="create", path="page.html", new_text=PAGE)
    page = await call.box.browser.open("page.html")
    await page.evaluate(PAINTED)
    await call("computer", action="left_click", coordinate=[50, 50])
    await call("computer", action="type", text=text)
    units = len(text.encode("utf-16-le")) // 2

    async def complete():
        return await page.evaluate("document.querySelector('textarea').value.length") >= units

    await eventually(complete)
    assert await page.evaluate("document.querySelector('textarea').value") == text


async def test_the_input_process_is_outside_and_ends_with_the_tool():
    async with Sandbox.open(SandboxSpec(width=320, height=200)) as box:
        tool = ComputerTool()
        context = ToolContext(box, Screen(box.display.name, 0, 0, 320, 200))
        await tool.run(tool.Args(action="mouse_move", coordinate=(500, 500)), context)
        (driver,) = tool._drivers.values()
        pid = driver.process_id
        os.kill(pid, 0)
    result = await tool.run(tool.Args(action="left_click"), context)
    assert not result.ok
    assert box.display.name in result.text
    await tool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
