"""What a check says of one decision, and of many."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import pandas as pd

from fragility.audits import Certificate, Certificates
from fragility.base.text import BriefRepr, escape_controls
from fragility.models import ClassLabel
from fragility.pages.results import without_nan
from fragility.pages.terms import NONE_AT_ALL
from fragility.pages.wording import (
    describe_acquire,
    describe_change,
    describe_failure,
    describe_smallest,
    describe_standins,
    join_names,
)
from fragility.questions.modes.stability import StabilityInterval, describe_intervals

PLAIN = (
    *("id", "decision", "confidence", "failing_sets_state", "failing_sets_exact", "failure_probability", "p_change"),
    *("p_change_low", "p_change_high", "p_change_exact", "changes_to", "review"),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Check(BriefRepr):
    """What one decision hangs on, and what its missing or stale fields would have changed.

    Attributes
    ----------
    id : int or str
        The row's id.
    decision : class label
        The class that the model decides on the row as it arrives.
    confidence : float
        The model's probability of it.
    certificate : Certificate
        Of the row as decided.
    failing_sets : tuple of tuple of str
        The smallest sets of groups whose loss flips the decision, at most 20 of them; empty where none was found.
    failing_sets_state : str
        How far the search got: ``minimum``, ``upper bound``, ``none at all, proved``, and so on.
    failing_sets_exact : bool
        Whether that is proved: no smaller set flips the decision, or none at all does.
    exposure : mapping of str to float
        The exposure to each declared failure mode, from 0 (nothing is lost) toward 1.
    failure_probability : float or None
        How likely the decision is lost at the declared rates; None where the guard was given none.
    failure_interval : tuple of two float or None
        Its 95% interval; None where it is exact.
    failure_condition : str or None
        Those rates in words.
    missing : tuple of str
        The fields that were missing: the model decided without them.
    stand_ins : mapping of str to value
        The missing fields that the model cannot answer without, and the value that stood in for each: its baseline.
    stale : tuple of str
        The fields that were stale: the model decided on their old values.
    p_change : float or None
        The probability that knowing these fields would change the decision; None where all fields are known.
    p_change_low, p_change_high : float or None
        Ends of its 95% interval; the probability itself where it is exact.
    p_change_exact : bool or None
        Whether every value of the catalogue was tried, rather than quasi-random draws of it.
    changes_to : class label or None
        The class that the decision would most likely change to; None where no value changes it.
    acquire : tuple of (str, float)
        The missing and stale fields with the expected reduction of ``p_change`` if each were known, the largest first.
    review : bool or None
        Whether the policy sends the decision to review; None where the guard was given none.
    intervals : mapping of str to StabilityInterval or None
        How far each field may move before the decision flips; None unless they were asked for.
    """

    id: Hashable
    decision: ClassLabel
    confidence: float
    certificate: Certificate
    failing_sets: tuple[tuple[str, ...], ...]
    failing_sets_state: str
    failing_sets_exact: bool
    exposure: Mapping[str, float]
    failure_probability: float | None = None
    failure_interval: tuple[float, float] | None = None
    failure_condition: str | None = None
    missing: tuple[str, ...] = ()
    stand_ins: Mapping[str, Any] = field(default_factory=dict)
    stale: tuple[str, ...] = ()
    p_change: float | None = None
    p_change_low: float | None = None
    p_change_high: float | None = None
    p_change_exact: bool | None = None
    changes_to: ClassLabel | None = None
    acquire: tuple[tuple[str, float], ...] = ()
    review: bool | None = None
    intervals: Mapping[str, StabilityInterval] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the check as plain JSON values.

        Returns
        -------
        dict
            Every attribute but the certificate, of which ``flip_budget``, ``exposure`` as ``certificate_exposure`` and
            ``digest`` are given; an interval by its ends, the classes it flips to, and its sentence.
        """
        document: dict[str, Any] = {name: getattr(self, name) for name in PLAIN}
        document |= {
            "flip_budget": self.certificate.flip_budget if self.certificate.flipped else None,
            "certificate_exposure": self.certificate.exposure,
            "digest": self.certificate.digest,
            "failing_sets": [list(names) for names in self.failing_sets],
            "failure_interval": None if self.failure_interval is None else list(self.failure_interval),
            "exposure": dict(self.exposure),
            "missing": list(self.missing),
            "stand_ins": dict(self.stand_ins),
            "stale": list(self.stale),
            "acquire": [{"field": name, "reduction": reduction} for name, reduction in self.acquire],
            "intervals": None if self.intervals is None else [_plain_interval(one) for one in self.intervals.values()],
        }
        return dict(without_nan(document))

    def sentences(self) -> list[str]:
        """Return the check in words.

        Returns
        -------
        list of str
            The decision, what the unknown fields would have changed, what it hangs on, and what to do.
        """
        opening = f"{self.decision!r} at {self.confidence:.0%}"
        if self.missing:
            opening += f", decided without {join_names(self.missing)}"
        if self.stale:
            opening += f"{' and' if self.missing else ', decided'} on stale values of {join_names(self.stale)}"
        lines = [opening]
        if self.stand_ins:
            lines.append(describe_standins(self.stand_ins))
        if self.p_change is not None and self.p_change_low is not None and self.p_change_high is not None:
            interval = None if self.p_change_exact else (self.p_change_low, self.p_change_high)
            lines.append(describe_change((*self.missing, *self.stale), self.p_change, interval, self.changes_to))
            if len(self.acquire) > 1 and self.acquire[0][1] > 0.0:
                lines.append(describe_acquire(*self.acquire[0], self.p_change))
        budget = self.certificate.flip_budget if self.certificate.flipped else None
        if self.failing_sets:
            smallest = describe_smallest(self.failing_sets_state, self.failing_sets[0], len(self.failing_sets), budget)
            lines.append(f"it hangs on {smallest}")
        elif self.failing_sets_state == NONE_AT_ALL:
            lines.append("no loss of whole groups flips it")
        else:
            lines.append(f"smallest failing set: {self.failing_sets_state}")
        if self.failure_probability is not None:
            lines.append(describe_failure(self.failure_probability, str(self.failure_condition), self.failure_interval))
        lines.append("exposure: " + ", ".join(f"{mode} {value:.2f}" for mode, value in self.exposure.items()))
        lines += [] if self.intervals is None else describe_intervals([*self.intervals.values()])
        if self.review is not None:
            lines.append("the policy sends it to review" if self.review else "the policy does not send it to review")
        return lines

    def __str__(self) -> str:
        first, *others = self.sentences()
        return "\n".join(escape_controls(line) for line in (f"row {self.id}: {first}", *(f"  {one}" for one in others)))


def _plain_interval(one: StabilityInterval) -> dict[str, Any]:
    below, above = (
        None if flip is None else {"value": flip.value, "class": flip.predicted}
        for flip in (one.flips_below, one.flips_above)
    )
    return {
        "field": one.field,
        "value": one.value,
        "state": one.state,
        "low": one.low,
        "high": one.high,
        "flips_below": below,
        "flips_above": above,
        "categories": [{"value": flip.value, "class": flip.predicted} for flip in one.categories],
        "sentence": one.sentence(),
    }


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Checks(Sequence[Check], BriefRepr):
    """The checks of many rows: a sequence of :class:`Check`.

    Attributes
    ----------
    certificates : Certificates
        Of the rows as decided, in the same order: an ordinary audit, which can be saved and verified.
    rows : pandas.DataFrame
        The raw rows as decided: missing fields are missing, or hold what stood in; the index holds the ids.
    checks : tuple of Check
        The checks themselves.
    """

    certificates: Certificates
    rows: pd.DataFrame
    checks: tuple[Check, ...]

    def __len__(self) -> int:
        return len(self.checks)

    @overload
    def __getitem__(self, position: int) -> Check: ...

    @overload
    def __getitem__(self, position: slice) -> tuple[Check, ...]: ...

    def __getitem__(self, position: int | slice) -> Check | tuple[Check, ...]:
        return self.checks[position]

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per check.

        Returns
        -------
        pandas.DataFrame
            The plain values of each check, its exposure by mode, and the field to fetch first.
        """
        table = []
        for one in self.checks:
            line = {name: getattr(one, name) for name in PLAIN}
            line |= {f"exposure_{mode}": value for mode, value in one.exposure.items()}
            line |= {"missing": list(one.missing), "stood_in": list(one.stand_ins), "stale": list(one.stale)}
            line["acquire_first"] = one.acquire[0][0] if one.acquire else None
            line["failing_set"] = list(one.failing_sets[0]) if one.failing_sets else None
            table.append(line)
        return pd.DataFrame(table)
