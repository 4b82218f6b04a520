"""Pictures of certificates, in the manner of scikit-learn's `Display` classes.

`from_certificates` and `from_predictions` compute what is to be drawn, keep it in plain fields, draw it and return the
display; `plot` draws it again, on axes of its own or on those it is given. Matplotlib is imported when something is
drawn, and its global style is left as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fragility.calibration import FRAGILE_SHARE, checked_rows, class_columns, fragile_rows
from fragility.certificates import Certificates
from fragility.drawing.figure import BLUE, GREY, ORANGE, RED, drawing_style
from fragility.errors import DataError
from fragility.models import ClassLabel
from fragility.policy import ReviewCurve, ReviewPolicy, ReviewRule
from fragility.ranking.predictive import BINS, ReliabilityCurve, reliability_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN_LABEL = {
    "support": "support margin of the predicted class\n(log odds against its best competitor)",
    "support_unbounded": "support margin of the predicted class\n(log odds against its best competitor)",
    "current": "margin of whichever class leads\n(log odds against the runner-up)",
}


def _new_figure(width: float, height: float) -> Figure:
    import matplotlib.pyplot as plt

    return plt.figure(figsize=(width, height), layout="constrained")


def _panels(ax: Axes | Sequence[Axes] | None, count: int, size: tuple[float, float]) -> list[Axes]:
    """Return `count` panels side by side: new ones, those given, or ones in the place of the one given."""
    if ax is None:
        return list(_new_figure(*size).subplots(1, count, sharey=True, squeeze=False)[0])
    if isinstance(ax, (Sequence, np.ndarray)):
        if len(ax) != count:
            raise DataError(f"{count} axes were expected, one for each panel, got {len(ax)}")
        return list(ax)
    if count == 1:
        return [ax]
    # Like scikit-learn's PartialDependenceDisplay: the given axes lend their place to a row of panels.
    from matplotlib.gridspec import GridSpecFromSubplotSpec

    place = ax.get_subplotspec()
    if place is None:
        raise DataError("several panels need axes made by plt.subplots, got axes placed by hand")
    ax.set_axis_off()
    grid = GridSpecFromSubplotSpec(1, count, subplot_spec=place)
    first = ax.figure.add_subplot(grid[0, 0])
    return [first, *(ax.figure.add_subplot(grid[0, i], sharey=first) for i in range(1, count))]


@dataclass(frozen=True)
class CollapseCurve:
    """One row's margin along its removal path; step 0 is the full record.

    `flip_step` is k*, or None where the prediction survives every step; `flip_class` is the class it flips to.
    """

    identifier: Any
    predicted: Any
    confidence: float
    groups: tuple[str, ...]
    margin: tuple[float, ...]
    flip_step: int | None
    flip_class: Any = None

    @property
    def label(self) -> str:
        return f"{self.predicted!r} at {self.confidence:.0%}"

    @property
    def tick_labels(self) -> list[str]:
        return ["full record", *(f"− {name}" for name in self.groups)]


@dataclass
class CollapseDisplay:
    """How the margin of some predictions collapses as their evidence is taken away, group after group.

    Attributes
    ----------
    curves : tuple of CollapseCurve
        The curves drawn, one a row.
    reading : str
        The protocol's reading, which names the margin.
    ax_ : matplotlib Axes or array of Axes
        The axes drawn on: one for one row, an array with one for each row otherwise.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    FragilityMapDisplay : All predictions at once.
    """

    curves: tuple[CollapseCurve, ...]
    reading: str = "support"
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    @classmethod
    def from_certificates(
        cls, certs: Certificates, rows: Sequence[int] = (0,), *, ax: Axes | None = None
    ) -> CollapseDisplay:
        """Draw some certificates, one panel each.

        Parameters
        ----------
        certs : Certificates
            What was audited.
        rows : sequence of int, default=(0,)
            Their positions (negative ones count from the end).
        ax : matplotlib Axes, optional
            Draw in its place; new axes otherwise.

        Returns
        -------
        CollapseDisplay
            What was drawn.
        """
        if len(rows) == 0:
            raise DataError("rows must name at least one position, got none; for example rows=[0]")
        return cls(tuple(_collapse_curve(certs, int(row)) for row in rows), certs.protocol.reading).plot(ax)

    def plot(self, ax: Axes | None = None) -> CollapseDisplay:
        """Draw one panel a row.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Draw in its place; new axes otherwise.

        Returns
        -------
        CollapseDisplay
            The display itself; ``figure_`` and ``ax_`` are what it was drawn on.
        """
        with drawing_style():
            count = len(self.curves)
            panels = _panels(ax, count, (1.2 + 4.6 * count, 4.2))
            for panel, curve in zip(panels, self.curves, strict=True):
                _draw_collapse(panel, curve)
            panels[0].set_ylabel(MARGIN_LABEL[self.reading])
        self.ax_ = panels[0] if len(panels) == 1 else np.array(panels, dtype=object)
        self.figure_ = panels[0].figure
        return self


def _collapse_curve(certs: Certificates, row: int) -> CollapseCurve:
    if not -len(certs) <= row < len(certs):
        raise DataError(f"rows must be positions below {len(certs)}, the number of certificates; got {row}")
    cert = certs[row]
    return CollapseCurve(
        identifier=cert.id,
        predicted=cert.predicted,
        confidence=cert.confidence,
        groups=cert.path,
        margin=cert.path_margin,
        flip_step=cert.flip_budget if cert.flipped else None,
        flip_class=cert.flips_to,
    )


def _draw_collapse(ax: Axes, curve: CollapseCurve) -> None:
    steps = np.arange(len(curve.margin))
    ax.axhline(0.0, color="#444444", linewidth=1.0)
    ax.plot(steps, curve.margin, color=BLUE, marker="o", markersize=5, linewidth=2.0, label=curve.label)
    if curve.flip_step is not None:
        k = curve.flip_step
        ax.plot(steps[k:], curve.margin[k:], color=RED, marker="o", markersize=5, linewidth=2.0)
        ax.plot(
            [k], [curve.margin[k]], linestyle="none", marker="o", markersize=13, fillstyle="none",
            markeredgewidth=2.0, color=RED, label=f"flips to {curve.flip_class!r} after {_groups(k)}",
        )  # fmt: skip
    ax.set_xticks(steps, curve.tick_labels, rotation=35, ha="right", rotation_mode="anchor")
    ax.set_xlabel("evidence replaced by the baseline, one group after another")
    ax.set_title(f"row {curve.identifier}")
    ax.margins(y=0.15)
    ax.legend(loc="best")


def _groups(count: int) -> str:
    return "1 group" if count == 1 else f"{count} groups"


# k* -> how it is drawn; the darker the mark, the fewer groups it takes to overturn the prediction.
BUDGET_STYLES = (
    ("no flip along the path", GREY, "o", 14.0),
    ("flips after 3 or more groups", BLUE, "o", 18.0),
    ("flips after 2 groups", ORANGE, "^", 26.0),
    ("flips after 1 group", RED, "D", 24.0),
)


SCORE_LABEL = {"exposure": "exposure", "fds": "fragility (FDS)"}


@dataclass
class FragilityMapDisplay:
    """Confidence against exposure (or FDS), one mark a prediction, with the exposed corner marked.

    The corner holds the confident predictions (at least `min_confidence`) whose score is at least `threshold`:
    those that look safest and rest on least.

    Attributes
    ----------
    confidence : array of shape (n,)
        The model's probability of its prediction.
    score : array of shape (n,)
        Exposure, or what ``by`` names.
    flip_budget : array of shape (n,)
        k*.
    flipped : array of bool of shape (n,)
        Whether the prediction flipped.
    min_confidence : float
        Where confident begins.
    threshold : float
        Where the most fragile share of the confident predictions begins; NaN if none is confident.
    by : str
        The score drawn: ``exposure`` or ``fds``.
    ax_ : matplotlib Axes
        The axes drawn on.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    CollapseDisplay : Single predictions, step by step.
    """

    confidence: np.ndarray
    score: np.ndarray
    flip_budget: np.ndarray
    flipped: np.ndarray
    min_confidence: float = 0.9
    threshold: float = float("nan")
    by: str = "exposure"
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    @classmethod
    def from_certificates(
        cls,
        certs: Certificates,
        *,
        min_confidence: float = 0.9,
        share: float = 0.2,
        by: str = "exposure",
        ax: Axes | None = None,
    ) -> FragilityMapDisplay:
        """Draw all predictions and mark the exposed corner.

        Parameters
        ----------
        certs : Certificates
            What was audited.
        min_confidence : float, default=0.9
            Where confident begins.
        share : float, default=0.2
            The most fragile share of the confident predictions, which the corner holds.
        by : str, default="exposure"
            The score to draw: ``exposure`` or ``fds``.
        ax : matplotlib Axes, optional
            Draw on it; new axes otherwise.

        Returns
        -------
        FragilityMapDisplay
            What was drawn.
        """
        if not 0.0 < share <= 1.0:
            raise DataError(f"share must lie in (0, 1], got {share}")
        table = certs.to_arrow()
        confidence, flip_budget, flipped = (table[name].to_numpy() for name in ("confidence", "flip_budget", "flipped"))
        score = certs.score(by)
        confident = score[confidence >= min_confidence]
        threshold = float(np.quantile(confident, 1.0 - share)) if len(confident) else float("nan")
        return cls(confidence, score, flip_budget, flipped, min_confidence, threshold, by).plot(ax)

    @property
    def in_corner(self) -> np.ndarray:
        """Which predictions lie in the exposed corner."""
        return (self.confidence >= self.min_confidence) & (self.score >= self.threshold)

    def plot(self, ax: Axes | None = None) -> FragilityMapDisplay:
        """Draw the map.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Draw on it; new axes otherwise.

        Returns
        -------
        FragilityMapDisplay
            The display itself; ``figure_`` and ``ax_`` are what it was drawn on.
        """
        with drawing_style():
            if ax is None:
                ax = _new_figure(7.2, 4.8).add_subplot()
            self._draw_corner(ax)
            self._draw_marks(ax)
            ax.set_xlabel("confidence of the prediction")
            ax.set_ylabel(f"{SCORE_LABEL.get(self.by, self.by)}: 0 rests on much, 1 on little")
            ax.set_title("Confidence against fragility")
            ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _draw_corner(self, ax: Axes) -> None:
        from matplotlib.patches import Rectangle

        if not np.isfinite(self.threshold):
            return
        right, top = 1.005, max(1.0, float(self.score.max())) + 0.015
        corner = (self.min_confidence, self.threshold)
        size = (right - corner[0], top - corner[1])
        count = int(self.in_corner.sum())
        label = f"exposed corner: {count} prediction{'' if count == 1 else 's'}"
        ax.add_patch(
            Rectangle(corner, *size, facecolor=RED, alpha=0.12, edgecolor=RED, linewidth=1.2, zorder=0.5, label=label)
        )

    def _draw_marks(self, ax: Axes) -> None:
        kind = np.where(~self.flipped, 0, np.clip(4 - self.flip_budget, 1, 3))
        for number, (label, colour, marker, size) in enumerate(BUDGET_STYLES):
            here = kind == number
            if here.any():
                ax.scatter(
                    self.confidence[here], self.score[here], s=size, c=colour, marker=marker, alpha=0.75,
                    linewidths=0, label=f"{label} ({int(here.sum())})", zorder=2 + number,
                )  # fmt: skip


@dataclass
class FragileCalibrationDisplay:
    """Accuracy against confidence, for the whole set and for its most fragile share.

    Attributes
    ----------
    curves : mapping of str to mapping of str to ReliabilityCurve
        By subset (``all``, ``fragile``), then by method.
    fragile_share : float
        The share of rows, by FDS, that counts as most fragile.
    ax_ : array of two matplotlib Axes
        The axes drawn on.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    FragilityTemperature : The correction whose effect it shows.
    """

    curves: Mapping[str, Mapping[str, ReliabilityCurve]]
    fragile_share: float = FRAGILE_SHARE
    ax_: Any = field(default=None, init=False, repr=False)  # the two axes drawn on
    figure_: Any = field(default=None, init=False, repr=False)

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        probabilities: ArrayLike | Mapping[str, ArrayLike],
        fds: ArrayLike,
        *,
        classes: Sequence[ClassLabel] | None = None,
        bins: int = BINS,
        fragile_share: float = FRAGILE_SHARE,
        ax: Axes | Sequence[Axes] | None = None,
    ) -> FragileCalibrationDisplay:
        """Draw reliability curves of one or several sets of probabilities.

        Parameters
        ----------
        y_true : array of shape (n,)
            True labels.
        probabilities : array of shape (n, C) or mapping of str to array
            One array, or several by name.
        fds : array of shape (n,)
            FDS of the rows.
        classes : sequence of class labels, optional
            Labels in the order of the probability columns; None if ``y_true`` already holds columns 0..C-1.
        bins : int, default=15
            Number of equal-width bins.
        fragile_share : float, default=0.2
            The share of rows, by FDS, that counts as most fragile.
        ax : matplotlib Axes or two of them, optional
            Draw on the two given or in the place of the one; new axes otherwise.

        Returns
        -------
        FragileCalibrationDisplay
            What was drawn.
        """
        named = probabilities if isinstance(probabilities, Mapping) else {"model": probabilities}
        if not named:
            raise DataError("at least one array of probabilities is needed, got none")
        checked = {name: checked_rows(p, fds)[0] for name, p in named.items()}
        codes = class_columns(y_true, classes, next(iter(checked.values())).shape[1])
        subsets = {"all": np.ones(len(codes), dtype=bool), "fragile": fragile_rows(fds, fragile_share)}
        curves = {
            subset: {name: reliability_curve(p[chosen], codes[chosen], bins) for name, p in checked.items()}
            for subset, chosen in subsets.items()
        }
        return cls(curves, fragile_share).plot(ax)

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> FragileCalibrationDisplay:
        """Draw two panels: all rows, and the most fragile ones.

        Parameters
        ----------
        ax : matplotlib Axes or two of them, optional
            Draw on the two given or in the place of the one; new axes otherwise.

        Returns
        -------
        FragileCalibrationDisplay
            The display itself; ``figure_`` and ``ax_`` are what it was drawn on.
        """
        titles = {"all": "All rows", "fragile": f"Most fragile {self.fragile_share:.0%}"}
        with drawing_style():
            panels = _panels(ax, 2, (9.0, 4.4))
            for panel, (subset, curves) in zip(panels, self.curves.items(), strict=True):
                n = int(sum(next(iter(curves.values())).count))
                _draw_reliability(panel, curves, f"{titles[subset]} (n = {n:,})")
            panels[0].set_ylabel("accuracy (share of rows predicted right)")
        self.ax_, self.figure_ = np.array(panels, dtype=object), panels[0].figure
        return self


# Different markers as well as colours: told apart in grey print.
RELIABILITY_STYLES = ((GREY, "o"), (ORANGE, "s"), (BLUE, "D"), (RED, "^"), ("#009E73", "v"))


def _draw_reliability(ax: Axes, curves: Mapping[str, ReliabilityCurve], title: str) -> None:
    low = min(float(np.nanmin(curve.confidence)) for curve in curves.values())
    ax.plot([0, 1], [0, 1], color="#B8BCC4", linewidth=1.0, linestyle="--", label="perfectly calibrated")
    for i, (name, curve) in enumerate(curves.items()):
        colour, marker = RELIABILITY_STYLES[i % len(RELIABILITY_STYLES)]
        filled = curve.count > 0
        ax.plot(
            curve.confidence[filled],
            curve.accuracy[filled],
            color=colour,
            marker=marker,
            markersize=5,
            label=f"{name} (ECE {curve.calibration_error:.3f})",
        )
    ax.set(xlim=(max(0.0, low - 0.05), 1.02), ylim=(-0.02, 1.02))
    ax.set_title(title)
    ax.set_xlabel("confidence (mean top probability of the bin)")
    ax.legend(loc="lower right")


@dataclass
class ReviewPolicyDisplay:
    """What a review policy does: the share reviewed against the brittle rate that stays unreviewed, with its bound.

    Attributes
    ----------
    policy : ReviewPolicy
        The policy drawn.
    ax_ : matplotlib Axes
        The axes drawn on.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    ReviewPolicy : What is drawn.
    """

    policy: ReviewPolicy
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    @classmethod
    def from_policy(cls, policy: ReviewPolicy, *, ax: Axes | None = None) -> ReviewPolicyDisplay:
        """Draw a policy, one line a segment.

        Parameters
        ----------
        policy : ReviewPolicy
            The policy.
        ax : matplotlib Axes, optional
            Draw on it; new axes otherwise.

        Returns
        -------
        ReviewPolicyDisplay
            What was drawn.
        """
        return cls(policy).plot(ax)

    def plot(self, ax: Axes | None = None) -> ReviewPolicyDisplay:
        """Draw the policy.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Draw on it; new axes otherwise.

        Returns
        -------
        ReviewPolicyDisplay
            The display itself; ``figure_`` and ``ax_`` are what it was drawn on.
        """
        with drawing_style():
            if ax is None:
                ax = _new_figure(7.2, 4.6).add_subplot()
            for number, (rule, curve) in enumerate(zip(self.policy.rules, self.policy.curves, strict=True)):
                _draw_rule(ax, rule, curve, (BLUE, ORANGE, GREY, RED)[number % 4])
            ax.axhline(self.policy.risk, color=RED, linewidth=1.0, linestyle="--", label=f"risk {self.policy.risk:.1%}")
            ax.set_xlabel(f"share of confident predictions reviewed (highest {self.policy.by} first)")
            ax.set_ylabel("brittle rate among the rest")
            ax.set_title(f"Review policy: {self.policy.state}")
            ax.set_xlim(0.0, 1.0)
            ax.set_ylim(0.0, min(1.0, 4.0 * max(self.policy.risk, *(c.brittle_rate[-1] for c in self.policy.curves))))
            ax.legend(loc="upper center")
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _draw_rule(ax: Axes, rule: ReviewRule, curve: ReviewCurve, colour: str) -> None:
    name = "observed" if rule.segment is None else f"observed, {rule.segment}"
    ax.plot(curve.review_share, curve.brittle_rate, color=colour, label=name)
    ax.plot(curve.review_share, curve.bound, color=colour, linestyle=":", label=name.replace("observed", "upper bound"))
    if rule.bound is not None:
        label = f"policy: review {rule.review_share:.0%}"
        ax.plot([rule.review_share], [rule.bound], marker="o", color=colour, linestyle="none", label=label)
