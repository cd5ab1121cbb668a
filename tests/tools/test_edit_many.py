"""Several edits at once, and edits taken back: all or nothing, and to the byte."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from pilotfish.tools.history import History, Step

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


async def test_several_edits_are_made_in_order(edit):
    edit.put(b"a = 1\r\nb = 2\r\nc = 3\r\n")
    edits = [
        {"old_text": "a = 1\nb = 2\n", "new_text": "a = 10\nb = 20\n"},
        {"old_text": "b = 20", "new_text": "b = 21"},
        {"old_text": " = ", "new_text": ": ", "replace_all": True},
    ]
    assert await edit.does("replace", edits=edits) == "ok; 3 edits"
    assert edit.bytes() == b"a: 10\r\nb: 21\r\nc: 3\r\n"


async def test_several_edits_are_made_all_or_not_at_all(edit):
    edit.put(b"a = 1\nb = 2\nb = 2\n")
    first = {"old_text": "a = 1", "new_text": "a = 2"}
    for second, words in [
        (
            {"old_text": "c = 3", "new_text": "x"},
            "nothing was changed: the `old_text` of edit 2 is not in a.txt",
        ),
        ({"old_text": "a = 1", "new_text": "x"}, "the nearest lines differ"),
        ({"old_text": "b = 2", "new_text": "x"}, "edit 2 is 2 times in a.txt, at lines 2, 3"),
        ({"old_text": "b = 2\nb", "new_text": "\ud800"}, "U+D800"),
    ]:
        assert words in await edit.refuses("replace", edits=[first, second])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"edits": []}, "`edits`"),
        ({"edits": "a"}, "`edits` is 'a', but must be a list"),
        ({"edits": ["a"]}, "`edits[0]` is 'a', but must be an object"),
        ({"edits": [{"old_text": "a"}]}, "`edits[0].new_text` is missing"),
        ({"edits": [{"old_text": "a", "new_text": "b", "replaceall": True}]}, "did you mean replace_all"),
        (
            {"edits": [{"old_text": "a", "new_text": "b"}, {"old_text": "", "new_text": "b"}]},
            "`edits[1]`: `old_text` is",
        ),
        ({"edits": [{"old_text": "a", "new_text": "a"}]}, "the same"),
        (
            {"edits": [{"old_text": "a", "new_text": "b"}], "old_text": "a"},
            "`edits` goes with `replace` alone",
        ),
    ],
)
async def test_wrong_edits_are_one_sentence(edit, arguments, words):
    edit.put(b"a\n")
    text = await edit.refuses("replace", **arguments)
    assert words in text
    assert "\n" not in text


async def test_changes_are_taken_back_newest_first(edit):
    original = "größe\r\n".encode("utf-16")
    path = edit.put(original)
    path.chmod(0o750)
    await edit.does("replace", old_text="größe", new_text="a\nb")
    await edit.does("insert", line=1, new_text="x")
    await edit.does("create", new_text="other\n", overwrite=True)
    assert await edit.does("undo") == "ok; as before the last edit"
    assert edit.bytes() == "a\r\nx\r\nb\r\n".encode("utf-16")
    await edit.does("replace", old_text="x", new_text="y")
    for _ in range(3):
        await edit.does("undo")
    assert edit.bytes() == original
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert "no change of a.txt by this tool to undo" in await edit.refuses("undo")


async def test_edits_at_once_are_all_kept(edit):
    edit.put(b"".join(b"%03d\n" % n for n in range(30)))
    await asyncio.gather(
        *(edit.does("replace", old_text=f"{n:03d}\n", new_text=f"{n:03d}!\n") for n in range(30))
    )
    assert edit.bytes() == b"".join(b"%03d!\n" % n for n in range(30))


async def test_many_places_on_one_long_line(edit):
    edit.put(b"ab " * 200_000)
    said = await edit.does("replace", old_text=" ", new_text="  ", replace_all=True)
    assert said == "ok; 200000 places, lines 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ..."
    assert edit.bytes() == b"ab  " * 200_000


async def test_equal_changes_are_taken_back_one_by_one(edit):
    edit.put(b"A\n")
    for old, new in ("AB", "BA", "AB"):
        await edit.does("replace", old_text=old, new_text=new)
    for expected in (b"A\n", b"B\n", b"A\n"):
        await edit.does("undo")
        assert edit.bytes() == expected


@pytest.mark.parametrize("encoding", ["idna", "undefined", "a\0b"])
async def test_encodings_that_take_no_text_are_refused(edit, encoding):
    edit.put(b"abc\n")
    text = await edit.refuses("create", new_text="a..b\n", overwrite=True, encoding=encoding)
    assert "\n" not in text
    assert edit.bytes() == b"abc\n"
    assert "\n" not in await edit.refuses("view", encoding="a\0b")


async def test_undoing_a_new_file_removes_it(edit):
    await edit.does("create", "sub/new.txt", new_text="x\n")
    await edit.does("create", "other.txt", new_text="x\n")
    assert await edit.does("undo", "sub/new.txt") == "ok; the file is gone"
    assert not (edit.folder / "sub" / "new.txt").exists()
    assert edit.bytes("other.txt") == b"x\n"
    await edit.does("create", "sub/new.txt", new_text="again\n")


async def test_nothing_is_taken_back_over_a_change_from_elsewhere(edit):
    edit.put(b"a\n")
    await edit.does("replace", old_text="a", new_text="b")
    (edit.folder / "a.txt").write_bytes(b"theirs\n")
    assert "changed on disk since its last edit" in await edit.refuses("undo")
    (edit.folder / "a.txt").unlink()
    assert "does not exist" in (await edit("undo")).text


async def test_what_is_kept_for_undoing_is_bounded():
    history = History(max_bytes=100)
    steps = [Step(("box", Path(str(n % 3))), bytes(30), b"%d" % n) for n in range(9)]
    for step in steps:
        history.add(step)
    assert [history.last(("box", Path(name))) for name in "012"] == steps[-3:]
    history.remove(steps[-1])
    assert history.last(("box", Path("2"))) is None


async def test_a_file_written_anew_keeps_the_encoding_it_was_seen_in(edit):
    edit.put("日本語 one\n".encode("gbk"))
    await edit.does("view", encoding="gbk")
    await edit.does("create", new_text="日本語 two\n", overwrite=True)
    assert edit.bytes() == "日本語 two\n".encode("gbk")
    await edit.does("replace", old_text="two", new_text="三")
    assert edit.bytes() == "日本語 三\n".encode("gbk")


async def test_a_file_that_is_read_only_is_not_replaced(edit):
    edit.put(b"one\n").chmod(0o444)
    for change in (
        {"command": "replace", "old_text": "one", "new_text": "two"},
        {"command": "insert", "line": 1, "new_text": "two"},
        {"command": "create", "new_text": "two", "overwrite": True},
    ):
        text = await edit.refuses(**change)
        assert text == (
            "edit: a.txt is read-only (mode 444); if it is to change, make it writable first, "
            "with `chmod u+w` in the shell."
        )
    assert (edit.folder / "a.txt").stat().st_mode & 0o777 == 0o444
    await edit.box.shell.run("chmod u+w a.txt")
    await edit.does("replace", old_text="one", new_text="two")
    assert (edit.folder / "a.txt").stat().st_mode & 0o777 == 0o644


async def test_other_names_of_a_file_keep_the_old_text_and_the_model_is_told(edit):
    edit.put(b"one\n")
    (edit.folder / "b.txt").hardlink_to(edit.folder / "a.txt")
    text = await edit.does("replace", old_text="one", new_text="two")
    assert text == "ok; line 1; 1 other name of the file (hard link) still has the old text"
    assert (edit.bytes(), edit.bytes("b.txt")) == (b"two\n", b"one\n")
    assert await edit.does("replace", old_text="two", new_text="three") == "ok; line 1"


async def test_an_owner_other_than_the_workspace_s_is_kept(edit):
    path = edit.put(b"one\n")
    if os.geteuid() == 0:
        os.chown(path, 12345, 54321)
    before = path.stat()
    await edit.does("replace", old_text="one", new_text="two")
    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


async def test_sentences_name_paths_as_they_are_inside(edit):
    (edit.folder / "dangling").symlink_to("nowhere/at/all")
    (edit.folder / "outside").symlink_to("/tmp/nothing-here")
    (edit.folder / "loop").symlink_to("loop")
    (edit.folder / "sub").mkdir()
    for path in ("dangling", "outside", "loop", "sub", "sub/x/../..", "/etc/passwd"):
        for more in (
            {"command": "view"},
            {"command": "create", "new_text": "x", "overwrite": True},
            {"command": "replace", "old_text": "a", "new_text": "b"},
        ):
            result = await edit(**more, path=path)
            assert str(edit.folder) not in result.text
            assert not result.ok
