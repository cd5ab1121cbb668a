"""What answers cost: one answer's account in words, and the sum over many, read from their records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.safetext import counted
from pilotfish.model.protocol import Usage

_MOST = ("cache_bytes", "sequences")
"""What is not summed: the most at one time counts."""


@dataclass(frozen=True)
class Totals(Usage):
    """What answers cost together, those that were sampled again included.

    A sum is of what is known, and None where nothing is. cache_bytes, sequences: the most at one time.
    devices: in place of `device`. seconds: wall time of the answers as the loop measured it, whatever the
    model knows of it.
    """

    answers: int = 0
    devices: tuple[str, ...] = ()
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The fields as they stand in a report."""
        return {name: value for name, value in asdict(self).items() if name != "device"} | {
            "devices": list(self.devices)
        }


def totals(events: Iterable[log.Event]) -> Totals:
    """The sum over all answers among some records."""
    answers = [event for event in events if isinstance(event, log.Answered)]
    usages = [answer.usage for answer in answers]

    def known(name: str) -> list[Any]:
        return [value for usage in usages if (value := getattr(usage, name)) is not None]

    def total(name: str) -> Any:
        values = known(name)
        if not values:
            return None
        if name in _MOST:
            return max(values)
        return round(sum(values), 4) if name.endswith("_s") else sum(values)

    sums = {field.name: total(field.name) for field in fields(Usage) if field.name != "device"}
    return Totals(
        **{name: value for name, value in sums.items() if value is not None},
        answers=len(answers),
        devices=tuple(dict.fromkeys(known("device"))),
        seconds=round(sum(answer.seconds for answer in answers), 4),
    )


def in_words(usage: Usage) -> list[str]:
    """An account in a few words each: tokens, seconds by what they went to, cache, device."""
    words = []
    if usage.input_tokens is not None:
        cached = "" if usage.cached_tokens is None else f" ({usage.cached_tokens:,} cached)"
        words.append(f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out")
    elif usage.output_tokens:
        words.append(f"{counted(usage.output_tokens, 'token')} out")
    for name, seconds in (
        ("waiting", usage.queue_s),
        ("vision", usage.vision_s),
        ("prefill", usage.prefill_s),
        ("decode", usage.decode_s),
    ):
        if seconds is not None and seconds >= 0.005:
            words.append(f"{name} {seconds:.2f} s")
    if usage.cache_bytes is not None:
        words.append(f"cache {usage.cache_bytes / 2**20:,.1f} MiB")
    devices = usage.devices if isinstance(usage, Totals) else (usage.device,)
    words += [device for device in devices if device is not None]
    if usage.sequences is not None and usage.sequences > 1:
        words.append(f"{usage.sequences} conversations at once")
    if usage.retries:
        words.append(f"asked again {counted(usage.retries, 'time')}")
    return words


def sure(confidence: float | None) -> str:
    """How sure a model was of a call, with a blank before it; '' where that is not known."""
    return "" if confidence is None else f" {confidence:.2f}"
