"""Views: what a reviewer looks at, as it stands in the address of a page, so that it can be shared and reloaded.

Below: what was typed for a field of the rows, read as conditions, and the conditions of a view in SQL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import parse_qs, urlencode

from fragility.base.errors import FragilityError
from fragility.base.text import CONTROL
from fragility.evidence.modes import MODES
from fragility.evidence.replacements import value_text
from fragility.scores import CONFIDENT, REHEARSAL

OTHERS = (REHEARSAL, *MODES)  # scores that not every audit has; a mode stands for the exposure to it
RANKINGS = ("exposure", "fds", *OTHERS)
SHARES = {"5": 0.05, "10": 0.10, "20": 0.20}
BUDGETS = (*SHARES, "time", "policy", "all")
STATUSES = ("open", "park", "accept", "escalate", "reacquire", "conflict", "second")
SORTS = ("exposure", "fds", "confidence", "k", "id", *OTHERS)
FLIPS = ("1", "2", "3", "4", "none")  # k*; "4" stands for four groups and more, "none" for a path without a flip
PAGE_ROWS = 50
LONGEST_TEXT = 2000
MOST_FIELDS = 8
MOST_WORDS = 64 + PAGE_ROWS  # of an address; the rows of a page may be ticked


NAMES = ("label", "group", "reviewer")  # which may hold any characters
ESCAPED = re.compile(r"\\(\\|e|x[0-9a-f]{2}|u[0-9a-f]{4})")
# What a form changes on its way, what reorders text, and our own escape.
UNSAFE = re.compile(rf"[\t\n\\]|{CONTROL.pattern}")


class ViewError(FragilityError):
    """An address asks for a view that does not exist."""


@dataclass(frozen=True)
class View:
    """One view of the queue; but for the budget, what equals the default is left out of the address."""

    by: str = "exposure"  # what ranks cases, and so what a budget keeps
    budget: str = "20"
    hours: float = 1.0  # with rate, for the budget "time"
    rate: float = 20.0
    confident: float = CONFIDENT
    declared: float = CONFIDENT  # where the protocol says that confident begins; never in the address
    label: str | None = None
    k: str = ""
    group: str | None = None
    mode: str = ""  # with least: those at least so exposed to this failure mode
    least: float = 0.0
    where: tuple[tuple[str, str], ...] = ()  # fields of the row, and what was typed for each
    status: str = ""
    reviewer: str | None = None
    search: str = ""
    sort: str = ""  # empty: by the ranking
    up: bool = False  # smallest first
    page: int = 1
    stay: bool = False  # on the case after deciding about it

    @classmethod
    def from_address(cls, query: str, declared: float = CONFIDENT) -> View:
        """Return the view that a query string asks for; declared: where confident begins if it does not say."""
        try:
            words = parse_qs(query, keep_blank_values=True, max_num_fields=MOST_WORDS)
        except ValueError as error:
            raise ViewError("the address has too many words") from error
        entered = {name: values[-1] for name, values in words.items() if values[-1]}  # a blank says nothing
        names, values = words.get("field", []), words.get("value", [])
        if len(names) != len(values) or len(names) > MOST_FIELDS:
            raise ViewError(f"the address must name at most {MOST_FIELDS} fields, each with one value")
        typed = [(name, value) for name, value in zip(names, values, strict=True) if name and value]
        pairs = [(read_name(_short(name, "field")), _short(value, "value")) for name, value in typed]
        return cls(
            by=_one_of(entered, "by", RANKINGS, "exposure"),
            budget=_one_of(entered, "budget", BUDGETS, "20"),
            hours=_number(entered, "hours", 1.0, 0.0, 10_000.0),
            rate=_number(entered, "rate", 20.0, 0.0, 100_000.0),
            confident=_number(entered, "confident", declared, 0.0, 1.0),
            declared=declared,
            label=_name(entered, "label"),
            k=_one_of(entered, "k", FLIPS, ""),
            group=_name(entered, "group"),
            mode=_one_of(entered, "mode", MODES, ""),
            least=_number(entered, "least", 0.0, 0.0, 1.0),
            where=tuple(pairs),
            status=_one_of(entered, "status", STATUSES, ""),
            reviewer=_name(entered, "reviewer"),
            search=_short(entered.get("search", "").strip(), "search"),
            sort=_one_of(entered, "sort", SORTS, ""),
            up=_one_of(entered, "up", ("1",), "") == "1",
            page=int(_number(entered, "page", 1.0, 1.0, 10.0**9)),
            stay=_one_of(entered, "stay", ("1",), "") == "1",
        )

    def address(self, **changes: Any) -> str:
        """Return the query string of this view, or of one that differs from it in ``changes``."""
        return urlencode(self.words(**changes))

    def words(self, **changes: Any) -> list[tuple[str, str]]:
        """Return the names and values of that query string."""
        view = replace(self, **changes)
        plain = View(confident=self.declared)
        words: list[tuple[str, str]] = []
        for column in fields(view):
            if column.name == "declared":
                continue
            value = getattr(view, column.name)
            if column.name == "where":
                words += [pair for name, typed in value for pair in (("field", write_name(name)), ("value", typed))]
            elif column.name in NAMES and value is not None:
                words.append((column.name, write_name(value)))
            elif (
                value != getattr(plain, column.name) or column.name == "budget"
            ):  # its default is not the same everywhere
                text = "1" if value is True else write_number(value) if isinstance(value, float) else str(value)
                words.append((column.name, text))
        return words

    def with_default_budget(self, query: str, budget: str) -> View:
        """Return the view with this budget if its address names none."""
        return self if "budget" in parse_qs(query) else replace(self, budget=budget)

    @property
    def cases_in_time(self) -> int:
        return math.floor(self.hours * self.rate)

    @property
    def order(self) -> str:
        return self.sort or self.by

    @property
    def others(self) -> tuple[str, ...]:
        """The scores beside exposure and FDS that the view asks about, each once."""
        return tuple(dict.fromkeys(name for name in (self.mode, self.by, self.sort) if name in OTHERS))

    @property
    def awaited(self) -> str:
        """The status of the cases that wait for a reviewer: open ones, unless the view asks for others."""
        return self.status if self.status in ("second", "park") else "open"


def write_number(value: float) -> str:
    """Return a number with all its significant digits."""
    return repr(value).removesuffix(".0")


def _one_of(given: Mapping[str, str], name: str, allowed: Sequence[str], default: str) -> str:
    value = given.get(name, default)
    if value != default and value not in allowed:
        raise ViewError(f"{name} in the address must be one of {', '.join(allowed)}, got {value[:40]!r}")
    return value


def _number(given: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:  # NaN lies nowhere
        raise ViewError(f"{name} in the address must be a number from {least:g} to {most:g}, got {text[:40]!r}")
    return value


def _short(text: str, name: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise ViewError(f"{name} in the address has more than {LONGEST_TEXT} characters")
    return text


def _name(given: Mapping[str, str], name: str) -> str | None:
    return read_name(_short(given[name], name)) if name in given else None


# --- names in addresses and forms -----------------------------------------------------------------------------


def write_name(name: str) -> str:
    """Return a name of a class, group, field or reviewer as an address or form holds it; it is never empty."""

    def escape(match: re.Match[str]) -> str:
        number = ord(match[0])
        return "\\\\" if match[0] == "\\" else f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"

    return UNSAFE.sub(escape, name) or "\\e"


def read_name(text: str) -> str:
    """Return the name that was written."""

    def unescape(match: re.Match[str]) -> str:
        kind = match[1]
        return kind if kind == "\\" else "" if kind == "e" else chr(int(kind[1:], 16))

    return ESCAPED.sub(unescape, text)


# --- what was typed for a field -----------------------------------------------------------------------------
#
# What cannot be read is an error, never an empty answer. A field of numbers takes a list of 12, <12, <=12, >12, >=12,
# 12-36 (or 12..36) and missing. Any other field takes one of its values, a list of them, or missing; a value with a
# comma is found as it is before the text is taken for a list.

MISSING = "missing"
SHOWN_DIGITS = 6  # of a number with decimals, in `value_text`
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\s*(?:\.\.|-|–|to)\s*({NUMBER})")
BOUND = re.compile(rf"(<=|>=|<|>|≤|≥)\s*({NUMBER})")
HOW_TO_WRITE = "write 12, <12, >=12, 12-36, a list of these, or missing"


class FilterError(FragilityError):
    """The text typed for a field cannot be read."""


@dataclass(frozen=True)
class Where:
    """A condition in SQL and its parameters."""

    sql: str = "TRUE"
    values: tuple[Any, ...] = ()

    def __and__(self, other: Where) -> Where:
        return Where(f"({self.sql}) AND ({other.sql})", (*self.values, *other.values))


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high``, each end included or not."""

    low: float = -math.inf
    high: float = math.inf
    low_included: bool = True
    high_included: bool = True

    def in_words(self) -> str:
        low, high = write_number(self.low), write_number(self.high)
        if self.low == self.high:
            return low
        if self.high == math.inf:
            return f"{low} or more" if self.low_included else f"more than {low}"
        if self.low == -math.inf:
            return f"{high} or less" if self.high_included else f"less than {high}"
        return f"{low} to {high}"

    def condition(self, column: str) -> Where:
        """Return the condition that a column lies in the interval."""
        if self.low == self.high:
            return Where(f"{column} BETWEEN ? AND ?", find_rounded(self.low))
        low, high = ">=" if self.low_included else ">", "<=" if self.high_included else "<"
        return Where(f"{column} {low} ? AND {column} {high} ?", (self.low, self.high))


