"""Audits side by side: what two of them say about the rows they share, matched by id.

Matching needs one entry per row of each audit; this is the one part of the report whose memory grows with rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fragility.comparability import differences_between
from fragility.intervals import difference_of, paired_difference, share_of
from fragility.protocol import Protocol
from fragility.report.pieces import Audit, coded
from fragility.report.summary import Compared, ComparedSegments, PairedAudits
from fragility.scores import EARLY
from fragility.segments import Coded

COLUMNS = ("id", "predicted", "confidence", "exposure", "flip_budget", "flipped")


def paired_audits(
    audits: Sequence[tuple[str, Audit]], min_confidence: float, coded: Sequence[Sequence[Coded]] | None = None
) -> tuple[PairedAudits, ...]:
    """Compare every audit with the first; ``coded`` are the segments of each audit's rows."""
    codes: Sequence[Sequence[Coded]] = coded or [()] * len(audits)
    tables = [_by_id(audit, min_confidence, own) for (_, audit), own in zip(audits, codes, strict=True)]
    (first, one), before = audits[0], tables[0]
    return tuple(
        _paired(first, second, before, after, one.protocol, other.protocol, codes[0])
        for (second, other), after in zip(audits[1:], tables[1:], strict=True)
    )


def _by_id(audit: Audit, min_confidence: float, segments: Sequence[Coded]) -> pd.DataFrame:
    parts = []
    labels = np.array([str(label) for label in audit.classes], dtype=object)
    for table in audit.batches(COLUMNS):
        budget = table.column("flip_budget").to_numpy()
        flipped = np.asarray(table.column("flipped").to_numpy(), dtype=bool)
        columns = {
            "id": [str(own_id) for own_id in table.column("id").to_pylist()],
            "predicted": labels[coded(table.column("predicted"), audit.classes)],
            "exposure": table.column("exposure").to_numpy(),
            "confident": table.column("confidence").to_numpy() >= min_confidence,
            "after_one": flipped & (budget <= 1),
            "early": flipped & (budget <= EARLY),
        }
        parts.append(pd.DataFrame(columns).set_index("id"))
    table = pd.concat(parts)
    return table.assign(**{f"segment_{place}": own.codes for place, own in enumerate(segments)})


def _paired(
    first: str, second: str, before: pd.DataFrame, after: pd.DataFrame, one: Protocol, other: Protocol,
    coded: Sequence[Coded],
) -> PairedAudits:  # fmt: skip
    both = before.add_suffix("_first").join(after.add_suffix("_second"), how="inner")
    confident = both[both["confident_first"] & both["confident_second"]]
    early_before, early_after = confident["early_first"], confident["early_second"]
    return PairedAudits(
        first=first,
        second=second,
        differences=differences_between(one, other),
        shared=len(both),
        same_class=int((both["predicted_first"] == both["predicted_second"]).sum()),
        both_confident=len(confident),
        flip_in_both=int((early_before & early_after).sum()),
        flip_in_first_only=int((early_before & ~early_after).sum()),
        flip_in_second_only=int((~early_before & early_after).sum()),
        compared=_compared_rows(both, confident) if len(both) else _compared_apart(before, after),
        segments=tuple(
            _segments(own, place, confident, before, after, bool(len(both))) for place, own in enumerate(coded)
        ),
        rank_correlation=_rank_correlation(both["exposure_first"], both["exposure_second"]),
    )


def _compared_rows(both: pd.DataFrame, confident: pd.DataFrame) -> tuple[Compared, ...]:
    """Compare shares of the same rows."""

    def sure_and_early(when: str) -> pd.Series:
        return both[f"confident_{when}"] & both[f"early_{when}"]

    return (
        _compared("early", confident["early_first"], confident["early_second"]),
        _compared("after_one", confident["after_one_first"], confident["after_one_second"]),
        _compared("confident_early", sure_and_early("first"), sure_and_early("second")),
        _compared("confident", both["confident_first"], both["confident_second"]),
    )


def _compared(measure: str, first: pd.Series, second: pd.Series) -> Compared:
    rows = len(first)
    difference = paired_difference(int((second & ~first).sum()), int((first & ~second).sum()), rows)
    return Compared(measure, share_of(int(first.sum()), rows), share_of(int(second.sum()), rows), difference)


def _compared_apart(before: pd.DataFrame, after: pd.DataFrame) -> tuple[Compared, ...]:
    """Compare shares of rows that the audits do not share."""
    sure = [table[table["confident"]] for table in (before, after)]
    shares = {
        "early": [share_of(int(table["early"].sum()), len(table)) for table in sure],
        "after_one": [share_of(int(table["after_one"].sum()), len(table)) for table in sure],
        "confident_early": [
            share_of(int(part["early"].sum()), len(table)) for part, table in zip(sure, (before, after), strict=True)
        ],
        "confident": [share_of(len(part), len(table)) for part, table in zip(sure, (before, after), strict=True)],
    }
    return tuple(Compared(name, one, two, difference_of(two, one)) for name, (one, two) in shares.items())


def _segments(
    coded: Coded, place: int, both: pd.DataFrame, before: pd.DataFrame, after: pd.DataFrame, shared: bool
) -> ComparedSegments:
    """Compare the confident predictions of each segment: on the same rows where audits share some."""
    found = []
    for code, name in enumerate(coded.names):
        if shared:
            mine = both[both[f"segment_{place}_first"] == code]
            found.append((name, _compared("early", mine["early_first"], mine["early_second"])))
        else:
            one, other = (
                table[table["confident"] & (table[f"segment_{place}"] == code)]["early"] for table in (before, after)
            )
            shares = share_of(int(one.sum()), len(one)), share_of(int(other.sum()), len(other))
            found.append((name, Compared("early", *shares, difference_of(shares[1], shares[0]))))
    return ComparedSegments(coded.column, tuple(found))


def _rank_correlation(one: pd.Series, other: pd.Series) -> float | None:
    """Return Spearman's correlation; None where there is nothing to rank."""
    if one.nunique() < 2 or other.nunique() < 2:
        return None
    # Rounded: the last digits of a correlation differ between machines, and nobody reads them.
    return round(float(np.corrcoef(one.rank(), other.rank())[0, 1]), 6)
