"""One audit in a few numbers: what `Certificates.summary`, the command line and the demo's page show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from fragility.certificates.lattice import LatticeDeclaration
from fragility.equality import NanEqual
from fragility.errors import DataError
from fragility.ids import IdSpan, say_unlabelled
from fragility.scores import EARLY
from fragility.wording import NONE_AT_ALL, NOT_SEARCHED, UNDECIDED, UPPER_BOUND

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
    median_independent_loss: float  # a few rows near the edge lose many times their margin, and carry the mean
    mean_common_loss: float  # NaN where the protocol has no attenuate_all
    confident: int
    confident_flips_after_one: float
    confident_flips_within_two: float
    confident_mean_fds: float
    confident_mean_exposure: float
    no_flip_under: Mapping[str, float]
    accuracy: float | None = None
    confident_accuracy: float | None = None
    searched: int | None = None  # rows whose smallest failing set was searched
    fewer_suffice: int | None = None  # rows whose path flips, but with more groups than need be
    path_missed: int | None = None  # rows whose path never flips, though a set of groups does
    never_fails: int | None = None  # rows that no loss of whole groups flips, proved
    unsettled: int | None = None  # rows whose smallest set is not proved
    mean_smallest_size: float | None = None  # of the rows with a set; NaN where there are none
    decisions_lost: float | None = None  # expected, at the declared rates
    mean_failure_probability: float | None = None


SCORES = ("confidence", "margin", "flip_budget", "rcma", "fds", "exposure", "independent_loss", "common_loss")


class Summarised(Protocol):
    """What is summarised: certificates that can be read piece by piece."""

    manifest: Any

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
    if labels is not None:
        # Ids read from a file may be 1 where the certificate says "1"; the words are what must agree.
        labels = {str(own_id): label for own_id, label in labels.items()}
        _check_labelled(audit, labels)
    thresholds = [f"lambda_{operator}" for operator in audit.protocol.operators]
    words = _block_columns(audit.manifest.lattice) + ([] if labels is None else ["id", "predicted"])
    pieces = [
        _tallied(batch.to_pandas(), thresholds, min_confidence, labels)
        for batch in audit.batches([*SCORES, "flipped", *thresholds, *words])
    ]
    total = {name: math.fsum(piece[name] for piece in pieces) for name in pieces[0]}
    rows, confident = int(total["rows"]), int(total["confident"])
    means: dict[str, Any] = {f"mean_{name}": _share(total[name], rows) for name in SCORES}
    return AuditSummary(
        rows=rows,
        min_confidence=min_confidence,
        **means,
        median_independent_loss=_median(audit, "independent_loss"),
        share_never_flips=_share(total["never_flips"], rows),
        confident=confident,
        confident_flips_after_one=_share(total["after_one"], confident),
        confident_flips_within_two=_share(total["within_two"], confident),
        confident_mean_fds=_share(total["confident_fds"], confident),
        confident_mean_exposure=_share(total["confident_exposure"], confident),
        no_flip_under={name.removeprefix("lambda_"): _share(total[name], rows) for name in thresholds},
        accuracy=None if labels is None else _share(total["right"], rows),
        confident_accuracy=None if labels is None else _share(total["confident_right"], confident),
        **_lattice_figures(total),
    )


def _median(audit: Summarised, name: str) -> float:
    """Return the median of a column, of which 8 bytes per row are held."""
    return float(np.median(np.concatenate([batch.column(name).to_numpy() for batch in audit.batches([name])])))


def _block_columns(declared: LatticeDeclaration | None) -> list[str]:
    """Return the columns of the lattice block that a summary reads; none without one."""
    if declared is None:
        return []
    return ["smallest_size", "smallest_state", *(["failure_probability"] if declared.has_failures else [])]


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
        "within_two": _sum(confident["flipped"] & (confident["flip_budget"] <= EARLY)),
        "confident_fds": _sum(confident["fds"]),
        "confident_exposure": _sum(confident["exposure"]),
        **{name: _sum(table[name].isna()) for name in thresholds},
        **({} if right is None else {"right": _sum(right), "confident_right": _sum(right[confident.index])}),
        **_lattice_tallied(table),
    }


def _lattice_tallied(table: pd.DataFrame) -> dict[str, float]:
    """Return the sums and counts of a piece's lattice block, none without one."""
    if "smallest_size" not in table:
        return {}
    size, state = table["smallest_size"], table["smallest_state"]
    failures = {"decisions_lost": _sum(table["failure_probability"])} if "failure_probability" in table else {}
    return {
        "searched": _sum(state != NOT_SEARCHED),
        "fewer_suffice": _sum(table["flipped"] & (size < table["flip_budget"])),
        "path_missed": _sum(~table["flipped"] & size.notna()),
        "never_fails": _sum(state == NONE_AT_ALL),
        "unsettled": _sum(state.isin((UPPER_BOUND, UNDECIDED))),
        "with_a_set": _sum(size.notna()),
        "sizes": _sum(size.dropna()),
        **failures,
    }


def _lattice_figures(total: Mapping[str, float]) -> dict[str, Any]:
    """Return the figures of the lattice block, none without one."""
    if "fewer_suffice" not in total:
        return {}
    counts = ("searched", "fewer_suffice", "path_missed", "never_fails", "unsettled")
    figures: dict[str, Any] = {name: int(total[name]) for name in counts}
    figures["mean_smallest_size"] = _share(total["sizes"], int(total["with_a_set"]))
    if "decisions_lost" in total:
        figures["decisions_lost"] = total["decisions_lost"]
        figures["mean_failure_probability"] = _share(total["decisions_lost"], int(total["rows"]))
    return figures


def _sum(values: pd.Series) -> float:
    return float(np.sum(values.to_numpy(dtype=np.float64)))


def _share(total: float, count: int) -> float:
    return total / count if count else float("nan")


def _check_labelled(audit: Summarised, labels: Mapping[str, Any]) -> None:
    span, rows = IdSpan(), 0
    missing: list[object] = []
    for batch in audit.batches(["id"]):
        ids = batch.column("id").to_pylist()
        span.add(ids)
        missing += [own_id for own_id in ids if str(own_id) not in labels]
        rows += len(ids)
    if missing:
        raise DataError(*say_unlabelled(len(missing), rows, missing[0], span, IdSpan(labels)))


def _right(table: pd.DataFrame, labels: Mapping[Any, Any]) -> pd.Series:
    truth = table["id"].map(str).map(labels)
    return truth.astype(str) == table["predicted"].astype(str)
