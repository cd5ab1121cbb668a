"""The soak itself: short, as root and as a created user; and that it tells what grew."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace

import pytest

from pilotfish.sandbox import soak

from .created_user import created_user, run_python

pytestmark = pytest.mark.timeout(180)

SHORT = ("-m", "pilotfish.sandbox.soak", "--sandboxes", "4", "--kills", "3", "--json")


@pytest.mark.parametrize("level", ["3", "2"])
def test_nothing_stays_of_a_few_sandboxes(level: str) -> None:
    with created_user() as user:
        for name in (None, user):
            done = run_python(name or "root", *SHORT, "--level", level)
            assert done.returncode == 0, done.stdout + done.stderr
            report = json.loads(done.stdout)
            assert report["grew"] == []
            assert sum(report["killed_in"].values()) == 3
            assert report["after"]["processes"] == report["after"]["folders"] == 0


def test_what_grew_is_named() -> None:
    before = soak.count(set())
    for name in asdict(before):
        slack = soak.MEMORY_SLACK_MB if name == "memory_mb" else 0
        more = replace(before, **{name: getattr(before, name) + slack + 1})
        assert soak.grew(before, more) == [name.removesuffix("_mb")]
        assert soak.grew(more, before) == []
    fd = os.open("/dev/null", os.O_RDONLY)
    try:
        assert "descriptors" in soak.grew(before, soak.count(set()))
    finally:
        os.close(fd)
