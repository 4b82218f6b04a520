"""The study of failure modes: its settings, the two stressors of its own, scores against labels, its page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from study_helpers import REPOSITORY, RESULTS, run_command

import fragility as fg
from fragility.base.errors import DataError
from fragility.questions.stress.draws import row_keys, uniforms
from fragility.questions.stress.stressors import Layout
from fragility_paper import run
from fragility_paper.data import Dataset, load
from fragility_paper.plan import MATCHING, PROFILES, Unit, profile_named, unit_config, units_of
from fragility_paper.results import StudyResults, collect, load_results, save_results
from fragility_paper.tables import all_tables
from fragility_paper.tables.modes import GOALS, LABEL_TITLES, MODE_TABLES, MODE_TITLES, goals_of, lost_difference
from fragility_paper.tidy import KEYS
from fragility_paper.unit import fit_unit, measure_modes
from fragility_paper.unit.failures import Sentinels, Stale, nearest_donors
from fragility_paper.unit.fitted import FittedUnit
from fragility_paper.unit.modes import declare_modes

SMALL = replace(PROFILES["modes-smoke"], models=("logreg", "rf"), audited_rows=150, draws=4)
LOGREG = Unit("credit_g", "logreg", 0)
COMMITTED = RESULTS / "modes"


@pytest.fixture(scope="module")
def credit_g() -> Dataset:
    return load("credit_g")


@pytest.fixture(scope="module")
def fitted(credit_g) -> FittedUnit:
    plain = fit_unit(LOGREG, credit_g, SMALL)
    return replace(plain, protocol=declare_modes(plain))


@pytest.fixture(scope="module")
def measured(credit_g) -> StudyResults:
    table = measure_modes(LOGREG, credit_g, SMALL).table
    return StudyResults(table, pd.DataFrame(), pd.DataFrame())


@pytest.fixture(scope="module")
def judged(fitted) -> pd.DataFrame:
    """The confident test rows that the unit is judged on."""
    test = fitted.split.test
    confident = fitted.probabilities(test).max(axis=1) >= 0.90
    order = np.random.default_rng([0, len(test)]).permutation(len(test))
    return fitted.rows(test[np.sort(order[confident[order]][: SMALL.audited_rows])])


# ------------------------------------------------------------------ what is run


def test_the_same_units_models_and_rows_as_the_study_under_the_default_baseline():
    modes, typical = profile_named("modes"), profile_named("typical")
    assert units_of(modes) == units_of(typical) and len(units_of(modes)) == 189
    ours, theirs = (unit_config(LOGREG, profile) for profile in (modes, typical))
    assert {name: ours[name] for name in ("model", "seed", "split", "train_cap")} == {
        name: theirs[name] for name in ("model", "seed", "split", "train_cap")
    }
    shared = ("audited_rows", "validation_rows", "calibration_rows", "draws", "random_orders", "baseline", "smoothing")
    assert all(ours["analyses"][name] == theirs["analyses"][name] for name in shared)
    assert ours["analyses"]["sentinels"] == {"numeric": [0.0, -999.0, "x * 100"], "nominal": "the rarest category"}


def test_no_models_are_kept(tmp_path):
    with pytest.raises(DataError, match="a study of modes keeps no models"):
        run.run_study(SMALL, tmp_path, keep_models=True)


def test_every_mode_is_fitted_on_training_rows(fitted, credit_g):
    modes, train = fitted.protocol.modes, credit_g.X.iloc[fitted.split.train]
    assert modes.declared == ("lost", "wrong", "noisy", "stale", "sentinel", "outage")
    assert fitted.protocol.baseline == "typical" and fitted.protocol.smoothing == 0.0
    sentinels = {one.field: one.values for one in modes.sentinels}
    assert sentinels["duration"] == (0.0, -999.0, "x * 100")
    for name in credit_g.spec.nominal:
        counts = train[name].value_counts()
        assert len(sentinels[name]) == 1 and counts[sentinels[name][0]] == counts.min()
    unavailable = credit_g.unavailable[fitted.split.train].any(axis=1)
    assert sum(event.count for event in modes.outages) == unavailable.sum()


def test_data_without_markers_have_no_outages(fitted, credit_g):
    bare = replace(credit_g, spec=replace(credit_g.spec, markers=()))
    assert "outage" not in declare_modes(replace(fitted, data=bare)).modes.declared


# ------------------------------------------------------------------ stale values and sentinels


def layout_of(donors: np.ndarray, groups: list[int], numeric: list[bool]) -> Layout:
    return Layout(np.array(groups), max(groups) + 1, np.array(numeric, dtype=float), ((),) * len(groups), donors)


def nearest_by_loops(row: np.ndarray, layout: Layout) -> np.ndarray:
    """Slow twin: the first donor with the smallest sum of rank differences and mismatches."""

    def rank(column: int, value: float) -> float:
        others = layout.donors[:, column]
        return (sum(others < value) + sum(others <= value)) / (2 * len(others))

    def distance(donor: np.ndarray) -> float:
        total = 0.0
        for group in range(layout.n_groups):
            columns = np.flatnonzero(layout.column_group == group)
            total += sum(abs(rank(j, row[j]) - rank(j, donor[j])) for j in columns if layout.spread[j] > 0)
            total += any(row[j] != donor[j] for j in columns if layout.spread[j] == 0)
        return total

    return min(layout.donors, key=distance)


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_the_nearest_donor_is_the_one_that_loops_find(data):
    cells = st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=8, max_size=8)
    donors, x = (np.array(data.draw(cells), dtype=float) for _ in range(2))
    layout = layout_of(donors, groups=[0, 1, 2, 2, 3], numeric=[True, True, False, False, False])
    expected = np.array([nearest_by_loops(row, layout) for row in x])
    np.testing.assert_array_equal(nearest_donors(x, layout), expected)
    np.testing.assert_array_equal(nearest_donors(x[3:5], layout), expected[3:5])


def test_a_training_row_is_its_own_nearest_donor():
    donors = np.random.default_rng(0).normal(size=(50, 3))
    np.testing.assert_array_equal(nearest_donors(donors, layout_of(donors, [0, 1, 2], [True] * 3)), donors)


def test_stale_groups_are_those_whose_uniform_is_below_the_rate():
    rng, draws = np.random.default_rng(1), np.arange(6)
    layout = layout_of(rng.normal(size=(40, 4)), groups=[0, 0, 1, 2], numeric=[True] * 4)
    x, keys = rng.normal(size=(9, 4)), row_keys(0, "stale", range(9))
    found, then = Stale(0.3).stress_rows(x, keys, draws, layout), nearest_donors(x, layout)
    u = uniforms(keys, draws, np.arange(3))
    for i, t, j in np.ndindex(found.shape):
        hit = u[i, t, layout.column_group[j]] < 0.3
        assert found[i, t, j] == (then if hit else x)[i, j]


def test_sentinels_are_the_encoded_raw_values(fitted, judged):
    """Every stressed field holds what the pipeline makes of 0, -999, 100 times its value, or the rarest category."""
    protocol, rows = fitted.protocol, fitted.asked(judged.index.to_numpy())
    declared = {one.field: one.values for one in protocol.modes.sentinels}

    def encoded(place: int) -> np.ndarray:
        changed = judged.copy()
        for name, values in declared.items():
            value = values[min(place, len(values) - 1)]
            changed[name] = judged[name] * 100 if value == "x * 100" else value
        return fitted.pipeline[:-1].transform(changed)

    choices = [encoded(place) for place in range(3)]
    layout = Layout.of(protocol, rows)
    x, keys, draws = rows.dense(), row_keys(0, "sentinel", rows.ids), np.arange(16)
    found = Sentinels(choices[0][0], choices[1][0], 0.3).stress_rows(x, keys, draws, layout)
    u = uniforms(keys, draws, np.arange(2 * layout.n_groups))
    g = layout.column_group
    hit, chosen = u[:, :, g] < 0.3, np.floor(3 * u[:, :, layout.n_groups + g])
    expected = np.select([~hit, chosen == 0, chosen == 1], [x[:, None], choices[0][:, None], choices[1][:, None]])
    expected = np.where(hit & (chosen == 2), choices[2][:, None], expected)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert hit.mean() == pytest.approx(0.3, abs=0.02)


# ------------------------------------------------------------------ one unit


def test_every_score_meets_every_kind_of_labels(measured):
    assert measured.study == "modes"
    cells = measured.pick("stress", metric="auroc")
    assert set(cells["variant"]) == set(MATCHING) == set(LABEL_TITLES)
    assert {f"mode_{mode}" for mode in MODE_TITLES} <= set(cells["score"])
    assert not cells.duplicated([*KEYS, "variant", "score"]).any()


def test_exposure_to_lost_ranks_as_the_independent_loss_of_the_certificate(measured):
    found = [lost_difference(measured, kind) for kind in MATCHING]
    assert any(one.units for one in found)
    assert all(one.mean == pytest.approx(0.0, abs=1e-9) for one in found if one.units)


@pytest.mark.parametrize("kind", ["noise", "donor", "outage"])
def test_a_cell_is_what_the_public_functions_give(measured, fitted, judged, kind):
    """Exposure to the matching mode against labels of that kind, both made again from the outside."""
    data, split = fitted.data, fitted.split
    train = data.X.iloc[split.train]
    markers = {name: list(values) for name, values in data.spec.markers}
    stressors = {
        "noise": (fg.Noise(0.3),),
        "donor": (fg.Donor(0.3),),
        "outage": fg.Stress.from_outages(data.X.iloc[split.test][list(markers)], markers=markers).stressors,
    }
    stress = fg.Stress(stressors[kind], draws=SMALL.draws)
    labels = fg.label_brittle(fitted.pipeline, judged, fitted.protocol, stress, donors=train, progress=False)
    score = fg.assess_modes(fitted.pipeline, judged, fitted.protocol, [MATCHING[kind]], progress=False)
    share = measured.pick("stress", variant=kind, metric="brittle_share")["value"].item()
    assert share == pytest.approx(labels.brittle.mean())
    where = {"variant": kind, "metric": "auroc", "score": f"mode_{MATCHING[kind]}"}
    found = measured.pick("stress", **where)["value"].item()
    if 0 < labels.brittle.sum() < len(labels):
        assert found == pytest.approx(roc_auc_score(labels.brittle, score[MATCHING[kind]].exposure))
    else:
        assert np.isnan(found)


def test_a_goal_needs_the_auroc_and_an_interval_above_zero(measured):
    goals = goals_of(measured)
    assert {goal.kind for goal in goals} == set(GOALS)
    strong = replace(goals[0], found=replace(goals[0].found, mean=0.95))
    assert replace(strong, ahead=replace(strong.ahead, low=0.01)).met
    assert not replace(strong, ahead=replace(strong.ahead, low=-0.01)).met
    weak = replace(strong, found=replace(strong.found, mean=goals[0].wanted - 0.01))
    assert not replace(weak, ahead=replace(weak.ahead, low=0.01)).met


# ------------------------------------------------------------------ a run, its tables and its page


@pytest.fixture(scope="module")
def small_run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("modes")
    status = run.run_study(SMALL, out)
    assert len(status.done) == 2 and not status.failed
    return out


@pytest.mark.slow
def test_a_small_run_fills_every_table_the_page_and_the_figure(small_run, tmp_path):
    results = collect(small_run)
    assert all(table.rows for name, table in all_tables(results).items() if name != "modes-earlier")
    assert "Not in these results" in all_tables(results)["modes-earlier"].note
    save_results(results, tmp_path / "results")
    page = tmp_path / "page.md"
    done = run_command("study", "tables", tmp_path / "results", "--write-docs", page)
    assert done.code == 0, done.err
    assert "**2 of 189" in page.read_text() and "$" not in page.read_text()
    done = run_command("study", "figures", tmp_path / "results", "--out", tmp_path / "figures")
    assert done.code == 0 and (tmp_path / "figures" / "modes.png").stat().st_size > 5_000


def test_an_earlier_definition_is_compared_over_the_units_of_both():
    results = load_results(COMMITTED)
    assert results.earlier is not None and len(results.units) < len(results.earlier.units)
    table = MODE_TABLES["modes-earlier"](replace(results, earlier=results))
    assert {row[2] for row in table.rows} == {"`noisy`", "`wrong`", "`outage`"}
    assert all(row[3] == row[4] and row[5].startswith("+0.000") for row in table.rows if row[6] != "0")
    assert [row[6] for row in table.rows if row[:2] == ("noise", "LogReg")] == ["0"]


def test_the_page_is_what_the_committed_results_give(tmp_path):
    if not (COMMITTED / "results.parquet").is_file():
        pytest.skip("paper/results/modes is not part of this checkout")
    done = run_command("study", "tables", COMMITTED, "--write-docs", tmp_path / "page.md")
    assert done.code == 0, done.err
    assert (tmp_path / "page.md").read_bytes() == (REPOSITORY / "paper" / "pages" / "modes-study.md").read_bytes(), (
        "regenerate it: fragility study tables paper/results/modes --write-docs paper/pages/modes-study.md"
    )
