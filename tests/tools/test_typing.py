"""Text through a real terminal and a real GTK editor: each gets exactly what was typed."""

import ctypes
import os
import random
import subprocess
import time

import pytest
from Xlib import XK, X
from Xlib.ext import xtest

pytestmark = pytest.mark.timeout(60)

PARAGRAPH = "The quick brown fox jumps over the lazy dog; 0123456789 (and) {so} [on]!"
TEXTS = [
    "Spaß",
    "////",
    "测试中文",
    '_"@',
    "a<b>c",
    "!",
    "Q M",
    "Y",
    "😀 👩‍👩‍👧 e\u0301",
    "column\tcolumn",
    "'); import os; os.system('id",
    "".join(map(chr, range(0x20, 0x7F))),
    "".join(map(chr, range(0xA0, 0x100))),
    "на жизнь",
    "漢字仮名交じり文の長い例文、ひらがなとカタカナ、そして한국어도 함께",
]


def wait_for(condition, what):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


class Sink:
    """A program's file that fills with what is typed."""

    def __init__(self, path):
        self.path = path
        self.seen = 0

    def next_lines(self, count):
        """The next `count` lines once they are there."""

        def text():
            return self.path.read_text(encoding="utf-8")[self.seen :] if self.path.exists() else ""

        wait_for(lambda: text().count("\n") >= count, f"{count} lines in {self.path}, which has {text()!r}")
        found = text()
        self.seen += len(found)
        return found


def environment(display, home="/tmp"):
    quiet = {"NO_AT_BRIDGE": "1", "GSETTINGS_BACKEND": "memory"}
    return {**os.environ, "DISPLAY": display, "LANG": "C.UTF-8", "HOME": str(home), **quiet}


@pytest.fixture(scope="module")
def terminal(display, tmp_path_factory):
    """xterm running `cat` into a file. Lines must stay below the terminal's 4,096 bytes."""
    path = tmp_path_factory.mktemp("typed") / "lines"
    argv = ["xterm", "-u8", "-geometry", "100x30+0+0", "-e", "sh", "-c", f"stty -ixon; echo; cat > {path}"]
    program = subprocess.Popen(argv, env=environment(display), stderr=subprocess.DEVNULL)
    wait_for(path.exists, "xterm")
    yield Sink(path)
    program.terminate()
    program.wait()


@pytest.fixture
async def typed(act, terminal):
    """Type text into the terminal and return what arrived."""
    await act("mouse_move", coordinate=[300, 300])

    async def run(text, lines=None):
        result = await act("type", text=text + "\n")
        assert result.text == "ok"
        return terminal.next_lines(lines or text.count("\n") + 1)[:-1]

    return run


@pytest.fixture
def editor(display, tmp_path):
    """mousepad with an empty file open; gives the file."""
    path = tmp_path / "note.txt"
    path.touch()
    argv = ["mousepad", "--disable-server", str(path)]
    program = subprocess.Popen(argv, env=environment(display, tmp_path), stderr=subprocess.DEVNULL)
    yield path
    program.terminate()
    program.wait()


@pytest.fixture
def layout(display):
    """Set a keyboard layout inside the display; the usual one comes back afterwards."""

    def use(*arguments):
        subprocess.run(["setxkbmap", "-display", display, *arguments], check=True)

    yield use
    use("us")


async def test_every_text_arrives_exactly(typed):
    for text in TEXTS:
        assert await typed(text) == text


async def test_line_ends_are_returns(typed):
    assert await typed("one\ntwo\r\nthree\r\tfour", lines=4) == "one\ntwo\nthree\n\tfour"


async def test_a_long_text_arrives_exactly(typed):
    text = "\n".join([PARAGRAPH] * 69)
    assert len(text) > 5000
    assert await typed(text) == text


async def test_random_text_with_more_symbols_than_spare_keys(typed):
    dice = random.Random(7)
    pool = "".join(map(chr, [*range(0x4E00, 0x5000), *range(0x430, 0x450), *range(0x61, 0x7B)]))
    text = "".join(dice.choices(pool, k=450))
    assert len(set(text)) > 250
    assert await typed(text) == text


