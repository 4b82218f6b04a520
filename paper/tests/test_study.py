"""The study: plans, leakage, resuming, jobs, tables and the reproduction page."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import REPOSITORY

from fragility.errors import DataError
from fragility.models import Model
from fragility.study import datasets, paper_values, run
from fragility.study.figures import FIGURES, write_figures
from fragility.study.models import MODELS, train
from fragility.study.plan import PROFILES, Profile, Unit, profile_named, unit_config, units_of
from fragility.study.reproduction import reproduction_document
from fragility.study.tables import (
    StudyResults,
    Table,
    all_tables,
    beside,
    load_results,
    number,
    ranking_values,
    save_results,
)
from fragility.study.tidy import COLUMNS, Recorder
from fragility.study.unit import (
    declared_protocol,
    fit_unit,
    masked_group_shap,
    measure,
    orientations,
    rank_correlation,
    select_rows,
)

RESULTS = REPOSITORY / "results"

TINY = Profile(
    name="tiny",
    datasets=("credit_g",),
    models=("logreg", "rf"),
    seeds=(0, 1),
    audited_rows=30,
    rcma_rows=30,
    validation_rows=30,
    calibration_rows=40,
    draws=4,
    extra_rows=20,
    shap_rows=8,
    search_rows=3,
    search_evaluations=220,
    random_orders=1,
)
LOGREG = Unit("credit_g", "logreg", 0)


@pytest.fixture(scope="module")
def credit_g() -> datasets.Dataset:
    return datasets.load("credit_g")


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tiny")
    status = run.run_study(TINY, out)
    assert len(status.done) == 4 and not status.failed
    return out


def results_of(out: Path) -> pd.DataFrame:
    return run.collect(out)[0]


# --- the plan ----------------------------------------------------------------------------------------------------


def test_the_paper_profile_has_189_units_seed_by_seed():
    units = units_of(profile_named("paper"))
    assert len(units) == len(set(units)) == 189
    assert [unit.seed for unit in units] == [0] * 63 + [1] * 63 + [2] * 63
    assert round(59 / 189, 4) == paper_values.MAIN_DELTA["cfc_rcma"][3]


def test_profiles_have_their_declared_sizes():
    assert len(units_of(profile_named("quick"))) == 9
    assert PROFILES["paper"].audited_rows == PROFILES["paper"].rcma_rows == 2000
    assert PROFILES["paper"].shap_rows >= 256


def test_only_covertype_is_capped_and_full_lifts_it():
    profile = profile_named("paper")
    assert {name: profile.rows_to_train(name) for name in datasets.DATASETS if profile.rows_to_train(name)} == {
        "covertype": 100_000
    }
    assert profile_named("paper", full=True).rows_to_train("covertype") is None


def test_an_unknown_profile_lists_the_known_ones():
    with pytest.raises(DataError, match="unknown profile 'huge'; expected one of smoke, quick, paper"):
        profile_named("huge")


def test_the_config_says_what_decides_the_numbers():
    config = json.loads(json.dumps(unit_config(LOGREG, TINY)))
    assert config["model"]["settings"] == {"C": 1.0, "max_iter": 500}
    assert config["data_content_sha256"] == datasets.CREDIT_G.content_sha256
    assert config["extras"] is True and unit_config(Unit("credit_g", "rf", 1), TINY)["extras"] is False


# --- the paper's values ------------------------------------------------------------------------------------------


def test_the_printed_values_agree_with_each_other_where_they_should():
    for score, row in paper_values.SCORE_COMPARISON.items():
        assert np.mean(list(row.values())) == pytest.approx(paper_values.MAIN_CI[score][0], abs=0.0015)
    for dataset, model in paper_values.LOWEST_RCMA.items():
        column = {name: row[dataset] for name, row in paper_values.MAIN_RCMA.items()}
        assert min(column, key=column.get) == model
    cases = [row[0] for name, row in paper_values.GREEDY_EXACT_BEAM.items() if name != "mean"]
    assert sum(cases) == paper_values.GREEDY_EXACT_BEAM["mean"][0]


def test_the_papers_contradictions_are_in_its_values():
    assert paper_values.MAIN_CI["negative_energy"][0] != paper_values.MAIN_CI["margin"][0]
    assert paper_values.REVIEW_BUDGET["cfc_fds"][2] != paper_values.CAPTURE_20_IN_TEXT
    assert paper_values.ATTRIBUTION["cfc_rcma"] != paper_values.MAIN_CI["cfc_rcma"][0]


# --- models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.slow
def test_every_model_trains_twice_the_same(name, credit_g):
    parts = datasets.split(credit_g.y, 0)
    X, y = credit_g.X, credit_g.y

    def fitted() -> np.ndarray:
        model = train(
            MODELS[name], credit_g.spec, X.iloc[parts.train], y[parts.train], X.iloc[parts.validation],
            y[parts.validation], seed=0,
        )  # fmt: skip
        return Model.wrap(model).probabilities(X.iloc[parts.test])

    first, second = fitted(), fitted()
    assert first.shape == (200, 2)
    assert np.array_equal(first, second)


# --- leakage -----------------------------------------------------------------------------------------------------


def spoiled(data: datasets.Dataset, positions: np.ndarray) -> datasets.Dataset:
    """The data set with nonsense in some rows: other numbers, other categories, other classes."""
    X, y = data.X.copy(), data.y.copy()
    for name in data.spec.fields:
        X.loc[positions, name] = "nonsense" if name in data.spec.nominal else 1e9
    y[positions] = 1 - y[positions]
    return replace(data, X=X, y=y)


@pytest.mark.slow
def test_no_test_row_reaches_preprocessing_or_baseline(credit_g, monkeypatch):
    """The splits of the clean data, with nonsense in the test rows: everything that is fitted stays the same."""
    parts = datasets.split(credit_g.y, 0)
    monkeypatch.setattr("fragility.study.unit.split", lambda *_, **__: parts)
    monkeypatch.setattr("fragility.study.unit._PROTOCOLS", {})
    clean = fit_unit(LOGREG, credit_g, TINY)
    monkeypatch.setattr("fragility.study.unit._PROTOCOLS", {})
    dirty = fit_unit(LOGREG, spoiled(credit_g, parts.test), TINY)
    assert clean.protocol.digest == dirty.protocol.digest
    assert clean.model.fingerprint == dirty.model.fingerprint
    for grouping in ("domain", "merged"):
        assert clean.variant(grouping=grouping).digest == dirty.variant(grouping=grouping).digest


@pytest.mark.slow
def test_no_test_row_reaches_calibration_or_orientation(credit_g, monkeypatch):
    """Flipping the truth of test rows moves neither temperature, eta nor any score's direction."""
    parts = datasets.split(credit_g.y, 0)
    monkeypatch.setattr("fragility.study.unit.split", lambda *_, **__: parts)
    y = credit_g.y.copy()
    y[parts.test] = 1 - y[parts.test]
    clean, dirty = (measure(LOGREG, data, TINY).table for data in (credit_g, replace(credit_g, y=y)))
    for metric in ("temperature", "eta"):
        assert _value(clean, "calibration", metric) == _value(dirty, "calibration", metric)
    ranked = (clean["analysis"] == "ranking") & (clean["metric"] == "auroc")
    pd.testing.assert_frame_equal(clean[ranked], dirty[ranked])


