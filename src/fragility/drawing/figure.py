"""The style that all pictures share; matplotlib is imported when something is drawn."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@contextmanager
def drawing_style() -> Iterator[None]:
    """Set the style of these pictures for a `with` block; it was and will be the user's outside."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield
