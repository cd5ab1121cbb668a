"""The edit tool on real files in a real sandbox: what is not asked for does not change, byte for byte."""

import json
import os
import stat

import pytest

from pilotfish.tools.base import ToolContext, ToolResult, tool_schema, validate
from pilotfish.tools.edit import EditTool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


async def replaces(edit, data, old, new, expected):
    edit.put(data)
    await edit.does("replace", old_text=old, new_text=new)
    assert edit.bytes() == expected


async def test_view_numbers_the_lines(edit):
    edit.put(b"one\n\n  three\n")
    assert await edit.does("view") == "     1\tone\n     2\t\n     3\t  three"
    assert await edit.does("view", lines=[2, 2]) == "     2\t\n(lines 2 to 2 of 3)"
    assert await edit.does("view", lines=["2", -1]) == "     2\t\n     3\t  three\n(lines 2 to 3 of 3)"
    assert "no line 4" in await edit.refuses("view", lines=[4, 5])
    assert "[3, 2]" in await edit.refuses("view", lines=[3, 2])


async def test_view_says_what_it_cannot_show(edit):
    edit.put(b"\xef\xbb\xbfone\r\ntwo")
    assert "(utf-8 with a byte order mark, CRLF line ends, no line end at the end)" in await edit.does("view")
    edit.put(b"one\r\ntwo\nthree\n")
    assert "1 of 3 line ends are CRLF" in await edit.does("view")
    edit.put(b"")
    assert await edit.does("view") == "(empty file)"


async def test_view_of_much_is_cut_and_says_so(edit):
    edit.put(b"".join(b"line %d\n" % n for n in range(1, 6001)))
    text = await edit.does("view")
    assert "  2000\tline 2000\n(lines 1 to 2000 of 6000, view others with `lines`)" in text
    assert "  6000\tline 6000" in await edit.does("view", lines=[5990, 6000])
    edit.put(b"x" * 100_000)
    assert "98000 more characters" in await edit.does("view")


async def test_only_the_match_changes(edit):
    await replaces(edit, b"a = 1\nb = 2  \n\tc\n", "b = 2", "b = 3", b"a = 1\nb = 3  \n\tc\n")


async def test_a_line_says_which_match_is_meant(edit):
    edit.put(b"a = 1\nb = 1\nc = 1, 1\n")
    assert await edit.does("replace", line=2, old_text="1", new_text="2") == "ok; line 2"
    assert edit.bytes() == b"a = 1\nb = 2\nc = 1, 1\n"
    said = await edit.refuses("replace", line=2, old_text="1", new_text="3")
    assert "is not on line 2 of" in said
    assert "but at lines 1, 3, 3; give its line, or none." in said
    said = await edit.refuses("replace", line=3, old_text="1", new_text="3")
    assert "is 2 times" in said
    assert "add text around it" in said
    await edit.does("replace", line=3, old_text="1", new_text="3", replace_all=True)
    assert edit.bytes() == b"a = 1\nb = 2\nc = 3, 3\n"
    assert "`line` is 0" in await edit.refuses("replace", line=0, old_text="a", new_text="b")
    assert "leave them out" in await edit.refuses(
        "replace", line=1, edits=[{"old_text": "a", "new_text": "b"}]
    )


async def test_a_part_of_a_longer_word_is_left_alone_if_asked(edit):
    edit.put(b"at bat atom at_1 at\nx.at(at)\n")
    await edit.does("replace", old_text="at", new_text="to", replace_all=True, whole_word=True)
    assert edit.bytes() == b"to bat atom at_1 to\nx.to(to)\n"
    said = await edit.refuses("replace", old_text="ba", new_text="b", whole_word=True)
    assert "only a part of longer words there" in said
    several = [{"old_text": "bat", "new_text": "b"}]
    assert "leave them out" in await edit.refuses("replace", edits=several, whole_word=True)


async def test_crlf_stays(edit):
    await replaces(edit, b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "1\n1b\n2", b"1\r\n1b\r\n2\r\nthree\r\n")
    await replaces(edit, b"one\r\ntwo\r\n", "one\r\ntwo\r\n", "one\r\n2\r\n", b"one\r\n2\r\n")


async def test_mixed_ends_stay_where_they_are(edit):
    await replaces(edit, b"a\r\nb\nc\r\nd\n", "b\nc", "b\nB\nc", b"a\r\nb\nB\r\nc\r\nd\n")
    await replaces(edit, b"a\nb\r\nc\n", "a\nb\nc", "a\nX\nc", b"a\nX\r\nc\n")


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16", "utf-32"])
async def test_a_byte_order_mark_stays(edit, mark):
    await replaces(
        edit,
        "größe = 1\r\n文\r\n".encode(mark),
        "größe = 1",
        "größe = 2 €",
        "größe = 2 €\r\n文\r\n".encode(mark),
    )


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
async def test_utf16_without_a_mark_is_read(edit, encoding):
    text = "first line\r\nsecond line\r\n"
    await replaces(edit, text.encode(encoding), "first", "1st", text.replace("first", "1st").encode(encoding))


