"""What the entries about one case mean together: pure functions from entries to a state.

An entry is never changed. A reviewer's standing decision is the last of theirs that was not undone. A case is open
while nobody's decision stands, or parked if someone put it aside; it has the decision on which all agree; or it is a
conflict. While a second review is asked for and not yet given, what others decided is hidden from whoever has not
decided: that review is blind. A comment decides nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

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
    """Which certificate an entry speaks of: its digest is the name, the rest says where to find it."""

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
    standing: tuple[Entry, ...]  # one a reviewer, oldest first
    second: bool  # a second review is asked for and not yet given
    asked_by: str | None = None

    @property
    def reviewers(self) -> tuple[str, ...]:
        return tuple(entry.reviewer for entry in self.standing)

    def hidden_from(self, reviewer: str) -> bool:
        """Whether this reviewer must not see what was decided: a second review is open, and they may give it."""
        return self.second and reviewer not in self.reviewers

    def of(self, reviewer: str) -> Entry | None:
        """Return this reviewer's standing decision."""
        return next((entry for entry in self.standing if entry.reviewer == reviewer), None)


OPEN = CaseState("open", (), False)


def case_state(entries: Iterable[Entry]) -> CaseState:
    """Return what stands, from all entries about one case in their order."""
    ordered = list(entries)
    undone = {entry.undoes for entry in ordered if entry.undoes is not None}
    valid = [entry for entry in ordered if entry.seq not in undone]
    last = {entry.reviewer: entry for entry in valid if entry.action in DECISIONS}
    standing = tuple(sorted(last.values(), key=lambda entry: entry.seq))
    status = status_of({entry.action for entry in standing}, any(entry.action == "park" for entry in valid))
    request = next((entry for entry in reversed(valid) if entry.action == "second"), None)
    return CaseState(
        status, standing, request is not None and len(standing) == 1, None if request is None else request.reviewer
    )


def status_of(standing: Collection[str], parked: bool) -> str:
    """Return the status of a case with these different decisions standing."""
    if not standing:
        return "park" if parked else "open"
    return next(iter(standing)) if len(standing) == 1 else "conflict"


def may_be_blind(entries: Sequence[Entry], reviewer: str) -> bool:
    """Whether this reviewer may give a blind decision now: it is hidden from them, and was whenever they wrote.

    Whoever asked for the review, or decided before, may have seen what was decided; whoever only commented or parked
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


def undone_by(entries: Iterable[Entry]) -> dict[int, Entry]:
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
    """Return (observed - chance) / (1 - chance) agreement; None where there are no pairs, or chance alone explains all.

    Chance agreement is sum_a P(first = a) P(second = a) over the decisions a.
    """
    if not pairs:
        return None
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    chance = sum(first[a] * second[a] for a in first) / n**2
    return None if chance == 1.0 else (observed - chance) / (1.0 - chance)


def groups_text(groups: Sequence[str]) -> str:
    """Return group names as they are stored."""
    return json.dumps(list(groups), ensure_ascii=False)
