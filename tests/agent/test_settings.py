"""What is said of a setting that is wrong: the words that the person typed, the value, the mend."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from pilotfish.agent.policy import Rule
from pilotfish.agent.settings import (
    SandboxLimits,
    ServerSettings,
    Settings,
    SettingsError,
    SweBenchSettings,
    load_settings,
)
from pilotfish.agent.spelling import unknown_variables

FILE = """
model = "solution"
max_steps = 0

[limits]
processes = 64
memory_mib = "much"

[[rules]]
verdict = "perhaps"
"""


def wrong(flags: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags)
    return str(caught.value)


def test_it_is_named_by_its_flag_its_variable_or_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "pilotfish.toml"
    file.write_text(FILE)
    assert wrong({}) == "max_steps (pilotfish.toml, line 3) is 0, but must be 1 or more."
    monkeypatch.setenv("PILOTFISH_MAX_STEPS", "-1")
    assert wrong({}) == "PILOTFISH_MAX_STEPS is '-1', but must be 1 or more."
    assert wrong({"max_steps": -2}) == "--max-steps is -2, but must be 1 or more."
    monkeypatch.setenv("PILOTFISH_MAX_STEPS", "1")
    assert wrong({}) == "limits.memory_mib (pilotfish.toml, line 7) is 'much', but must be a whole number."
    file.write_text(FILE.replace('"much"', "128"))
    assert wrong({}).startswith("rules.0.verdict (pilotfish.toml, line 10) is 'perhaps', but must be 'allow'")
    file.write_text("colour = 1\n")
    assert wrong({}).startswith("There is no setting colour (pilotfish.toml, line 1); choose from ")
    file.write_text("[limits\n")
    assert wrong({}).startswith("pilotfish.toml cannot be read (Expected ']'")
    file.unlink()
    assert wrong({"network": ["no port"]}).startswith("--allow-host cannot be used: ")
    monkeypatch.setenv("PILOTFISH_SANDBOX_LEVEL", "0")
    assert wrong({}) == "PILOTFISH_SANDBOX_LEVEL is 0, but only the flag --sandbox-level 0 can say so."
    monkeypatch.delenv("PILOTFISH_SANDBOX_LEVEL")
    monkeypatch.setenv("PILOTFISH_CLIP_BLOCK", "12")
    assert wrong({}) == "PILOTFISH_CLIP_BLOCK is 12, but must be less than max_clips, 12."


def test_a_variable_that_is_no_setting_is_told_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PILOTFISH_MODEL", "pilotfish_top_p", "PILOTFISH_CHROMIUM", "PILOTFISHES"):
        monkeypatch.setenv(name, "1")
    assert list(unknown_variables(Settings.model_fields)) == []
    monkeypatch.setenv("PILOTFISH_MODLE", "nano")
    (told,) = unknown_variables(Settings.model_fields)
    assert told == "PILOTFISH_MODLE is no setting and was ignored; the nearest is PILOTFISH_MODEL."
    monkeypatch.delenv("PILOTFISH_MODLE")
    monkeypatch.setenv("PILOTFISH_X", "1")
    assert list(unknown_variables(Settings.model_fields)) == ["PILOTFISH_X is no setting and was ignored."]


def test_a_byte_order_mark_before_a_file_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "pilotfish.toml"
    file.write_bytes(b'\xef\xbb\xbfmax_steps = 7\r\nmodel = "solution"\r\n')
    assert load_settings({}).max_steps == 7
    file.write_bytes(b"\xef\xbb\xbfmax_steps = 0\r\n")
    assert wrong({}) == "max_steps (pilotfish.toml, line 1) is 0, but must be 1 or more."


def test_true_is_no_number_and_a_number_is_not_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "pilotfish.toml"
    numbers, truths = 0, 0
    classes = {"": Settings, "limits": SandboxLimits, "server": ServerSettings, "swe_bench": SweBenchSettings}
    for table, kind in classes.items():
        for name, field in kind.model_fields.items():
            is_number = isinstance(field.default, int | float) and not isinstance(field.default, bool)
            is_number |= {int, float} & {*get_args(field.annotation)} != set()
            whole, line = (f"{table}.{name}", 2) if table else (name, 1)
            for value in ("true", "false") if is_number else ():
                file.write_text(f"[{table}]\n{name} = {value}" if table else f"{name} = {value}")
                number = r"a (whole )?number|3, 2 or 0"
                said = rf"{whole} \(pilotfish.toml, line {line}\) is {value}, but must be ({number})\."
                assert re.fullmatch(said, wrong({})), whole
                numbers += 1
            if isinstance(field.default, bool):
                file.write_text(f"{name} = 1")
                assert wrong({}) == f"{name} (pilotfish.toml, line 1) is 1, but must be true or false."
                truths += 1
    assert (numbers, truths) == (2 * 19, 3)
    file.unlink()
    monkeypatch.setenv("PILOTFISH_MAX_STEPS", "true")
    assert wrong({}) == "PILOTFISH_MAX_STEPS is 'true', but must be a whole number."
    monkeypatch.setenv("PILOTFISH_MAX_STEPS", "3")
    monkeypatch.setenv("PILOTFISH_YES", "1")
    monkeypatch.setenv("PILOTFISH_LIMITS", '{"processes": true}')
    assert wrong({}) == "limits.processes (PILOTFISH_LIMITS) is true, but must be a whole number."
    monkeypatch.delenv("PILOTFISH_LIMITS")
    settings = load_settings({})
    assert (settings.max_steps, settings.yes) == (3, True)


TYPES = ("7", "1.5", "true", '"x"', "[]", "[1]", "{a = 1}", "[{a = 1}]", "2020-01-01")
"""A value of each type that a file can hold."""


def test_a_value_of_any_wrong_type_is_one_sentence_without_a_word_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "pilotfish.toml"

    def told(text: str) -> str:
        file.write_text(text)
        try:
            load_settings({})
        except SettingsError as error:
            return str(error)
        return ""

    places = [f"{name} =" for name in Settings.model_fields]
    for table in ("limits", "server", "swe_bench"):
        fields = type(Settings.model_fields[table].default).model_fields
        places += [f"[{table}]\n{name} =" for name in fields]
    places += [f"[[rules]]\n{name} =" for name in Rule.model_fields]
    said = [sentence for place in places for value in TYPES if (sentence := told(f"{place} {value}"))]
    assert len(said) > 300
    for sentence in said:
        assert re.fullmatch(
            r"[\w.]+ (\(pilotfish\.toml, line \d\) )?(is .+, but must be .+|is missing; add it)\."
            r"|There is no setting .+; choose from .+\.|\w+ .*cannot be used: .+",
            sentence,
        ), sentence
        for word in ("instance", "class", "Input", "valid", "tuple", "string", "required", "datetime"):
            assert word not in sentence
    assert told('rules = ["deny"]') == (
        "rules.0 (pilotfish.toml, line 1) is 'deny', but must be a table of names and values."
    )
    assert told('[rules]\nverdict = "deny"').endswith(
        "is {'verdict': 'deny'}, but must be a list, each of its tables below a line [[rules]]."
    )
    assert told('[[rules]]\ntool = "shell"') == "rules.0.verdict (pilotfish.toml, line 1) is missing; add it."
    assert len(told(f'max_steps = "{"9a" * 9999}"')) < 400
    file.unlink()
    monkeypatch.setenv("PILOTFISH_RULES", "deny")
    assert wrong({}) == (
        "The environment variable PILOTFISH_RULES is 'deny', which is not JSON; mend or unset it."
    )
    monkeypatch.setenv("PILOTFISH_RULES", "null")
    monkeypatch.setenv("PILOTFISH_RECORD_DIR", "none")
    assert wrong({}) == "PILOTFISH_RECORD_DIR is None, but must be a path."