async def test_western_code_pages_stay(edit):
    await replaces(edit, "größe: 5 €".encode("cp1252"), "5 €", "6 €", "größe: 6 €".encode("cp1252"))
    await replaces(edit, b"na\xefve \x81", "na", "NA", b"NA\xefve \x81")
    edit.put("größe".encode("latin-1"))
    assert "guessed" in await edit.does("view")
    text = await edit.refuses("replace", old_text="gr", new_text="文")
    assert "U+6587" in text
    assert "cp1252" in text


async def test_a_declared_encoding_is_used(edit):
    source = "# -*- coding: gbk -*-\nname = '测试'\n".encode("gbk")
    await replaces(
        edit, source, "'测试'", "'中文测试'", source.replace("测试".encode("gbk"), "中文测试".encode("gbk"))
    )


async def test_a_named_encoding_is_used_and_remembered(edit):
    edit.put("日本語のテキスト\n".encode("shift_jis"))
    assert "日本語" in await edit.does("view", encoding="shift_jis")
    await edit.does("replace", old_text="日本語", new_text="英語")
    assert edit.bytes() == "英語のテキスト\n".encode("shift_jis")
    assert "'klingon'" in await edit.refuses("view", encoding="klingon")
    assert "ascii" in await edit.refuses("view", encoding="ascii")
    assert not (await edit("view", encoding="rot13")).ok


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "a PNG picture"),
        (b"\x7fELF" + bytes(50), "a program"),
        (b"PK\x03\x04" + bytes(50), "ZIP"),
        (b"text\0more text", "binary"),
        (b"GIF89a" + bytes(50), "a GIF picture"),
        (b"RIFF\x10\0\0\0WEBPVP8 " + bytes(50), "a WebP picture"),
        (b"BZh91AY&SY\0\x01\x02", "bzip2 data"),
        (b"SQLite format 3\0" + bytes(50), "an SQLite database"),
        (bytes(range(256)), "binary"),
        (b"\xff\x01\x02\x03\x04", "binary"),
    ],
)
async def test_binary_files_are_refused(edit, data, kind):
    edit.put(data)
    for command, more in [
        ("view", {}),
        ("replace", {"old_text": "t", "new_text": "s"}),
        ("insert", {"line": 0, "new_text": "s"}),
        ("create", {"new_text": "s", "overwrite": True}),
    ]:
        text = await edit.refuses(command, **more)
        assert kind in text
        assert f"{len(data)} bytes" in text


async def test_a_character_at_a_read_border_is_not_lost(edit):
    for shift in range(4):
        text = "x" * (4096 - shift) + "😀é文" + "y" * 70_000 + "ß\n"
        await replaces(edit, text.encode(), "y" * 70_000, "z", text.replace("y" * 70_000, "z").encode())


async def test_unusual_spaces_and_quotes_match_only_themselves(edit):
    data = "say “hi” it’s\u00a0me\n".encode()
    await replaces(edit, data, "it’s\u00a0me", "it’s\u00a0you", "say “hi” it’s\u00a0you\n".encode())
    text = await edit.refuses("replace", old_text='say "hi" it\'s you', new_text="x")
    assert "differ only in kinds of spaces, quotes or dashes" in text
    assert "it’s<U+00A0>you" in text


async def test_indentation_is_never_guessed(edit):
    edit.put(b"def f():\n\tif x:\n\t\treturn 1\n\treturn 2\n")
    text = await edit.refuses("replace", old_text="    if x:\n        return 1", new_text="pass")
    assert "differ only in blanks and tabs" in text
    assert "     2 →if x:" in text
    assert "     3 →→return 1" in text
    assert "····if x:" in text


async def test_the_nearest_block_is_shown(edit):
    edit.put(b"".join(b"value_%d = compute(%d)\n" % (n, n) for n in range(3000)))
    text = await edit.refuses(
        "replace", old_text="value_7 = compute(7)\nvalue_8 = compute(9)\n", new_text="x"
    )
    assert "     8 value_7 = compute(7)\n     9 value_8 = compute(8)" in text
    assert "where line 9 should be as above" in text
    text = await edit.refuses("replace", old_text="value_1500 := compute(1500)", new_text="x")
    assert "  1501 value_1500 = compute(1500)" in text
    assert "nothing in the file is like it" in await edit.refuses("replace", old_text="zzz", new_text="x")


async def test_a_line_end_too_many_is_told(edit):
    edit.put(b"a\nlast")
    text = await edit.refuses("replace", old_text="last\n", new_text="x\n")
    assert "lines 2 to 2 are the same except for line ends" in text


