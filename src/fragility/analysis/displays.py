"""Pictures of certificates, in the manner of scikit-learn's `Display` classes.

`from_certificates` and `from_predictions` compute what is drawn, keep it in plain fields, draw it and return the
display; `plot` draws it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fragility.analysis.calibration import FRAGILE_SHARE, check_rows, class_columns, fragile_rows
from fragility.analysis.policy import ReviewPolicy
from fragility.analysis.ranking.metrics import BINS, ReliabilityCurve, reliability_curve
from fragility.audits import Audit
from fragility.base.errors import DataError
from fragility.models import ClassLabel
from fragility.pages.drawing import BLUE, GREY, ORANGE, RED, Display, MarginCurve, draw_curve_axes
from fragility.pages.wording import name_score, write_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUPPORT_LABEL = "support margin of the predicted class\n(log odds against its best competitor)"
MARGIN_LABEL = {
    "support": SUPPORT_LABEL,
    "support_unbounded": SUPPORT_LABEL,
    "current": "margin of whichever class leads\n(log odds against the runner-up)",
}
# k* -> how it is drawn; the darker the mark, the fewer groups it takes to overturn the prediction.
BUDGET_STYLES = (
    ("no flip along the path", GREY, "o", 14.0),
    ("flips after 3 or more groups", BLUE, "o", 18.0),
    ("flips after 2 groups", ORANGE, "^", 26.0),
    ("flips after 1 group", RED, "D", 24.0),
)
# Different markers as well as colours: told apart in grey print.
RELIABILITY_STYLES = ((GREY, "o"), (ORANGE, "s"), (BLUE, "D"), (RED, "^"), ("#009E73", "v"))
SCORE_LABEL = {"exposure": "exposure", "fds": "fragility (FDS)"}


@dataclass(repr=False)
class CollapseDisplay(Display):
    """How the margin of some predictions collapses as their evidence is taken away, group after group.

    Attributes
    ----------
    curves : tuple of MarginCurve
        The curves drawn, one per row.
    reading : str
        The protocol's reading, which names the margin.
    ax_, figure_ : matplotlib Axes (an array with one per row for several rows) and Figure
        What it was drawn on.
    """

    curves: tuple[MarginCurve, ...]
    reading: str = "support"

    @classmethod
    def from_certificates(cls, certs: Audit, rows: Sequence[int] = (0,), *, ax: Axes | None = None) -> CollapseDisplay:
        """Draw some certificates, one panel each.

        Parameters
        ----------
        certs : Certificates or StoredAudit
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
        absent = next((row for row in rows if not -len(certs) <= row < len(certs)), None)
        if absent is not None:
            raise DataError(f"rows must be positions below {len(certs)}, the number of certificates; got {absent}")
        return cls(tuple(certs.certificate(range(len(certs))[row]).curve for row in rows), certs.protocol.reading).plot(
            ax
        )

    def _measure(self) -> tuple[int, float, float]:
        return len(self.curves), 1.2 + 4.6 * len(self.curves), 4.2

    def _draw(self, panels: Sequence[Axes]) -> None:
        for panel, curve in zip(panels, self.curves, strict=True):
            draw_curve_axes(panel, curve)
        panels[0].set_ylabel(MARGIN_LABEL[self.reading])


