"""The `index` tool on the workspace of a real sandbox, and the same questions on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pilotfish.agent.keeping import may_write
from pilotfish.model.protocol import ToolCall
from pilotfish.sandbox import Sandbox
from pilotfish.tools.base import ToolContext, ToolResult, tool_schema, validate
from pilotfish.tools.index.tool import MAX_CHARACTERS, IndexTool
from pilotfish.tools.registry import make_tools

Ask = Callable[..., Awaitable[ToolResult]]


@pytest_asyncio.fixture(loop_scope="module")
async def ask(box: Sandbox) -> Any:
    tool = IndexTool()

    async def run(**arguments: object) -> ToolResult:
        args = validate(tool, arguments)
        return args if isinstance(args, ToolResult) else await tool.run(args, ToolContext(box))

    yield run
    await tool.close()


in_module = pytest.mark.asyncio(loop_scope="module")


@in_module
async def test_every_question(box: Sandbox, ask: Ask) -> None:
    box.files.write_text("pkg/a.py", "def wanted(x):\n    return x\n")
    box.files.write_text("pkg/b.py", "from pkg.a import wanted\n\ndef user():\n    return wanted(1)\n")
    assert (await ask(command="find", name="wanted")).text == "pkg/a.py:1-2: function wanted: def wanted(x):"
    assert (await ask(command="callers", name="wanted")).text == "pkg/b.py:4 in user: return wanted(1)"
    assert (await ask(command="references", name="wanted", limit=1)).text.endswith(
        "[1 more left out; ask more narrowly or for more at once]"
    )
    assert "def user():" in (await ask(command="outline", path="/workspace/pkg/b.py")).text
    assert "wanted" in (await ask(command="map", about="change wanted")).text
    assert (await ask(command="likely", about="the wanted one")).text.startswith("pkg/a.py\npkg/b.py\n")
    assert (await ask(command="search", pattern="return", path="pkg/b")).text.startswith("pkg/b.py:4:")
    assert (await ask(command="read", path="pkg/a.py", lines=[2, -1])).text == "     2\t    return x"
    box.files.write_text("pkg/a.py", "def renamed(x):\n    return x\n")
    assert "renamed" in (await ask(command="find", name="renamed")).text
    assert (await ask(command="find", name="wanted")).text.startswith("[nothing is defined")


@in_module
async def test_a_definition_is_read_by_its_name(box: Sandbox, ask: Ask) -> None:
    box.files.write_text("read/a.py", "A = 1\n\n\nclass C:\n    def only(self):\n        return A\n\nB = 2\n")
    box.files.write_text("read/b.py", "def twice():\n    pass\n")
    box.files.write_text("read/c.py", "def twice():\n    return 3\n")
    read = "read/a.py: method C.only\n     5\t    def only(self):\n     6\t        return A"
    assert (await ask(command="read", name="C.only")).text == read
    several = (await ask(command="read", name="twice")).text
    assert "read/b.py:1-2: function twice" in several
    assert several.endswith("[none of them is meant alone; read one with `path` and `lines`]")
    one = (await ask(command="read", name="twice", path="/workspace/read/c.py")).text
    assert one == "read/c.py: function twice\n     1\tdef twice():\n     2\t    return 3"
    assert "did you mean only?" in (await ask(command="read", name="onli")).text
    assert "needs `path`, or the `name`" in (await ask(command="read")).text


@in_module
async def test_what_is_wrong_is_one_sentence(ask: Ask) -> None:
    for arguments, said in (
        ({"command": "find"}, "`find` needs `name`"),
        ({"command": "search", "pattern": "(", "regex": True}, "is no regular expression"),
        ({"command": "read", "path": "../../etc/passwd"}, "there is no file"),
        ({"command": "nothing"}, "use one of"),
        ({"command": "map", "tokens": 5}, "`tokens`"),
    ):
        result = await ask(**arguments)
        assert not result.ok
        assert said in result.text
        assert "\n" not in result.text
    assert not (await IndexTool().run(validate(IndexTool(), {"command": "map"}), ToolContext())).ok  # type: ignore[arg-type]


@in_module
async def test_long_answers_are_cut_and_counted(box: Sandbox, ask: Ask) -> None:
    box.files.write_text("long.txt", "".join(f"needle {number} {'x' * 300}\n" for number in range(900)))
    result = await ask(command="search", pattern="needle", limit=1000)
    assert len(result.text) < MAX_CHARACTERS + 100
    assert result.text.rsplit("\n", 1)[1].endswith("more lines left out; ask more narrowly]")


@in_module
async def test_what_programs_inside_did_to_the_workspace(box: Sandbox, ask: Ask) -> None:
    done = await box.shell.run(
        "ln -s /etc link; mkfifo pipe.py; printf 'gitdir: /proc/self/cwd' > .git; ln -s /etc/passwd secret.py"
    )
    assert done.exit_code == 0
    result = await ask(command="search", pattern="root:")
    assert "nothing matches" in result.text
    await box.shell.run("rm -rf .git link pipe.py secret.py")


@in_module
async def test_it_is_a_tool_like_the_others() -> None:
    (tool,) = make_tools(["index"])
    schema = tool_schema(tool)
    assert schema["required"] == ["command"]
    for command in schema["properties"]["command"]["enum"]:
        assert not may_write(ToolCall("1", "index", {"command": command}))


def _command(*words: object) -> subprocess.CompletedProcess[str]:
    code = "from pilotfish.agent.entry import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "index", *map(str, words)], capture_output=True, text=True, check=False
    )


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "a.py").write_text("def one():\n    return two()\n\ndef two(): pass\n")
    done = json.loads(_command(repo, "--json").stdout)
    assert done["files"] == {"parsed": {"files": 1, "lines": 4}}
    assert _command("find", "two", "-C", repo).stdout == "a.py:4: function two: def two():\n"
    assert json.loads(_command("callers", "two", "-C", repo, "--json").stdout)["items"][0]["inside"] == "one"
    for words in (("references", "two"), ("outline", "a.py"), ("search", "ret.rn", "-e"), ("read", "a.py")):
        assert "a.py" in json.dumps(json.loads(_command(*words, "-C", repo, "--json").stdout))
    assert "a.py" in _command("rank", "-C", repo).stdout
    found = json.loads(_command("map", "-C", repo, "--tokens", 200, "--about", "two", "--json").stdout)
    assert 0 < found["tokens"] <= 200
    laid = json.loads(_command("layout", "-C", repo, "--tokens", 300, "--json").stdout)
    assert (laid["files"], laid["left_out"]) == (["a.py"], 0)
    assert 0 < laid["tokens"] <= 300
    nothing = _command("layout", "-C", repo, "--tokens", 0)
    assert nothing.stdout == "[0 tokens, 1 files left out]\n"
    wrong = _command("outline", "b.py", "-C", repo)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("pilotfish: there is no file b.py")
    assert _command(tmp_path / "nothing").returncode == 1


def test_the_bench_measures_a_folder(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"m{number}.py").write_text(f"def f{number}():\n    return f{number // 2}()\n")
    done = subprocess.run(
        [sys.executable, "-m", "pilotfish.tools.index.bench", tmp_path, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    assert result["files"]["parsed"] == {"files": 21, "lines": 42}
    names = [row["name"] for row in result["rows"]]
    assert names[:3] == ["index, cold", "index, nothing changed", "index, one file changed"]
    assert all(row["seconds"] > 0 for row in result["rows"])
    assert "1 read" in result["rows"][2]["note"]
    assert len(list(tmp_path.iterdir())) == 20


def test_help_loads_no_parser() -> None:
    code = (
        "import sys; import pilotfish.agent.cli; print('tree_sitter' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
