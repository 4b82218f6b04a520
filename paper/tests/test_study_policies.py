"""Whether a review policy keeps its promise: the simulation itself, on rows whose brittle rates are known."""

import numpy as np
import pandas as pd
import pytest

from fragility_paper.policies import (
    Promise,
    fewest_rows,
    need_lines,
    promise_lines,
    simulate,
    units_of_rows,
)


def labelled(rows: int, seed: int, model: str = "rf") -> pd.DataFrame:
    """Rows whose brittleness rises with the score; FDS is noise."""
    generator = np.random.default_rng(seed)
    exposure = generator.random(rows)
    return pd.DataFrame(
        {
            "dataset": "credit_g",
            "model": model,
            "seed": 0,
            "part": "test",
            "confidence": 0.95,
            "exposure": exposure,
            "fds": generator.random(rows),
            "brittle": generator.random(rows) < 0.6 * exposure**4,
        }
    )


def test_fewest_rows_is_the_smallest_sample_that_can_pass():
    assert [fewest_rows(risk) for risk in (0.05, 0.02, 0.01)] == [90, 228, 459]


def test_a_good_score_reviews_less_and_keeps_the_promise():
    promises, needs = simulate("credit_g.rf.0", labelled(2_000, 0), 60, sizes=(400, 1_600))
    assert all(promise.violated <= 0.05 * promise.splits + 3 for promise in promises if promise.way == "draws")
    share = {(p.score, p.risk): p.review_share for p in promises if p.way == "draws"}
    assert share["exposure", 0.05] < 0.6 < share["fds", 0.05]
    assert share["exposure", 0.05] < share["exposure", 0.02] < share["exposure", 0.01]
    by_rows = {n.rows: n.review_share for n in needs if n.score == "exposure" and n.risk == 0.02}
    assert by_rows[1_600] < by_rows[400]


def test_units_with_too_few_rows_are_left_out_and_counted():
    table = pd.concat([labelled(2_000, 0), labelled(300, 1, "mlp")], ignore_index=True)
    promises: list[Promise] = []
    needs = []
    for name, rows in units_of_rows(table):
        kept, needed = simulate(name, rows, 4, sizes=(100,))
        promises, needs = promises + kept, needs + needed
    lines = {(line["score"], line["risk"], line["way"]): line for line in promise_lines(promises, 2)}
    assert lines["exposure", 0.05, "halves"]["units"] == 2
    assert lines["exposure", 0.01, "halves"]["units_with_too_few_rows"] == 1
    assert {line["units"] for line in need_lines(needs)} == {2}


@pytest.mark.parametrize("way", ["halves", "draws"])
def test_rows_that_are_all_brittle_are_all_reviewed(way):
    rows = labelled(1_000, 0).assign(brittle=True)
    promises, _ = simulate("credit_g.rf.0", rows, 3, sizes=())
    mine = [promise for promise in promises if promise.way == way]
    assert mine and all((p.violated, p.attained, p.review_share) == (0, 0, 1.0) for p in mine)