async def test_a_miss_in_a_large_file_is_explained(edit):
    edit.put(b"".join(b"row %d;%d\n" % (n, n * n) for n in range(400_000)))
    text = await edit.refuses("replace", old_text="row 399998;159998400004\nrow 7\n", new_text="x")
    assert "399999 row 399998;159998400004" in text
    edit.put(b"x = 1;" * 1_000_000)
    assert "nothing in the file is like it" in await edit.refuses("replace", old_text="x := 1;", new_text="")


async def test_an_ellipsis_stands_for_itself(edit):
    edit.put(b"def f():\n    a()\n    b()\n    c()\n")
    await edit.refuses("replace", old_text="def f():\n    ...\n    c()", new_text="x")


async def test_two_matches_are_refused_with_their_lines(edit):
    edit.put(b"x = 1\ny\nx = 1\n")
    text = await edit.refuses("replace", old_text="x = 1", new_text="x = 2")
    assert "2 times" in text
    assert "lines 1, 3" in text
    assert "`replace_all`" in text
    assert await edit.does("replace", old_text="x = 1", new_text="x = 2", replace_all="true") == (
        "ok; 2 places, lines 1, 3"
    )
    assert edit.bytes() == b"x = 2\ny\nx = 2\n"


async def test_replacing_all_with_line_ends(edit):
    edit.put(b"a\r\nb\r\na\r\n")
    await edit.does("replace", old_text="a\n", new_text="a\nc\n", replace_all=True)
    assert edit.bytes() == b"a\r\nc\r\nb\r\na\r\nc\r\n"


async def test_four_wrong_requests_have_four_errors(edit):
    edit.put(b"abc\n")
    (edit.folder / "sub").mkdir()
    texts = [
        await edit.refuses("replace", old_text="", new_text="x"),
        await edit.refuses("replace", old_text="a", new_text="a"),
        await edit.refuses("replace", "b.txt", old_text="a", new_text="x"),
        await edit.refuses("replace", "sub", old_text="a", new_text="x"),
    ]
    for text, word in zip(texts, ["empty", "the same", "did you mean a.txt", "folder"], strict=True):
        assert word in text
        assert "\n" not in text
    assert "needs `old_text`" in await edit.refuses("replace", new_text="x")
    assert "needs `line`" in await edit.refuses("insert", new_text="x")
    assert "`line`" in await edit.refuses("insert", line=-1, new_text="x")
    assert "needs `new_text`" in await edit.refuses("create", "c.txt")


async def test_a_missing_final_line_end_stays_missing(edit):
    await replaces(edit, b"a\nb", "b", "c", b"a\nc")
    edit.put(b"a\nb")
    await edit.does("insert", line=2, new_text="c\n")
    assert edit.bytes() == b"a\nb\nc"


@pytest.mark.parametrize(
    ("data", "line", "new", "expected"),
    [
        (b"a\nb\n", 0, "new", b"new\na\nb\n"),
        (b"a\nb\n", 1, "new\n", b"a\nnew\nb\n"),
        (b"a\nb\n", 2, "new", b"a\nb\nnew\n"),
        (b"a\r\nb\r\n", 1, "x\ny", b"a\r\nx\r\ny\r\nb\r\n"),
        (b"", 0, "new", b"new\n"),
        (b"a", 0, "new", b"new\na"),
        (b"a\r\nb", 2, "c", b"a\r\nb\r\nc"),
        (b"a\n", 1, "\n", b"a\n\n"),
    ],
)
async def test_insert(edit, data, line, new, expected):
    edit.put(data)
    await edit.does("insert", line=line, new_text=new)
    assert edit.bytes() == expected


async def test_insert_behind_the_end_is_refused(edit):
    edit.put(b"a\nb\n")
    assert "2 lines" in await edit.refuses("insert", line=3, new_text="x")


async def test_create_makes_folders_and_never_overwrites_unasked(edit):
    await edit.does("create", "deep/er/new.txt", new_text="ß\r\nno end")
    assert edit.bytes("deep/er/new.txt") == "ß\r\nno end".encode()
    edit.put(b"precious\n")
    text = await edit.refuses("create", new_text="gone")
    assert "exists with 1 line;" in text
    assert "`overwrite`" in text


async def test_overwriting_keeps_encoding_and_line_ends(edit):
    edit.put(b"\xef\xbb\xbfold\r\ntext\r\n")
    await edit.does("create", new_text="new\ntext\r\nhere\n", overwrite=True)
    assert edit.bytes() == b"\xef\xbb\xbfnew\r\ntext\r\nhere\r\n"
    await edit.does("create", new_text="new\r\n", overwrite=True)
    assert edit.bytes() == b"\xef\xbb\xbfnew\r\n"