def _value(table: pd.DataFrame, analysis: str, metric: str) -> float:
    rows = table[(table["analysis"] == analysis) & (table["metric"] == metric)]
    return float(rows["value"].iloc[0])


@pytest.mark.slow
def test_the_label_channels_seed_changes_no_score(credit_g):
    one, other = (measure(LOGREG, credit_g, TINY, label_seed=seed) for seed in (0, 99))
    scores = [name for name in one.rows.columns if not name.startswith("brittle")]
    pd.testing.assert_frame_equal(one.rows[scores], other.rows[scores])
    assert not np.array_equal(one.rows["brittle_rate"], other.rows["brittle_rate"])
    certificates = one.table["analysis"].isin(["certificate", "path", "predictive", "calibration"])
    pd.testing.assert_frame_equal(one.table[certificates], other.table[certificates])


@pytest.mark.slow
def test_the_protocol_of_a_split_is_the_same_for_every_model(credit_g, monkeypatch):
    fitted = {}
    for name in ("logreg", "rf"):
        monkeypatch.setattr("fragility.study.unit._PROTOCOLS", {})
        fitted[name] = fit_unit(Unit("credit_g", name, 0), credit_g, TINY)
    assert fitted["logreg"].protocol.digest == fitted["rf"].protocol.digest
    groups = fitted["logreg"].variant(grouping="domain").group_names
    assert sorted(groups) == sorted(name for name, _ in credit_g.spec.blocks)


