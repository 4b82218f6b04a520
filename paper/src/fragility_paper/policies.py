"""Does the review policy keep its promise? Resplit labelled rows of a unit many times, fit, and look at what is left.

Two ways, because each has a flaw that the other has not:

* ``halves``: half of the rows fit the rule, the other half check it. The check has sampling noise of its own, and what
  is lucky in one half is unlucky in the other, so it counts too many violations.
* ``draws``: as many rows are drawn with replacement, and the rule is checked on all rows of the unit. They are the
  population of that experiment, so the brittle rate of unreviewed rows is known exactly; this is what is guaranteed.

A violation is a brittle rate among unreviewed rows above ``risk``. A policy that is not attainable reviews every row
and violates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fragility_paper.arrays import Array, Floats
from fragility_paper.library import STARTS, ReviewRule, fit_rule
from fragility_paper.results import UNIT

CONFIDENCE = 0.95
RISKS = (0.01, 0.02, 0.05)
SCORES = ("exposure", "fds")
WAYS = ("halves", "draws")
LEVEL = 1 - (1 - CONFIDENCE) / STARTS  # of each of the five walks
SIZES = (100, 200, 400, 800, 1_600)

Line = dict[str, Any]  # one line of a report, as JSON takes it


@dataclass(frozen=True, slots=True)
class Promise:
    """What became of one unit's policies by one score, risk and way of splitting."""

    unit: str
    score: str
    risk: float
    way: str
    rows: int  # that fit the rule
    splits: int
    violated: int
    attained: int
    review_share: float  # mean over splits, 1 where not attained


@dataclass(frozen=True, slots=True)
class Need:
    """How often so many labelled rows of one unit give a policy at all, and how much it then leaves to review."""

    unit: str
    score: str
    risk: float
    rows: int
    draws: int
    attained: int
    review_share: float


def fewest_rows(risk: float) -> int:
    """Labelled rows below which no rule can pass, even without a single brittle row."""
    return math.ceil(math.log(1 - LEVEL) / math.log(1 - risk))


def units_of_rows(labelled: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The confident rows of each unit, test and validation together."""
    for (dataset, model, seed), rows in labelled.groupby(UNIT, sort=True):
        yield f"{dataset}.{model}.{seed}", rows


def simulate(
    unit: str, rows: pd.DataFrame, splits: int, sizes: Sequence[int] = SIZES
) -> tuple[list[Promise], list[Need]]:
    """Everything that is asked of one unit."""
    brittle = rows["brittle"].to_numpy()
    scores = {name: rows[name].to_numpy(dtype=np.float64) for name in SCORES}
    half = len(brittle) // 2
    promises = [
        _kept(unit, name, risk, way, scores[name], brittle, splits)
        for name in SCORES
        for risk in RISKS
        for way in WAYS
        if half >= fewest_rows(risk)
    ]
    needs = [
        _needed(unit, name, risk, size, scores[name], brittle, max(1, splits // 10))
        for name in SCORES
        for risk in RISKS
        for size in sizes
        if size <= 2 * len(brittle)  # more draws with replacement would say nothing new of the unit
    ]
    return promises, needs


def _kept(unit: str, name: str, risk: float, way: str, score: Floats, brittle: Array, splits: int) -> Promise:
    generator = np.random.default_rng(0)
    violated, attained, share = 0, 0, 0.0
    for _ in range(splits):
        fit, check = _split(generator, len(score), way)
        rule = _rule(score[fit], brittle[fit], risk)
        violated += _rate_left(rule, score[check], brittle[check]) > risk
        attained += rule.state == "attained"
        share += rule.review_share
    return Promise(unit, name, risk, way, len(score) // 2, splits, violated, attained, share / splits)


def _needed(unit: str, name: str, risk: float, size: int, score: Floats, brittle: Array, draws: int) -> Need:
    generator = np.random.default_rng(1)
    rules = [
        _rule(score[p], brittle[p], risk) for p in (generator.integers(len(score), size=size) for _ in range(draws))
    ]
    attained = sum(rule.state == "attained" for rule in rules)
    return Need(unit, name, risk, size, draws, attained, float(np.mean([rule.review_share for rule in rules])))


def _split(generator: np.random.Generator, n: int, way: str) -> tuple[Array, Array]:
    if way == "halves":
        order = generator.permutation(n)
        return order[: n // 2], order[n // 2 :]
    return generator.integers(n, size=n // 2), np.arange(n)


def _rule(score: Floats, brittle: Array, risk: float) -> ReviewRule:
    rule, _ = fit_rule(None, score, brittle, risk, LEVEL)
    return rule


def _rate_left(rule: ReviewRule, score: Floats, brittle: Array) -> float:
    """Brittle rate among the rows that go unreviewed; 0 where none does."""
    if rule.threshold is None:
        return 0.0
    left = score < rule.threshold
    return float(brittle[left].mean()) if left.any() else 0.0


# ------------------------------------------------------------------ summaries


def promise_lines(promises: Sequence[Promise], units: int) -> list[Line]:
    """One line a score, risk and way: violations with the standard error over units."""
    frame = pd.DataFrame([_plain(promise) for promise in promises])
    lines: list[Line] = []
    for (score, risk, way), part in frame.groupby(["score", "risk", "way"], sort=True):
        share = part["violated"] / part["splits"]
        lines.append(
            {
                "score": score,
                "risk": risk,
                "way": way,
                "units": len(part),
                "units_with_too_few_rows": units - len(part),
                "violations": float(share.mean()),
                "standard_error": float(share.std(ddof=1) / math.sqrt(len(part))) if len(part) > 1 else math.nan,
                "largest_in_a_unit": float(share.max()),
                "units_above": int((share > 1 - CONFIDENCE).sum()),
                "attained": float((part["attained"] / part["splits"]).mean()),
                "review_share": float(part["review_share"].mean()),
                "mean_rows": float(part["rows"].mean()),
            }
        )
    return lines


def need_lines(needs: Sequence[Need]) -> list[Line]:
    """One line a score, risk and number of labelled rows, over the units that have them."""
    frame = pd.DataFrame([_plain(need) for need in needs])
    return [
        {
            "score": score,
            "risk": risk,
            "rows": rows,
            "units": len(part),
            "attained": float((part["attained"] / part["draws"]).mean()),
            "review_share": float(part["review_share"].mean()),
        }
        for (score, risk, rows), part in frame.groupby(["score", "risk", "rows"], sort=True)
    ]


def _plain(record: Promise | Need) -> Line:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
