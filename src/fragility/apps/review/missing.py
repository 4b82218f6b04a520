"""What the missing fields of a case would have changed: as its page shows it, and searched for with the model.

The audited model decided on the row with its gaps, in whatever way it fills them. P_change is the probability that the
same model would have decided differently, had it known the values: over those that the protocol lists for the fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from fragility.apps.review.rows import WhatIf
from fragility.apps.review.searching import RowSearch
from fragility.deciding.changing import ValueCells, find_changes
from fragility.evidence.agreement import original_class
from fragility.pages.wording import describe_acquire, describe_change

LIKELY = 0.5  # from here on another decision is likelier than this one


@dataclass(frozen=True)
class MissingFields:
    """Whether knowing the missing fields of a case would change its decision, to read."""

    fields: tuple[str, ...]
    sentence: str
    exact: bool  # all values that the protocol lists were tried, not draws of them
    likely: bool  # more likely than not it would
    changes_to: str | None  # the class it would most likely become; None where no value changes it
    advice: str  # which field to fetch first; empty if there is no choice, or none helps
    reductions: tuple[tuple[str, float], ...]  # of several fields: how far the probability is expected to fall by each


class ChangeSearch(RowSearch[MissingFields]):
    """Finds what knowing the missing fields of rows would change."""

    def __init__(self, whatif: WhatIf) -> None:
        super().__init__()
        self._whatif = whatif

    def search(self, place: int) -> MissingFields:
        """Return what knowing the missing fields of the row at ``place`` would change; it has some."""
        protocol, names = self._whatif.protocol, self._whatif.rows.missing(place)
        with self._whatif.use(place) as rows:
            decided = original_class(rows, rows.own_probabilities(0, rows.dense()), protocol.resolution)
            (change,) = find_changes(rows, protocol, decided, [names], ValueCells.of(rows, protocol))
        assert change is not None
        to = None if change.changes_to is None else rows.model.classes[change.changes_to]
        interval = None if change.exact else (change.low, change.high)
        several = len(names) > 1
        advised = several and change.acquire[0][1] > 0.0
        return MissingFields(
            fields=names,
            sentence=_begin(describe_change(names, change.probability, interval, to)),
            exact=change.exact,
            likely=change.probability > LIKELY,
            changes_to=None if to is None else str(to),
            advice=_begin(describe_acquire(*change.acquire[0], change.probability)) if advised else "",
            reductions=change.acquire if several else (),
        )


def _begin(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
