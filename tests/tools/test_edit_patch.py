"""Patches, moves and deletes by the `edit` tool, and what it says of broken syntax."""

from __future__ import annotations

import difflib
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.tools.patching import PatchError, places, read_patch
from pilotfish.tools.syntax import syntax_note
from pilotfish.tools.textfile import TextFile

TEXT = b"one\ntwo\nthree\nfour\nfive\nsix\n"
PATCH = (
    "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n@@ -5,2 +5,3 @@\n five\n+5.5\n six\n"
)


async def test_a_patch_is_put_on_the_file(edit):
    edit.put(TEXT)
    assert await edit.does("patch", patch=PATCH) == "ok; 2 hunks"
    assert edit.bytes() == b"one\n2\nthree\nfour\nfive\n5.5\nsix\n"
    assert await edit.does("undo") == "ok; as before the last edit"
    assert edit.bytes() == TEXT


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        # Line ends, a byte order mark, an encoding and a missing last line end stay.
        (b"one\r\ntwo\r\nthree", "@@ -2 +2 @@\n-two\n+2\n", b"one\r\n2\r\nthree"),
        (b"one\r\ntwo", "@@ -1,2 +1,2 @@\n one\n-two\n+2\n", b"one\r\n2"),
        (b"one\ntwo\r\n", "@@ -1,2 +1,2 @@\r\n one\r\n-two\r\n+2\r\n", b"one\n2\r\n"),
        (b"\xef\xbb\xbfone\ntwo\n", "@@ -1 +1 @@\n-one\n+1\n", b"\xef\xbb\xbf1\ntwo\n"),
        ("é\ntwo\n".encode("latin-1"), "@@\n-two\n+ü\n", "é\nü\n".encode("latin-1")),
        # Lines that moved, and numbers that are left out.
        (b"0\n0\none\ntwo\n", "@@ -1,2 +1,2 @@\n one\n-two\n+2\n", b"0\n0\none\n2\n"),
        (b"a\nb\na\nb\n", "@@ -3,2 +3,2 @@\n a\n-b\n+c\n", b"a\nb\na\nc\n"),
        # The last line end taken away and given.
        (b"one\n", "@@ -1 +1 @@\n-one\n+one\n\\ No newline at end of file\n", b"one"),
        (b"one", "@@ -1 +1 @@\n-one\n\\ No newline at end of file\n+one\n", b"one\n"),
        (b"one\n", "@@ -1,0 +2 @@\n+two\n", b"one\ntwo\n"),
        (b"a\nb", "@@ -2,0 +3 @@\n+c\n", b"a\nb\nc"),
        (b"a\nb", "@@ -1,0 +2 @@\n+c\n", b"a\nc\nb"),
        (b"", "@@ -0,0 +1 @@\n+c\n", b"c\n"),
        (b"one\n\ntwo\n", "@@ -1,3 +1,3 @@\n one\n\n-two\n+2\n", b"one\n\n2\n"),
    ],
)
async def test_what_is_not_patched_stays(edit, before, patch, after):
    edit.put(before)
    await edit.does("patch", patch=patch)
    assert edit.bytes() == after


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ("", "has no hunk"),
        ("@@ -1 +1 @@\n one\n", "changes nothing"),
        ("@@ -1 +1 @@\n-one\n+1\n!x\n", "begins with none of"),
        ("@@ -1 +1 @@\n-One\n+1\n", "the lines of hunk 1 are not there: the nearest lines"),
        ("@@ -1,2 +1 @@\n-one\n+1\n@@ -9 +9 @@\n-nine\n+9\n", "the lines of hunk 2 are not there"),
        ("@@\n-wo\n+2\n", "not there"),
        ("@@ -7,0 +8 @@\n+x\n", "adds after line 7, and there are 6 lines"),
        (f"@@ -{'9' * 5000} +1 @@\n-one\n+1\n", "has no hunk"),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\ndiff --git a/b b/b\n", "for several files"),
    ],
)
async def test_a_patch_that_does_not_fit_changes_nothing(edit, patch, said):
    edit.put(TEXT)
    assert said in await edit.refuses("patch", patch=patch)


async def test_a_patch_that_fits_two_places_or_an_old_file_is_refused(edit):
    edit.put(b"a\nb\na\nb\n")
    assert "fits 2 places, at lines 1, 3" in await edit.refuses("patch", patch="@@\n a\n-b\n+c\n")
    await edit.does("view")
    (edit.folder / "a.txt").write_bytes(b"a\nb\nc\n")
    assert "has changed on disk" in await edit.refuses("patch", patch="@@\n a\n-b\n+c\n")
    assert "`patch` needs `patch`" in await edit.refuses("patch")
    assert "does not exist" in (await edit("patch", "none.txt", patch="@@\n-a\n+b\n")).text


def test_a_line_that_is_everywhere_is_patched_where_it_is_said_to_be() -> None:
    text = "a\n" * 100_000
    patch = "".join(f"@@ -{line} +{line} @@\n-a\n+b\n" for line in range(50_000, 52_000))
    began_s = time.monotonic()
    file = TextFile(text)
    assert (
        file.spliced(places(read_patch(patch), file.lf)).lf == "a\n" * 49_999 + "b\n" * 2000 + "a\n" * 48_001
    )
    assert time.monotonic() - began_s < 10
    with pytest.raises(PatchError, match="fits 3 places"):  # and not where it says, behind the end
        places(read_patch("@@ -99 +99 @@\n-a\n+b\n"), "a\n" * 3)


LINES = st.lists(st.sampled_from(["a", "b", "", " c", "\td", "é"]), max_size=12)


