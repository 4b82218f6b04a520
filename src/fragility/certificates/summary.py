"""One audit in a few numbers: what `Certificates.summary`, the command line and the demo's page show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from fragility.equality import NanEqual
from fragility.errors import DataError

CONFIDENT = 0.9


@dataclass(frozen=True, eq=False)
class AuditSummary(NanEqual):
    """Means and shares over the certificates of one audit.

    Every row counts: a prediction that never flips enters the mean flip budget as K + 1, as its certificate says, and
    `share_never_flips` states how many those are. Shares `confident_*` are of the confident predictions and NaN where
    there are none; `accuracy` is None without labels.
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


SCORES = ("confidence", "margin", "flip_budget", "rcma", "fds", "exposure", "independent_loss", "common_loss")


class Summarised(Protocol):
    """What is summarised: certificates that can be read piece by piece."""

    @property
    def protocol(self) -> _Operators: ...

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]: ...


class _Operators(Protocol):
    @property
    def operators(self) -> Sequence[str]: ...


def summarise(
    audit: Summarised, *, min_confidence: float = CONFIDENT, labels: Mapping[Any, Any] | None = None
) -> AuditSummary:
    """Summarise certificates piece by piece; `labels` maps row ids to true classes and must cover every row."""
    thresholds = [f"lambda_{operator}" for operator in audit.protocol.operators]
    words = [] if labels is None else ["id", "predicted"]
    pieces = [
        _tallied(batch.to_pandas(), thresholds, min_confidence, labels)
        for batch in audit.batches([*SCORES, "flipped", *thresholds, *words])
    ]
    total = {name: math.fsum(piece[name] for piece in pieces) for name in pieces[0]}
    rows, confident = int(total["rows"]), int(total["confident"])
    means = {f"mean_{name}": _share(total[name], rows) for name in SCORES}
    return AuditSummary(
        rows=rows,
        min_confidence=min_confidence,
        **means,
        share_never_flips=_share(total["never_flips"], rows),
        confident=confident,
        confident_flips_after_one=_share(total["after_one"], confident),
        confident_flips_within_two=_share(total["within_two"], confident),
        confident_mean_fds=_share(total["confident_fds"], confident),
        confident_mean_exposure=_share(total["confident_exposure"], confident),
        no_flip_under={name.removeprefix("lambda_"): _share(total[name], rows) for name in thresholds},
        accuracy=None if labels is None else _share(total["right"], rows),
        confident_accuracy=None if labels is None else _share(total["confident_right"], confident),
    )


def _tallied(
    table: pd.DataFrame, thresholds: Sequence[str], min_confidence: float, labels: Mapping[Any, Any] | None
) -> dict[str, float]:
    """Return the sums and counts of one piece."""
    confident = table[table["confidence"] >= min_confidence]
    right = None if labels is None else _right(table, labels)
    return {
        "rows": len(table),
        **{name: _sum(table[name]) for name in SCORES},
        "never_flips": _sum(~table["flipped"]),
        "confident": len(confident),
        "after_one": _sum(confident["flipped"] & (confident["flip_budget"] <= 1)),
        "within_two": _sum(confident["flipped"] & (confident["flip_budget"] <= 2)),
        "confident_fds": _sum(confident["fds"]),
        "confident_exposure": _sum(confident["exposure"]),
        **{name: _sum(table[name].isna()) for name in thresholds},
        **({} if right is None else {"right": _sum(right), "confident_right": _sum(right[confident.index])}),
    }


def _sum(values: pd.Series) -> float:
    return float(np.sum(values.to_numpy(dtype=np.float64)))


def _share(total: float, count: int) -> float:
    return total / count if count else float("nan")


def _right(table: pd.DataFrame, labels: Mapping[Any, Any]) -> pd.Series:
    missing = [row for row in table["id"] if row not in labels]
    if missing:
        raise DataError(f"no label for row {missing[0]!r} and {len(missing) - 1} more of {len(table)} audited rows")
    truth = table["id"].map(labels)
    # Labels read from a file may be 1 where the certificate says "1"; the words are what must agree.
    return truth.astype(str) == table["predicted"].astype(str)
