"""`pilotfish index`: which folder a command is about, and what the update says."""

from __future__ import annotations

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
        for words in (["find", "price", "-C", folder], ["-C", folder, "find", "price"])
    ]
    assert found[0] == found[1] == "shop.py:1-2: function price: def price():\n"
    monkeypatch.chdir(folder)
    assert again in command_here("index", "update").out
    refused = command_here("index", "update", ".", "-C", str(folder))
    assert refused.err == f"pilotfish: Two folders were given, . and {folder}; leave one out.\n"
