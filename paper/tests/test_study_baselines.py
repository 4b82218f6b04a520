"""The study under the default protocol: its settings, scores against labels of other baselines, smoothing, its page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from study_helpers import REPOSITORY, RESULTS, run_command

import fragility as fg
from fragility.base.errors import DataError
from fragility_paper import run
from fragility_paper.data import Dataset, load
from fragility_paper.plan import PROFILES, Unit, profile_named, unit_config, units_of
from fragility_paper.results import collect, save_results
from fragility_paper.tables import all_tables
from fragility_paper.tables.baselines import BASELINES, LABELS, smoothing_pair
from fragility_paper.unit import fit_unit

SMALL = replace(PROFILES["typical-smoke"], models=("logreg", "rf"), draws=4)
FOREST = Unit("credit_g", "rf", 0)
COMMITTED = RESULTS / "typical"


@pytest.fixture(scope="module")
def credit_g() -> Dataset:
    return load("credit_g")


@pytest.fixture(scope="module")
def small_run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("typical")
    status = run.run_study(SMALL, out)
    assert len(status.done) == 2 and not status.failed
    return out


def test_the_same_units_and_models_as_the_reproduction():
    typical, paper = profile_named("typical"), profile_named("paper")
    assert units_of(typical) == units_of(paper) and len(units_of(typical)) == 189
    ours, theirs = (unit_config(FOREST, profile) for profile in (typical, paper))
    shared = ("model", "seed", "split", "train_cap", "data_content_sha256")
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    settings = ("audited_rows", "validation_rows", "calibration_rows", "draws", "random_orders")
    assert all(ours["analyses"][name] == theirs["analyses"][name] for name in settings)
    assert (theirs["analyses"]["baseline"], theirs["analyses"]["smoothing"]) == ("mean", 0.0)


def test_the_protocol_is_the_librarys_default_and_the_reproductions_is_the_papers(credit_g):
    fitted = fit_unit(FOREST, credit_g, SMALL)
    train = credit_g.X.iloc[fitted.split.train]
    assert fitted.protocol == fg.Protocol.fit(fitted.pipeline, train)
    assert fitted.protocol.baseline == "typical" and fitted.protocol.smoothing == 0.01
    paper = fit_unit(FOREST, credit_g, PROFILES["smoke"], fitted.pipeline)
    assert paper.protocol == fg.Protocol.fit(fitted.pipeline, train, baseline="mean", smoothing=0.0)


def test_a_variant_keeps_the_units_baseline_and_smoothing(credit_g):
    fitted = fit_unit(FOREST, credit_g, SMALL)
    assert fitted.variant(grouping="domain").baseline == "typical"
    other = fitted.variant(baseline="median")
    assert (other.baseline, other.smoothing) == ("median", 0.01)
    assert fitted.admitted("typical") is fitted.protocol


def test_no_models_are_kept(tmp_path):
    with pytest.raises(DataError, match="a study of baselines keeps no models"):
        run.run_study(SMALL, tmp_path, keep_models=True)


@pytest.mark.slow
def test_scores_under_every_baseline_meet_labels_of_every_kind(small_run):
    results = collect(small_run)
    assert results.study == "baselines"
    cells = results.pick("crossed", metric="auroc")[["model", "score", "baseline", "variant"]]
    assert len(cells.drop_duplicates()) == 2 * 3 * len(BASELINES) * len(LABELS)
    assert (results.pick("crossed", metric="admitted")["value"] == 1).all()
    assert set(results.pick("crossed", metric="flips_early")["baseline"]) == set(BASELINES)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*had no missing value in training")
@pytest.mark.parametrize(("scored", "labelled"), [("median", "missing"), ("missing", "typical"), ("mean", "median")])
def test_a_cell_of_the_table_is_what_the_public_functions_give(small_run, credit_g, scored, labelled):
    """The logistic regression of the small run, rebuilt: exposure under one baseline, labels under another."""
    unit = Unit("credit_g", "logreg", 0)
    fitted = fit_unit(unit, credit_g, SMALL)
    test = fitted.split.test
    confident = fitted.probabilities(test).max(axis=1) >= 0.90
    order = np.random.default_rng([0, len(test)]).permutation(len(test))
    rows = test[np.sort(order[confident[order]][: SMALL.audited_rows])]
    chosen = rows[np.sort(np.random.default_rng([0, 1]).permutation(len(rows))[: SMALL.extra_rows])]
    X, train = credit_g.X.iloc[chosen], credit_g.X.iloc[fitted.split.train]
    protocols = {name: fg.Protocol.fit(fitted.pipeline, train, baseline=name) for name in (scored, labelled)}
    exposure = fg.audit(fitted.pipeline, X, protocols[scored], progress=False).claims.exposure
    stress = replace(fg.Stress.at(0.3), draws=SMALL.draws, seed=0)
    labels = fg.label_brittle(fitted.pipeline, X, protocols[labelled], stress, ids=chosen.tolist())
    where = {"score": "cfc_exposure", "baseline": scored, "variant": labelled, "model": "logreg"}
    found = collect(small_run).pick("crossed", metric="auroc", **where)["value"].item()
    share = collect(small_run).pick("crossed", metric="brittle_share", variant=labelled, model="logreg")["value"].item()
    assert share == pytest.approx(labels.brittle.mean())
    if 0 < labels.brittle.sum() < len(labels.brittle):
        assert found == pytest.approx(roc_auc_score(labels.brittle, exposure))
    else:
        assert np.isnan(found)


@pytest.mark.slow
def test_smoothing_is_judged_for_forests_alone(small_run):
    results = collect(small_run)
    assert set(results.pick("smoothing")["model"]) == {"rf"}
    shares = smoothing_pair(results, "brittle_share")
    assert len(shares) == 1 and (shares["with"] <= shares["without"]).all()


@pytest.mark.slow
def test_a_small_run_fills_every_table_the_page_and_the_figure(small_run, tmp_path):
    results = collect(small_run)
    assert all(table.rows for table in all_tables(results).values())
    save_results(results, tmp_path / "results")
    page = tmp_path / "page.md"
    done = run_command("study", "tables", tmp_path / "results", "--write-docs", page)
    assert done.code == 0, done.err
    assert "**2 of 189" in page.read_text() and "$" not in page.read_text()
    done = run_command("study", "figures", tmp_path / "results", "--out", tmp_path / "figures")
    assert done.code == 0 and (tmp_path / "figures" / "crossed.png").stat().st_size > 5_000


def test_the_page_is_what_the_committed_results_give(tmp_path):
    if not (COMMITTED / "results.parquet").is_file():
        pytest.skip("paper/results/typical is not part of this checkout")
    done = run_command("study", "tables", COMMITTED, "--write-docs", tmp_path / "page.md")
    assert done.code == 0, done.err
    assert (tmp_path / "page.md").read_bytes() == (REPOSITORY / "paper" / "pages" / "baseline-study.md").read_bytes(), (
        "regenerate it: fragility study tables paper/results/typical --write-docs paper/pages/baseline-study.md"
    )
