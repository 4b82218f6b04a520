"""What a model's predictions of some rows rest on, before and after hardening, and whether the gain carries over.

The hold of a group g on the predictions of n rows is the mean share of the margin that is lost with it alone, at most
all of it,

    hold_g = 1/n sum_i min( 1, [delta_g(x_i)]_+ / (|m(x_i)| + 1e-8) ),

the terms of the independent loss (SPEC section 6b), group by group. Without the bound a few near-ties would decide it.

In training a lost group takes the baseline, so a model may learn that baseline instead of spreading its weight. The
share of confident predictions that break is therefore judged again by failures with other values, which training may or
may not have used (`harden(modes=...)`):

    other baselines         groups and columns take each other baseline that the model admits (`Mask`, `Dropout`)
    values of other rows    groups take the values of other training rows (`Donor`)
    noise                   numbers are slightly off (`Noise`)

A gain appears under a judge if the brittle share falls by at least one percentage point and by a tenth of itself, and
if the rows show it: of those that are confident before and after, Tango's paired 95% interval is below zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fragility.analysis.ranking.metrics import PredictiveMetrics, class_codes, predictive_metrics
from fragility.auditing.pipeline import audit
from fragility.base.arrays import Booleans
from fragility.base.progress import Report
from fragility.base.shares import ShareDifference, paired_difference
from fragility.base.text import BriefRepr, align_columns, format_number
from fragility.evidence.agreement import BATCH_ROWS
from fragility.pages.wording import join_names, write_count
from fragility.protocol import Protocol, bind
from fragility.questions.stress.declaration import Stress
from fragility.questions.stress.labels import label_brittle
from fragility.questions.stress.stressors import Donor, Dropout, Mask, Noise, Stressor
from fragility.scores import EPSILON

GROUPS_SHOWN = 5
LEAST_FALL = 0.01
LEAST_RELATIVE_FALL = 0.1
LOST = (Mask(), Dropout())
OTHER_VALUES: dict[str, tuple[str, Stressor]] = {  # judge -> the failure mode that trains against it, its stress
    "values of other rows": ("wrong", Donor()),
    "noise": ("noisy", Noise()),
}


@dataclass(frozen=True, repr=False)
class Assessment(BriefRepr):
    """One model on some rows; shares of confident predictions are NaN if there are none."""

    rows: int
    quality: PredictiveMetrics | None  # None without labels
    confident_share: float
    brittle_share: float  # of the confident predictions: those that break under held-out stress
    flip_after_one: float  # of the confident predictions
    flip_within_two: float
    confident_exposure: float  # mean over the confident predictions
    exposure: float  # mean over all rows
    flip_budget: float  # mean over all rows; K + 1 for a prediction that never flips
    holds: Mapping[str, float]  # group -> its hold
    engine: str


def assess_model(
    model: Any,
    X: Any,
    protocol: Protocol,
    y: Any = None,
    *,
    stress: Stress | None = None,
    ids: Any = None,
    engine: str = "auto",
    progress: bool | Report | None = False,
) -> Assessment:
    """Audit and stress the predictions of a model on some rows."""
    rows = bind(model, X, protocol, ids)
    certs = audit(model, rows, protocol, engine=engine, progress=progress, lattice=False)
    labels = label_brittle(model, rows, protocol, stress, engine=engine, progress=progress)
    quality = None
    if y is not None:
        starts = range(0, len(rows), BATCH_ROWS)
        p = np.concatenate([rows.predict(rows.dense(start, start + BATCH_ROWS)) for start in starts])
        quality = predictive_metrics(p, class_codes(y, rows.model.classes))
    drops = np.maximum(certs.claims.one_step_drop, 0.0)
    lost_shares = np.minimum(drops / (np.abs(certs.claims.margin)[:, None] + EPSILON), 1.0)
    summary, confident = certs.summary(), int(labels.high_confidence.sum())
    return Assessment(
        rows=len(rows),
        quality=quality,
        confident_share=confident / len(rows),
        brittle_share=int(labels.brittle.sum()) / confident if confident else math.nan,
        flip_after_one=summary["flips_after_one"].value,
        flip_within_two=summary["flips_early"].value,
        confident_exposure=summary["confident_mean_exposure"].value,
        exposure=summary["mean_exposure"].value,
        flip_budget=summary["mean_flip_budget"].value,
        holds=dict(zip(protocol.group_names, lost_shares.mean(axis=0).tolist(), strict=True)),
        engine=certs.engine,
    )


@dataclass(frozen=True, repr=False)
class HardeningEffect(BriefRepr):
    """Two models on the same rows: before and after hardening."""

    before: Assessment
    after: Assessment
    further: Sequence[tuple[str, str, str, str]] = field(default=(), kw_only=True)  # further lines of the table

    @property
    def lost_holds(self) -> list[tuple[str, float, float]]:
        """(group, hold before, hold after), the largest loss first; groups that lost nothing are left out."""
        pairs = [(name, hold, self.after.holds.get(name, math.nan)) for name, hold in self.before.holds.items()]
        return sorted((entry for entry in pairs if entry[1] > entry[2]), key=lambda entry: entry[2] - entry[1])

    def to_text(self) -> str:
        """Return a table: what each model predicts, what it rests on, and which groups lost their hold."""
        lines = [("", "before", "after", "change")]
        quality = self.before.quality, self.after.quality
        if quality[0] is not None and quality[1] is not None:
            words = (("accuracy", "accuracy"), ("AUROC", "auroc"), ("NLL", "nll"), ("calibration error (ECE)", "ece"))
            lines += [_line(word, getattr(quality[0], name), getattr(quality[1], name), 4) for word, name in words]
        for word, name in (
            ("confident share of predictions", "confident_share"),
            ("  of these brittle under held-out stress", "brittle_share"),
            ("  of these flip when one group is lost", "flip_after_one"),
            ("  of these flip within two groups", "flip_within_two"),
            ("  mean exposure of these", "confident_exposure"),
            ("mean exposure of all", "exposure"),
            ("mean flip budget k*", "flip_budget"),
        ):
            lines.append(_line(word, getattr(self.before, name), getattr(self.after, name)))
        lines += self.further
        losses = self.lost_holds[:GROUPS_SHOWN]
        if losses:
            lines.append(("hold of a group on its own (mean share of the margin)", "", "", ""))
            lines += [_line(f"  {name}", before, after) for name, before, after in losses]
        return "\n".join(align_columns(lines))


def _line(word: str, before: float, after: float, digits: int = 3) -> tuple[str, str, str, str]:
    change = after - before
    return (
        word,
        format_number(before, digits),
        format_number(after, digits),
        "-" if math.isnan(change) else f"{change:+.{digits}f}",
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """The brittle share of confident predictions of two models, under one kind of failure."""

    by: str
    before: float  # NaN if a model has no confident prediction
    after: float
    difference: ShareDifference | None = None  # after minus before, on the rows that are confident both times
    rows: int = 0  # how many those are

    @property
    def fell(self) -> bool:
        """Whether the share fell by more than a trifle."""
        fall = self.before - self.after
        return fall >= LEAST_FALL and fall >= LEAST_RELATIVE_FALL * self.before

    @property
    def gained(self) -> bool:
        """Whether it fell by more than a trifle, and by more than chance explains."""
        return self.fell and (self.difference is None or self.difference.upper < 0.0)

    def __str__(self) -> str:
        shares = f"{self.by} {self.before:.3f} -> {self.after:.3f}"
        if self.difference is None:
            return shares
        ends = f"{self.difference.lower:+.3f} to {self.difference.upper:+.3f}"
        return f"{shares} (95% interval of the change {ends}, on {write_count(self.rows, 'row')} confident both times)"


@dataclass(frozen=True, slots=True)
class Transfer:
    """The gain of hardening under the failures of the training, and under failures that training did not use."""

    trained: tuple[Judged, ...]
    others: tuple[Judged, ...]

    @property
    def gained(self) -> bool:
        """Whether there is a gain under a failure of the training."""
        return any(judged.gained for judged in self.trained)

    @property
    def only_as_trained(self) -> bool:
        """Whether the gain appears under the failures of the training, and under no other."""
        return self.gained and bool(self.others) and not any(judged.gained for judged in self.others)

    def sentence(self) -> str:
        """Say whether the gain carries over, and to which failures."""
        trained = join_names([str(judged) for judged in self.trained])
        if not self.gained and any(judged.fell for judged in self.trained):
            return f"Too few rows to tell whether fewer confident predictions break: {trained}."
        if not self.gained:
            return f"Hardly fewer confident predictions break: {trained}."
        shown = f"Fewer confident predictions break: {trained}."
        if not self.others:
            return shown
        if self.only_as_trained:
            used = "baseline" if len(self.trained) == 1 else "failures"
            return (
                f"{shown} The gain appears only under the {used} that the model was trained with, not under "
                f"{join_names([str(judged) for judged in self.others])}: do not count on it."
            )
        kept = join_names([str(judged) for judged in self.others if judged.gained])
        lost = join_names([str(judged) for judged in self.others if not judged.gained])
        return f"{shown} The gain carries over to {kept}{f', not to {lost}' if lost else ''}."

    def lines(self) -> list[tuple[str, str, str, str]]:
        """Return the rows of a table of brittle shares before and after."""
        heading = ("brittle share of confident predictions", "", "", "")
        return [heading, *(_line(f"  {one.by}", one.before, one.after) for one in (*self.trained, *self.others))]


def assess_transfer(
    before: Any,
    after: Any,
    X: Any,
    donors: Any,
    protocols: tuple[Protocol, Protocol],
    *,
    modes: Sequence[str] = ("lost",),
    ids: Any = None,
    engine: str = "auto",
) -> Transfer:
    """Judge two models on the same rows; ``donors`` are training rows, ``protocols`` those of the two models.

    modes: those that the second model was hardened with.
    """
    first = _find_broken(before, X, donors, protocols[0], ids, engine)
    second = _find_broken(after, X, donors, protocols[1], ids, engine)
    mode_of = {f"baseline {protocols[0].baseline}": "lost", **{by: mode for by, (mode, _) in OTHER_VALUES.items()}}
    trained, others = [], []
    for by, broken in first.items():
        if mode_of.get(by) in modes:
            trained.append(_judge(f"{by} (as in training)", broken, second[by]))
        elif by in second:
            others.append(_judge(by, broken, second[by]))
    return Transfer(tuple(trained), tuple(others))


@dataclass(frozen=True, eq=False)
class _Broken:
    """Which of n rows a model is confident about, and which of them break under one kind of failure."""

    confident: Booleans
    broken: Booleans

    @property
    def share(self) -> float:
        return float(self.broken[self.confident].mean()) if self.confident.any() else math.nan


def _judge(by: str, before: _Broken, after: _Broken) -> Judged:
    confident_in_both = before.confident & after.confident
    mended, spoilt = (
        before.broken & ~after.broken & confident_in_both,
        after.broken & ~before.broken & confident_in_both,
    )
    change = paired_difference(int(spoilt.sum()), int(mended.sum()), int(confident_in_both.sum()))
    return Judged(by, before.share, after.share, change, int(confident_in_both.sum()))


def _find_broken(model: Any, X: Any, donors: Any, protocol: Protocol, ids: Any, engine: str) -> dict[str, _Broken]:
    """Return which confident predictions break, by judge; the protocol's own baseline comes first."""

    def breaks(declared: Protocol, stressors: Sequence[Stressor], lent: Any = None) -> tuple[Booleans, Booleans]:
        """Return which rows are confident, (n,), and which stressor breaks which row, (n, stressors)."""
        engine_of_judge = (
            engine if declared.space == protocol.space else "auto"
        )  # an engine that was insisted on may not read it
        labels = label_brittle(
            model, X, declared, Stress(tuple(stressors)), donors=lent, ids=ids, engine=engine_of_judge, progress=False
        )
        return labels.high_confidence, labels.brittle_by

    sure, broken = breaks(protocol, (*LOST, *(stressor for _, stressor in OTHER_VALUES.values())), donors)
    out = {f"baseline {protocol.baseline}": _Broken(sure, np.asarray(broken[:, : len(LOST)].any(axis=1)))}
    for name in protocol.alternatives:
        confident, by_stressor = breaks(protocol.with_baseline(name), LOST)
        out[f"baseline {name}"] = _Broken(confident, np.asarray(by_stressor.any(axis=1)))
    return out | {by: _Broken(sure, broken[:, len(LOST) + i]) for i, by in enumerate(OTHER_VALUES)}