# --- pieces ------------------------------------------------------------------------------------------------------


def test_a_smaller_selection_is_part_of_a_larger_one():
    confidence = np.linspace(0.5, 1.0, 400)
    small = select_rows(confidence, 0, confident=20, nearly=10, anyone=30)
    large = select_rows(confidence, 0, confident=50, nearly=30, anyone=60)
    assert (confidence[small.confident] >= 0.90).all() and len(small.confident) == 20
    assert (confidence[small.nearly] >= 0.85).all()
    for name in ("confident", "nearly", "anyone"):
        assert set(getattr(small, name)) <= set(getattr(large, name))


def test_certificate_scores_are_never_turned_and_others_fall_back():
    found = orientations({"cfc_fds": np.zeros(1), "max_softmax": np.zeros(1), "one_step_drop": np.zeros(1)}, {}, None)
    assert found == {"cfc_fds": 1, "max_softmax": -1, "one_step_drop": 1}


def test_masked_shap_of_a_linear_model_is_its_contributions(credit_g):
    """For an additive margin every order gives the same Shapley value: half the group's share of the margin."""
    fitted = fit_unit(LOGREG, credit_g, TINY)
    from fragility.study.unit import bound

    rows = bound(fitted, fitted.split.test[:5], fitted.protocol)
    found = masked_group_shap(rows, fitted.protocol, seed=0)
    coefficients = fitted.pipeline[-1].coef_[0]
    contribution = (rows.dense() - rows.baseline) * coefficients
    expected = np.stack([contribution[:, rows.column_group == g].sum(axis=1) for g in range(rows.n_groups)], axis=1)
    np.testing.assert_allclose(found, np.abs(expected) / 2, atol=1e-9)


def test_rank_correlation_of_a_constant_is_undefined():
    assert np.isnan(rank_correlation(np.ones(5), np.arange(5)))
    assert rank_correlation(np.arange(5), np.arange(5) ** 3) == pytest.approx(1.0)


def test_the_tidy_table_refuses_unknown_settings_and_keeps_undefined_values():
    record = Recorder("credit_g", "rf", 0)
    record.add("ranking", "auroc", float("nan"), score="cfc_fds", state="undefined: no brittle rows")
    with pytest.raises(TypeError, match="unknown settings"):
        record.add("ranking", "auroc", 0.5, colour="red")
    frame = record.frame()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["value"].isna().all() and frame.loc[0, "state"] == "undefined: no brittle rows"


# --- running -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_unit_folder_is_complete(tiny_run):
    place = tiny_run / LOGREG.folder
    assert {path.name for path in place.iterdir()} == {
        "DONE", "certificates", "config.json", "results.parquet", "rows.parquet", "timing.json",
    }  # fmt: skip
    table = pd.read_parquet(place / "results.parquet")
    assert set(table["analysis"]) >= {
        "predictive", "certificate", "labels", "ranking", "weights", "naturalistic", "calibration", "attribution",
        "depth", "temperature", "baseline", "grouping", "grid", "search", "cost", "path", "stressor",
    }  # fmt: skip
    other = pd.read_parquet(tiny_run / Unit("credit_g", "logreg", 1).folder / "results.parquet")
    assert "grid" not in set(other["analysis"])  # extras run on their declared seeds only


@pytest.mark.slow
def test_running_again_does_nothing_and_from_scratch_gives_the_same(tiny_run, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in tiny_run.rglob("DONE")}
    run.run_study(TINY, tiny_run, listener=lambda event: pytest.fail(f"{event.unit} was run again"))
    assert before == {path: path.stat().st_mtime_ns for path in tiny_run.rglob("DONE")}
    run.run_study(TINY, tmp_path / "again", jobs=2)
    pd.testing.assert_frame_equal(results_of(tiny_run), results_of(tmp_path / "again"))