@dataclass(frozen=True)
class FieldFilter:
    """What a field must be: any of these."""

    missing: bool = False
    intervals: tuple[Interval, ...] = ()
    values: tuple[str, ...] = ()

    def in_words(self) -> str:
        parts = [interval.in_words() for interval in self.intervals] + [f"“{value}”" for value in self.values]
        return " or ".join(parts + [MISSING] * (self.missing and MISSING not in self.values))

    def condition(self, column: str) -> Where:
        """Return the condition that a column of the fields is any of these."""
        parts = [interval.condition(column) for interval in self.intervals]
        parts += [Where(f"{column} = ?", (value,)) for value in self.values]
        parts += [Where(f"{column} IS NULL")] if self.missing else []
        return Where(" OR ".join(f"({part.sql})" for part in parts), tuple(v for part in parts for v in part.values))


def read_numbers(field: str, text: str) -> FieldFilter:
    """Read what was typed for a field of numbers."""
    terms = [term.strip() for term in text.split(",")]
    intervals = tuple(_read_interval(field, text, term) for term in terms if term.lower() != MISSING)
    return FieldFilter(missing=len(intervals) < len(terms), intervals=intervals)


def _read_interval(field: str, text: str, term: str) -> Interval:
    if re.fullmatch(NUMBER, term):
        return Interval(number := _read_number(field, term), number)
    if bound := BOUND.fullmatch(term):
        number, included = _read_number(field, bound[2]), bound[1] not in ("<", ">")
        above = bound[1] in (">", ">=", "≥")
        return Interval(low=number, low_included=included) if above else Interval(high=number, high_included=included)
    ends = RANGE.fullmatch(term)
    if ends is None:
        raise FilterError(f"{field!r} is a number, and {text[:60]!r} cannot be read as one; {HOW_TO_WRITE}")
    low, high = _read_number(field, ends[1]), _read_number(field, ends[2])
    if low > high:
        raise FilterError(f"the range {term!r} for {field!r} is empty; write the smaller number first")
    return Interval(low, high)


