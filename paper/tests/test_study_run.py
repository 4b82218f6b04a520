"""Running units: folders, resuming, jobs, failures, the smoke profile; and what a run's tables are made of."""

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from study_helpers import LOGREG, TINY, refuse, run_command

from fragility.base.errors import DataError
from fragility_paper import run
from fragility_paper.folders import claim_folder, saved_profile, study_status
from fragility_paper.plan import Unit, units_of
from fragility_paper.reproduction import reproduction_document
from fragility_paper.results import collect, load_results, read_study, save_results
from fragility_paper.tables import all_tables
from fragility_paper.tables.exposure import CHOSEN, STRONGEST, VARIANTS


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tiny")
    status = run.run_study(TINY, out)
    assert len(status.done) == 4 and not status.failed
    return out


def results_of(out: Path) -> pd.DataFrame:
    return collect(out).table


@pytest.mark.slow
def test_a_unit_folder_is_complete(tiny_run):
    place = tiny_run / LOGREG.folder
    assert {path.name for path in place.iterdir()} == {
        "DONE", "certificates", "config.json", "labelled.parquet", "results.parquet", "rows.parquet", "timing.json",
    }  # fmt: skip
    table = pd.read_parquet(place / "results.parquet")
    assert set(table["analysis"]) >= {
        "predictive", "certificate", "labels", "ranking", "weights", "naturalistic", "calibration", "attribution",
        "depth", "temperature", "baseline", "grouping", "grid", "search", "cost", "path", "stressor", "stress",
        "within", "lattice", "exact_mask",
    }  # fmt: skip
    other = pd.read_parquet(tiny_run / Unit("credit_g", "logreg", 1).folder / "results.parquet")
    assert "grid" not in set(other["analysis"])  # extras run on their declared seeds only
    assert {"stress", "within"} <= set(other["analysis"])  # other stress is on every seed


@pytest.mark.slow
def test_exposure_is_recorded_wherever_fds_is(tiny_run):
    table = results_of(tiny_run)
    fds, exposure = (table[table["score"] == name] for name in ("cfc_fds", "cfc_exposure"))
    key = ["analysis", "metric", "variant", "rule", "baseline", "grouping", "depth", "tau_p", "tau_kappa", "severity"]

    def settings(rows: pd.DataFrame) -> set[tuple[object, ...]]:
        kept = rows[~rows["analysis"].isin(["weights"])]  # the weights of FDS
        return set(kept[key].fillna(-1).itertuples(index=False, name=None))

    assert settings(fds) <= settings(exposure)
    parts = set(table.loc[table["analysis"] == "ranking", "score"])
    assert {"cfc_rcma", "independent_loss", "common_loss"} <= parts


@pytest.mark.slow
def test_other_stress_has_counts_ceilings_and_differences_with_intervals(tiny_run):
    results = collect(tiny_run)
    variants = set(results.pick("stress", metric="ceiling")["variant"])
    assert variants == set(VARIANTS)
    lines = results.pick("within", score="cfc_exposure", variant="default")
    assert {"cfc_fds", "random_order", STRONGEST, CHOSEN} <= set(lines["against"])
    wide = lines.pivot(index=["dataset", "model", "seed", "against"], columns="metric", values="value").dropna()
    assert len(wide) and (wide["low"] <= wide["high"]).all()
    # The unit's strongest baseline on the judged rows is no weaker than any other.
    worst = wide["difference"].groupby(["dataset", "model", "seed"]).min()
    strongest = wide["difference"].xs(STRONGEST, level="against")
    others = wide.drop(index=["cfc_fds", "cfc_rcma"], level="against")["difference"]
    assert (strongest == others.groupby(["dataset", "model", "seed"]).min()).all() and len(worst) == len(strongest)


@pytest.mark.slow
def test_labelled_rows_are_the_confident_rows_of_both_parts(tiny_run, tmp_path):
    results = collect(tiny_run)
    labelled = results.labelled
    assert set(labelled["part"]) == {"test", "validation"} and (labelled["confidence"] >= 0.9 - 1e-6).all()
    share = results.per_unit("labels", metric="brittle_share", rule="expected")
    test = labelled[labelled["part"] == "test"].groupby(["dataset", "model", "seed"])["brittle"].mean()
    pd.testing.assert_series_equal(test, share.dropna().sort_index(), check_names=False)
    save_results(results, tmp_path)
    pd.testing.assert_frame_equal(load_results(tmp_path).labelled, labelled)


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
    assert len(study_status(TINY, out).waiting) == 2
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


def test_the_longest_units_come_first_and_unknown_ones_in_between():
    units = units_of(TINY)
    lines = [("credit_g", "rf", 1, 50.0), ("credit_g", "rf", 1, 5.0), ("credit_g", "logreg", 0, 1.0)]
    timings = pd.DataFrame(lines, columns=["dataset", "model", "seed", "seconds"])
    expected = run.expected_seconds(units, timings)
    assert expected[Unit("credit_g", "rf", 1)] == 55.0 and expected[Unit("credit_g", "rf", 0)] == 28.0
    ordered = run.in_order(units, expected)
    assert ordered[0] == Unit("credit_g", "rf", 1) and ordered[-1] == LOGREG
    assert run.in_order(units, run.expected_seconds(units, None)) == list(units)  # nothing known: the declared order


def test_timings_that_are_not_there_are_named(tmp_path):
    words = ("study", "run", "smoke", "--out", tmp_path / "out", "--timings", tmp_path / "none.parquet")
    assert "none.parquet not found" in refuse(*words)


def test_a_folder_of_another_profile_is_refused(tmp_path):
    claim_folder(tmp_path, TINY)
    assert saved_profile(tmp_path) == TINY
    with pytest.raises(DataError, match="holds a run of another profile"):
        claim_folder(tmp_path, replace(TINY, draws=5))


def test_status_of_a_folder_that_is_none(tmp_path):
    with pytest.raises(DataError, match=r"study\.json not found"):
        saved_profile(tmp_path)


@pytest.mark.slow
def test_a_small_run_fills_every_table_and_the_page(tiny_run):
    results = read_study(tiny_run)
    assert all(table.rows for table in all_tables(results).values())
    page = reproduction_document(results)
    assert "**4 of 189 units**" in page
    assert "not in these results" not in page and "$" not in page


@pytest.mark.slow
def test_the_smoke_profile_runs_resumes_and_makes_its_tables(tmp_path):
    out = tmp_path / "smoke"
    first = run_command("study", "run", "smoke", "--out", out, "--jobs", "2")
    assert first.code == 0, first.err
    units = sorted(place.name for place in (out / "units").iterdir())
    assert units == ["credit_g.logreg.0", "credit_g.mlp.0", "credit_g.rf.0"]
    stamps = {name: (out / "units" / name / "DONE").stat().st_mtime_ns for name in units}
    again = run_command("study", "run", "smoke", "--out", out)
    assert again.code == 0, again.err
    assert stamps == {name: (out / "units" / name / "DONE").stat().st_mtime_ns for name in units}  # nothing run twice
    tables = run_command("study", "tables", out)
    assert tables.code == 0, tables.err
    assert "CFC-FDS" in tables.out