@dataclass(repr=False)
class FragilityMapDisplay(Display):
    """Confidence against exposure (or FDS), one mark per prediction, with the exposed corner marked.

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
    ax_, figure_ : matplotlib Axes and Figure
        What it was drawn on.
    """

    confidence: np.ndarray
    score: np.ndarray
    flip_budget: np.ndarray
    flipped: np.ndarray
    min_confidence: float
    threshold: float = float("nan")
    by: str = "exposure"

    @classmethod
    def from_certificates(
        cls,
        certs: Audit,
        *,
        min_confidence: float | None = None,
        share: float = 0.2,
        by: str = "exposure",
        ax: Axes | None = None,
    ) -> FragilityMapDisplay:
        """Draw all predictions and mark the exposed corner.

        Parameters
        ----------
        certs : Certificates or StoredAudit
            What was audited.
        min_confidence : float, optional
            Where confident begins; by default as the protocol declares.
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
        table = certs.read_columns("confidence", "flip_budget", "flipped")
        confidence, flip_budget, flipped = (column.to_numpy() for column in table.columns)
        score = certs.score(by)
        min_confidence = certs.confident_from(min_confidence)
        confident = score[confidence >= min_confidence]
        threshold = float(np.quantile(confident, 1.0 - share)) if len(confident) else float("nan")
        return cls(confidence, score, flip_budget, flipped, min_confidence, threshold, by).plot(ax)

    @property
    def in_corner(self) -> np.ndarray:
        """Which predictions lie in the exposed corner."""
        return (self.confidence >= self.min_confidence) & (self.score >= self.threshold)

    def _draw(self, panels: Sequence[Axes]) -> None:
        from matplotlib.patches import Rectangle

        (ax,) = panels
        if np.isfinite(self.threshold):
            corner, top = (self.min_confidence, self.threshold), max(1.0, float(self.score.max())) + 0.015
            label = f"exposed corner: {write_count(int(self.in_corner.sum()), 'prediction')}"
            ax.add_patch(
                Rectangle(
                    corner, 1.005 - corner[0], top - corner[1], facecolor=RED, alpha=0.12, edgecolor=RED,
                    linewidth=1.2, zorder=0.5, label=label,
                )
            )  # fmt: skip
        kind = np.where(~self.flipped, 0, np.clip(4 - self.flip_budget, 1, 3))
        for number, (label, colour, marker, size) in enumerate(BUDGET_STYLES):
            of_kind = kind == number
            if of_kind.any():
                ax.scatter(
                    self.confidence[of_kind], self.score[of_kind], s=size, c=colour, marker=marker, alpha=0.75,
                    linewidths=0, label=f"{label} ({int(of_kind.sum())})", zorder=2 + number,
                )  # fmt: skip
        ax.set_xlabel("confidence of the prediction")
        ax.set_ylabel(f"{SCORE_LABEL.get(self.by, self.by)}: 0 rests on much, 1 on little")
        ax.set_title("Confidence against fragility")
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


@dataclass(repr=False)
class FragileCalibrationDisplay(Display):
    """Accuracy against confidence, for the whole set and for its most fragile share.

    Attributes
    ----------
    curves : mapping of str to mapping of str to ReliabilityCurve
        By subset (``all``, ``fragile``), then by method.
    fragile_share : float
        The share of rows, by FDS, that counts as most fragile.
    ax_, figure_ : array of two matplotlib Axes, and Figure
        What it was drawn on.
    """

    curves: Mapping[str, Mapping[str, ReliabilityCurve]]
    fragile_share: float = FRAGILE_SHARE

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
        checked = {name: check_rows(p, fds)[0] for name, p in named.items()}
        codes = class_columns(y_true, classes, next(iter(checked.values())).shape[1])
        subsets = {"all": np.ones(len(codes), dtype=bool), "fragile": fragile_rows(fds, fragile_share)}
        curves = {
            subset: {
                name: reliability_curve(p[rows_of_subset], codes[rows_of_subset], bins) for name, p in checked.items()
            }
            for subset, rows_of_subset in subsets.items()
        }
        return cls(curves, fragile_share).plot(ax)

    def _measure(self) -> tuple[int, float, float]:
        return 2, 9.0, 4.4

    def _draw(self, panels: Sequence[Axes]) -> None:
        titles = {"all": "All rows", "fragile": f"Most fragile {self.fragile_share:.0%}"}
        for ax, (subset, curves) in zip(panels, self.curves.items(), strict=True):
            low = min(float(np.nanmin(curve.confidence)) for curve in curves.values())
            ax.plot([0, 1], [0, 1], color="#B8BCC4", linewidth=1.0, linestyle="--", label="perfectly calibrated")
            for i, (name, curve) in enumerate(curves.items()):
                colour, marker = RELIABILITY_STYLES[i % len(RELIABILITY_STYLES)]
                filled, label = curve.count > 0, f"{name} (ECE {curve.calibration_error:.3f})"
                points = curve.confidence[filled], curve.accuracy[filled]
                ax.plot(*points, color=colour, marker=marker, markersize=5, label=label)
            ax.set(xlim=(max(0.0, low - 0.05), 1.02), ylim=(-0.02, 1.02))
            ax.set_title(f"{titles[subset]} (n = {int(sum(next(iter(curves.values())).count)):,})")
            ax.set_xlabel("confidence (mean top probability of the bin)")
            ax.legend(loc="lower right")
        panels[0].set_ylabel("accuracy (share of rows predicted right)")


@dataclass(repr=False)
class ReviewPolicyDisplay(Display):
    """What a review policy does: the share reviewed against the brittle rate that stays unreviewed, with its bound.

    Attributes
    ----------
    policy : ReviewPolicy
        The policy drawn.
    ax_, figure_ : matplotlib Axes and Figure
        What it was drawn on.
    """

    policy: ReviewPolicy

    @classmethod
    def from_policy(cls, policy: ReviewPolicy, *, ax: Axes | None = None) -> ReviewPolicyDisplay:
        """Draw a policy, one line per segment.

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

    def _measure(self) -> tuple[int, float, float]:
        return 1, 7.2, 4.6

    def _draw(self, panels: Sequence[Axes]) -> None:
        (ax,), policy = panels, self.policy
        for number, (rule, curve) in enumerate(zip(policy.rules, policy.curves, strict=True)):
            colour = (BLUE, ORANGE, GREY, RED)[number % 4]
            segment = "" if rule.segment is None else f", {rule.segment}"
            ax.plot(curve.review_share, curve.brittle_rate, color=colour, label=f"observed{segment}")
            ax.plot(curve.review_share, curve.bound, color=colour, linestyle=":", label=f"upper bound{segment}")
            if rule.bound is not None:
                label = f"policy: review {rule.review_share:.0%}"
                ax.plot([rule.review_share], [rule.bound], marker="o", color=colour, linestyle="none", label=label)
        ax.axhline(policy.risk, color=RED, linewidth=1.0, linestyle="--", label=f"risk {policy.risk:.1%}")
        first = "lowest" if policy.by == "confidence" else "highest"
        ax.set_xlabel(f"share of confident predictions reviewed ({first} {name_score(policy.by)} first)")
        ax.set_ylabel("brittle rate among the rest")
        ax.set_title(f"Review policy: {policy.state}")
        ax.set_xlim(0.0, 1.0)
        ax.set_ylim(0.0, min(1.0, 4.0 * max(policy.risk, *(curve.brittle_rate[-1] for curve in policy.curves))))
        ax.legend(loc="upper center")
