"""Traces of two engines, compared."""

import numpy as np

from fragility.engines.trace import Trace

EXACT = ("predicted", "order", "path_predicted", "threshold")
CLOSE = ("confidence", "margin", "bare_margin", "one_step_margin", "one_step_confidence", "path_margin")


def assert_same_trace(claimed: Trace, asked: Trace, tolerance: float = 1e-9) -> None:
    for name in CLOSE:
        np.testing.assert_allclose(
            getattr(claimed, name), getattr(asked, name), rtol=tolerance, atol=tolerance, err_msg=name
        )
    for name in EXACT:
        np.testing.assert_array_equal(getattr(claimed, name), getattr(asked, name), err_msg=name)
    for name in Trace.arrays():
        assert getattr(claimed, name).dtype == getattr(asked, name).dtype, name


def covertype_groups(columns) -> dict[str, str]:
    return {name: name.rstrip("0123456789") if name[-1].isdigit() else name for name in columns}


def assert_same(mine: Trace, asked: Trace) -> None:
    """Decisions are equal; margins and confidences agree far below the resolution."""
    for name in ("predicted", "order", "path_predicted", "threshold"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(asked, name), err_msg=name)
    for name in CLOSE:
        np.testing.assert_allclose(getattr(mine, name), getattr(asked, name), rtol=0, atol=1e-12, err_msg=name)


def trace_by(engine, rows, protocol, progress=None):
    """The trace of rows by an engine of a class, made for these rows."""
    return engine(rows).trace(rows, protocol, progress)
