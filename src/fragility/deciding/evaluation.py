"""How far P_change can be relied on: expected against observed changes, and their picture.

A decision made without some fields has *changed* if it differs from the decision on the full row. Over the pairs of a
row and a set of hidden fields:

    observed    share of pairs whose decision changed              expected    mean P_change
    Brier       mean (P_change - changed)^2                        AUROC       of P_change, and of 1 - confidence

Which decisions does P_change tell? With several sets in one line, an AUROC over all pairs also ranks the fields: a
field that changes many decisions is above one that changes few, whatever the row. So the AUROC *within* a set comes
first: the mean over the sets in which some decisions changed and some did not, weighted by how many changed. That over
all pairs is given second.

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

from fragility.analysis.ranking.metrics import auroc, quantile_interval, resampled_aurocs
from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.shares import share_of
from fragility.base.text import BriefRepr, align_columns, format_number
from fragility.pages.drawing import BLUE, GREY, ORANGE, Display
from fragility.pages.results import NanEqual, save_report, without_nan
from fragility.pages.wording import begin_sentence, write_count, write_percent, write_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESAMPLES = 1000
BINS = 10
SHOWN = 20  # sets in a picture
HIDDEN = {  # whose fields are hidden, where not every row's are
    "top": "Each field is hidden in the fifth of the rows with its largest values, as if because of them.",
    "bottom": "Each field is hidden in the fifth of the rows with its smallest values, as if because of them.",
    "random": "Each field is hidden in a random fifth of the rows.",
}


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
    auroc_within: float  # within each set, weighted by its changed decisions
    auroc_within_low: float
    auroc_within_high: float
    auroc_within_confidence: float
    auroc_within_confidence_low: float
    auroc_within_confidence_high: float
    sets_ranked: int  # in which some decisions changed and some did not
    auroc: float  # over all pairs, so that sets are ranked too
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
class MissingEvaluation(BriefRepr):
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
    hide : str
        Whose fields were hidden: ``all`` rows, the fifth with the ``top`` or ``bottom`` values, or a ``random`` fifth.
    catalogue : tuple of WithoutLine
        The same totals as ``by_size`` with values of the catalogue, where those of training rows were asked for.

    See Also
    --------
    evaluate_missing : Makes one.
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
    hide: str = "all"
    catalogue: tuple[WithoutLine, ...] = ()

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
            "hide": self.hide,
            "brier": self.brier,
            "by_size": [asdict(line) for line in self.by_size],
            "catalogue": [asdict(line) for line in self.catalogue],
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

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> MissingDisplay:
        """Draw the calibration of ``p_change``, and expected against observed changes by set.

        Parameters
        ----------
        ax : matplotlib Axes or two of them, optional
            Draw on these; new axes otherwise.

        Returns
        -------
        MissingDisplay
            The picture, with its axes and figure.
        """
        return MissingDisplay(self.curve, self.lines).plot(ax)

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
        lines = [HIDDEN[self.hide]] if self.hide in HIDDEN else []
        lines += [describe_line(line) for line in self.by_size]
        lines += [describe_ways(*ways) for ways in zip(self.catalogue, self.by_size, strict=False)]
        if not self.conditional:
            lines.append(
                "Where fields depend on each other, values of the nearest training rows may rank better: conditional, "
                "with training rows, compares the two on these rows."
            )
        worst = sorted(self.lines, key=lambda line: -line.observed)[:top]
        cells: list[tuple[str, ...]] = [
            ("hidden", "pairs", "changes", "changed", "expected", "Brier", "AUROC", "of the confidence")
        ]
        for line in worst:
            shares = (f"{line.observed:.1%}", f"{line.expected:.1%}", f"{line.brier:.4f}")
            aurocs = map(format_number, (line.auroc_within, line.auroc_within_confidence))
            cells.append((line.hidden, str(line.pairs), str(line.changed), *shares, *aurocs))
        lines += ["", *align_columns(cells)]
        if self.skipped:
            lines += ["", *(f"not hidden: {name} ({reason})" for name, reason in self.skipped.items())]
        return "\n".join(lines)

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
    if math.isnan(line.auroc_within):
        return f"{text} No ranking can be judged: {'all' if line.changed else 'none'} of them changed."
    thing, several = "set" if line.fields > 1 else "field", line.pairs > line.rows  # of sets
    within, mean = "Within a set of hidden fields" if line.fields > 1 else "Within a field", ""
    if several and line.sets_ranked == 1:
        mean = f": that of the one {thing} with changes"
    elif several:
        mean = f", the mean over the {line.sets_ranked} {thing}s with changes, weighted by how many"
    text += (
        f" {within}, p_change ranks the decisions that changed with AUROC {line.auroc_within:.3f} "
        f"({line.auroc_within_low:.3f} to {line.auroc_within_high:.3f}), the confidence with "
        f"{line.auroc_within_confidence:.3f} ({line.auroc_within_confidence_low:.3f} to "
        f"{line.auroc_within_confidence_high:.3f}){mean}."
    )
    if several and not math.isnan(line.auroc):
        text += (
            f" Over all pairs of a row and a {thing}, which also ranks the {thing}s: {line.auroc:.3f}, the confidence "
            f"{line.auroc_confidence:.3f}."
        )
    return text


def describe_ways(catalogue: WithoutLine, near: WithoutLine) -> str:
    """Return which values are better on the same rows: those of the catalogue, or of the nearest training rows."""
    compared = (
        f"{near.hidden}, on the same rows: values of the catalogue have a Brier score of {catalogue.brier:.4f} and "
        f"AUROC {catalogue.auroc_within:.3f} within, those of the nearest training rows {near.brier:.4f} and "
        f"{near.auroc_within:.3f}"
    )
    compared = begin_sentence(compared)
    ranked = near.auroc_within - catalogue.auroc_within
    if near.brier < catalogue.brier and not ranked < 0.0:
        return f"{compared}. Use conditional for this model."
    if catalogue.brier <= near.brier and not ranked > 0.0:
        return f"{compared}. The catalogue does as well; conditional is not needed for this model."
    return f"{compared}. Neither is better in both."


def summarise_pairs(
    hidden: str,
    fields: int,
    rows: Integers,
    p_change: Floats,
    confidence: Floats,
    changed: Booleans,
    sets: Integers | None = None,
) -> WithoutLine:
    """Return expected against observed changes; rows, sets (n,): the row and the set of each pair, by default one."""
    _, units = np.unique(rows, return_inverse=True)
    units = units.ravel()
    count, gap = int(units.max()) + 1, p_change - changed
    scores = (p_change, 1.0 - confidence)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1.0 / count), size=RESAMPLES)
    by_row, pairs = np.bincount(units, gap, count), np.bincount(units, minlength=count)
    low, high = quantile_interval((draws @ by_row) / (draws @ pairs))
    resampled = resampled_aurocs(scores, changed, resamples=RESAMPLES, units=units)
    (own_low, own_high), (plain_low, plain_high) = map(quantile_interval, resampled)
    gain_low, gain_high = quantile_interval(resampled[0] - resampled[1])
    observed = float(changed.mean())
    set_of_pair = np.zeros(len(changed), dtype=np.int64) if sets is None else sets
    within, ranked = rank_within(set_of_pair, units, scores, changed)
    (within_low, within_high), (sure_low, sure_high) = map(quantile_interval, within[:, 1:])
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
        auroc_within=float(within[0, 0]),
        auroc_within_low=within_low,
        auroc_within_high=within_high,
        auroc_within_confidence=float(within[1, 0]),
        auroc_within_confidence_low=sure_low,
        auroc_within_confidence_high=sure_high,
        sets_ranked=ranked,
        auroc=auroc(scores[0], changed),
        auroc_low=own_low,
        auroc_high=own_high,
        auroc_confidence=auroc(scores[1], changed),
        auroc_confidence_low=plain_low,
        auroc_confidence_high=plain_high,
        auroc_gain_low=gain_low,
        auroc_gain_high=gain_high,
    )


def rank_within(sets: Integers, units: Integers, scores: Sequence[Floats], changed: Booleans) -> tuple[Floats, int]:
    """Return (scores, 1 + resamples) AUROCs within sets, weighted by their changed decisions, and how many sets count.

    The first column is of the pairs themselves. A set in which all or none of the decisions changed ranks nothing.
    """
    total, weight = np.zeros((len(scores), 1 + RESAMPLES)), np.zeros((len(scores), 1 + RESAMPLES))
    ranked, count = 0, int(units.max()) + 1
    for place in np.unique(sets):
        in_set = np.flatnonzero(sets == place)
        changes = int(changed[in_set].sum())
        if not 0 < changes < len(in_set):
            continue
        ranked += 1
        given = [score[in_set] for score in scores]
        aurocs = np.empty_like(total)
        aurocs[:, 0] = [auroc(score, changed[in_set]) for score in given]
        aurocs[:, 1:] = resampled_aurocs(given, changed[in_set], resamples=RESAMPLES, units=units[in_set], count=count)
        known = ~np.isnan(aurocs)
        total += np.where(known, aurocs, 0.0) * changes
        weight += known * changes
    return np.divide(total, weight, out=np.full(total.shape, np.nan), where=weight > 0), ranked


def calibrate_pairs(p_change: Floats, changed: Booleans) -> tuple[CalibrationBin, ...]:
    """Return the calibration curve: pairs of P_change 0, then of ten bins of equal width; empty ones are left out."""
    place = np.ceil(np.round(p_change * BINS, 9)).astype(np.int64)  # 0 is a bin of its own
    bins = []
    for b in np.unique(place).tolist():
        in_bin = place == b
        share = share_of(int(changed[in_bin].sum()), int(in_bin.sum()))
        ends = (max(b - 1, 0) / BINS, b / BINS)
        bins.append(
            CalibrationBin(*ends, share.rows, float(p_change[in_bin].mean()), share.value, share.lower, share.upper)
        )
    return tuple(bins)


@dataclass(repr=False)
class MissingDisplay(Display):
    """Whether P_change can be relied on: its calibration, and expected against observed changes by set.

    :meth:`MissingEvaluation.plot` draws it.

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
