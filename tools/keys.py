"""Key names: one table for every spelling, read into chords of X keysym names.

xdotool's, pyautogui's, Playwright's and M3's names are taken, in any case, with or without `_`, `-` and
blanks: `Page_Up`, `pgup` and `page up` are one key. A key is an X keysym name or one character.
"""

from __future__ import annotations

import difflib
import re
import unicodedata

from pilotfish.tools.words import short

MODIFIERS = frozenset(
    {
        "Shift_L",
        "Shift_R",
        "Control_L",
        "Control_R",
        "Alt_L",
        "Alt_R",
        "Super_L",
        "Super_R",
        "ISO_Level3_Shift",
    }
)
_CAPITALS_ARE_LABELS = MODIFIERS - {"Shift_L", "Shift_R"}

_SPELLINGS: dict[str, str] = {
    "Return": "return enter ret",
    "Tab": "tab",
    "Escape": "escape esc",
    "space": "space spacebar",
    "BackSpace": "backspace bksp back",
    "Delete": "delete del forwarddelete",
    "Insert": "insert ins",
    "Home": "home",
    "End": "end",
    "Page_Up": "pageup pgup prior",
    "Page_Down": "pagedown pgdn pgdown next",
    "Up": "up arrowup uparrow",
    "Down": "down arrowdown downarrow",
    "Left": "left arrowleft leftarrow",
    "Right": "right arrowright rightarrow",
    "Shift_L": "shift shiftleft shiftl lshift",
    "Shift_R": "shiftright shiftr rshift",
    "Control_L": "ctrl control ctrlleft ctrll controll controlleft lctrl controlormeta",
    "Control_R": "ctrlright ctrlr controlr controlright rctrl",
    "Alt_L": "alt altleft altl lalt option optionleft",
    "Alt_R": "altright altr ralt optionright",
    "ISO_Level3_Shift": "altgr altgraph isolevel3shift",
    "Super_L": "super cmd command win windows meta superl metal metaleft winleft superleft os",
    "Super_R": "superr metar metaright winright superright",
    "Menu": "menu apps contextmenu",
    "Caps_Lock": "capslock caps",
    "Num_Lock": "numlock",
    "Scroll_Lock": "scrolllock",
    "Print": "print prtsc prtscr prntscrn printscreen",
    "Pause": "pause break",
    "Help": "help",
    "KP_Enter": "kpenter numpadenter",
    "KP_Add": "kpadd add numpadadd",
    "KP_Subtract": "kpsubtract subtract numpadsubtract",
    "KP_Multiply": "kpmultiply multiply numpadmultiply",
    "KP_Divide": "kpdivide divide numpaddivide",
    "KP_Decimal": "kpdecimal decimal numpaddecimal",
    "KP_Separator": "kpseparator separator",
    "KP_Equal": "kpequal",
    "KP_Home": "kphome",
    "KP_End": "kpend",
    "KP_Up": "kpup",
    "KP_Down": "kpdown",
    "KP_Left": "kpleft",
    "KP_Right": "kpright",
    "KP_Page_Up": "kppageup kpprior",
    "KP_Page_Down": "kppagedown kpnext",
    "KP_Insert": "kpinsert",
    "KP_Delete": "kpdelete",
    "XF86Back": "browserback xf86back",
    "XF86Forward": "browserforward xf86forward",
    "XF86Reload": "browserrefresh xf86reload",
    "XF86AudioMute": "volumemute audiovolumemute xf86audiomute",
    "XF86AudioRaiseVolume": "volumeup audiovolumeup xf86audioraisevolume",
    "XF86AudioLowerVolume": "volumedown audiovolumedown xf86audiolowervolume",
    "XF86AudioPlay": "playpause mediaplaypause xf86audioplay",
    "!": "exclam exclamationmark",
    '"': "quotedbl doublequote",
    "#": "numbersign hash",
    "$": "dollar",
    "%": "percent",
    "&": "ampersand",
    "'": "apostrophe quote",
    "(": "parenleft",
    ")": "parenright",
    "*": "asterisk star",
    "+": "plus",
    ",": "comma",
    "-": "minus hyphen dash",
    ".": "period dot",
    "/": "slash",
    ":": "colon",
    ";": "semicolon",
    "<": "less lessthan",
    "=": "equal equals",
    ">": "greater greaterthan",
    "?": "question questionmark",
    "@": "at",
    "[": "bracketleft leftbracket",
    "\\": "backslash",
    "]": "bracketright rightbracket",
    "^": "asciicircum caret",
    "_": "underscore",
    "`": "grave backtick backquote",
    "{": "braceleft leftbrace",
    "|": "bar pipe",
    "}": "braceright rightbrace",
    "~": "asciitilde tilde",
}

