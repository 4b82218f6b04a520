"""What tests of engines share: when two traces are the same, and groups for a table of many columns."""

import numpy as np

from fragility.engines.trace import Trace

EXACT = ("predicted", "order", "path_predicted", "threshold")
CLOSE = ("confidence", "margin", "one_step_margin", "one_step_confidence", "path_margin")


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
    """Soil types are one group, wilderness areas another, every other column a group of its own."""
    return {name: name.rstrip("0123456789") if name[-1].isdigit() else name for name in columns}
