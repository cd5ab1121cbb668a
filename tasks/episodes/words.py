"""Random words, names, codes and sentences for procedural pages, from nothing but the standard library."""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
import re
import string

_NAMES = (
    "Ada Alan Alice Amir Ana Anton Aisha Ben Bob Carla Carlos Chen Clara Dan David Diana Elena Emil Emma "
    "Erik Eva Farid Fatima Felix Finn Frank Gina Grace Hana Hans Hiro Ida Igor Ines Ivan Jack Jana Jin "
    "Joan John Jonas Julia Kai Karin Kate Kofi Lara Lea Leo Lina Liu Lucas Maria Marta Max Mei Mia Mila "
    "Milan Nadia Nina Noah Nora Olga Omar Oscar Paul Petra Pia Priya Rahul Rita Rosa Ruth Sam Sara Sofia "
    "Sven Tara Theo Tim Tom Uma Vera Victor Wei Yara Yuki Zoe"
)
NAMES = _NAMES.split()
_COMMON = (
    "Save Cancel OK Submit Next Back Delete Edit Open Close Send Print Share Copy Paste Search Login "
    "Logout Help Settings Home Profile Download Upload Export Import Refresh Apply Reset Continue Finish "
    "Start Stop Pause Play Add Remove New View Details More Less Yes No Accept Decline Agree Subscribe "
    "Follow Reply Forward Archive Undo Redo Zoom Rename Move Merge Sort Filter Update Install Restart "
    "Confirm Retry Skip Done Buy Order Pay Checkout"
)
COMMON = _COMMON.split()
_MODULES = (
    "argparse asyncio collections contextlib csv datetime decimal difflib doctest email fractions "
    "functools gettext heapq html http imaplib inspect json locale logging mailbox optparse os pathlib "
    "pdb pickle pprint profile queue random re sched shelve shutil smtplib socket sqlite3 statistics "
    "string subprocess tarfile tempfile textwrap threading timeit tkinter trace turtle unittest "
    "urllib uuid warnings wave weakref zipfile"
)
MODULES = _MODULES.split()


@functools.cache
def dictionary() -> tuple[str, ...]:
    """Lower-case words of two to twelve letters, sorted; several thousand of them."""
    texts: list[str] = []
    with contextlib.suppress(ImportError):
        texts.extend(importlib.import_module("pydoc_data.topics").topics.values())
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        texts.append(module.__doc__ or "")
        texts.extend(
            getattr(module, member).__doc__ or "" for member in dir(module) if not member.startswith("_")
        )
    found: dict[str, int] = {}
    for text in texts:
        for word in re.findall(r"(?<![\w.])[A-Za-z][a-z]{1,11}(?![\w.(])", str(text)):
            found[word.lower()] = found.get(word.lower(), 0) + 1
    words = sorted(word for word, count in found.items() if count > 1 and re.search("[aeiouy]", word))
    return tuple(words)


def word(rng: random.Random) -> str:
    """One word: from the dictionary, a name, or now and then random letters."""
    chance = rng.random()
    if chance < 0.72:
        return rng.choice(dictionary())
    if chance < 0.84:
        return rng.choice(NAMES)
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9)))


def cased(text: str, rng: random.Random) -> str:
    """The text as written, capitalised, titled or shouted."""
    style = rng.choices(("same", "capital", "title", "upper"), (30, 45, 15, 10))[0]
    if style == "capital":
        return text[:1].upper() + text[1:]
    return {"same": text, "title": text.title(), "upper": text.upper()}[style]


def label(rng: random.Random, most: int = 3) -> str:
    """A short label of one to `most` words, as on a button, tab, link or field."""
    if rng.random() < 0.18:
        return rng.choice(COMMON)
    count = rng.choices(range(1, most + 1), [6, 3, 1, 1, 1][:most])[0]
    text = cased(" ".join(word(rng) for _ in range(count)), rng)
    if rng.random() < 0.06:
        text += f" {rng.randint(1, 99)}"
    return text


def distinct_labels(count: int, rng: random.Random, most: int = 3) -> list[str]:
    """Labels that differ even without case."""
    found: dict[str, str] = {}
    while len(found) < count:
        text = label(rng, most)
        found.setdefault(text.lower(), text)
    return list(found.values())


def sentence(rng: random.Random, words: int) -> str:
    """Some words with a capital and a full stop."""
    text = " ".join(word(rng) for _ in range(words))
    return text[:1].upper() + text[1:] + rng.choice([".", ".", ".", "!", "?"])


def code(rng: random.Random, length: int) -> str:
    """Letters and digits as in a password or an order number."""
    return "".join(rng.choices(string.ascii_letters + string.digits, k=length))


def entry(rng: random.Random) -> str:
    """Something to type into a field: words, a name, a number, a code, an address or a date."""
    match rng.randrange(9):
        case 0 | 1:
            return rng.choice(NAMES)
        case 2:
            return word(rng)
        case 3 | 4:
            return " ".join(word(rng) for _ in range(rng.randint(2, 4)))
        case 5:
            return str(rng.randint(0, 10 ** rng.randint(1, 6)))
        case 6:
            return code(rng, rng.randint(3, 9))
        case 7:
            return f"{rng.choice(NAMES).lower()}@{word(rng).lower()}.{rng.choice(['com', 'org', 'net'])}"
        case _:
            return f"{rng.randint(1, 12):02d}/{rng.randint(1, 28):02d}/{rng.randint(1990, 2030)}"
