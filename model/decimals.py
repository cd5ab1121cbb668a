"""Regular expressions for decimal numbers within bounds, for grammars that a model's digits must follow.

Bounds are exact (`Decimal`), and the digits of `INTEGER` and `NUMBER` are so few that no value a pattern
allows rounds across its bound when it becomes a float.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

INTEGER_DIGITS = 15
"""Digits of an integer; every such integer is exact as a float too."""
_WHOLE_DIGITS, _FRACTION_DIGITS = 9, 6
_LIMIT = 10**INTEGER_DIGITS - 1
_FRACTION = rf"(?:\.[0-9]{{1,{_FRACTION_DIGITS}}})?"

INTEGER = rf"-?[0-9]{{1,{INTEGER_DIGITS}}}"
NUMBER = rf"-?(?:[0-9]{{1,{INTEGER_DIGITS}}}|[0-9]{{1,{_WHOLE_DIGITS}}}\.[0-9]{{1,{_FRACTION_DIGITS}}})"
PLAIN_INTEGER = rf"0|-?[1-9][0-9]{{0,{INTEGER_DIGITS - 1}}}"
"""Integers as Python spells them: no leading zero, no minus zero."""
PLAIN_NUMBER = (
    rf"{PLAIN_INTEGER}"
    rf"|-?[1-9][0-9]{{0,{_WHOLE_DIGITS - 1}}}\.[0-9]{{0,{_FRACTION_DIGITS - 1}}}[1-9]"
    r"|-?0\.0{0,3}[1-9]|-?0\.0{0,2}[1-9][0-9]?[1-9]|-?0\.[0-9]{3}[1-9][0-9][1-9]|-?0\.[1-9][0-9]{0,4}[1-9]"
)
"""Numbers as Python spells them: no trailing zero, and none so small that it is spelled with an exponent."""


def within(
    *,
    whole: bool,
    low: Decimal | None = None,
    high: Decimal | None = None,
    above: Decimal | None = None,
    below: Decimal | None = None,
) -> list[tuple[str, bool]] | None:
    """Patterns that a number must match (True) or must not match (False) to be within bounds.

    None: no number is within them, or none with few enough digits.
    whole: the numbers are integers, so bounds between two integers move to the next one.
    low, high: inclusive bounds; above, below: exclusive ones.
    """
    not_equal: list[Decimal] = []
    lows: list[Decimal | None] = [low, above]
    highs: list[Decimal | None] = [high, below]
    if whole:
        lows = [low and low.to_integral_value(ROUND_CEILING)]
        lows += [] if above is None else [above.to_integral_value(ROUND_FLOOR) + 1]
        highs = [high and high.to_integral_value(ROUND_FLOOR)]
        highs += [] if below is None else [below.to_integral_value(ROUND_CEILING) - 1]
    else:
        not_equal = [bound for bound in (above, below) if bound is not None]
    least = [bound + 0 for bound in lows if bound is not None]  # minus zero becomes zero
    most = [bound + 0 for bound in highs if bound is not None]
    if least and most and (max(least) > min(most) or (max(least) == min(most) and not_equal)):
        return None
    if any(bound > _LIMIT for bound in least) or any(bound < -_LIMIT for bound in most):
        return None
    # Bounds that no number of so few digits reaches say nothing.
    least, most = [b for b in least if b >= -_LIMIT], [b for b in most if b <= _LIMIT]
    not_equal = [bound for bound in not_equal if abs(bound) <= _LIMIT]
    tail = "" if whole else _FRACTION
    found = [(signed_at_least(bound, tail), True) for bound in least]
    found += [(signed_at_most(bound, tail), True) for bound in most]
    return found + [(equal(bound + 0), False) for bound in not_equal]


def signed_at_least(bound: Decimal, tail: str = _FRACTION) -> str:
    """Numbers of at least `bound`. tail: what may stand behind the digits of a whole number."""
    if bound > 0:
        return at_least(bound, tail)
    return rf"[0-9]{{1,{INTEGER_DIGITS}}}{tail}|-(?:{at_most(-bound, tail)})"


def signed_at_most(bound: Decimal, tail: str = _FRACTION) -> str:
    """Numbers of at most `bound`. tail: what may stand behind the digits of a whole number."""
    if bound < 0:
        return rf"-(?:{at_least(-bound, tail)})"
    return rf"-[0-9]{{1,{INTEGER_DIGITS}}}{tail}|{at_most(bound, tail)}"


def equal(bound: Decimal) -> str:
    """Every spelling of one number."""
    digits, fraction = _digits(abs(bound))
    sign = "-?" if bound == 0 else "-" if bound < 0 else ""
    tail = rf"\.{fraction}0*" if fraction else r"(?:\.0*)?"
    return rf"{sign}0*{digits}{tail}"


def at_most(bound: Decimal, tail: str = _FRACTION) -> str:
    """Unsigned decimals of at most `bound` (not negative), leading zeros allowed."""
    digits, fraction = _digits(bound)
    found = [rf"0*{digits}" + (rf"(?:\.(?:{_fraction_at_most(fraction)}))?" if tail else "")]
    if int(digits) > 0:
        found.append(rf"0*(?:{_whole_at_most(int(digits) - 1)}){tail}")
    return "|".join(found)


def at_least(bound: Decimal, tail: str = _FRACTION) -> str:
    """Unsigned decimals of at least `bound` (not negative), leading zeros allowed."""
    digits, fraction = _digits(bound)
    found = [rf"0*{digits}\.(?:{_fraction_at_least(fraction)})" if fraction else rf"0*{digits}{tail}"]
    if int(digits) < _LIMIT:
        found.append(rf"0*(?:{_whole_at_least(int(digits) + 1)}){tail}")
    return "|".join(found)


def _digits(bound: Decimal) -> tuple[str, str]:
    """The digits before the point (no leading zero) and behind it (no trailing zero)."""
    whole, _, fraction = f"{bound:f}".partition(".")
    return whole.lstrip("0") or "0", fraction.rstrip("0")


def _whole_at_most(bound: int) -> str:
    text = str(bound)
    found = [rf"[0-9]{{1,{len(text) - 1}}}"] if len(text) > 1 else []
    found += [
        text[:n] + _between(0, int(digit) - 1) + _free(len(text) - n - 1)
        for n, digit in enumerate(text)
        if digit > "0"
    ]
    return "|".join([*found, text])


def _whole_at_least(bound: int) -> str:
    text = str(bound)
    found = [rf"[1-9][0-9]{{{len(text)},{INTEGER_DIGITS - 1}}}"] if len(text) < INTEGER_DIGITS else []
    found += [
        text[:n] + _between(int(digit) + 1, 9) + _free(len(text) - n - 1)
        for n, digit in enumerate(text)
        if digit < "9"
    ]
    return "|".join([*found, text])


def _fraction_at_most(fraction: str) -> str:
    """Digits behind a point that are worth at most 0.`fraction`."""
    found = [rf"{fraction[:n]}0*" for n in range(len(fraction))]
    found += [
        fraction[:n] + _between(0, int(digit) - 1) + "[0-9]*"
        for n, digit in enumerate(fraction)
        if digit > "0"
    ]
    return "|".join([*found, rf"{fraction}0*"])


def _fraction_at_least(fraction: str) -> str:
    """Digits behind a point that are worth at least 0.`fraction`."""
    found = [
        fraction[:n] + _between(int(digit) + 1, 9) + "[0-9]*"
        for n, digit in enumerate(fraction)
        if digit < "9"
    ]
    return "|".join([*found, rf"{fraction}[0-9]*"])


def _between(first: int, last: int) -> str:
    return str(first) if first == last else rf"[{first}-{last}]"


def _free(digits: int) -> str:
    return rf"[0-9]{{{digits}}}" if digits else ""
