"""The confident test rows of a unit, judged: where scores and labels meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

import fragility as fg
from fragility_paper.arrays import Array, Floats, Scores
from fragility_paper.library import BrittleLabels, auroc
from fragility_paper.unit.labels import INDEPENDENT, label, naturalistic_labels
from fragility_paper.unit.lattice import Lattice, lattice_of
from fragility_paper.unit.rows import AuditedPart, AuditedRows
from fragility_paper.unit.scores import current_scores, importance_order, orientations, scores_on
from fragility_paper.unit.work import Work


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Confident validation rows, which decide the orientation of baseline scores."""

    rows: AuditedRows
    labels: BrittleLabels
    scores: Scores


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Confident test rows with scores, labels and the orientation of every score."""

    work: Work
    rows: AuditedRows
    scores: Scores
    directions: dict[str, int]
    labels: BrittleLabels
    independent: BrittleLabels  # of a second set of draws
    natural: BrittleLabels | None  # of recorded outages, where the data have any
    held: HeldOut | None
    lattice: Lattice | None  # of additive models

    @property
    def wrong(self) -> Array:
        return np.asarray(self.labels.predicted != self.rows.truth)

    def places(self, count: int) -> Array:
        """A seeded draw of confident rows; smaller draws are prefixes of larger ones."""
        order = np.random.default_rng([self.work.fitted.unit.seed, 1]).permutation(len(self.rows))
        return np.sort(order[:count])

    @property
    def sample(self) -> Array:
        """The rows that the extras take."""
        return self.places(self.work.profile.extra_rows)

    def record_auroc(self, analysis: str, score: str, values: Floats, brittle: Array, **setting: Any) -> None:
        where: dict[str, Any] = {"score": score, "rule": "expected", "count": len(values), **setting}
        self.work.record.add(analysis, "auroc", auroc(values, brittle), **where)


def judge(work: Work, test: AuditedPart, validation: AuditedPart, current: fg.Certificates | None = None) -> Case:
    """Score the confident rows, label them, and orient the scores on confident validation rows.

    Without the certificates of the reading ``current``, its scores and those of the lattice are left out.
    """
    rows, held_rows = test.select("confident"), validation.select("confident")
    with work.clock.stage("scores"):
        order = importance_order(work, validation.select("anyone"))
        scores = scores_on(work, rows, order)
        held_scores = scores_on(work, held_rows, order) if len(held_rows) else {}
    lattice = None
    if current is not None:
        scores |= current_scores(current.take(test.places("confident")))
        with work.clock.stage("lattice"):
            lattice = lattice_of(work, rows)
        if lattice is not None:
            protocol = work.fitted.protocol
            scores |= lattice.scores(rows.certs.claims, protocol.depth, protocol.weights)
    with work.clock.stage("labels"):
        labels = label(work, rows.oracle)
        independent = label(work, rows.oracle, seed_offset=INDEPENDENT)
        held = HeldOut(held_rows, label(work, held_rows.oracle), held_scores) if len(held_rows) else None
    with work.clock.stage("naturalistic"):
        natural = naturalistic_labels(work, rows)
    directions = orientations(scores, held_scores, held.labels if held else None)
    return Case(work, rows, scores, directions, labels, independent, natural, held, lattice)


def row_table(case: Case) -> pd.DataFrame:
    """One line a confident test row: who it is, what was true, what the label channel said, every score."""
    unit, labels = case.work.fitted.unit, case.labels
    return pd.DataFrame(
        {
            "id": case.rows.positions,
            "dataset": unit.dataset,
            "model": unit.model,
            "seed": unit.seed,
            "truth": case.rows.truth,
            "predicted": labels.predicted,
            "confidence": labels.confidence,
            "brittle_expected": labels.relabel(rule="expected").brittle,
            "brittle_any": labels.relabel(rule="any").brittle,
            "brittle_rate": labels.brittle_rate,
            **case.scores,
        }
    )


def labelled_rows(case: Case) -> pd.DataFrame:
    """Scores and labels of the confident test and validation rows: what a review policy needs, without the models."""
    parts = [("test", case.labels, case.scores)]
    if case.held is not None:
        parts.append(("validation", case.held.labels, case.held.scores))
    return pd.concat([_labelled(*part) for part in parts], ignore_index=True)


def _labelled(part: str, labels: BrittleLabels, scores: Scores) -> pd.DataFrame:
    """In single precision: the order of rows is what counts, and hundreds of thousands of them are committed."""
    return pd.DataFrame(
        {
            "part": part,
            "confidence": labels.confidence.astype(np.float32),
            "exposure": scores["cfc_exposure"].astype(np.float32),
            "fds": scores["cfc_fds"].astype(np.float32),
            "brittle": labels.brittle,
        }
    )
