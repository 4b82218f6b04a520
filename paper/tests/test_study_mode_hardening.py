"""Hardening per failure mode: its settings, the falls that its tables state, a run, its page."""

from dataclasses import replace

import pandas as pd
import pytest
from study_helpers import REPOSITORY, RESULTS, run_command

from fragility_paper import run
from fragility_paper.plan import PROFILES, Unit, profile_named, unit_config, units_of
from fragility_paper.results import StudyResults, collect, load_results, save_results
from fragility_paper.tables import all_tables
from fragility_paper.tables.mode_hardening import AUROC, BRITTLE, change, fall_of_mean, falls_by_dataset
from fragility_paper.tidy import Recorder

COMMITTED = RESULTS / "mode-hardening"
NUMBERS = {  # data set: brittle share and AUROC, plain and hardened
    "adult": ((0.4, 0.90), (0.1, 0.91)),
    "heloc": ((0.2, 0.80), (0.1, 0.79)),
    "bank_marketing": ((0.0, 0.95), (0.0, 0.95)),
}


def test_the_declared_ways_are_in_every_configuration():
    profile = profile_named("harden-modes")
    assert len(units_of(profile)) == 189 and profile.rows_to_train("covertype") == 20_000
    ways = unit_config(Unit("adult", "mlp", 0), profile)["analyses"]["hardening"]
    assert ways["lost"] == {"modes": ("lost",), "rate": 0.2, "copies": 1}
    assert ways["modes"] == {"modes": ("lost", "wrong", "noisy"), "rate": 0.3, "copies": 3}


def test_falls_are_of_the_mean_and_of_each_data_set_with_a_brittle_row():
    frames = []
    for dataset, pairs in NUMBERS.items():
        record = Recorder(dataset, "lightgbm", 0)
        for training, (share, area) in zip(("plain", "modes"), pairs, strict=True):
            record.add("mode_hardening", value=share, training=training, **BRITTLE)
            record.add("mode_hardening", value=area, training=training, **AUROC)
        frames.append(record.frame())
    results = StudyResults(pd.concat(frames, ignore_index=True), pd.DataFrame(), pd.DataFrame())
    assert results.study == "mode-hardening"
    assert fall_of_mean(results, "modes", BRITTLE, "lightgbm") == pytest.approx(1 - 0.2 / 0.6)
    assert falls_by_dataset(results, "modes", BRITTLE, "lightgbm") == pytest.approx({"adult": 0.75, "heloc": 0.5})
    assert change(results, "modes", AUROC, "lightgbm").mean == pytest.approx(0.0)


@pytest.mark.slow
def test_a_small_run_fills_every_table_and_the_page(tmp_path):
    status = run.run_study(replace(PROFILES["harden-modes-smoke"], rcma_rows=40), tmp_path / "run")
    assert len(status.done) == 2 and not status.failed
    results = collect(tmp_path / "run")
    assert all(table.rows for table in all_tables(results).values())
    shares = results.pick("mode_hardening", metric="brittle_share")
    assert set(shares["training"]) == {"plain", "lost", "modes"}
    assert set(shares["variant"]) == {"default", "mask", "dropout", "noise", "donor"}
    assert (shares[shares["rows"] == "any"]["count"] == 40).all()  # all trainings are judged on the same rows
    save_results(results, tmp_path / "results")
    done = run_command("study", "tables", tmp_path / "results", "--write-docs", tmp_path / "page.md")
    assert done.code == 0, done.err
    page = (tmp_path / "page.md").read_text()
    assert "**2 of 189 units were run**" in page and "$" not in page
    assert run_command("study", "figures", tmp_path / "results", "--out", tmp_path / "figures").code == 0


def test_the_page_is_what_the_committed_results_give(tmp_path):
    if not (COMMITTED / "results.parquet").is_file():
        pytest.skip("paper/results/mode-hardening is not part of this checkout")
    assert load_results(COMMITTED).study == "mode-hardening"
    done = run_command("study", "tables", COMMITTED, "--write-docs", tmp_path / "page.md")
    assert done.code == 0, done.err
    page = REPOSITORY / "paper" / "pages" / "mode-hardening-study.md"
    assert (tmp_path / "page.md").read_bytes() == page.read_bytes(), (
        "regenerate it: fragility study tables paper/results/mode-hardening --write-docs "
        "paper/pages/mode-hardening-study.md"
    )
