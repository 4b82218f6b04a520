"""How far P_change can be relied on: expected against observed changes, and their picture.

A decision made without some fields has *changed* if it differs from the decision on the full row. Over the pairs of a
row and a set of hidden fields:

    observed    share of pairs whose decision changed              expected    mean P_change
    Brier       mean (P_change - changed)^2                        AUROC       of P_change, and of 1 - confidence

Intervals are percentiles over 1,000 resamples of the rows; all pairs of a row are drawn together.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fragility.arrays import Booleans, Floats, Integers
from fragility.drawing.figure import BLUE, GREY, ORANGE, Display
from fragility.intervals import share_of
from fragility.ranking.metrics import auroc, quantile_interval, resampled_aurocs
from fragility.saving import NanEqual, save_report, without_nan
from fragility.text import BriefRepr, align_columns, format_number
from fragility.wording import write_count, write_percent, write_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESAMPLES = 1000
BINS = 10
SHOWN = 20  # sets in a picture


@dataclass(frozen=True, slots=True, eq=False)
class WithoutLine(NanEqual):
    """Expected against observed changes for one set of hidden fields, or for many together."""

    hidden: str  # names joined by " + "; "each field", "2 fields" for many sets together
    fields: int  # hidden at once
    rows: int
    pairs: int
    changed: int
    observed: float
    expected: float
    expected_low: float  # interval of expected - observed, added to observed
    expected_high: float
    brier: float
    auroc: float
    auroc_low: float
    auroc_high: float
    auroc_confidence: float
    auroc_confidence_low: float
    auroc_confidence_high: float
    auroc_gain_low: float  # interval of the difference of the two
    auroc_gain_high: float

    @property
    def difference(self) -> float:
        """Expected minus observed."""
        return self.expected - self.observed


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Pairs of similar P_change: how often the decision really changed."""

    low: float
    high: float
    pairs: int
    expected: float  # mean P_change
    observed: float
    observed_low: float  # Wilson's interval
    observed_high: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WithoutEvaluation(BriefRepr):
    """Decisions made without fields that are known, compared with the decisions on the full rows.

    Attributes
    ----------
    id : array of shape (n,)
        Of each pair of a row and a set of hidden fields: the row's id.
    hidden : array of str of shape (n,)
        The set, names joined by " + ".
    p_change : array of shape (n,)
        What was predicted.
    exact : array of bool of shape (n,)
        Whether every value of the catalogue was tried.
    confidence : array of shape (n,)
        Of the decision made without them.
    changed : array of bool of shape (n,)
        Whether it differs from the decision on the full row.
    rows : int
        Rows given.
    by_size : tuple of WithoutLine
        All sets of one field together, of two, and so on.
    lines : tuple of WithoutLine
        One per set.
    curve : tuple of CalibrationBin
        Over all pairs: observed against expected, by ``p_change``.
    skipped : dict of str to str
        Fields that were not hidden, and why.
    conditional : bool
        Whether values came from the nearest training rows.

    See Also
    --------
    evaluate_without : Makes one.
    """

    id: npt.NDArray[Any]
    hidden: npt.NDArray[Any]
    p_change: Floats
    exact: Booleans
    confidence: Floats
    changed: Booleans
    rows: int
    by_size: tuple[WithoutLine, ...]
    lines: tuple[WithoutLine, ...]
    curve: tuple[CalibrationBin, ...]
    skipped: dict[str, str]
    conditional: bool

    def __len__(self) -> int:
        return len(self.id)

    @property
    def brier(self) -> float:
        """The Brier score over all pairs."""
        return float(np.mean((self.p_change - self.changed) ** 2))

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per set of hidden fields.

        Returns
        -------
        pandas.DataFrame
            Expected and observed changes, Brier score and AUROCs.
        """
        return pd.DataFrame([asdict(line) for line in self.lines])

    def pairs(self) -> pd.DataFrame:
        """Return one row per pair of a row and a set of hidden fields.

        Returns
        -------
        pandas.DataFrame
            ``id``, ``hidden``, ``p_change``, ``exact``, ``confidence`` and ``changed``.
        """
        names = ("id", "hidden", "p_change", "exact", "confidence", "changed")
        return pd.DataFrame({name: getattr(self, name) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form.

        Returns
        -------
        dict
            JSON values: totals by size, the sets, the curve; NaN as None.
        """
        document = {
            "rows": self.rows,
            "pairs": len(self),
            "conditional": self.conditional,
            "brier": self.brier,
            "by_size": [asdict(line) for line in self.by_size],
            "sets": [asdict(line) for line in self.lines],
            "curve": [asdict(part) for part in self.curve],
            "skipped": self.skipped,
        }
        return dict(without_nan(document))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything (.json) or the table of sets (.csv, .parquet).

        Parameters
        ----------
        path : path
            The file to write; its ending names the format.
        """
        save_report(path, self.to_dict, lambda: pa.Table.from_pandas(self.to_pandas(), preserve_index=False))

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> WithoutDisplay:
        """Draw the calibration of ``p_change``, and expected against observed changes by set.

        Parameters
        ----------
        ax : matplotlib Axes or two of them, optional
            Draw on these; new axes otherwise.

        Returns
        -------
        WithoutDisplay
            The picture, with its axes and figure.
        """
        return WithoutDisplay(self.curve, self.lines).plot(ax)

    def to_text(self, top: int = 10) -> str:
        """Return the totals, and the sets whose decisions change most.

        Parameters
        ----------
        top : int, default=10
            How many sets.

        Returns
        -------
        str
            Several lines of text; also what printing shows.
        """
        told = [describe_line(line) for line in self.by_size]
        worst = sorted(self.lines, key=lambda line: -line.observed)[:top]
        cells: list[tuple[str, ...]] = [
            ("hidden", "pairs", "changed", "expected", "Brier", "AUROC", "of the confidence")
        ]
        for line in worst:
            shares = (f"{line.observed:.1%}", f"{line.expected:.1%}", f"{line.brier:.4f}")
            cells.append(
                (line.hidden, str(line.pairs), *shares, *map(format_number, (line.auroc, line.auroc_confidence)))
            )
        told += ["", *align_columns(cells)]
        if self.skipped:
            told += ["", *(f"not hidden: {name} ({reason})" for name, reason in self.skipped.items())]
        return "\n".join(told)

    def __str__(self) -> str:
        return self.to_text()


def describe_line(line: WithoutLine) -> str:
    """Return expected against observed changes in words."""
    counted = f"{write_count(line.pairs, 'decision')} on {write_count(line.rows, 'row')}"
    low, high = line.expected_low - line.observed, line.expected_high - line.observed
    off = f"{write_points(line.difference)}, 95% interval {100 * low:+.1f} to {100 * high:+.1f}"
    text = (
        f"Without {line.hidden}: {write_percent(line.observed)} of {counted} changed, {write_percent(line.expected)} "
        f"expected ({off}). Brier score {line.brier:.4f}."
    )
    if math.isnan(line.auroc):
        return f"{text} No ranking can be judged: {'all' if line.changed else 'none'} of them changed."
    return (
        f"{text} p_change ranks the changed ones with AUROC {line.auroc:.3f} ({line.auroc_low:.3f} to "
        f"{line.auroc_high:.3f}), the confidence with {line.auroc_confidence:.3f} ({line.auroc_confidence_low:.3f} to "
        f"{line.auroc_confidence_high:.3f})."
    )


def summarise_pairs(
    hidden: str, fields: int, rows: Integers, p_change: Floats, confidence: Floats, changed: Booleans
) -> WithoutLine:
    """Return expected against observed changes; rows (n,): the row of each pair."""
    _, units = np.unique(rows, return_inverse=True)
    units = units.ravel()
    count, gap = int(units.max()) + 1, p_change - changed
    scores = (p_change, 1.0 - confidence)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1.0 / count), size=RESAMPLES)
    by_row, each = np.bincount(units, gap, count), np.bincount(units, minlength=count)
    low, high = quantile_interval((draws @ by_row) / (draws @ each))
    resampled = resampled_aurocs(scores, changed, resamples=RESAMPLES, units=units)
    (own_low, own_high), (plain_low, plain_high) = map(quantile_interval, resampled)
    gain_low, gain_high = quantile_interval(resampled[0] - resampled[1])
    observed = float(changed.mean())
    return WithoutLine(
        hidden=hidden,
        fields=fields,
        rows=count,
        pairs=len(changed),
        changed=int(changed.sum()),
        observed=observed,
        expected=float(p_change.mean()),
        expected_low=observed + low,
        expected_high=observed + high,
        brier=float(np.mean(gap**2)),
        auroc=auroc(scores[0], changed),
        auroc_low=own_low,
        auroc_high=own_high,
        auroc_confidence=auroc(scores[1], changed),
        auroc_confidence_low=plain_low,
        auroc_confidence_high=plain_high,
        auroc_gain_low=gain_low,
        auroc_gain_high=gain_high,
    )


def calibrate_pairs(p_change: Floats, changed: Booleans) -> tuple[CalibrationBin, ...]:
    """Return the calibration curve: pairs of P_change 0, then of ten bins of equal width; empty ones are left out."""
    place = np.ceil(np.round(p_change * BINS, 9)).astype(np.int64)  # 0 is a bin of its own
    found = []
    for b in np.unique(place).tolist():
        own = place == b
        share = share_of(int(changed[own].sum()), int(own.sum()))
        ends = (max(b - 1, 0) / BINS, b / BINS)
        found.append(
            CalibrationBin(*ends, share.rows, float(p_change[own].mean()), share.value, share.lower, share.upper)
        )
    return tuple(found)


@dataclass(repr=False)
class WithoutDisplay(Display):
    """Whether P_change can be relied on: its calibration, and expected against observed changes by set.

    :meth:`WithoutEvaluation.plot` draws it.

    Attributes
    ----------
    curve : sequence of CalibrationBin
        The calibration curve.
    lines : sequence of WithoutLine
        One per set of hidden fields; those whose decisions change most are drawn.
    ax_, figure_ : array of two matplotlib Axes, and Figure
        What it was drawn on.
    """

    curve: Sequence[CalibrationBin]
    lines: Sequence[WithoutLine]
    _share_y: ClassVar[bool] = False

    def _measure(self) -> tuple[int, float, float]:
        return 2, 10.5, max(4.4, 1.6 + 0.26 * min(len(self.lines), SHOWN))

    def _draw(self, panels: Sequence[Axes]) -> None:
        left, right = panels
        left.plot([0, 1], [0, 1], color=GREY, linewidth=1.0, linestyle="--", label="perfectly calibrated")
        x = [part.expected for part in self.curve]
        y = [part.observed for part in self.curve]
        below = [part.observed - part.observed_low for part in self.curve]
        above = [part.observed_high - part.observed for part in self.curve]
        left.errorbar(x, y, yerr=[below, above], color=BLUE, marker="o", capsize=2.5, label="observed, 95% interval")
        left.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        left.set_xlabel("p_change (mean of the bin)")
        left.set_ylabel("share of decisions that changed")
        left.set_title(f"Calibration of p_change\n{sum(part.pairs for part in self.curve):,} decisions made again")
        left.legend(loc="upper left")
        worst = sorted(self.lines, key=lambda line: -line.observed)[:SHOWN]
        places = range(len(worst))
        right.hlines(places, [w.observed for w in worst], [w.expected for w in worst], color="#C9CDD3", linewidth=2.0)
        right.plot([w.observed for w in worst], places, "o", color=BLUE, label="changed")
        right.plot([w.expected for w in worst], places, "D", color=ORANGE, markersize=5, label="expected")
        right.set_yticks(places, [w.hidden for w in worst])
        right.invert_yaxis()
        right.grid(visible=False, axis="y")
        right.grid(visible=True, axis="x")
        right.set_xlim(left=0.0)
        right.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        right.set_xlabel("share of decisions")
        right.set_title("Hidden field")
        right.legend(loc="lower right")
