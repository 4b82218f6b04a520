"""Matplotlib figures: the style that all of them share, their panels, and the display of reliability.

Matplotlib is imported when something is drawn, and its global style is left as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from fragility.base.errors import DataError
from fragility.base.text import BriefRepr

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: told apart by people with any common form of colour blindness, and in grey print.
BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#8A8F98"

STYLE: Any = {  # matplotlib types the keys of its settings one by one
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E3E5E8",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
}


@dataclass(repr=False)
class Display(BriefRepr):
    """Base of the displays: it draws one, or a row of panels, and keeps what was drawn on."""

    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)
    _share_y: ClassVar[bool] = True  # of several panels in a new figure

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> Self:
        """Draw it, in our style.

        Parameters
        ----------
        ax : matplotlib Axes or one per panel, optional
            Draw on these, or several panels in the place of one; new axes otherwise.

        Returns
        -------
        Display
            The display itself; ``figure_`` and ``ax_`` are what it was drawn on.
        """
        import matplotlib
        import matplotlib.pyplot as plt

        count, width, height = self._measure()
        figure: Any = None
        if ax is None:
            # The first figure loads the backend, which may declare settings of its own, such as a notebook's to show
            # every figure: a context around it would undo them at its end.
            face = STYLE["figure.facecolor"]
            figure = plt.figure(figsize=(width, height), layout="constrained", facecolor=face)
        with matplotlib.rc_context(STYLE):
            if ax is None:
                panels = list(figure.subplots(1, count, sharey=self._share_y, squeeze=False)[0])
            elif isinstance(ax, (Sequence, np.ndarray)):
                if len(ax) != count:
                    raise DataError(f"{count} axes were expected, one for each panel, got {len(ax)}")
                panels = list(ax)
            else:
                panels = [ax] if count == 1 else _split_axes(ax, count)
            self._draw(panels)
        self.ax_ = panels[0] if count == 1 else np.array(panels, dtype=object)
        self.figure_ = panels[0].figure
        return self

    def _measure(self) -> tuple[int, float, float]:
        """Return the number of panels, and the width and height of a new figure in inches."""
        return 1, 7.2, 4.8

    def _draw(self, panels: Sequence[Axes]) -> None:
        raise NotImplementedError


def _split_axes(ax: Axes, count: int) -> list[Axes]:
    """Return a row of panels in the place of the given axes, like scikit-learn's PartialDependenceDisplay."""
    from matplotlib.gridspec import GridSpecFromSubplotSpec

    place = ax.get_subplotspec()
    if place is None:
        raise DataError("several panels need axes made by plt.subplots, got axes placed by hand")
    ax.set_axis_off()
    grid = GridSpecFromSubplotSpec(1, count, subplot_spec=place)
    first = ax.figure.add_subplot(grid[0, 0])
    return [first, *(ax.figure.add_subplot(grid[0, i], sharey=first) for i in range(1, count))]


@dataclass(repr=False)
class ReliabilityDisplay(Display):
    """Which feed to make reliable first; :meth:`FailureProbability.plot` draws it.

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
    ax_, figure_ : matplotlib Axes and Figure
        What it was drawn on.
    """

    groups: Sequence[str]
    decisions_kept: Sequence[float]
    lost: float
    rows: int
    condition: str

    def _measure(self) -> tuple[int, float, float]:
        return 1, 7.2, 1.4 + 0.32 * len(self.groups)

    def _draw(self, panels: Sequence[Axes]) -> None:
        (ax,) = panels
        ax.barh(range(len(self.groups)), self.decisions_kept, color=BLUE, height=0.7)
        ax.set_yticks(range(len(self.groups)), self.groups)
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.grid(visible=True, axis="x")
        ax.set_xlabel("decisions kept if it never failed")
        ax.set_title(f"{self.lost:.1f} of {self.rows} decisions expected to be lost\n{self.condition}")