@pytest.mark.slow
def test_interrupted_and_resumed_equals_uninterrupted(tiny_run, tmp_path):
    out = tmp_path / "broken"
    shutil.copytree(tiny_run, out)
    shutil.rmtree(out / "units" / "credit_g.rf.1")
    half = out / "units" / ".credit_g.rf.1.partial"
    half.mkdir()
    (half / "config.json").write_text("{}")
    shutil.rmtree(out / "units" / "credit_g.logreg.0")
    assert len(run.study_status(TINY, out).waiting) == 2
    seen: list[run.Event] = []
    status = run.run_study(TINY, out, keep_models=True, listener=seen.append)
    assert [event.finished for event in seen] == [1, 2] and seen[-1].left == 0
    assert len(status.done) == 4 and not half.exists()
    pd.testing.assert_frame_equal(results_of(tiny_run), results_of(out))
    # A model that was kept is audited again without training, and gives the same numbers.
    shutil.rmtree(out / "units" / "credit_g.rf.1")
    run.run_study(TINY, out)
    pd.testing.assert_frame_equal(results_of(tiny_run), results_of(out))


@pytest.mark.slow
def test_a_failing_unit_is_noted_and_the_rest_goes_on(tmp_path):
    profile = replace(TINY, datasets=("credit_g", "heloc"), models=("logreg",), seeds=(0,))
    status = run.run_study(profile, tmp_path / "out", data=tmp_path)
    assert [unit.dataset for unit in status.done] == ["credit_g"]
    assert [unit.dataset for unit in status.failed] == ["heloc"]
    assert "heloc.parquet not found" in (tmp_path / "out" / "failed" / "heloc.logreg.0.txt").read_text()


def test_a_folder_of_another_profile_is_refused(tmp_path):
    run._claim_folder(tmp_path, TINY)
    assert run.saved_profile(tmp_path) == TINY
    with pytest.raises(DataError, match="holds a run of another profile"):
        run._claim_folder(tmp_path, replace(TINY, draws=5))


def test_status_of_a_folder_that_is_none(tmp_path):
    with pytest.raises(DataError, match=r"study\.json not found"):
        run.saved_profile(tmp_path)


# --- tables and figures ------------------------------------------------------------------------------------------


def test_cells_show_ours_and_the_papers():
    assert beside(0.91234, 0.915) == "0.912 (0.915)"
    assert number(float("nan")) == "–"


def test_a_table_with_a_short_row_is_refused():
    with pytest.raises(DataError, match="a row has 1 cells, the header 2"):
        Table("k", "t", ("a", "b"), (("1",),))


@pytest.fixture(scope="module")
def committed() -> StudyResults:
    if not (RESULTS / "results.parquet").is_file():
        pytest.skip("results/ is not part of this checkout")
    return load_results(RESULTS)


def test_committed_results_are_small_and_saved_as_they_were_read(committed, tmp_path):
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 5_000_000
    save_results(committed, tmp_path)
    pd.testing.assert_frame_equal(load_results(tmp_path).table, committed.table)


def test_every_table_is_made_from_the_committed_results(committed):
    tables = all_tables(committed)
    for table in tables.values():
        assert table.rows and table.to_markdown().count("\n| ") == len(table.rows) + 1


def test_the_reproduction_page_is_what_the_committed_results_give(committed):
    page = REPOSITORY / "docs" / "reproduction.md"
    assert page.read_text(encoding="utf-8") == reproduction_document(committed), (
        "regenerate it: fragility study tables results --write-docs docs/reproduction.md"
    )


def test_binary_energy_and_margin_rank_alike_in_the_committed_results(committed):
    energy, margin = (ranking_values(committed, name) for name in ("negative_energy", "margin"))
    binary = energy.index.get_level_values("dataset") != "covertype"
    # Equal but for pairs of rows whose margins differ in the last bit.
    np.testing.assert_allclose(energy[binary], margin[binary], atol=1e-3)


@pytest.mark.slow
def test_a_small_run_fills_every_table_and_the_page(tiny_run):
    results = StudyResults(*run.collect(tiny_run))
    assert all(table.rows for table in all_tables(results).values())
    assert "**4 of 189 units**" in reproduction_document(results)


@pytest.mark.slow
def test_every_figure_is_drawn(committed, tmp_path):
    written = write_figures(committed, tmp_path)
    assert [path.stem for path in written] == list(FIGURES)
    assert all(path.stat().st_size > 10_000 for path in written)


def test_the_declared_protocol_is_cached_by_split(credit_g):
    parts = datasets.split(credit_g.y, 0)
    model = fit_unit(LOGREG, credit_g, TINY).model
    assert declared_protocol(LOGREG, credit_g, parts, model) is declared_protocol(LOGREG, credit_g, parts, model)
