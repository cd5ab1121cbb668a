import pytest

from pilotfish.tools.keys import KEYS, normalize_text, parse_keys


@pytest.mark.parametrize(
    ("text", "chords"),
    [
        ("ctrl+s", [("Control_L", "s")]),
        ("CTRL+S", [("Control_L", "s")]),
        ("ctrl+shift+t", [("Control_L", "Shift_L", "t")]),
        ("shift+a", [("Shift_L", "a")]),
        ("A", [("A",)]),
        ("ctrl++", [("Control_L", "+")]),
        ("ctrl + +", [("Control_L", "+")]),
        ("ctrl+plus", [("Control_L", "+")]),
        ("ctrl--", [("Control_L", "-")]),
        ("ctrl+-", [("Control_L", "-")]),
        ("+", [("+",)]),
        ("-", [("-",)]),
        ("plus", [("+",)]),
        ("ctrl-s", [("Control_L", "s")]),
        ("Ctrl-Shift-T", [("Control_L", "Shift_L", "t")]),
        ("ctrl c", [("Control_L", "c")]),
        ("ctrl shift t", [("Control_L", "Shift_L", "t")]),
        (" ctrl + s ", [("Control_L", "s")]),
        ("ctrl+a Delete", [("Control_L", "a"), ("Delete",)]),
        ("Down Down Return", [("Down",), ("Down",), ("Return",)]),
        ("shift shift", [("Shift_L",), ("Shift_L",)]),
        ("ctrl+ctrl+c", [("Control_L", "c")]),
        ("ctrl+shift", [("Control_L", "Shift_L")]),
        ("Page Up", [("Page_Up",)]),
        (" ", [("space",)]),
        ("\n", [("Return",)]),
        ("ß", [("ß",)]),
        ("alt+F4", [("Alt_L", "F4")]),
    ],
)
def test_chords(text, chords):
    assert parse_keys(text) == chords


@pytest.mark.parametrize(
    ("key", "spellings"),
    [
        ("Return", "Return enter Enter RETURN"),
        ("Page_Down", "page_down PgDn pagedown Page_Down Next"),
        ("Super_L", "super cmd win Super_L command meta winleft"),
        ("Escape", "esc Escape"),
        ("BackSpace", "BackSpace backspace bksp"),
        ("Delete", "delete del Delete"),
        ("KP_Enter", "KP_Enter kp_enter"),
        ("KP_7", "KP_7 num7"),
        ("Control_L", "ctrl control Control_L ControlOrMeta ctrlleft"),
        ("Left", "left ArrowLeft"),
        ("F1", "F1 f1"),
        ("F24", "F24 f24"),
        ("Print", "print printscreen PrtSc"),
    ],
)
def test_spellings(key, spellings):
    for spelling in spellings.split():
        assert parse_keys(spelling) == [(key,)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Retrn", ["'Retrn'", "Return"]),
        ("ctrl+escpe", ["'escpe'", "Escape"]),
        ("page_dwn", ["'page_dwn'", "Page_Down"]),
        ("a; touch /tmp/x", ["'a;'"]),
        ("$(id)", ["'$(id)'"]),
        ("ctrl+", ["'ctrl+'", "ctrl++"]),
        ("+a", ["'+a'"]),
        ("", ["empty"]),
        ("   ", ["Return"]),
        ("F25", ["'F25'"]),
        ("hello world", ["'hello'", "type"]),
        ("\x00", ["x00"]),
    ],
)
def test_an_unknown_key_is_one_sentence_with_what_is_near(text, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- the words are checked below
        parse_keys(text)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_every_name_in_the_table_is_a_key():
    for name, key in KEYS.items():
        assert parse_keys(name) == [(key,)]


def test_text_has_one_kind_of_line_end_and_no_control_characters():
    assert normalize_text("a\r\nb\rc\nd\te") == "a\nb\nc\nd\te"
    for bad in ("\x00", "\x1b[31m", "\x7f", "\x85", "\udc80"):
        with pytest.raises(ValueError, match=r"U\+[0-9A-F]{4}"):
            normalize_text("ok" + bad)
