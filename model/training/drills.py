"""Rows without pictures that drill one thing: to copy a string, and to work out a number.

An episode holds one or two strings to type, or one sum, too few for a small model to learn from. Here a row
has many, in the words of tasks and the form of calls.
"""

from __future__ import annotations

import random
import string

from pilotfish.model.protocol import Message, ToolCall
from pilotfish.model.training.samples import GRID, Sample, SampleMaker

ONSETS = (
    "b",
    "br",
    "c",
    "ch",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "v",
    "w",
    "z",
)
VOWELS = ("a", "e", "i", "o", "u", "ea", "ie", "ou", "y")
TYPING = (  # {0} is the string to type, {1} something else
    'Enter "{0}" into the text field and press Submit.',
    'Enter "{0}" into the {1} field and press Save',
    'Type "{0}" into "{1}" and click OK.',
    'Fill in "{0}" as {1}.',
    'Write "{0}" in the field "{1}".',
    "Set {1} to {0}.",
    'Enter the password "{0}" into the text field and press submit.',
    'Put "{0}" in the {1} box',
    "Type {0}.",
)
SUMS = (  # {0} is something to work out
    "Solve the math problem and type your answer into the textbox. Problem: {0} =",
    "What is {0}? Type it.",
    "Work out {0} and enter the result",
    "Type the result of {0}.",
    "{0} = ? Type the answer into the field and press Submit.",
)
EQUATIONS = (  # {0} is an equation, {1} its unknown
    "Solve for {1} and type your answer into the textbox: {0}",
    "{0}. What is {1}? Type it.",
    "Find {1} in {0} and enter it",
)
SUM_SHARE = 0.35  # of these rows


def drilled(maker: SampleMaker) -> Sample:
    """One row, of either kind."""
    return sums(maker) if maker.random.random() < SUM_SHARE else copies(maker)


def copies(maker: SampleMaker, count: int = 8) -> Sample:
    """Instructions whose answer repeats a string of theirs.

    The click before some answers is there for its place in the conversation and is not trained on.
    """
    draw = maker.random
    turns: list[Message] = [maker.developer]
    trained: list[bool] = []
    for n in range(count):
        text = words_to_type(draw)
        turns.append(Message("user", (draw.choice(TYPING).format(text, words_to_type(draw)),)))
        if draw.random() < 0.6:
            point = [draw.randrange(GRID), draw.randrange(GRID)]
            click = ToolCall(f"c{n}", "computer", {"action": "left_click", "coordinate": point})
            turns.append(Message("assistant", (), None, (click,)))
            turns.append(Message("tool", ("ok\nsettled",)))
            trained.append(False)
        call = ToolCall(f"t{n}", "computer", {"action": "type", "text": text})
        turns.append(Message("assistant", (), None, (call,)))
        trained.append(True)
    return maker.talk(turns, trained)


def sums(maker: SampleMaker, count: int = 12) -> Sample:
    """Things to work out whose answer is typed."""
    draw = maker.random
    turns: list[Message] = [maker.developer]
    for n in range(count):
        question, answer = problem(draw)
        call = ToolCall(f"t{n}", "computer", {"action": "type", "text": str(answer)})
        turns += [Message("user", (question,)), Message("assistant", (), None, (call,))]
    return maker.talk(turns, [True] * count)


def problem(draw: random.Random) -> tuple[str, int]:
    """A question and its answer: mostly small numbers, a third of the time with an unknown."""
    most = draw.choice((10, 10, 20, 100))
    a, b = draw.randint(0, most), draw.randint(0, most)
    sign = draw.choice("++--*")
    if sign == "*":
        a, b = a % 13, b % 13
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    if draw.random() < 0.35 and sign != "*":
        unknown = draw.choice("xxyzn")
        left, right = (unknown, str(b)) if draw.random() < 0.5 else (str(a), unknown)
        return draw.choice(EQUATIONS).format(f"{left} {sign} {right} = {result}", unknown), (
            a if left == unknown else b
        )
    shown = draw.choice(("*", "x", "×")) if sign == "*" else sign
    return draw.choice(SUMS).format(f"{a} {shown} {b}"), result


def words_to_type(draw: random.Random) -> str:
    """Something to type: a name or a word, letters and digits at random, a date, or two of these."""
    kind = draw.random()
    if kind < 0.45:
        syllables = "".join(draw.choice(ONSETS) + draw.choice(VOWELS) for _ in range(draw.randint(1, 4)))
        word = syllables + draw.choice(("", "n", "r", "s", "l", "tte", "nd", "x"))
        return word.capitalize() if draw.random() < 0.6 else word
    if kind < 0.75:
        letters = string.ascii_letters + string.digits
        return "".join(draw.choice(letters) for _ in range(draw.randint(1, 8)))
    if kind < 0.85:
        return f"{draw.randint(1, 12):02d}/{draw.randint(1, 28):02d}/{draw.randint(1990, 2030)}"
    return " ".join(words_to_type(draw) for _ in range(2))
