"""What the entries about one case mean together, the reasons that may stand in them, and entries as a table.

An entry is never changed. A reviewer's standing decision is the last of theirs that was not undone. A case is open
while nobody's decision stands, or parked if someone put it aside; it has the decision on which all agree; or it is a
conflict. While a second review is asked for and not yet given, what others decided is hidden from reviewers who
have not decided: that review is blind. A comment decides nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from fragility.base.errors import DataError
from fragility.base.files import read_bounded

DECISIONS = ("accept", "escalate", "reacquire")
WRITTEN = (*DECISIONS, "park", "comment")  # what a reviewer writes about one case
WORDS = {
    "open": "open",
    "accept": "accepted",
    "escalate": "escalated",
    "reacquire": "evidence to re-acquire",
    "park": "parked",
    "comment": "comment",
    "conflict": "conflict",
    "second": "second review",
    "undo": "undone",
}


@dataclass(frozen=True)
class Case:
    """The certificate of an entry: named by its digest; the other fields say where to find it."""

    digest: str
    audit: str  # root digest of the audit it was read from
    place: int  # its position there
    row_id: str


@dataclass(frozen=True)
class Entry:
    """One line of the history."""

    seq: int
    at: str  # UTC, ISO 8601
    case: Case
    reviewer: str
    action: str
    groups: tuple[str, ...]
    reason: str  # a code; empty if none was given
    note: str
    undoes: int | None
    blind: bool
    bulk: str | None


@dataclass(frozen=True)
class CaseState:
    """What stands for a case."""

    status: str  # open, park, conflict, or the decision
    standing: tuple[Entry, ...]  # one per reviewer, oldest first
    second: bool  # a second review is asked for and not yet given
    asked_by: str | None = None

    @property
    def reviewers(self) -> tuple[str, ...]:
        return tuple(entry.reviewer for entry in self.standing)

    def hidden_from(self, reviewer: str) -> bool:
        """Whether decisions are hidden from this reviewer: a second review is open, and they may give it."""
        return self.second and reviewer not in self.reviewers

    def of(self, reviewer: str) -> Entry | None:
        """Return this reviewer's standing decision."""
        return next((entry for entry in self.standing if entry.reviewer == reviewer), None)


OPEN = CaseState("open", (), False)


def case_state(entries: Iterable[Entry]) -> CaseState:
    """Return the state of a case, from all its entries in their order."""
    ordered = list(entries)
    undone = {entry.undoes for entry in ordered if entry.undoes is not None}
    valid = [entry for entry in ordered if entry.seq not in undone]
    last = {entry.reviewer: entry for entry in valid if entry.action in DECISIONS}
    standing = tuple(sorted(last.values(), key=lambda entry: entry.seq))
    decisions = {entry.action for entry in standing}
    if not decisions:
        status = "park" if any(entry.action == "park" for entry in valid) else "open"
    else:
        status = decisions.pop() if len(decisions) == 1 else "conflict"
    request = next((entry for entry in reversed(valid) if entry.action == "second"), None)
    return CaseState(
        status, standing, request is not None and len(standing) == 1, None if request is None else request.reviewer
    )


def may_be_blind(entries: Sequence[Entry], reviewer: str) -> bool:
    """Whether this reviewer may decide blind now: decisions are hidden from them, and were whenever they wrote.

    A reviewer who asked for the review, or decided before, may have seen the decision. One who only commented or parked
    while it was hidden, or before anyone had decided, has not.
    """
    state = case_state(entries)
    if not state.hidden_from(reviewer) or reviewer == state.asked_by:
        return False
    for i, entry in enumerate(entries):
        if entry.reviewer == reviewer:
            before = case_state(entries[:i])
            if entry.action not in ("park", "comment") or (before.standing and not before.hidden_from(reviewer)):
                return False
    return True


def find_undos(entries: Iterable[Entry]) -> dict[int, Entry]:
    """Return, by its number, the entry that undid each undone one."""
    return {entry.undoes: entry for entry in entries if entry.undoes is not None}


# --- agreement ----------------------------------------------------------------------------------------------


def blind_pairs(histories: Iterable[Sequence[Entry]]) -> list[tuple[str, str]]:
    """Return (the decision that stood, the blind decision) for every blind decision in the histories of cases.

    Both are taken as they were when the blind decision was given. What follows, an undo or a change of mind, is made by
    reviewers who know each other's decision, so it says nothing about agreement.
    """
    pairs = []
    for entries in histories:
        for i, entry in enumerate(entries):
            before = case_state(entries[:i]).standing if entry.blind else ()
            pairs += [(first.action, entry.action) for first in before[:1]]
    return pairs


