"""Standing: how well a model predicts some rows, and what those predictions rest on; before against after hardening.

The hold of a group g on the predictions of n rows is the mean share of the margin that goes with it alone, all of it
at most,

    hold_g = 1/n sum_i min( 1, [delta_g(x_i)]_+ / (|m(x_i)| + 1e-8) ),

the terms of the independent loss (SPEC section 6b), group by group; unbounded, a few near-ties would be all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fragility.auditing.auditor import audit
from fragility.certificates import Certificates
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import BATCH_ROWS
from fragility.progress import Report
from fragility.protocol import Protocol, bind
from fragility.ranking.predictive import PredictiveMetrics, class_codes, predictive_metrics
from fragility.scores import EPSILON
from fragility.stress import Stress, label_brittle
from fragility.text import aligned, number

GROUPS_SHOWN = 5


@dataclass(frozen=True)
class Standing:
    """One model on some rows; shares of confident predictions are NaN where there are none."""

    rows: int
    quality: PredictiveMetrics | None  # None without labels
    confident_share: float
    brittle_share: float  # of the confident predictions: those that break under held-out stress
    flip_after_one: float  # of the confident predictions
    flip_within_two: float
    confident_exposure: float  # mean over the confident predictions
    exposure: float  # mean over all rows
    flip_budget: float  # mean over all rows; K + 1 where a prediction never flips
    holds: Mapping[str, float]  # group -> its hold
    engine: str


def standing(
    model: Any,
    X: Any,
    protocol: Protocol,
    y: Any = None,
    *,
    stress: Stress | None = None,
    ids: Any = None,
    engine: str = "auto",
    progress: bool | Report | None = False,
) -> Standing:
    """Audit and stress the predictions of a model on some rows."""
    rows = bind(model, X, protocol, ids)
    certs = audit(model, rows, protocol, engine=engine, progress=progress, lattice=False)
    labels = label_brittle(model, rows, protocol, stress, engine=engine, progress=progress)
    summary, confident = certs.summary(), int(labels.high_confidence.sum())
    return Standing(
        rows=len(rows),
        quality=None if y is None else _quality(rows, y),
        confident_share=confident / len(rows),
        brittle_share=int(labels.brittle.sum()) / confident if confident else math.nan,
        flip_after_one=summary.confident_flips_after_one,
        flip_within_two=summary.confident_flips_within_two,
        confident_exposure=summary.confident_mean_exposure,
        exposure=summary.mean_exposure,
        flip_budget=summary.mean_flip_budget,
        holds=_holds(certs),
        engine=certs.engine,
    )


def _quality(rows: EvidenceRows, y: Any) -> PredictiveMetrics:
    starts = range(0, len(rows), BATCH_ROWS)
    p = np.concatenate([rows.predict(rows.dense(start, start + BATCH_ROWS)) for start in starts])
    return predictive_metrics(p, class_codes(y, rows.model.classes))


def _holds(certs: Certificates) -> dict[str, float]:
    table = certs.to_pandas()
    drops = np.maximum(np.stack(table["one_step_drop"].to_numpy()), 0.0)
    shares = drops / (np.abs(table["margin"].to_numpy())[:, None] + EPSILON)
    return dict(zip(certs.protocol.group_names, np.minimum(shares, 1.0).mean(axis=0).tolist(), strict=True))


@dataclass(frozen=True)
class Mending:
    """Two models on the same rows: before and after hardening."""

    before: Standing
    after: Standing
    further: Sequence[tuple[str, str, str, str]] = field(default=(), kw_only=True)  # lines that others bring

    @property
    def lost_holds(self) -> list[tuple[str, float, float]]:
        """(group, hold before, hold after), the largest loss first; groups that lost nothing are left out."""
        both = [(name, hold, self.after.holds.get(name, math.nan)) for name, hold in self.before.holds.items()]
        return sorted((entry for entry in both if entry[1] > entry[2]), key=lambda entry: entry[2] - entry[1])

    def to_text(self) -> str:
        """Return a table: what each model predicts, what it rests on, and which groups lost their hold."""
        lines = [("", "before", "after", "change"), *self._quality_lines(), *self._evidence_lines(), *self.further]
        shown = self.lost_holds[:GROUPS_SHOWN]
        if shown:
            lines.append(("hold of a group on its own (mean share of the margin)", "", "", ""))
            lines += [line_of(f"  {name}", before, after) for name, before, after in shown]
        return "\n".join(aligned(lines))

    def _quality_lines(self) -> list[tuple[str, str, str, str]]:
        before, after = self.before.quality, self.after.quality
        if before is None or after is None:
            return []
        words = (("accuracy", "accuracy"), ("AUROC", "auroc"), ("NLL", "nll"), ("calibration error (ECE)", "ece"))
        return [line_of(word, getattr(before, name), getattr(after, name), 4) for word, name in words]

    def _evidence_lines(self) -> list[tuple[str, str, str, str]]:
        words = (
            ("confident share of predictions", "confident_share"),
            ("  of these brittle under held-out stress", "brittle_share"),
            ("  of these flip when one group is lost", "flip_after_one"),
            ("  of these flip within two groups", "flip_within_two"),
            ("  mean exposure of these", "confident_exposure"),
            ("mean exposure of all", "exposure"),
            ("mean flip budget k*", "flip_budget"),
        )
        return [line_of(word, getattr(self.before, name), getattr(self.after, name)) for word, name in words]


def line_of(word: str, before: float, after: float, digits: int = 3) -> tuple[str, str, str, str]:
    """Return a row of the table: what it is, before, after and the change."""
    change = after - before
    return word, number(before, digits), number(after, digits), "-" if math.isnan(change) else f"{change:+.{digits}f}"
