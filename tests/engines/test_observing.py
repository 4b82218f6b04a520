"""What the compiled kernels read off raw sums, against the definitions on arrays."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from fragility.engines.kernels import observing
from fragility.engines.trace import Trace, TraceStates, original_confidence
from fragility.engines.trees.forest import AVERAGE, SIGMOID, SOFTMAX
from fragility.engines.trees.scoring import Blank, Rules, compute_probabilities
from fragility.scores import (
    READINGS,
    DecisionRule,
    flip_threshold,
    predicted_class,
    reading_margin,
    removal_order,
    state_prediction,
    support_margin,
)

STEPS = np.concatenate([np.arange(-12, 13) * 0.25, [-61.0, -33.25, -27.5, 28.0, 35.0]])  # ties, and clipped classes


class Link(NamedTuple):
    """What the reading needs of a forest."""

    link: int
    n_classes: int
    divisor: float
    scale: float
    one_sided: bool = False


class Case(NamedTuple):
    forest: Link
    asked: TraceStates
    decided: np.ndarray | None
    first: np.ndarray  # (1 + G, outputs, n) raw sums
    second: np.ndarray  # (states, outputs, n)
    bare: np.ndarray  # (outputs,)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    link = draw(st.sampled_from([SIGMOID, SOFTMAX, AVERAGE]))
    classes = 2 if link == SIGMOID else draw(st.integers(2, 20))
    n_groups = draw(st.integers(1, 15))
    depth = draw(st.integers(1, n_groups))
    widths = draw(st.sampled_from([(), (n_groups,), (n_groups, 1), (1, min(3, n_groups))]))
    asked = TraceStates(
        n_groups=n_groups,
        depth=depth,
        widths=widths,
        fading=0 if widths and widths[0] == n_groups else None,
        severities=draw(st.sampled_from([(0.5,), (1.0,), (0.1, 0.7, 1.0), (0.3, 0.6)])),
        rule=DecisionRule(
            resolution=draw(st.sampled_from([1e-6, 0.07])),  # 0.07: no step and no sum of steps lies at its edge
            offset=draw(st.sampled_from([None, rng.choice([-1.1, 0.0, 0.4], classes)])),
            reading=draw(st.sampled_from(READINGS)),
            smoothing=draw(st.sampled_from([0.0, 1 / 40, 0.3])),
        ),
    )
    n, own_end = draw(st.sampled_from([1, 9, 40])), draw(st.booleans())
    n_second = depth - 1 + len(asked.grid) * len(widths) + own_end
    divisor = 40.0 if link == AVERAGE else 1.0
    kind = np.float64 if link == AVERAGE else draw(st.sampled_from([np.float32, np.float64]))

    def sums(states: int, rows: int) -> np.ndarray:
        if link != AVERAGE:
            return rng.choice(STEPS, (states, 1 if link == SIGMOID else classes, rows)).astype(kind)
        votes = rng.multinomial(40, rng.dirichlet(np.full(classes, 0.3)), (states, rows))  # many ties, many zeros
        return np.moveaxis(votes, -1, -2).astype(kind)

    return Case(
        forest=Link(link, classes, divisor, 1.0),
        asked=asked,
        decided=draw(st.sampled_from([None, rng.integers(0, classes, n)])),
        first=sums(1 + n_groups, n),
        second=sums(n_second, n),
        bare=sums(1, 1)[0, :, 0],
    )


def read(case: Case) -> dict[str, Any]:
    """Return what the kernels fill in."""
    n = case.first.shape[-1]
    out = Blank.of(Trace.allocate(case.asked, n, case.decided, "trees"), slice(None))
    order = np.empty((n, case.asked.longest), dtype=np.int64)
    rules = Rules.of(case.forest, case.asked, case.bare)
    path_support = np.empty_like(out.path_margin)
    observing.observe_removals(case.first, rules, out, (order, np.empty((0, 1), dtype=bool), path_support))
    observing.observe_path_and_grid(case.second, rules, out, path_support)
    return {**out._asdict(), "order": order}


def defined(case: Case) -> dict[str, Any]:
    """Return the same from the functions of ``fragility.scores``."""
    asked, rule, n = case.asked, case.asked.rule, case.first.shape[-1]
    p = compute_probabilities(case.forest, case.first)  # (1 + G, n, C)
    later = compute_probabilities(case.forest, case.second)
    bare = np.repeat(compute_probabilities(case.forest, case.bare[None, :, None]), n, axis=1)
    predicted = predicted_class(p[0], rule.resolution, rule.offset) if case.decided is None else case.decided
    read_margin = partial(
        reading_margin, original=predicted, reading=rule.reading, offset=rule.offset, smoothing=rule.smoothing
    )
    margin = read_margin(p)
    order = removal_order((margin[0] - margin[1:]).T, rule.resolution)
    path = np.concatenate([p[:1], p[1 + order[:, 0], np.arange(n)][None], later[: asked.depth - 1]])
    severities, shared = np.array(asked.severities), asked.depth - 1 + len(asked.grid) * len(asked.widths)
    bare = later[shared:] if len(later) > shared else bare  # each row's own
    threshold, fade = np.empty((n, len(asked.widths))), np.empty((n, 0))
    for j, width in enumerate(asked.widths):
        states = later[asked.depth - 1 + j : shared : len(asked.widths)]
        if len(asked.grid) < len(severities):
            states = np.concatenate([states, path[[width]] if asked.on_path(width) else bare])
        flips = support_margin(states, predicted, rule.offset) < -rule.resolution
        threshold[:, j] = flip_threshold(severities, flips.T)
        if j == asked.fading:
            kept = severities < threshold[:, j, None]
            fade = np.where(kept, read_margin(states).T, np.nan)
    return {
        "predicted": predicted,
        "confidence": original_confidence(p[0], predicted),
        "margin": margin[0],
        "one_step_margin": margin[1:].T,
        "one_step_confidence": original_confidence(p[1:], predicted).T,
        "path_margin": read_margin(path).T,
        "path_predicted": state_prediction(path, predicted, rule.resolution, rule.offset).T,
        "threshold": threshold,
        "fade_margin": fade,
        "bare_margin": read_margin(bare[0]),
        "order": order[:, : asked.longest],
    }


@settings(max_examples=400, deadline=None)
@given(cases())
def test_reading_equals_the_definitions(case):
    got, want = read(case), defined(case)
    assert got.keys() == want.keys()
    for name in ("predicted", "order", "path_predicted", "threshold"):
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    for name in (
        "confidence",
        "margin",
        "one_step_margin",
        "one_step_confidence",
        "path_margin",
        "fade_margin",
        "bare_margin",
    ):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-13, atol=2e-13, err_msg=name)


def test_a_class_that_two_rows_share_by_rounding_is_named_alike():
    """Two classes closer than the resolution are a tie, which goes to the class declared first."""
    asked = TraceStates(2, 1, (), None, (1.0,), DecisionRule(1e-6))
    scores = np.zeros((3, 3, 2))
    scores[0, 1] = [1.0, 1.0]
    scores[0, 2] = [1.0 + 9e-7, 1.0 + 2e-6]
    case = Case(Link(SOFTMAX, 3, 1.0, 1.0), asked, None, scores, scores[:0], np.zeros(3))
    assert read(case)["predicted"].tolist() == [1, 2]


def test_drops_beyond_the_places_kept_do_not_disturb_the_order():
    """Of 60 groups only the first ten places are kept; equal drops stay in declared order."""
    rng = np.random.default_rng(0)
    asked = TraceStates(60, 10, (60,), 0, (0.5, 1.0), DecisionRule(1e-6))
    first = np.concatenate([np.full((1, 1, 500), 4.0), rng.integers(0, 6, (60, 1, 500)).astype(float)])
    case = Case(Link(SIGMOID, 2, 1.0, 1.0), asked, None, first, np.zeros((10, 1, 500)), np.zeros(1))
    np.testing.assert_array_equal(read(case)["order"], defined(case)["order"])