async def test_a_file_that_changed_is_not_written(edit):
    edit.put(b"one\ntwo\n")
    await edit.does("view")
    (edit.folder / "a.txt").write_bytes(b"one\ntwo\nthree\n")
    for command, more in [
        ("replace", {"old_text": "one", "new_text": "1"}),
        ("insert", {"line": 0, "new_text": "x"}),
        ("create", {"new_text": "x", "overwrite": True}),
    ]:
        assert "view it again" in await edit.refuses(command, **more)
    await edit.does("view")
    await edit.does("replace", old_text="one", new_text="1")
    await edit.does("replace", old_text="two", new_text="2")
    assert edit.bytes() == b"1\n2\nthree\n"


async def test_mode_and_links_stay(edit):
    path = edit.put(b"#!/bin/sh\necho a\n", "run.sh")
    path.chmod(0o755)
    (edit.folder / "link.sh").symlink_to("run.sh")
    await edit.does("replace", "link.sh", old_text="echo a", new_text="echo b")
    assert path.read_bytes() == b"#!/bin/sh\necho b\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert (edit.folder / "link.sh").is_symlink()
    await edit.does("replace", "run.sh", old_text="echo b", new_text="echo c")


async def test_a_file_above_the_size_limit_is_refused(edit):
    with (edit.folder / "big.txt").open("wb") as file:
        file.truncate(200_000_000)
    assert "200000000 bytes" in await edit.refuses("replace", "big.txt", old_text="a", new_text="b")


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "a/../../b",
        "/workspace/../etc/passwd",
        "/proc/self/root/etc/passwd",
    ],
)
async def test_paths_outside_are_refused(edit, path):
    for command, more in [("view", {}), ("create", {"new_text": "x", "overwrite": True})]:
        result = await edit(command, path, **more)
        assert not result.ok
        assert "root:" not in result.text
        assert "\n" not in result.text


async def test_links_that_lead_outside_are_refused(edit, tmp_path):
    outside = tmp_path / "secret.txt"
    outside.write_text("secret\n")
    (edit.folder / "leak").symlink_to(outside)
    (edit.folder / "folder").symlink_to(tmp_path)
    os.mkfifo(edit.folder / "pipe")
    for path in ("leak", "folder/secret.txt", "folder/new.txt", "pipe"):
        for command, more in [
            ("view", {}),
            ("replace", {"old_text": "secret", "new_text": "x"}),
            ("create", {"new_text": "x", "overwrite": True}),
        ]:
            result = await edit(command, path, **more)
            assert not result.ok
            assert "secret\n" not in result.text
    assert outside.read_text() == "secret\n"
    assert list(tmp_path.iterdir()) == [outside]


async def test_odd_names_are_names(edit):
    for name in (
        "C:\\Users\\unicorn.txt",
        "$(id).txt",
        "a b\tc.txt",
        "-rf",
        "ä.txt",
        "CON",
        "aux.py",
        "nul.",
    ):
        await edit.does("create", name, new_text="x\n")
        assert edit.bytes(name) == b"x\n"


async def test_text_that_cannot_be_written_is_refused(edit):
    edit.put(b"a\n")
    assert "U+D800" in await edit.refuses("replace", old_text="a", new_text="\ud800")
    assert "null character" in await edit.refuses("replace", old_text="a", new_text="x\0y")
    assert "null character" in await edit.refuses("patch", patch="@@\n-a\n+\0\n")
    assert "`path`" in await edit.refuses("view", path=5)


async def test_without_a_sandbox_it_says_so():
    args = validate(EditTool(), {"command": "view", "path": "a"})
    assert not isinstance(args, ToolResult)
    assert "no sandbox" in (await EditTool().run(args, ToolContext())).text


async def test_trailing_blanks_stay(edit):
    await replaces(edit, b"one  \ntwo  \n", "two  \n", "three  \n", b"one  \nthree  \n")
    await replaces(edit, b"one  \ntwo\t\n", "one", "1", b"1  \ntwo\t\n")


@pytest.mark.parametrize(
    "path", ["~/.ssh/id_rsa", "/workspace-evil/a", "/workspace/../workspace-evil/a", "/dev/fd/0"]
)
async def test_other_ways_outside_are_refused_alike(edit, path):
    (edit.folder.parent / "workspace-evil").mkdir(exist_ok=True)
    (edit.folder.parent / "workspace-evil" / "a").write_text("secret")
    for command, more in [("view", {}), ("create", {"new_text": "x", "overwrite": True}), ("undo", {})]:
        result = await edit(command, path, **more)
        assert (result.ok, "is outside the workspace" in result.text) == (False, True), result.text
    assert (edit.folder.parent / "workspace-evil" / "a").read_text() == "secret"


async def test_the_schema_is_small():
    text = json.dumps(tool_schema(EditTool()))
    assert len(text) < 1400
    for word in ("title", "$defs", "$ref", "null", "default", "anyOf"):
        assert word not in text
