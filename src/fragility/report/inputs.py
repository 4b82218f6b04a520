"""The inputs of a report besides the audit: the audited rows, and labels.

Rows are needed to show the values of the cases and their replacements. They are read part by part and must be the
audited rows: their digest, which needs 32 bytes of memory per row, is compared with the manifest's.

Labels show how often predictions are right, whether fragile ones are wrong more often, and what a review would find.
They need a few bytes of memory per labelled row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fragility.analysis.policy import STARTS, LabelledRows, fit_rule
from fragility.analysis.segments import PART_ROWS, RowValues, read_values
from fragility.audits import Audit
from fragility.audits.measures import write_class
from fragility.base.arrays import Booleans, Floats
from fragility.base.canonical import packed_root
from fragility.base.errors import Advice, DataError
from fragility.base.ids import GIVE_AUDITED, RowLabels, SeenIds, check_same_rows, id_keys, id_text
from fragility.base.shares import Share, difference_of, share_of
from fragility.evidence.replacements import SAMPLE, Replacement, find_replacements, value_text
from fragility.evidence.rows import input_row_digests, read_rows
from fragility.models import Model
from fragility.pages.results import without_nan
from fragility.pages.terms import ATTAINED
from fragility.protocol import Protocol
from fragility.questions.stress.labels import BrittleLabels
from fragility.report.summary import Accuracy, FieldValue, FragileCase, ReviewView
from fragility.report.tally import Piece, count_first

FIFTHS = 5
POLICY_CONFIDENCE = 0.95
SHARES = tuple(step / 100 for step in range(101))


# --- rows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ShownRows:
    """Rows that a report may show, and the model, from which the replacements of values are found."""

    values: RowValues
    model: Model | None = None
    just_audited: bool = False  # the audit was just made from these rows, so their digest is not checked

    @classmethod
    def of(cls, rows: Any, ids: Any = None, model: Any = None) -> ShownRows:
        """Return the rows of a table, an array or a source; `ShownRows` are returned unchanged."""
        if isinstance(rows, ShownRows):
            return rows
        values = read_values(rows, ids)
        return cls(values, None if model is None else Model.wrap(model))


def add_values(
    cases: Sequence[FragileCase], source: ShownRows, audit: Audit
) -> tuple[tuple[FragileCase, ...], dict[str, Replacement]]:
    """Return the cases with the values of their rows, and the replacement of each field; refuse other rows."""
    evidence = audit.protocol.evidence
    rows, sample = _find_rows(source, audit, {case.id for case in cases})
    absent = next((case.id for case in cases if case.id not in rows), None)
    if absent is not None:
        raise DataError(f"the given rows lack the audited row {absent!r}; ", GIVE_AUDITED)
    becomes = find_replacements(evidence, source.model, sample)
    fields = evidence.group_fields

    def show(case: FragileCase, group: str) -> tuple[FieldValue, ...]:
        row = rows[case.id]
        names = [name for name in fields[group] if becomes[name].state != "unknown"]  # some need the model
        return tuple(FieldValue(name, value_text(row[name]), str(becomes[name])) for name in names)

    result = tuple(replace(case, values=tuple(show(case, group) for group in case.path)) for case in cases)
    return result, becomes


def _find_rows(
    source: ShownRows, audit: Audit, case_ids: Collection[str]
) -> tuple[dict[str, dict[str, Any]], pd.DataFrame]:
    """Return the rows of the cases by id, and the first rows as a sample; refuse rows that were not audited."""
    fields = [field.name for field in audit.protocol.fields]
    rows: dict[str, dict[str, Any]] = {}
    sample, digests = pd.DataFrame(columns=fields), bytearray()
    check = not source.just_audited and audit.manifest.input.rows == len(audit)
    for ids, frame in source.values.values(fields, PART_ROWS):
        if len(sample) < SAMPLE:
            sample = pd.concat([sample, frame.iloc[:SAMPLE]], ignore_index=True) if len(sample) else frame.iloc[:SAMPLE]
        for place, row_id in enumerate(map(str, ids)):
            if row_id in case_ids:
                rows[row_id] = {name: frame[name].iloc[place] for name in fields}
        if check:
            digests += b"".join(input_row_digests(read_rows(frame[fields], fields, None, ids)))
        elif len(rows) == len(case_ids) and len(sample) >= SAMPLE:
            break
    if check and len(digests) > 32 * len(audit):  # more rows than were audited are given
        audited = SeenIds()
        for batch in audit.batches(["id"]):
            audited.add(batch.column("id").to_pylist())
        keys = [id_keys(ids) for ids, _ in source.values.values(fields[:1], PART_ROWS)]
        is_audited = audited.contains(np.concatenate(keys))
        digests = bytearray(np.frombuffer(bytes(digests), dtype="S32")[is_audited].tobytes())
    if check and f"sha256:{packed_root(digests).hex()}" != audit.manifest.input.digest:
        raise DataError("the given rows are not the audited rows: ids or values differ; give the rows of the audit")
    return rows, sample


# --- labels ---------------------------------------------------------------------------------------------------


class LabelTally:
    """Joins labels with the rows of an audit, part by part.

    `labels` are true classes, or whether a row is brittle; `confidence` maps ids to the model's confidence if the
    labels have it.
    """

    def __init__(
        self, defect: str, labels: RowLabels, min_confidence: float, confidence: Mapping[str, float] | None = None
    ) -> None:
        self.defect, self.labels, self.min_confidence = defect, labels, min_confidence
        self.confidence = confidence
        self.known = defect != "wrong"  # whether any label is a class of the model
        self.parts: list[tuple[Floats, ...]] = []

    def add(self, piece: Piece, classes: Sequence[object]) -> None:
        """Look up the rows of a piece."""
        ids = piece.table.column("id").to_pylist()
        labels = self.labels.find(ids)
        if self.confidence is not None and None not in labels:
            check_same_rows(ids, piece.confidence, [self.confidence[id_text(row_id)] for row_id in ids])
        bad = np.array(labels, dtype=object)
        if self.defect == "wrong":
            names = np.array([write_class(label) for label in classes], dtype=object)
            self.known |= any(label in names for label in set(labels))
            bad = bad != names[piece.predicted]
        fds = np.asarray(piece.table.column("fds").to_numpy(), dtype=np.float64)
        self.parts.append((piece.exposure, piece.confidence, fds, piece.losses[:, 0], bad.astype(np.float64)))

    def _join(self) -> tuple[dict[str, Floats], Booleans, Booleans]:
        """Return for all rows the scores (high is risky), which rows are wrong or brittle, and which are in focus."""
        self.labels.check()
        if not self.known:
            example = next(iter(self.labels.values.values()))
            raise DataError(
                f"no label is one of the model's classes; an example is {example!r}; name the column with the true "
                "classes",
                Advice("", " by --target"),
            )
        exposure, confidence, fds, rcma, bad = (np.concatenate(parts) for parts in zip(*self.parts, strict=True))
        confident = confidence >= self.min_confidence
        scores = {"exposure": exposure, "confidence": -confidence, "FDS": fds, "RCMA": rcma}
        return scores, bad.astype(bool), confident if confident.any() else np.ones(len(bad), dtype=bool)

    def measure_accuracy(self) -> Accuracy:
        """Return how often predictions are right, overall and by exposure."""
        scores, wrong, focus = self._join()
        bad = wrong[focus]
        order = np.argsort(scores["exposure"][focus], kind="stable")
        ends = [len(order) - count_first(place / FIFTHS, len(order)) for place in range(FIFTHS, -1, -1)]
        fifths = [_share(bad[order[start:end]]) for start, end in itertools.pairwise(ends)]
        exposed, rest = fifths[-1], _share(bad[order[: len(order) - fifths[-1].rows]])
        return Accuracy(
            right=_share(~wrong),
            right_in_focus=_share(~bad),
            wrong_by_fifth=tuple(fifths),
            wrong_exposed=exposed,
            wrong_rest=rest,
            difference=difference_of(exposed, rest),
        )

    def simulate_review(self, risk: float) -> ReviewView:
        """Return how many defects a review of each share of the rows finds, and the policy that the labels support.

        The confidence level is divided among four scores, and the one that sends the fewest rows to review is used.
        """
        scores, every, focus = self._join()
        scores, bad = {name: score[focus] for name, score in scores.items()}, every[focus]
        level = 1 - (1 - POLICY_CONFIDENCE) / (STARTS * len(scores))
        rules = {name: fit_rule(None, score, bad, risk, level)[0] for name, score in scores.items()}
        by = min(rules, key=lambda name: (rules[name].state != ATTAINED, rules[name].review_share))
        rule = rules[by]
        reviews_nothing = rule.threshold is not None and math.isinf(rule.threshold)
        return ReviewView(
            defect=self.defect,
            rows=len(bad),
            found_in_all=int(bad.sum()),
            shares=SHARES,
            by_exposure=count_found(scores["exposure"], bad),
            by_confidence=count_found(scores["confidence"], bad),
            by=by,
            tried=tuple(scores),
            policy={**without_nan(asdict(rule)), "reviews_nothing": reviews_nothing},
            risk=risk,
            confidence=POLICY_CONFIDENCE,
        )


def _share(flags: Booleans) -> Share:
    return share_of(int(flags.sum()), len(flags))


def count_found(score: Floats, bad: Booleans) -> tuple[int, ...]:
    """Return how many of the bad rows are among the first 0%, 1% ... 100% of the rows, highest score first."""
    total = np.concatenate([[0], np.cumsum(bad[np.argsort(-score, kind="stable")])])
    return tuple(int(total[count_first(share, len(bad))]) for share in SHARES)


def read_brittle(
    labels: BrittleLabels | pa.Table, min_confidence: float, protocol: Protocol
) -> tuple[RowLabels, float, dict[str, float]]:
    """Return which rows are brittle by id, the threshold of confidence, and the confidence of each row by id."""
    rows = LabelledRows.of(labels, min_confidence)
    rows.check_made_under(protocol)
    ids = [id_text(row_id) for row_id in rows.ids]
    brittle, confidence = (dict(zip(ids, column.tolist(), strict=True)) for column in (rows.brittle, rows.confidence))
    return RowLabels(brittle), rows.min_confidence, confidence
