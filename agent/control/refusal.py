"""What a person is told when something cannot be done."""

from __future__ import annotations


class Refusal(Exception):
    """Something that a person wants cannot be done; the message is one sentence with the mend."""
