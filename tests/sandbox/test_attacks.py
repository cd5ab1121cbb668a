"""Every attack, at every level, as root and as a created user. Nothing here is skipped for a missing piece.

An attack counts only when its twin works: the same thing outside a sandbox.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from pilotfish.sandbox import SandboxUnavailable
from pilotfish.sandbox.attacks import ATTACKED, SCENES, Outcome, attack, cases, table, verdict
from pilotfish.sandbox.levels import Level

from .created_user import created_user, run_python

pytestmark = pytest.mark.timeout(170)

MODULE = "pilotfish.sandbox.attacks"
# Another user is root's to create; who is not root attacks as who they are.
USERS = ("root", "user") if os.geteuid() == 0 else ("user",)
WANTED = [
    *((case.id, level) for case in cases() for level in ATTACKED if case.safe(level)),
    *((scene.id, level) for scene in SCENES for level in ATTACKED if level in scene.levels),
]

Found = dict[tuple[str, str, Level], Outcome]


@pytest.fixture(scope="module")
def outcomes() -> Found:
    """All attacks by all users, made once."""
    made = asyncio.run(attack())
    if len(USERS) == 2:
        with created_user() as name:
            done = run_python(name, "-m", MODULE, "--json")
        assert done.stdout, done.stderr
        made += [Outcome(**one) for one in json.loads(done.stdout)["attacks"]]
    print(table(made))
    return {(one.user, one.id, one.level): one for one in made}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(("name", "level"), WANTED)
def test_attack(outcomes: Found, user: str, name: str, level: Level) -> None:
    outcome = outcomes[user, name, level]
    assert outcome.good, table([outcome])


def test_most_twins_work_here(outcomes: Found) -> None:
    """Else this machine would say little about the sandbox."""
    for user in USERS:
        own = [one for one in outcomes.values() if one.user == user]
        assert sum(one.verdict == "held" for one in own) > 0.9 * len(own)


async def test_without_bubblewrap_the_attacks_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("bash", "python3"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="bwrap is missing"):
        await attack([3])


@pytest.mark.parametrize(
    ("inside", "outside", "wanted"),
    [
        ("EACCES", "yes", "held"),
        ("EACCES", "", "held"),
        ("yes", "yes", "BROKEN"),
        ("EACCES", "EACCES", "unproved"),
        ("EACCES", "EIO", "not here"),
        ("nothing", "yes", "BROKEN"),
    ],
)
def test_verdicts(inside: str, outside: str, wanted: str) -> None:
    assert verdict(inside, outside, ["EACCES"], ["yes"], ["EIO"]) == wanted
