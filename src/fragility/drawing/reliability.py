"""ReliabilityDisplay: the groups against the decisions that would be kept if each never failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fragility.drawing.figure import BLUE, drawing_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass
class ReliabilityDisplay:
    """Which feed to make reliable first.

    Attributes
    ----------
    groups : sequence of str
        Names of the groups, the most decisions kept first.
    decisions_kept : sequence of float
        Decisions that would be kept if each never failed.
    lost : float
        Decisions expected to be lost as things are.
    rows : int
        Decisions in all.
    condition : str
        How evidence fails, in words.
    ax_ : matplotlib Axes
        The axes drawn on.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    FailureProbability.plot : Draws one.
    """

    groups: Sequence[str]
    decisions_kept: Sequence[float]
    lost: float
    rows: int
    condition: str
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    def plot(self, ax: Axes | None = None) -> ReliabilityDisplay:
        """Draw one bar a group.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Draw on these; new axes otherwise.

        Returns
        -------
        ReliabilityDisplay
            Itself, with ``ax_`` and ``figure_`` set.
        """
        import matplotlib.pyplot as plt

        with drawing_style():
            if ax is None:
                ax = plt.figure(figsize=(7.2, 1.4 + 0.32 * len(self.groups)), layout="constrained").add_subplot()
            ax.barh(range(len(self.groups)), self.decisions_kept, color=BLUE, height=0.7)
            ax.set_yticks(range(len(self.groups)), self.groups)
            ax.invert_yaxis()
            ax.grid(visible=False, axis="y")
            ax.grid(visible=True, axis="x")
            ax.set_xlabel("decisions kept if it never failed")
            ax.set_title(f"{self.lost:.1f} of {self.rows} decisions expected to be lost\n{self.condition}")
        self.ax_, self.figure_ = ax, ax.figure
        return self