def cohens_kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Return (observed - chance) / (1 - chance) agreement; None if there are no pairs, or if chance agreement is 1.

    Chance agreement is sum_a P(first = a) P(second = a) over the decisions a.
    """
    if not pairs:
        return None
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    chance = sum(first[a] * second[a] for a in first) / n**2
    return None if chance == 1.0 else (observed - chance) / (1.0 - chance)


def write_groups(groups: Sequence[str]) -> str:
    """Return group names as they are stored."""
    return json.dumps(list(groups), ensure_ascii=False)


# --- reasons ------------------------------------------------------------------------------------------------

LONGEST_REASON = 80  # characters of a code
LARGEST_FILE = 2**20

DEFAULT_REASONS: Mapping[str, str] = {
    "confirmed": "the decisive evidence was confirmed",
    "plausible": "the rest of the record supports the prediction",
    "immaterial": "the outcome would be the same either way",
    "doubtful": "the decisive evidence is doubtful",
    "outdated": "the decisive evidence is out of date",
    "incomplete": "evidence is missing from the record",
    "contradiction": "the record contradicts itself",
    "waiting": "an answer is awaited",
    "other": "see the note",
}


def read_reasons(path: Path) -> dict[str, str]:
    """Return the reasons of a file, code to words, in their order.

    The file is plain text in UTF-8, one reason per line, its code before the first colon:

        confirmed: the decisive evidence was confirmed
        doubtful: the decisive evidence is doubtful

    Blank lines, and lines that begin with #, say nothing.
    """
    try:
        text = read_bounded(path, LARGEST_FILE).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the reasons in {path}: {error}") from error
    reasons: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        code, colon, words = (part.strip() for part in line.partition(":"))
        if not (code and colon and words) or len(code) > LONGEST_REASON:
            raise DataError(
                f"line {number} of {path} must be a code of at most {LONGEST_REASON} characters, a colon and words, "
                f"got {line[:60]!r}"
            )
        if code in reasons:
            raise DataError(f"line {number} of {path} names the code {code!r} again; each reason has one of its own")
        reasons[code] = words
    if not reasons:
        raise DataError(f"{path} holds no reason; write lines such as `confirmed: the evidence was confirmed`")
    return reasons


# --- entries as a table -------------------------------------------------------------------------------------

# A spreadsheet runs a cell that begins with one of these as a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def tabulate_decisions(entries: Sequence[Entry], *, history: bool = False) -> pa.Table:
    """Return one row for each standing decision, or for each entry with ``history``; digest first."""
    by_case = sorted(entries, key=lambda entry: (entry.case.digest, entry.seq))
    chosen: list[tuple[Entry, str, bool]] = []
    for _, group in groupby(by_case, key=lambda entry: entry.case.digest):
        of_case = list(group)
        state = case_state(of_case)
        chosen += [(entry, state.status, entry in state.standing) for entry in (of_case if history else state.standing)]
    text, rows = pa.string(), []
    for entry, status, stands in chosen:
        case = entry.case
        rows.append((
            case.digest, case.row_id, case.audit, status, entry.action, list(entry.groups), entry.reason, entry.note,
            entry.reviewer, entry.at, entry.blind, entry.bulk, entry.seq, entry.undoes, stands,
        ))  # fmt: skip
    schema = pa.schema({
        "digest": text, "id": text, "audit": text, "status": text, "decision": text, "groups": pa.list_(text),
        "reason": text, "note": text, "reviewer": text, "at": text, "blind": pa.bool_(), "bulk": text,
        "entry": pa.int64(), "undoes": pa.int64(), "stands": pa.bool_(),
    })  # fmt: skip
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def escape_formulas(table: pa.Table) -> pa.Table:
    """Return the table for CSV: lists as JSON, and no text that a spreadsheet would run as a formula."""
    for i, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            values: list[str | None] = [write_groups(value) for value in table.column(i).to_pylist()]
        elif pa.types.is_string(field.type):
            texts = table.column(i).to_pylist()
            values = [f"'{text}" if text is not None and text.startswith(FORMULA_STARTS) else text for text in texts]
        else:
            continue
        table = table.set_column(i, field.name, pa.array(values, type=pa.string()))
    return table
