"""A task file says what it means or is refused in one sentence that names the mend."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pilotfish.tasks.explain import explain
from pilotfish.tasks.format import Setup, Task
from pilotfish.tasks.load import find_task, list_suites, load_suite, load_task
from pilotfish.tasks.reader import TaskError, read_data

GOOD = """\
instruction: Say hello
environment: {kind: shell}
tools: [shell]
graders: [{kind: file_absent, path: x}]
"""


def write(folder: Path, text: str, name: str = "hello.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(TaskError) as caught:
        load_task(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.endswith(".")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_a_task_is_named_after_its_file_and_folder(tmp_path: Path) -> None:
    folder = tmp_path / "greetings"
    (folder / "wave").mkdir(parents=True)
    assert load_task(write(folder, GOOD)).name == "greetings/hello"
    write(folder / "wave", GOOD, "task.yaml")
    assert load_task(folder / "wave").name == "greetings/wave"
    assert load_task(write(folder, "id: own\nsuite: mine\n" + GOOD)).name == "mine/own"


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    from_yaml = load_task(write(tmp_path, GOOD))
    from_json = load_task(write(tmp_path, json.dumps(yaml.safe_load(GOOD)), "hello.json"))
    assert from_yaml.model_dump() == from_json.model_dump()


def test_a_model_sees_instruction_and_tools_only(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD + "solution: [touch secret]\n"))
    assert task.visible_to_model() == {"instruction": "Say hello", "tools": ["shell"]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("instruction", "instrucion"), "'instrucion' is not a known key; the nearest is 'instruction'."),
        (("path: x", "pth: x"), "'graders[0].pth' is not a known key; the nearest is 'path'."),
        (("path: x", ""), "'graders[0].path' is missing; add it."),
        (("file_absent", "file_absnt"), "'graders[0].kind' is 'file_absnt'; the nearest is 'file_absent'"),
        (("kind: file_absent, ", ""), "'graders[0].kind' is missing; use one of file_equals, file_matches,"),
        (("kind: shell", "kind: shel"), "'environment.kind' is 'shel'; the nearest is 'shell'."),
        (("{kind: shell}", "shell"), "'environment' is 'shell'; it must be a map."),
        (("[shell]", "[shel]"), "'tools[0]': there is no tool 'shel'; did you mean shell?"),
        (("[shell]", "shell"), "'tools' is 'shell'; it must be a list."),
        (("[shell]", "[shell, shell]"), "'tools': names a tool twice; name each tool once."),
        (("[shell]", "[computer]"), "a 'shell' task has no display; name tools such as [shell, edit]."),
        (("Say hello", "12"), "'instruction' is 12; it must be text."),
        (("Say hello", "' '"), "the instruction is missing; say what the model is to do."),
        (("[{kind: file_absent, path: x}]", "[]"), "there is no grader; add at least one under graders."),
        (
            ("graders: [{kind: file_absent, path: x}]", ""),
            "there is no grader; add at least one under graders.",
        ),
        (
            ("path: x", "path: /etc/passwd"),
            "'graders[0].path': '/etc/passwd' must be a path inside the workspace",
        ),
        (
            ("path: x", "path: a/../../b"),
            "'graders[0].path': 'a/../../b' must be a path inside the workspace",
        ),
        (("file_absent, path: x", "answer"), "'graders[0]': an answer grader needs exactly one of"),
        (("file_absent, path: x", "page_state, expression: x, equals: 1"), "a page_state grader needs a web"),
        (("file_absent, path: x", "any, of: []"), "'graders[0].of' is a list; it must have at least 1 item"),
        (("absent, path: x", "matches, path: x, pattern: '('"), "'graders[0].pattern': '(' is not a regular"),
        (
            ("file_absent, path: x", "all, of: [{kind: file_equals, path: x, txt: y}]"),
            "'graders[0].of[0].txt' is",
        ),
        (("[{kind", "[{kind: infeasible}, {kind"), "an infeasible grader stands alone; remove the others."),
        (
            ("{kind: shell}", "{kind: code, folder: src}"),
            "environment.folder names the folder 'src', which is not",
        ),
        (
            ("{kind: shell}", "{kind: web, page: a.html}"),
            "environment.page names the file 'a.html', which is not",
        ),
        (("{kind: shell}", "{kind: miniwob, task: click-test}"), "a miniwob task brings its own instruction"),
    ],
)
def test_a_wrong_value_is_named_with_its_mend(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    assert change[0] in GOOD
    assert refusal(write(tmp_path, GOOD.replace(*change))).startswith(says)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("id: a/b", "'id' is 'a/b'; use at most 80 letters"),
        ("limits: {steps: '3'}", "'limits.steps' is '3'; it must be a whole number."),
        ("limits: {steps: 0}", "'limits.steps' is 0; it must be greater than or equal to 1."),
        ("limits: {stepz: 9}", "'limits.stepz' is not a known key; the nearest is 'steps'."),
        ("limits: 3", "'limits' is 3; it must be a map."),
        ("setup: {files: {../x: hi}}", "'setup.files': '../x' must be a path inside the workspace"),
        ("setup: {files: {x: 3}}", "'setup.files.x' is 3; it must be text."),
        ("setup: {commands: [[a]]}", "'setup.commands[0]' is a list; it must be text."),
        ("setup: {serve: [{run: [x], port: 0}]}", "'setup.serve[0].port' is 0; it must be greater"),
        ("setup: {launch: [[xterm]]}", "setup.launch needs a desktop environment, not 'shell'."),
        (
            "solution: [{tool: shell, args: {}}]",
            "'solution[0].args' is not a known key; the nearest is 'arguments'.",
        ),
        ("solution: [ls, {answer: 3}]", "'solution[1].answer' is 3; it must be text."),
        ("solution: [3]", "'solution[0]' is 3; it must be text."),
        ("solution: [{tool: edit}]", "a step of the solution uses the tool 'edit'; add it under tools."),
        ("a: &x 1", "line 5 uses a YAML anchor or alias; write the value out."),
        ("a: *x", "line 5 uses a YAML anchor or alias; write the value out."),
        ("a: !!python/name:os.system ''", "line 5 uses the YAML tag"),
        ("tools: [edit]", "line 5 repeats the key 'tools'; keep one of them."),
        ("? [a]\n: 1", "line 5 has a key that is not text; use a word."),
        ("a: " + "[" * 30 + "]" * 30, "line 5 is nested deeper than 24 levels; flatten it."),
        ("a: 1" + "0" * 400, "line 5 has the number 10000000000000000000..., which is too large"),
        ("a: 'x", "line 6 is not YAML"),
        ("---\nid: b", "line 5 starts a second document; keep one task per file."),
    ],
)
def test_a_line_too_many_is_named_with_its_mend(tmp_path: Path, line: str, says: str) -> None:
    assert refusal(write(tmp_path, f"{GOOD}{line}\n")).startswith(says)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.yaml", b"", "the file is empty"),
        ("a.yaml", b"# nothing\n", "the file is empty"),
        ("a.yaml", b"- 1\n", "a task is a map of keys such as id and instruction, not a list."),
        ("a.yaml", b"\xff\xfe", "byte 0 is not UTF-8; save the file as UTF-8."),
        ("a.yaml", b"a: \x00", "not YAML"),
        ("a.yaml", b"#" * (2 << 20), "the file is larger than 1048576 bytes"),
        ("a.json", b"{", "line 1 is not JSON"),
        ("a.json", b'{"a": 1, "a": 2}', "the key 'a' appears twice in one map; keep one of them."),
        ("a.json", b"[" * 100_000, "nested deeper than 24 levels; flatten it."),
        ("a.json", b'{"a": NaN}', "NaN is not a JSON number; write a finite one."),
        (
            "a.json",
            b'{"a": "\\ud800"}',
            "'\\ud800' holds a null or half a character; write whole characters.",
        ),
        (
            "a.json",
            b'{"a": ["x\\u0000"]}',
            "'x\\x00' holds a null or half a character; write whole characters.",
        ),
        ("a.yaml", b'"x\\0": 1', "'x\\x00' holds a null or half a character; write whole characters."),
        ("a.txt", b"x", "a task file ends in .yaml, .yml or .json, not '.txt'."),
    ],
)
def test_a_file_that_is_no_task(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert refusal(path).startswith(says)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone.yaml") == "no such file; give the path of a task file."


def test_a_yaml_bomb_costs_nothing(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert (
        refusal(write(tmp_path, "\n".join(lines)))
        == "line 1 uses a YAML anchor or alias; write the value out."
    )


def test_a_companion_may_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "src").symlink_to(tmp_path / "secret")
    path = write(tmp_path / "suite", GOOD.replace("{kind: shell}", "{kind: code, folder: src}"))
    assert refusal(path) == "environment.folder 'src' leads out of the task's folder; move it inside."


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
    )
)
def test_any_field_of_any_type_is_taken_or_refused(value: object) -> None:
    """Whatever stands in a field, there is a sentence for it (or it was right)."""
    base = yaml.safe_load(GOOD) | {"id": "a", "suite": "b"}
    for field in Task.model_fields:
        message = ""
        try:
            Task.model_validate(base | {field: value})
        except ValidationError as error:
            message = explain(error)
        assert "\n" not in message


@pytest.mark.parametrize("word", ["no", "on", "2024-01-31", "12:30", "0o17", "1_000", "0x1f", "yes", "<<"])
def test_bare_words_stay_text(tmp_path: Path, word: str) -> None:
    assert read_data(write(tmp_path, f"a: {word}")) == {"a": word}


def test_a_suite_is_sorted_and_refuses_a_second_use_of_an_id(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "b.yaml")
    write(tmp_path, GOOD, "a.yaml")
    assert [task.id for task in load_suite(tmp_path)] == ["a", "b"]
    write(tmp_path, "id: a\n" + GOOD, "c.yaml")
    with pytest.raises(TaskError, match=r"c\.yaml: the id 'a' is taken by .*a\.yaml; rename one of them\.$"):
        load_suite(tmp_path)


def test_an_unknown_suite_or_task_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no suite or folder 'miniwb'; the nearest is 'miniwob'"):
        load_suite("miniwb")
    with pytest.raises(TaskError, match="suite web has no task 'sign-on'; the nearest is 'sign-in'"):
        find_task("web/sign-on")
    with pytest.raises(TaskError, match="holds no task file"):
        load_suite(tmp_path)
    with pytest.raises(TaskError, match="neither suite/task nor a task file"):
        find_task("sign-in")


def test_what_ships() -> None:
    assert list_suites() == ["browser", "code", "desktop", "miniwob", "repository", "shell", "web"]
    own = [task for suite in list_suites() if suite != "miniwob" for task in load_suite(suite)]
    assert len(own) >= 12
    assert all(task.solution for task in own)
    assert [task.name for task in own if not task.feasible] == ["web/no-such-button"]
    assert find_task("shell/sort-photos").tools == ["shell"]


def test_the_documented_example_is_a_task_and_the_tables_are_complete(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
    (tmp_path / "workspace").mkdir()
    task = load_task(write(tmp_path, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]))
    assert len(task.graders) == 2
    words = set(re.findall(r"`([a-z_.]+)`", page))
    definitions = Task.model_json_schema()["$defs"].values()
    kinds = {
        item["properties"]["kind"]["const"] for item in definitions if "kind" in item.get("properties", {})
    }
    assert len(kinds) == 21
    assert kinds <= words
    assert set(Task.model_fields) - {"setup"} <= words
    assert {f"setup.{name}" for name in Setup.model_fields} <= words
