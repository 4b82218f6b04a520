"""One audit in a few numbers: what `Certificates.summary`, the command line and the demo's page show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fragility.equality import NanEqual
from fragility.errors import DataError
from fragility.words import NONE_AT_ALL, UNDECIDED, UPPER_BOUND

CONFIDENT = 0.9


@dataclass(frozen=True, eq=False)
class AuditSummary(NanEqual):
    """Means and shares over the certificates of one audit.

    Every row counts: a prediction that never flips enters the mean flip budget as K + 1, as its certificate says, and
    `share_never_flips` states how many those are. Shares `confident_*` are of the confident predictions and NaN where
    there are none; `accuracy` is None without labels, the fields of the lattice block without such a block.
    """

    rows: int
    min_confidence: float
    mean_confidence: float
    mean_margin: float
    mean_flip_budget: float
    share_never_flips: float
    mean_rcma: float
    mean_fds: float
    mean_exposure: float
    mean_independent_loss: float
    mean_common_loss: float  # NaN where the protocol has no attenuate_all
    confident: int
    confident_flips_after_one: float
    confident_flips_within_two: float
    confident_mean_fds: float
    confident_mean_exposure: float
    no_flip_under: Mapping[str, float]
    accuracy: float | None = None
    confident_accuracy: float | None = None
    fewer_suffice: int | None = None  # rows whose path flips, but with more groups than need be
    path_missed: int | None = None  # rows whose path never flips, though a set of groups does
    never_fails: int | None = None  # rows that no loss of whole groups turns, proved
    unsettled: int | None = None  # rows whose smallest set is not proved
    mean_smallest_size: float | None = None  # of the rows with a set; NaN where there are none
    decisions_lost: float | None = None  # expected, at the declared rates
    mean_failure_probability: float | None = None


def summarise(
    table: pd.DataFrame, *, min_confidence: float = CONFIDENT, labels: Mapping[Any, Any] | None = None
) -> AuditSummary:
    """Summarise a table of certificates; `labels` maps row ids to true classes and must cover every row."""
    confident = table[table["confidence"] >= min_confidence]
    right = None if labels is None else _right(table, labels)
    return AuditSummary(
        rows=len(table),
        min_confidence=min_confidence,
        mean_confidence=_mean(table["confidence"]),
        mean_margin=_mean(table["margin"]),
        mean_flip_budget=_mean(table["flip_budget"]),
        share_never_flips=_mean(~table["flipped"]),
        mean_rcma=_mean(table["rcma"]),
        mean_fds=_mean(table["fds"]),
        mean_exposure=_mean(table["exposure"]),
        mean_independent_loss=_mean(table["independent_loss"]),
        mean_common_loss=_mean(table["common_loss"]),
        confident=len(confident),
        confident_flips_after_one=_mean(confident["flipped"] & (confident["flip_budget"] <= 1)),
        confident_flips_within_two=_mean(confident["flipped"] & (confident["flip_budget"] <= 2)),
        confident_mean_fds=_mean(confident["fds"]),
        confident_mean_exposure=_mean(confident["exposure"]),
        no_flip_under={
            name.removeprefix("lambda_"): _mean(table[name].isna())
            for name in map(str, table)
            if name.startswith("lambda_")
        },
        accuracy=None if right is None else _mean(right),
        confident_accuracy=None if right is None else _mean(right[confident.index]),
        **_lattice_figures(table),
    )


def _lattice_figures(table: pd.DataFrame) -> dict[str, Any]:
    """Return the figures of the lattice block, none without one."""
    if "smallest_size" not in table:
        return {}
    size, state = table["smallest_size"], table["smallest_state"]
    figures: dict[str, Any] = {
        "fewer_suffice": int((table["flipped"] & (size < table["flip_budget"])).sum()),
        "path_missed": int((~table["flipped"] & size.notna()).sum()),
        "never_fails": int((state == NONE_AT_ALL).sum()),
        "unsettled": int(state.isin((UPPER_BOUND, UNDECIDED)).sum()),
        "mean_smallest_size": _mean(size.dropna()),
    }
    if "failure_probability" in table:
        figures["decisions_lost"] = float(table["failure_probability"].sum())
        figures["mean_failure_probability"] = _mean(table["failure_probability"])
    return figures


def _mean(values: pd.Series) -> float:
    return float(np.mean(values.to_numpy(dtype=np.float64))) if len(values) else float("nan")


def _right(table: pd.DataFrame, labels: Mapping[Any, Any]) -> pd.Series:
    missing = [row for row in table["id"] if row not in labels]
    if missing:
        raise DataError(f"no label for row {missing[0]!r} and {len(missing) - 1} more of {len(table)} audited rows")
    truth = table["id"].map(labels)
    # Labels read from a file may be 1 where the certificate says "1"; the words are what must agree.
    return truth.astype(str) == table["predicted"].astype(str)
