"""`pilotfish index`: which folder a command is about, and what the update says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .conftest import Command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module, and a picture that is left out by its name; indexes are kept beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tmp_path / "project"
    made.mkdir()
    (made / "shop.py").write_text("def price():\n    return 1\n")
    (made / "shop.png").write_bytes(b"\x89PNG")
    time.sleep(0.2)  # what changed a moment ago may change again unseen, and is read again
    return made


def test_every_way_to_name_the_folder_asks_the_same_index(
    folder: Path, command_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = command_here("index", str(folder)).out
    assert "1 read, 1 changed, 1 left out unread, 0 gone" in first
    again = "0 read, 0 changed, 0 gone"
    for words in (["-C", folder], ["update", "-C", folder], ["update", folder], ["--repo", folder, "update"]):
        assert again in command_here("index", *map(str, words)).out
    found = [
        command_here("index", *map(str, words)).out
        for words in (
            ["find", "price", "-C", folder],
            ["-C", folder, "find", "price"],
            [folder, "find", "price"],
        )
    ]
    assert set(found) == {"shop.py:1-2: function price: def price():\n"}
    monkeypatch.chdir(folder)
    assert again in command_here("index", "update").out
    refused = command_here("index", "update", ".", "-C", str(folder))
    assert refused.err == f"pilotfish: Two folders were given, . and {folder}; leave one out.\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fnd", "price"], "There is no command or folder 'fnd'; did you mean find?"),
        (["-C"], "Option '-C' requires an argument; see"),
        (["likely", " "], "the text is empty; say what is to be changed."),
        (
            ["read", "shop.py", "--first", "3", "--last", "2"],
            "the last line (2) is before the first (3); turn",
        ),
        (["search", "price", "--within", "src/"], "no indexed path begins with 'src/'; give it from the top"),
    ],
)
def test_what_cannot_be_meant_is_told(
    folder: Path, command_here: Command, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.chdir(folder)
    said = command_here("index", *words)
    assert (said.status != 0, said.out) == (True, "")
    assert said.err.startswith(f"pilotfish: {told}")