def _read_number(field: str, text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise FilterError(f"the number {text[:20]!r}... for {field!r} is too large")
    return value


def find_rounded(number: float) -> tuple[float, float]:
    """Return the least and the greatest value that a page shows as this number: pages round, and a reader copies."""
    if number == 0 or float(value_text(number)) != number:
        return number, number
    half = 0.5 * 10.0 ** min(math.floor(math.log10(abs(number))) - SHOWN_DIGITS + 1, 0)
    return number - half, number + half


def read_values(
    field: str, text: str, has: Callable[[str], bool], examples: Callable[[], Sequence[str]]
) -> FieldFilter:
    """Read what was typed for any other field; ``has`` says whether a value occurs, ``examples`` names some."""
    for candidate in (text, text.strip()):
        if has(candidate):
            return FieldFilter(values=(candidate,), missing=candidate.lower() == MISSING)
    terms = [term.strip() for term in text.split(",")]
    asked_missing = any(term.lower() == MISSING for term in terms)
    values = tuple(term for term in terms if term.lower() != MISSING or has(term))
    unknown = [value for value in values if not has(value)]
    if unknown:
        listed = ", ".join(repr(value[:40]) for value in examples()) or "none but missing"
        raise FilterError(f"no row has {unknown[0][:60]!r} in {field!r}; it has {listed}")
    return FieldFilter(missing=asked_missing, values=values)
