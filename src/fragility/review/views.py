"""Views: what a reviewer looks at, as it stands in the address of a page, so that it can be shared and reloaded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import parse_qs, urlencode

from fragility.errors import FragilityError
from fragility.scores import CONFIDENT
from fragility.text import CONTROL

RANKINGS = ("exposure", "fds")
SHARES = {"5": 0.05, "10": 0.10, "20": 0.20}
BUDGETS = (*SHARES, "time", "policy", "all")
STATUSES = ("open", "park", "accept", "escalate", "reacquire", "conflict", "second")
SORTS = ("exposure", "fds", "confidence", "k", "id")
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
    label: str | None = None
    k: str = ""
    group: str | None = None
    where: tuple[tuple[str, str], ...] = ()  # fields of the row, and what was typed for each
    status: str = ""
    reviewer: str | None = None
    search: str = ""
    sort: str = ""  # empty: by the ranking
    up: bool = False  # smallest first
    page: int = 1
    stay: bool = False  # on the case after deciding about it

    @classmethod
    def from_address(cls, query: str) -> View:
        """Return the view that a query string asks for."""
        try:
            words = parse_qs(query, keep_blank_values=True, max_num_fields=MOST_WORDS)
        except ValueError as error:
            raise ViewError("the address has too many words") from error
        given = {name: values[-1] for name, values in words.items() if values[-1]}  # a blank says nothing
        return cls(
            by=_one_of(given, "by", RANKINGS, "exposure"),
            budget=_one_of(given, "budget", BUDGETS, "20"),
            hours=_number(given, "hours", 1.0, 0.0, 10_000.0),
            rate=_number(given, "rate", 20.0, 0.0, 100_000.0),
            confident=_number(given, "confident", CONFIDENT, 0.0, 1.0),
            label=_name(given, "label"),
            k=_one_of(given, "k", FLIPS, ""),
            group=_name(given, "group"),
            where=_pairs(words.get("field", []), words.get("value", [])),
            status=_one_of(given, "status", STATUSES, ""),
            reviewer=_name(given, "reviewer"),
            search=_short(given.get("search", "").strip(), "search"),
            sort=_one_of(given, "sort", SORTS, ""),
            up=_one_of(given, "up", ("1",), "") == "1",
            page=int(_number(given, "page", 1.0, 1.0, 10.0**9)),
            stay=_one_of(given, "stay", ("1",), "") == "1",
        )

    def address(self, **changes: Any) -> str:
        """Return the query string of this view, or of one that differs from it in ``changes``."""
        return urlencode(self.words(**changes))

    def words(self, **changes: Any) -> list[tuple[str, str]]:
        """Return the names and values of that query string."""
        view = replace(self, **changes)
        plain = View()
        words: list[tuple[str, str]] = []
        for each in fields(view):
            value = getattr(view, each.name)
            if each.name == "where":
                words += [pair for name, wanted in value for pair in (("field", write_name(name)), ("value", wanted))]
            elif each.name in NAMES and value is not None:
                words.append((each.name, write_name(value)))
            elif (
                value != getattr(plain, each.name) or each.name == "budget"
            ):  # whose default is not the same everywhere
                words.append((each.name, _written(value)))
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


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else ""
    return write_number(value) if isinstance(value, float) else str(value)


def write_number(value: float) -> str:
    """Return a number with all the digits that tell it from others."""
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
    value = _as_number(text, float)
    if value is None or not least <= value <= most:
        raise ViewError(f"{name} in the address must be a number from {least:g} to {most:g}, got {text[:40]!r}")
    return value


def _short(text: str, name: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise ViewError(f"{name} in the address has more than {LONGEST_TEXT} characters")
    return text


def _name(given: Mapping[str, str], name: str) -> str | None:
    return read_name(_short(given[name], name)) if name in given else None


def _pairs(names: Sequence[str], values: Sequence[str]) -> tuple[tuple[str, str], ...]:
    if len(names) != len(values) or len(names) > MOST_FIELDS:
        raise ViewError(f"the address must name at most {MOST_FIELDS} fields, each with one value")
    pairs = zip(names, values, strict=True)
    return tuple((read_name(_short(name, "field")), _short(value, "value")) for name, value in pairs if name and value)


def _as_number(text: str, kind: Callable[[str], float]) -> float | None:
    try:
        value = kind(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# --- names in addresses and forms -----------------------------------------------------------------------------


def write_name(name: str) -> str:
    """Return a name of a class, group, field or reviewer as an address or form holds it; it is never empty."""
    return UNSAFE.sub(_escape, name) or "\\e"


def read_name(text: str) -> str:
    """Return the name that was written."""
    return ESCAPED.sub(_unescape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return "\\\\" if found[0] == "\\" else f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def _unescape(found: re.Match[str]) -> str:
    kind = found[1]
    return kind if kind == "\\" else "" if kind == "e" else chr(int(kind[1:], 16))