@settings(max_examples=300, deadline=None)
@given(LINES, LINES, st.integers(0, 3), st.sampled_from(["\n", "\r\n"]))
def test_any_diff_gives_the_other_text(old: list[str], new: list[str], context: int, end: str) -> None:
    """What difflib makes of two texts, as its naive twin, brings the one to the other."""
    before, after = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
    if before == after:
        return
    patch = "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), n=context))
    file = TextFile(before.replace("\n", end))
    changed = file.spliced(places(read_patch(patch), file.lf))
    assert changed.lf == after


async def test_files_are_moved_and_deleted(edit):
    path = edit.put(b"#!/bin/sh\r\n")
    path.chmod(0o755)
    (edit.folder / "link").symlink_to("/etc/passwd")
    assert await edit.does("move", to="new/name.sh") == "ok; it is new/name.sh now"
    assert ((edit.folder / "new" / "name.sh").stat().st_mode & 0o777, path.exists()) == (0o755, False)
    assert edit.bytes("new/name.sh") == b"#!/bin/sh\r\n"
    await edit.does("move", "new/name.sh", to="new/Name.sh")  # only another case
    await edit.does("delete", "link")
    assert not (edit.folder / "link").is_symlink()
    assert await edit.does("delete", "new/Name.sh") == "ok; the file is gone"
    assert list((edit.folder / "new").iterdir()) == []


async def test_moves_and_deletes_that_would_lose_something_are_refused(edit):
    edit.put(b"a\n")
    edit.put(b"b\n", "b.txt")
    edit.put(b"c\n", "d/c.txt")
    (edit.folder / "out").symlink_to("/tmp")
    assert "'b.txt' exists" in await edit.refuses("move", to="b.txt")
    assert "is outside the workspace" in await edit.refuses("move", to="../x")
    assert "is outside the workspace" in await edit.refuses("move", to="out/x")
    assert "is outside the workspace" in (await edit("delete", "/etc/passwd")).text
    assert "is outside the workspace" in (await edit("delete", "out/x")).text
    assert "is a folder; use the shell" in (await edit("delete", "d")).text
    assert "does not exist" in (await edit("delete", "no.txt")).text
    assert "`move` needs `to`" in await edit.refuses("move")
    await edit.does("view")
    (edit.folder / "a.txt").write_bytes(b"other\n")
    assert "has changed on disk" in await edit.refuses("delete")
    assert "has changed on disk" in await edit.refuses("move", to="e.txt")
    assert edit.bytes("b.txt") == b"b\n"


async def test_broken_syntax_is_told_and_the_edit_stays(edit):
    edit.put(b"def f(a):\n    return a\n", "a.py")
    said = await edit.does("replace", "a.py", old_text="(a):", new_text="(a:")
    assert "but that is not python any more, from line 1" in said
    assert edit.bytes("a.py") == b"def f(a:\n    return a\n"
    # It was broken before: nothing new to say. Mended, nothing either.
    assert "any more" not in await edit.does("replace", "a.py", old_text="return a", new_text="return 1")
    assert "any more" not in await edit.does("replace", "a.py", old_text="(a:", new_text="(a):")
    assert "not javascript any more" in await edit.does("create", "b.js", new_text="function (")
    assert await edit.does("create", "b.unknown", new_text="{{{") == "ok; 1 line"


def test_a_text_that_would_take_a_parser_down_takes_nothing_else_along() -> None:
    assert isinstance(syntax_note("a.py", None, "(" * 400_000), str)
    assert syntax_note("a.py", None, "(" * 600_000) == ""  # too big to be looked at
    words = [sys.executable, "-m", "pilotfish.tools.syntax", "python", "2"]
    done = subprocess.run(words, input=b"a\nb(", capture_output=True, check=True)
    assert done.stdout == b"[[], [1]]\n"


async def test_paths_as_windows_writes_them_are_told_and_make_no_file(edit):
    edit.put(b"a\n", "src/pkg/a.txt")
    for command, more in [
        ("view", {}),
        ("replace", {"old_text": "a", "new_text": "b"}),
        ("delete", {}),
        ("move", {"to": "b.txt"}),
    ]:
        result = await edit(command, "src\\pkg\\a.txt", **more)
        assert (result.ok, "did you mean src/pkg/a.txt." in result.text) == (False, True), result.text
    result = await edit("create", "src\\pkg\\new.txt", new_text="x")
    assert result.text == (
        "edit: src\\pkg\\new.txt would be the name of one file here; write src/pkg/new.txt."
    )
    result = await edit("move", "src/pkg/a.txt", to="src\\b.txt")
    assert "write src/b.txt." in result.text
    # A file that does have such a name is as good as any other.
    edit.put(b"a\n", "src\\odd.txt")
    await edit.does("replace", "src\\odd.txt", old_text="a", new_text="b")
    assert [path.name for path in edit.folder.rglob("*.txt")].count("a.txt") == 1
    assert sorted(path.name for path in edit.folder.iterdir()) == ["src", "src\\odd.txt"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_script_that_crlf_keeps_from_running_is_told(edit):
    edit.put(b"#!/bin/sh\r\necho ran\r\n", "run.sh").chmod(0o755)
    assert (await edit.box.shell.run("./run.sh")).exit_code in (126, 127)
    said = await edit.does("view", "run.sh")
    assert "CRLF line ends, Linux cannot run it while its #! line ends with CRLF" in said
    assert (await edit.box.shell.run("sed -i 's/\\r$//' run.sh; ./run.sh")).output == "ran\n"
    assert "CRLF" not in await edit.does("view", "run.sh")
    edit.put(b"#!/bin/sh\necho\r\n", "run.sh")
    assert "cannot run" not in await edit.does("view", "run.sh")
