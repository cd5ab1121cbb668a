"""Asks at the run's own terminal whether a call may run."""

from __future__ import annotations

import asyncio
import os
import sys
import termios

from pilotfish.agent.control.steering import Answer
from pilotfish.agent.control.wire import Question
from pilotfish.agent.policy import describe
from pilotfish.agent.safetext import visible
from pilotfish.agent.show import say


def question_text(question: Question) -> str:
    """A question, whole, for a person who reads it as plain text."""
    warning = [question.run_warning] if question.run_warning else []
    diff = [visible(question.diff).rstrip("\n")] if question.diff else []
    pixel = ["  at pixel {}, {} of the screen".format(*question.pixel)] if question.pixel else []
    return "\n".join([*warning, describe(question.call), *pixel, *diff, f"  ({question.why})"])


async def ask_on_terminal(question: Question) -> Answer:
    """Show what will run and read an answer from the terminal: y or yes once, t for this run;
    anything else denies, and words of more than one letter are the reason.
    """
    say(question_text(question), sys.stderr)
    # What was typed before the question is no answer to it, whoever typed it.
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    print("Run this? [y/N, t: for this run, or why not] ", end="", flush=True, file=sys.stderr)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    descriptor = sys.stdin.fileno()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    except asyncio.CancelledError:
        print("answered elsewhere", file=sys.stderr)
        raise
    finally:
        loop.remove_reader(descriptor)
    # The terminal hands over whole lines, so this does not block.
    words = os.read(descriptor, 4096).decode("utf-8", "replace").strip()
    match words.lower():
        case "y" | "yes":
            return Answer("once")
        case "t":
            return Answer("task")
        case "n" | "no":
            return Answer("deny")
    return Answer("deny", words if len(words) > 1 else "")
