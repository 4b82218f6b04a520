"""The hardening study: both trainings on the same rows, the declared settings, forests on validation rows, its page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from study_helpers import REPOSITORY, RESULTS, refuse, run_command

from fragility.base.errors import DataError
from fragility_paper import run
from fragility_paper.data import load, split
from fragility_paper.models import MODELS
from fragility_paper.plan import PROFILES, Unit, profile_named, unit_config, units_of
from fragility_paper.results import StudyResults, collect, load_results, save_results
from fragility_paper.tables import all_tables, tables_of
from fragility_paper.tables.hardening import BRITTLE, STRESSES, Pair, pair, promise, toward_mean
from fragility_paper.training import train, train_hardened
from fragility_paper.unit import forests
from fragility_paper.unit.fitted import fit_unit
from fragility_paper.unit.forests import thinned

SMALL = replace(PROFILES["harden-smoke"], models=("lightgbm", "rf"), rcma_rows=40, calibration_rows=30)
COMMITTED = RESULTS / "hardening"


@pytest.fixture(scope="module")
def small_run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("hardened")
    status = run.run_study(SMALL, out)
    assert len(status.done) == 2 and not status.failed
    return out


def test_the_declared_settings_are_in_every_configuration():
    profile = profile_named("harden")
    assert len(units_of(profile)) == 189
    config = unit_config(Unit("adult", "mlp", 0), profile)
    assert config["analyses"]["hardening"] == {"kind": "mask", "rate": 0.2, "copies": 1}
    assert config["model"] == unit_config(Unit("adult", "mlp", 0), profile_named("paper"))["model"]


def test_training_and_labels_replace_by_the_default_baseline():
    profile = profile_named("harden")
    assert profile.baseline == "typical" and profile.smoothing is None


def test_models_are_not_kept_by_a_hardening_run(tmp_path):
    with pytest.raises(DataError, match="keeps no models"):
        run.run_study(SMALL, tmp_path, keep_models=True)


@pytest.mark.slow
def test_both_trainings_are_measured_on_the_same_rows(small_run):
    results = collect(small_run)
    assert results.study == "hardening" and results.labelled is None
    table = results.pick("hardening", metric="brittle_share")
    assert set(table["variant"]) == set(STRESSES)
    early = results.pick("hardening", metric="flips_early", rows="confident")
    assert set(early["training"]) == {"plain", "hardened"} and early["value"].between(0, 1).all()
    counts = table[table["rows"] == "any"].groupby(["model", "variant"])["count"].nunique()
    assert (counts == 1).all()
    both = table[table["rows"] == "both"].groupby(["model", "variant"])["count"].nunique()
    assert (both == 1).all()
    stages = set(results.timings["stage"])
    assert {"train plain", "train hardened"} <= stages


@pytest.mark.slow
def test_the_forest_grid_runs_on_validation_rows_of_forests_alone(small_run):
    lines = collect(small_run).pick("forest")
    assert set(lines["model"]) == {"rf"} and set(lines["rows"]) == {"validation"}
    cells = lines[["variant", "severity"]].drop_duplicates()
    assert len(cells) == len(forests.LIMITS) * len(forests.RATES)
    assert (lines.loc[lines["metric"] == "leaves", "value"] > 1).all()


@pytest.mark.slow
def test_a_small_run_fills_every_table_the_page_and_the_figure(small_run, tmp_path):
    results = collect(small_run)
    assert all(table.rows for table in all_tables(results).values())
    save_results(results, tmp_path / "results")
    pd.testing.assert_frame_equal(load_results(tmp_path / "results").table, results.table)
    page = tmp_path / "page.md"
    done = run_command("study", "tables", small_run, "--write-docs", page)
    assert done.code == 0, done.err
    assert "**2 of 189" in page.read_text() and "$" not in page.read_text()
    done = run_command("study", "figures", tmp_path / "results", "--out", tmp_path / "figures")
    assert done.code == 0 and (tmp_path / "figures" / "hardening.png").stat().st_size > 5_000
    assert "expected one of summary" in refuse("study", "tables", small_run, "--table", "scores")


@pytest.mark.slow
def test_no_test_row_reaches_hardened_training():
    """The same hardened model whatever the test rows hold."""
    data = load("credit_g")
    parts = split(data.y, 0)
    changed = data.X.copy()
    changed.iloc[parts.test, changed.columns.get_loc("duration")] = 1e6
    fitted = fit_unit(Unit("credit_g", "lightgbm", 0), data, SMALL)
    plain = train(MODELS["lightgbm"], data, parts)
    found = [
        train_hardened(MODELS["lightgbm"], plain, rows, parts, fitted.variant(), rate=0.2, copies=1).predict_proba(
            data.X.iloc[parts.validation]
        )
        for rows in (data, replace(data, X=changed))
    ]
    assert np.array_equal(*found)


def values_of(numbers: list[float]) -> pd.Series:
    units = [("adult", "xgboost", seed) for seed in range(len(numbers))]
    return pd.Series(numbers, index=pd.MultiIndex.from_tuples(units, names=["dataset", "model", "seed"]))


def test_units_that_halve_at_the_tolerated_cost_are_counted_and_those_without_brittle_rows_apart():
    brittle = Pair(values_of([0.4, 0.4, 0.4, 0.0]), values_of([0.2, 0.21, 0.1, 0.0]))
    area = Pair(values_of([0.9] * 4), values_of([0.897, 0.9, 0.89, 0.9]))
    assert promise(brittle, area) == {"halved": 1, "not": 2, "nothing": 1}


def test_a_pair_leaves_out_units_where_either_is_undefined():
    lines = [
        ("adult", "xgboost", seed, "hardening", "brittle_share", "confident", "default", training, value)
        for seed, values in enumerate([(0.5, 0.1), (np.nan, 0.1), (0.3, np.nan)])
        for training, value in zip(("plain", "hardened"), values, strict=True)
    ]
    names = ["dataset", "model", "seed", "analysis", "metric", "rows", "variant", "training", "value"]
    results = StudyResults(pd.DataFrame(lines, columns=names), pd.DataFrame(), pd.DataFrame())
    found = pair(results, BRITTLE)
    assert found.plain.tolist() == [0.5] and found.hardened.tolist() == [0.1]
    assert next(iter(tables_of(results))) == "summary"


def test_the_table_of_the_mean_sets_the_first_run_beside_the_present_one():
    def lines(values: dict[str, tuple[float, float]]) -> StudyResults:
        names = ["dataset", "model", "seed", "analysis", "metric", "rows", "variant", "training", "value"]
        rows = [
            ("adult", "xgboost", 0, "hardening", "brittle_share", "confident", variant, training, value)
            for variant, pair_of in values.items()
            for training, value in zip(("plain", "hardened"), pair_of, strict=True)
        ]
        return StudyResults(pd.DataFrame(rows, columns=names), pd.DataFrame(), pd.DataFrame())

    earlier = lines({"default": (0.6, 0.1), "baseline mode": (0.2, 0.19)})
    results = replace(lines({"default": (0.2, 0.15)}), earlier=earlier)
    assert toward_mean(results).rows[0] == ("Adult, XGBoost", "0.600", "0.100", "0.200", "0.190", "0.200", "0.150")
    assert toward_mean(replace(results, earlier=None)).note == "Not in these results."


def test_thinned_training_rows_are_some_of_the_training_rows():
    parts = split(np.arange(20_000) % 2, 0)
    fewer = thinned(parts)
    assert len(fewer.train) == forests.TRAIN_ROWS and set(fewer.train) <= set(parts.train)
    assert np.array_equal(fewer.validation, parts.validation)


def test_the_page_is_what_the_committed_results_give(tmp_path):
    if not (COMMITTED / "results.parquet").is_file():
        pytest.skip("paper/results/hardening is not part of this checkout")
    done = run_command("study", "tables", COMMITTED, "--write-docs", tmp_path / "page.md")
    assert done.code == 0, done.err
    assert (tmp_path / "page.md").read_bytes() == (
        REPOSITORY / "paper" / "pages" / "hardening-study.md"
    ).read_bytes(), (
        "regenerate it: fragility study tables paper/results/hardening --write-docs paper/pages/hardening-study.md"
    )
