"""What was typed for a field, read as conditions. What cannot be read is an error, never an empty answer.

A field of numbers takes a list of 12, <12, <=12, >12, >=12, 12-36 (or 12..36) and missing. Any other field takes one of
its values, a list of them, or missing; a value with a comma is found as it is before the text is taken for a list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fragility.errors import FragilityError
from fragility.evidence.replacements import value_text
from fragility.review.views import write_number

MISSING = "missing"
SHOWN_DIGITS = 6  # of a number with decimals, in `value_text`
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\s*(?:\.\.|-|–|to)\s*({NUMBER})")
BOUND = re.compile(rf"(<=|>=|<|>|≤|≥)\s*({NUMBER})")
HOW_TO_WRITE = "write 12, <12, >=12, 12-36, a list of these, or missing"


class FilterError(FragilityError):
    """What was typed for a field means nothing."""


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high``, each end included or not."""

    low: float = -math.inf
    high: float = math.inf
    low_included: bool = True
    high_included: bool = True


@dataclass(frozen=True)
class Wanted:
    """What a field must be: any of these."""

    missing: bool = False
    intervals: tuple[Interval, ...] = ()
    values: tuple[str, ...] = ()

    def in_words(self) -> str:
        parts = [_interval_in_words(each) for each in self.intervals] + [f"“{value}”" for value in self.values]
        return " or ".join(parts + [MISSING] * (self.missing and MISSING not in self.values))


def read_numbers(field: str, text: str) -> Wanted:
    """Read what was typed for a field of numbers."""
    terms = [term.strip() for term in text.split(",")]
    intervals = tuple(_interval(field, text, term) for term in terms if term.lower() != MISSING)
    return Wanted(missing=len(intervals) < len(terms), intervals=intervals)


def _interval(field: str, text: str, term: str) -> Interval:
    if re.fullmatch(NUMBER, term):
        return Interval(number := _number(field, term), number)
    if bound := BOUND.fullmatch(term):
        number, included = _number(field, bound[2]), bound[1] not in ("<", ">")
        above = bound[1] in (">", ">=", "≥")
        return Interval(low=number, low_included=included) if above else Interval(high=number, high_included=included)
    ends = RANGE.fullmatch(term)
    if ends is None:
        raise FilterError(f"{field!r} is a number, and {text[:60]!r} cannot be read as one; {HOW_TO_WRITE}")
    low, high = _number(field, ends[1]), _number(field, ends[2])
    if low > high:
        raise FilterError(f"the range {term!r} for {field!r} is empty; write the smaller number first")
    return Interval(low, high)


def _number(field: str, text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise FilterError(f"the number {text[:20]!r}... for {field!r} is too large")
    return value


def shown_as(number: float) -> tuple[float, float]:
    """Return the least and the greatest value that a page shows as this number: pages round, and a reader copies."""
    if number == 0 or float(value_text(number)) != number:
        return number, number
    half = 0.5 * 10.0 ** min(math.floor(math.log10(abs(number))) - SHOWN_DIGITS + 1, 0)
    return number - half, number + half


def read_values(field: str, text: str, has: Callable[[str], bool], examples: Callable[[], Sequence[str]]) -> Wanted:
    """Read what was typed for any other field; ``has`` says whether a value occurs, ``examples`` names some."""
    for candidate in (text, text.strip()):
        if has(candidate):
            return Wanted(values=(candidate,), missing=candidate.lower() == MISSING)
    terms = [term.strip() for term in text.split(",")]
    asked_missing = any(term.lower() == MISSING for term in terms)
    values = tuple(term for term in terms if term.lower() != MISSING or has(term))
    unknown = [value for value in values if not has(value)]
    if unknown:
        known = ", ".join(repr(value[:40]) for value in examples()) or "none but missing"
        raise FilterError(f"no row has {unknown[0][:60]!r} in {field!r}; it has {known}")
    return Wanted(missing=asked_missing, values=values)


def _interval_in_words(interval: Interval) -> str:
    low, high = write_number(interval.low), write_number(interval.high)
    if interval.low == interval.high:
        return low
    if interval.high == math.inf:
        return f"{low} or more" if interval.low_included else f"more than {low}"
    if interval.low == -math.inf:
        return f"{high} or less" if interval.high_included else f"less than {high}"
    return f"{low} to {high}"
