"""Whose a use of a method is, and names that are spelt nearly like what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.tools.index.repository import Index

FILES = {
    "engine.py": """class Engine:
    def save(self):
        return self.save()

class Turbo(Engine):
    def twice(self):
        super().save()
        self.save()
""",
    "store.py": """class Store:
    def save(self):
        return 1

    def close(self):
        self.save()

def save(path):
    save(path)
""",
    "use.py": """import image
from engine import Engine
from store import Store, save

def run(one: Engine, thing):
    two = Store()
    three = Engine("x")
    one.save()
    two.save()
    three.save()
    get().engine.save()
    Engine("y").save()
    self_made = [Engine.save]
    thing.save()
    image.save()
    save("p")
""",
    "apart.py": "def go(thing, store):\n    thing.save()\n    store.save()\n",
    "Main.java": "class Engine { void save() { save(); } }\nclass Main { void go(Engine e) { e.save(); } }\n",
}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    for name, text in FILES.items():
        (tmp_path / "repo" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repo" / name).write_text(text)
    with Index(tmp_path / "repo", tmp_path / "index.sqlite") as made:
        made.update()
        yield made


def test_a_method_is_told_from_that_of_another_class_by_its_receiver(index: Index) -> None:
    *lines, told = index.references("Engine.save").lines()
    short = [line.rpartition(": ")[2] for line in lines]
    assert set(short[:10]) == {
        "class Engine { void save() { save(); } }",
        "class Main { void go(Engine e) { e.save(); } }",
        "return self.save()",
        "super().save()",
        "self.save()",
        "one.save()",
        "three.save()",
        'Engine("y").save()',
        "self_made = [Engine.save]",
        "get().engine.save()",
    }
    assert short[9:] == ["get().engine.save()", "thing.save()", "thing.save()", "image.save()"]
    assert told == (
        "[10 of 'Engine' by what stands before it; the 3 after may be another's; 6 of others left out]"
    )


def test_other_classes_and_modules_have_theirs(index: Index) -> None:
    short = [line.rpartition(": ")[2] for line in index.callers("Store.save").lines()[:-1]]
    assert short[:3] == ["self.save()", "two.save()", "store.save()"]
    assert "one.save()" not in short
    assert index.callers("nothing.save").lines()[-1].startswith("[0 of 'nothing' by what stands before it;")


def test_names_that_are_spelt_nearly_so_are_shown(index: Index) -> None:
    assert index.find("Enigne").lines()[-1] == "[nothing is defined as 'Enigne'; did you mean Engine?]"
    assert index.find("Enigne").items[0].path == "Main.java"
    assert index.find("Stor.save").items[0].path == "store.py"
    assert index.find("zzzz").lines() == ["[nothing is defined as 'zzzz'; nothing else is named so either]"]
