"""What answers cost: one answer's account in words, and the sum over many, read from their records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pilotfish.agent import events as log
from pilotfish.agent.safetext import counted


@dataclass(frozen=True)
class Totals:
    """What answers cost together, those that were sampled again included.

    A sum is of what is known, and None where nothing is. cache_bytes, sequences: the most at one time.
    seconds: wall time of the answers as the loop measured it, whatever the model knows of it.
    """

    answers: int = 0
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    queue_s: float | None = None
    vision_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    cache_bytes: int | None = None
    sequences: int | None = None
    devices: tuple[str, ...] = ()
    retries: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The fields as they stand in a report."""
        return asdict(self) | {"devices": list(self.devices)}


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
        return round(sum(values), 4) if name.endswith("_s") else sum(values)

    summed = ("input_tokens", "cached_tokens", "queue_s", "vision_s", "prefill_s", "decode_s")
    return Totals(
        answers=len(answers),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cache_bytes=max(known("cache_bytes"), default=None),
        sequences=max(known("sequences"), default=None),
        devices=tuple(dict.fromkeys(known("device"))),
        retries=sum(usage.retries for usage in usages),
        seconds=round(sum(answer.seconds for answer in answers), 4),
        **{name: total(name) for name in summed},
    )


def in_words(usage: log.UsageData | Totals) -> list[str]:
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
