"""One cell and one test: how a state moves a cell, how the library compares it, which way it goes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import entry, helper, inlined
from fragility.engines.trees.encoding import CATEGORY, CATEGORY_INVERTED, KIND, NAN_RIGHT, NARROW, WHOLE, ZERO_BAND
from fragility.evidence import STEP

ZERO_THRESHOLD = float(np.float32(1e-35))  # LightGBM's zero band
CATEGORY_LIMIT = float(2**24)  # no library codes more categories


@helper
def stressed_cell(x: float, baseline: float, severity: float, stepwise: bool) -> float:
    """Return the cell x moved toward the baseline: the rule of ``evidence.blend`` for one cell."""
    if severity <= 0.0:
        return x
    if severity >= 1.0:
        return baseline
    if stepwise or x != x:
        return baseline if severity >= STEP else x
    return x + severity * (baseline - x)


@inlined
def rounded_cell(v: float, rounding: int) -> float:
    """Return the cell as it is handed over and compared: to whole numbers (halves to even), then to float32."""
    if rounding & WHOLE:
        v = np.rint(v)
    if rounding & NARROW:
        v = np.float64(np.float32(v))
    return v


@helper
def compared_cell(v: float, rounding: int, zero_missing: bool) -> float:
    """Return the cell as the library compares it: rounded, an absent zero as missing."""
    if zero_missing and v == 0.0:
        return np.nan
    return rounded_cell(v, rounding)


@helper
def goes_right(v: float, threshold: float, flags: int, set_start: Any, set_words: Any) -> bool:
    """Return whether the cell v passes a test to the right; see ``encoding`` for the flags."""
    kind = flags & KIND
    if v != v or (kind == ZERO_BAND and abs(v) <= ZERO_THRESHOLD):
        return (flags & NAN_RIGHT) != 0
    if kind < CATEGORY:
        return v > threshold
    if kind == CATEGORY and v < 0.0:  # XGBoost knows no category below 0; others cut -0.5 to 0
        return False
    return in_set(v, np.int64(threshold), set_start, set_words) != (kind == CATEGORY_INVERTED)


@helper
def in_set(v: float, number: int, set_start: Any, set_words: Any) -> bool:
    """Return whether the cell v is one of the categories of a set; set_start (sets+1,), set_words: its bits."""
    if not (v > -1.0 and v < CATEGORY_LIMIT):
        return False
    category = np.int64(v)  # toward zero, as the libraries cast
    word = set_start[number] + category // 32
    if word >= set_start[number + 1]:
        return False
    return (np.int64(set_words[word]) >> (category % 32)) & 1 == 1


@entry
def baseline_ways(forest: Any, baseline: Any, rounding: Any, zero_missing: bool) -> Any:
    """Return (T,) 1 where the baseline (d,) goes right; rounding: (d,) of cells."""
    column, threshold, flags = forest.test_column, forest.test_threshold, forest.test_flags
    set_start, set_words = forest.set_start, forest.set_words
    ways = np.empty(len(column), dtype=np.uint8)
    for test in range(len(ways)):
        v = compared_cell(baseline[column[test]], rounding[column[test]], zero_missing)
        ways[test] = goes_right(v, threshold[test], flags[test], set_start, set_words)
    return ways
