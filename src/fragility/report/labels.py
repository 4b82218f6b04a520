"""Labels: how often predictions are right, whether fragile ones are wrong more often, and what a review would find.

Labels are one value per row, so this part of the report holds a few bytes for every labelled row.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pyarrow as pa

from fragility.arrays import Booleans, Floats
from fragility.errors import Advice, DataError
from fragility.ids import IdSpan, check_same_rows, say_unlabelled
from fragility.intervals import Share, difference_of, share_of
from fragility.policy import STARTS, LabelledRows, fit_rule
from fragility.protocol import Protocol
from fragility.report.summary import Accuracy, ReviewView
from fragility.report.tally import Piece
from fragility.saving import without_nan
from fragility.stress.labels import BrittleLabels

FIFTHS = 5
POLICY_CONFIDENCE = 0.95
SHARES = tuple(step / 100 for step in range(101))


class LabelTally:
    """What labels say of an audit's rows, gathered piece by piece.

    `labels` maps ids to the answer sought, `confidence` to the model's confidence where the labels know it.
    """

    def __init__(
        self,
        sought: str,
        labels: Mapping[str, str],
        min_confidence: float,
        confidence: Mapping[str, float] | None = None,
    ) -> None:
        self.sought, self.labels, self.min_confidence = sought, labels, min_confidence
        self.confidence = confidence
        self.missing: list[object] = []
        self.ids = IdSpan()
        self.rows = 0
        self.known = sought != "wrong"  # whether any label is a class of the model
        self.parts: list[tuple[Floats, Floats, Booleans]] = []

    def add(self, piece: Piece, classes: Sequence[object]) -> None:
        """Look up the rows of a piece."""
        ids = piece.table.column("id").to_pylist()
        found = [self.labels.get(str(own_id)) for own_id in ids]
        self.rows += len(ids)
        self.missing += [own_id for own_id, label in zip(ids, found, strict=True) if label is None]
        self.ids.add(ids)
        if self.confidence is not None and None not in found:
            check_same_rows(ids, piece.confidence, [self.confidence[str(own_id)] for own_id in ids])
        if self.sought == "wrong":
            names = np.array([label_text(label) for label in classes], dtype=object)
            self.known |= any(label in names for label in set(found))
            bad = np.array(found, dtype=object) != names[piece.predicted]
        else:
            bad = np.array([label == "True" for label in found], dtype=bool)
        self.parts.append((piece.exposure, piece.confidence, np.asarray(bad, dtype=bool)))

    def gathered(self) -> tuple[Floats, Floats, Booleans]:
        """Return exposure, confidence and what was sought, of all rows; refuse rows without a label."""
        if self.missing:
            raise DataError(
                *say_unlabelled(len(self.missing), self.rows, self.missing[0], self.ids, IdSpan(self.labels))
            )
        if not self.known:
            raise DataError(
                f"no label is one of the model's classes; labels run like {next(iter(self.labels.values()))!r}: name "
                "the column with the true classes",
                Advice("", " by --target"),
            )
        exposure, confidence, bad = (np.concatenate(parts) for parts in zip(*self.parts, strict=True))
        return exposure, confidence, bad

    def accuracy(self) -> Accuracy:
        """Return how often predictions are right, overall and by exposure."""
        exposure, confidence, wrong = self.gathered()
        focus = self._focus(confidence)
        score, bad = exposure[focus], wrong[focus]
        order = np.argsort(score, kind="stable")
        fifths = [_share(bad[part]) for part in np.array_split(order, FIFTHS)]
        exposed, rest = fifths[-1], _share(bad[order[: len(order) - fifths[-1].rows]])
        return Accuracy(
            right=_share(~wrong),
            right_in_focus=_share(~bad),
            wrong_by_fifth=tuple(fifths),
            wrong_exposed=exposed,
            wrong_rest=rest,
            difference=difference_of(exposed, rest),
        )

    def review(self, risk: float) -> ReviewView:
        """Return what reviewing some share of the rows would find, and the policy that the labels support."""
        exposure, confidence, bad = self.gathered()
        focus = self._focus(confidence)
        exposure, confidence, bad = exposure[focus], confidence[focus], bad[focus]
        rule, _ = fit_rule(None, exposure, bad, risk, 1 - (1 - POLICY_CONFIDENCE) / STARTS)
        return ReviewView(
            sought=self.sought,
            rows=len(bad),
            found_in_all=int(bad.sum()),
            shares=SHARES,
            by_exposure=captured(exposure, bad),
            by_confidence=captured(-confidence, bad),
            policy=_plain(asdict(rule)),
            risk=risk,
            confidence=POLICY_CONFIDENCE,
        )

    def _focus(self, confidence: Floats) -> Booleans:
        confident = confidence >= self.min_confidence
        return np.asarray(confident if confident.any() else np.ones(len(confident), dtype=bool))


def _share(flags: Booleans) -> Share:
    return share_of(int(flags.sum()), len(flags))


def _plain(rule: dict[str, object]) -> dict[str, object]:
    reviews_nothing = isinstance(rule["threshold"], float) and math.isinf(rule["threshold"])
    plain: dict[str, object] = without_nan(rule)
    return {**plain, "reviews_nothing": reviews_nothing}


def captured(score: Floats, bad: Booleans) -> tuple[int, ...]:
    """Return how many of those sought lie in the first 0%, 1% ... 100% of the rows, highest score first."""
    found = np.concatenate([[0], np.cumsum(bad[np.argsort(-score, kind="stable")])])
    return tuple(int(found[round(share * len(bad))]) for share in SHARES)


def class_labels(labels: Mapping[Hashable, object]) -> dict[str, str]:
    """Return true classes by id, both as text: a file may give back 1 where the certificate says "1"."""
    return {str(own_id): label_text(label) for own_id, label in labels.items() if not _absent(label)}


def label_text(label: object) -> str:
    """Return a class as text; 1.0 is 1, which a column with gaps turns it into."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _absent(label: object) -> bool:
    return label is None or (isinstance(label, float) and math.isnan(label))


def brittle_labels(
    labels: BrittleLabels | pa.Table, min_confidence: float, protocol: Protocol
) -> tuple[dict[str, str], float, dict[str, float]]:
    """Return which rows break under the held-out stress, from which confidence, and the confidence of each, by id."""
    rows = LabelledRows.of(labels, min_confidence)
    rows.check_made_under(protocol)
    ids = [str(own_id) for own_id in rows.ids]
    answers, confidence = map(str, rows.brittle.tolist()), rows.confidence.tolist()
    return dict(zip(ids, answers, strict=True)), rows.min_confidence, dict(zip(ids, confidence, strict=True))