@pytest.mark.parametrize("name", ["fr", "ru", "us -variant dvorak", "de", "gr"])
async def test_layouts(typed, layout, name):
    await typed("before")
    layout(*name.split())
    for text in ["a<b>c Q M Y z", '!_"@', "two\nlines\t[x]{y}|~^`\\", "éß Ыя"]:
        assert await typed(text) == text


async def test_the_second_layout_may_be_the_active_one(typed, layout, display):
    layout("us,ru")
    lock_group(display, 1)
    try:
        for text in ["Y and y", "Ы and ы", "a<b>c\n!@#"]:
            assert await typed(text) == text
    finally:
        lock_group(display, 0)


def lock_group(display, group):
    """Switch to the layout of this number, as a layout indicator does."""
    xlib = ctypes.CDLL("libX11.so.6")
    xlib.XOpenDisplay.restype = ctypes.c_void_p
    connection = ctypes.c_void_p(xlib.XOpenDisplay(display.encode()))
    xlib.XkbLockGroup(connection, 0x100, group)
    xlib.XCloseDisplay(connection)


async def test_caps_lock_does_not_change_text_and_stays_on(typed, act, recorder, terminal):
    recorder.window.unmap()
    recorder.display.sync()
    await act("key", text="capslock")
    assert recorder.window.query_pointer().mask & X.LockMask
    try:
        assert await typed("Aa ßÄä 中 жЖ") == "Aa ßÄä 中 жЖ"
        assert recorder.window.query_pointer().mask & X.LockMask
    finally:
        await act("key", text="capslock")


async def test_keys_by_every_kind_of_name(act, recorder):
    await act("key", text="ctrl+shift+t")
    assert recorder.key_events() == [
        ("key", XK.XK_Control_L),
        ("key", XK.XK_Shift_L),
        ("key", XK.XK_t),
        ("keyup", XK.XK_t),
        ("keyup", XK.XK_Shift_L),
        ("keyup", XK.XK_Control_L),
    ]
    for name, symbol in [("Page_Down", XK.XK_Page_Down), ("KP_Enter", XK.XK_KP_Enter), ("F5", XK.XK_F5)]:
        await act("key", text=name)
        assert recorder.key_events() == [("key", symbol), ("keyup", symbol)]
    await act("key", text="F24")
    assert recorder.key_events() == [("key", XK.XK_F24), ("keyup", XK.XK_F24)]
    await act("key", text="ctrl++")
    pressed = [symbol for kind, symbol in recorder.key_events() if kind == "key"]
    assert pressed == [XK.XK_Control_L, XK.XK_Shift_L, XK.XK_equal]


async def test_a_key_somebody_holds_stays_down(act, recorder):
    shift = recorder.display.keysym_to_keycode(XK.XK_Shift_L)
    xtest.fake_input(recorder.display, X.KeyPress, shift)
    recorder.events()
    try:
        await act("key", text="ctrl+shift+t")
        assert ("keyup", XK.XK_Shift_L) not in recorder.key_events()
        assert recorder.display.query_keymap()[shift // 8] >> shift % 8 & 1
    finally:
        xtest.fake_input(recorder.display, X.KeyRelease, shift)
        recorder.display.sync()
    assert not recorder.is_anything_down()


@pytest.mark.parametrize("text", ["Spaß & a<b>c\n\t测试中文 😀", "\n".join([PARAGRAPH] * 5)])
async def test_a_gtk_editor_gets_the_text(act, recorder, editor, text):
    recorder.close_window()
    wait_for(lambda: window_named(recorder.display, "note.txt"), "the editor")
    await act("left_click", coordinate=[300, 400])
    await act("type", text=text)
    await act("key", text="ctrl+s")
    wait_for(lambda: len(editor.read_text(encoding="utf-8")) >= len(text), "the saved file")
    assert editor.read_text(encoding="utf-8").rstrip("\n") == text


def window_named(display, part):
    """Whether a visible top window has a name with `part` in it."""
    for window in display.screen().root.query_tree().children:
        name = window.get_full_text_property(display.intern_atom("_NET_WM_NAME")) or ""
        if part in str(name) and window.get_attributes().map_state == X.IsViewable:
            return True
    return False