KEYS: dict[str, str] = {name: key for key, names in _SPELLINGS.items() for name in names.split()}
KEYS |= {f"f{n}": f"F{n}" for n in range(1, 25)}
KEYS |= {f"{prefix}{n}": f"KP_{n}" for prefix in ("kp", "num", "numpad") for n in range(10)}

Chord = tuple[str, ...]
_CHARACTERS = {" ": "space", "\n": "Return", "\r": "Return", "\t": "Tab", "\b": "BackSpace", "\x1b": "Escape"}


def parse_keys(text: str) -> list[Chord]:
    """Read `ctrl+shift+t`, `ctrl++`, `Page Up`, `ctrl c`, `ctrl-s` or `Down Down Return` into chords.

    A chord is pressed in its order and released in the reverse one; chords follow each other. Blanks separate
    chords, but a modifier alone belongs to the next key (`ctrl c` is one chord). A capital beside Control,
    Alt or Super is the label on the key, so `Ctrl+S` does not hold Shift. Raises ValueError with one
    sentence for an unknown name, with the names near to it.
    """
    if text == "":
        raise ValueError("`text` is empty; name a key such as 'Return' or 'ctrl+s'")
    if text in _CHARACTERS:
        return [(_CHARACTERS[text],)]
    whole = _lookup(text)
    if whole:
        return [(whole,)]
    chords: list[Chord] = []
    pending: Chord = ()
    for word in re.sub(r"(?<=[^\s+])\s*\+\s*(?=\S)", "+", text.strip()).split():
        chord = _read_chord(word)
        if not set(chord).isdisjoint(pending):
            chords.append(pending)
            pending = ()
        pending += chord
        if not MODIFIERS.issuperset(pending):
            chords.append(_plain_letters(pending))
            pending = ()
    if pending:
        chords.append(pending)
    if not chords:
        raise ValueError(f"`text` is {short(text)}; name a key such as 'Return' or 'ctrl+s'")
    return chords


def _read_chord(word: str) -> Chord:
    names = _split_plus(word)
    if len(names) == 1 and "-" in word and not _lookup(word):
        names = word.split("-") if not word.endswith("-") else [*word[:-1].rstrip("-").split("-"), "-"]
    keys: list[str] = []
    for name in names:
        if name == "":
            raise ValueError(f"{short(word)} lacks a key beside a `+`; write `ctrl++` for the plus key")
        key = _lookup(name)
        if key is None:
            raise ValueError(_unknown(name))
        if key not in keys:
            keys.append(key)
    return tuple(keys)


def _split_plus(word: str) -> list[str]:
    """Split at `+`, where a `+` that ends the word is the plus key: `ctrl++` and `ctrl+` + `+`."""
    if word == "+":
        return ["+"]
    if word.endswith("++"):
        return [*word[:-2].split("+"), "+"]
    return word.split("+")


def _lookup(name: str) -> str | None:
    if len(name) == 1:
        return name if name.isprintable() and name != " " else None
    return KEYS.get(_plain(name))


def _plain(name: str) -> str:
    """Without the separators between words, so that `ctrl--` stays apart from `ctrl`."""
    return re.sub(r"(?<=\w)[\s_-](?=\w)", "", name.strip().lower())


def _plain_letters(chord: Chord) -> Chord:
    if not _CAPITALS_ARE_LABELS.isdisjoint(chord):
        return tuple(key.lower() if len(key) == 1 else key for key in chord)
    return chord


def _unknown(name: str) -> str:
    near = [KEYS[match] for match in difflib.get_close_matches(_plain(name), KEYS, n=3, cutoff=0.6)]
    near = [key for key in near if len(key) > 1]
    names = ", ".join(dict.fromkeys(near)) or "Return, Escape, Tab, ctrl, alt, shift, Page_Down"
    return f"there is no key {short(name)}; valid are {names}, one character and more (use `type` for text)"


def normalize_text(text: str) -> str:
    """Check text to be typed and make every line end `\\n`.

    Raises ValueError with one sentence for a character no key can give: a control character other than tab
    and line end, or a lone surrogate.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for char in text:
        if char not in "\n\t" and unicodedata.category(char) in {"Cc", "Cs"}:
            raise ValueError(
                f"`text` holds the character U+{ord(char):04X}, which no key types; leave it out or use `key`"
            )
    return text
