"""The comparison of scores as data, and as text: one line for each score and orientation."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from fragility.arrays import Booleans, Floats
from fragility.equality import NanEqual
from fragility.errors import DataError
from fragility.ranking.metrics import DEFINED
from fragility.saving import save_report, without_nan
from fragility.text import align_columns, format_number

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class Labels(Protocol):
    """What the metrics need of a set of brittle labels (see `fragility.stress.BrittleLabels`)."""

    @property
    def id(self) -> npt.NDArray[Any]:
        """Sample ids."""
        ...

    @property
    def high_confidence(self) -> Booleans:
        """Rows the ranking is judged on."""
        ...

    @property
    def brittle(self) -> Booleans:
        """The label."""
        ...

    @property
    def statistic(self) -> Floats:
        """What the rule compares with its threshold: large where a row breaks."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ScoreResult(NanEqual):
    """One score in one orientation. Metrics are NaN where undefined, and `state` says why."""

    score: str
    kind: str
    orientation: str  # "paper": s as defined; "oriented": direction * s
    direction: int
    state: str
    rows: int  # high-confidence rows that have this score
    brittle: int
    auroc: float
    capture_5: float
    capture_10: float
    capture_20: float
    false_confidence_captured_20: float
    aurc: float


@dataclass(frozen=True, slots=True, eq=False)
class Ceiling(NanEqual):
    """Label-noise ceiling: AUROC of the statistic of the rule over independent draws against the labels."""

    auroc: float
    state: str


@dataclass(frozen=True, slots=True, eq=False)
class Comparison(NanEqual):
    """AUROC of one score minus an oriented baseline on the rows both have, with an interval over rows."""

    score: str
    baseline: str
    difference: float
    low: float
    high: float
    rows: int


@dataclass(frozen=True, slots=True)
class RankingReport:
    """How well every score finds the brittle rows among the high-confidence ones."""

    rows: int
    high_confidence: int
    brittle: int
    wrong: int | None  # wrong high-confidence predictions; None when the truth was not given
    wrong_brittle: int | None
    orientation_source: str
    results: tuple[ScoreResult, ...]
    comparisons: tuple[Comparison, ...]
    ceiling: Ceiling | None

    def result(self, score: str, orientation: str = "oriented") -> ScoreResult:
        """The line of one score."""
        for line in self.results:
            if line.score == score and line.orientation == orientation:
                return line
        known = sorted({line.score for line in self.results})
        raise DataError(f"no result for score {score!r} ({orientation}); scores are {known}")

    def strongest(self, kinds: Sequence[str], metric: str = "auroc") -> ScoreResult | None:
        """The oriented line with the highest `metric` among the kinds; None when none is defined."""
        lines = [r for r in self.results if r.kind in kinds and r.orientation == "oriented"]
        known = [line for line in lines if not math.isnan(getattr(line, metric))]
        return max(known, key=lambda line: getattr(line, metric)) if known else None

    def undefined(self) -> dict[str, int]:
        """How many scores have no AUROC, by reason."""
        tally: dict[str, int] = {}
        for line in self.results:
            if line.orientation == "oriented" and line.state != DEFINED:
                tally[line.state] = tally.get(line.state, 0) + 1
        return tally

    def to_dict(self) -> dict[str, Any]:
        """Plain form: NaN as None."""
        document: dict[str, Any] = without_nan(asdict(self))
        return document

    def to_pandas(self) -> pd.DataFrame:
        """One row per score and orientation."""
        import pandas as pd

        return pd.DataFrame([asdict(line) for line in self.results])

    def to_arrow(self) -> pa.Table:
        """`to_pandas` as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_pylist([asdict(line) for line in self.results])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything (.json) or the table of scores (.csv, .parquet)."""
        save_report(path, self.to_dict, self.to_arrow)

    def to_text(self) -> str:
        """A table to read in a terminal."""
        return render_report(self)

    def __str__(self) -> str:
        return render_report(self)


# --- text --------------------------------------------------------------------------------------------------------


def render_report(report: RankingReport) -> str:
    """The report as plain text: counts, ceiling, one line a score."""
    lines = [_counts_line(report), _ceiling_line(report), ""]
    header = ("score", "as paper", "oriented", "reversed", "@5%", "@10%", "@20%", "wrong@20%", "AURC", "note")
    body = [_score_cells(report, name) for name in dict.fromkeys(line.score for line in report.results)]
    lines += align_columns([header, *body])
    lines += ["", f"Orientation chosen on {report.orientation_source}; captures and AURC use the oriented score."]
    return "\n".join(lines)


def _counts_line(report: RankingReport) -> str:
    text = f"{report.rows} rows, {report.high_confidence} high-confidence, {report.brittle} of them brittle"
    if report.wrong is None:
        return text + "; truth not given, so wrong predictions are not counted."
    return text + f"; {report.wrong} high-confidence predictions are wrong, {report.wrong_brittle} of these brittle."


def _ceiling_line(report: RankingReport) -> str:
    if report.ceiling is None:
        return "Label-noise ceiling: not measured."
    if report.ceiling.state != DEFINED:
        return f"Label-noise ceiling: {report.ceiling.state}."
    return f"Label-noise ceiling (AUROC of independent draws): {report.ceiling.auroc:.3f}."


def _score_cells(report: RankingReport, name: str) -> tuple[str, ...]:
    paper, turned = report.result(name, "paper"), report.result(name, "oriented")
    note = "" if turned.state == DEFINED else turned.state
    if not note and turned.rows < report.high_confidence:
        note = f"on {turned.rows} rows"
    values = (
        paper.auroc,
        turned.auroc,
        turned.capture_5,
        turned.capture_10,
        turned.capture_20,
        turned.false_confidence_captured_20,
        turned.aurc,
    )
    cells = [format_number(value) for value in values]
    return (name, cells[0], cells[1], "yes" if turned.direction < 0 else "", *cells[2:], note)
