"""Audits side by side: what two of them say about the rows they share, matched by id.

Matching needs one entry a row of each audit; this is the one part of the report whose memory grows with rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fragility.report.pieces import Audit, coded
from fragility.report.summary import PairedAudits

COLUMNS = ("id", "predicted", "confidence", "exposure", "flip_budget", "flipped")


def paired_audits(audits: Sequence[tuple[str, Audit]], min_confidence: float) -> tuple[PairedAudits, ...]:
    """Compare every audit with the first."""
    tables = [(name, _by_id(audit, min_confidence)) for name, audit in audits]
    return tuple(_paired(tables[0], other) for other in tables[1:])


def _by_id(audit: Audit, min_confidence: float) -> pd.DataFrame:
    parts = []
    labels = np.array([str(label) for label in audit.classes], dtype=object)
    for table in audit.batches(COLUMNS):
        flipped, budget = (table.column(name).to_numpy() for name in ("flipped", "flip_budget"))
        columns = {
            "id": [str(own_id) for own_id in table.column("id").to_pylist()],
            "predicted": labels[coded(table.column("predicted"), audit.classes)],
            "exposure": table.column("exposure").to_numpy(),
            "confident": table.column("confidence").to_numpy() >= min_confidence,
            "flips": np.asarray(flipped, dtype=bool) & (budget <= 2),
        }
        parts.append(pd.DataFrame(columns).set_index("id"))
    return pd.concat(parts)


def _paired(first: tuple[str, pd.DataFrame], second: tuple[str, pd.DataFrame]) -> PairedAudits:
    both = first[1].add_suffix("_first").join(second[1].add_suffix("_second"), how="inner")
    confident = both[both["confident_first"] & both["confident_second"]]
    one, two = confident["flips_first"], confident["flips_second"]
    return PairedAudits(
        first=first[0],
        second=second[0],
        shared=len(both),
        same_class=int((both["predicted_first"] == both["predicted_second"]).sum()),
        both_confident=len(confident),
        flip_in_both=int((one & two).sum()),
        flip_in_first_only=int((one & ~two).sum()),
        flip_in_second_only=int((~one & two).sum()),
        rank_correlation=_rank_correlation(both["exposure_first"], both["exposure_second"]),
    )


def _rank_correlation(one: pd.Series, other: pd.Series) -> float | None:
    """Return Spearman's correlation; None where there is nothing to rank."""
    if one.nunique() < 2 or other.nunique() < 2:
        return None
    # Rounded: the last digits of a correlation differ between machines, and nobody reads them.
    return round(float(np.corrcoef(one.rank(), other.rank())[0, 1]), 6)
