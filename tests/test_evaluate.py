"""`evaluate`: a verdict about one model, honest when there is nothing to judge; and its commands."""

import json
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import pipelines
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fragility.analysis.ranking.comparison import compare_scores
from fragility.analysis.ranking.evaluating import (
    BETTER,
    CANNOT_TELL,
    MIN_CASES,
    NOT_SHOWN,
    WORSE,
    Baselines,
    evaluate,
    judge,
    predict_rows,
)
from fragility.analysis.ranking.metrics import auroc
from fragility.auditing.pipeline import audit
from fragility.base.errors import DataError, FragilityError, ModelError
from fragility.cli import app
from fragility.engines.oracle import ModelOracle
from fragility.protocol import Protocol, bind
from fragility.questions.modes.losses import assess_modes
from fragility.questions.stress.declaration import Stress
from fragility.questions.stress.labels import label_brittle
from fragility.questions.stress.stressors import Donor

LOOSE = Stress(tau_confidence=0.7, tau_collapse=0.3, draws=8)
CHEAP = Baselines(random_orders=0, resamples=100)


@pytest.fixture(scope="module")
def case():
    return pipelines.fitted("credit_g", "lightgbm", "transformed")


@pytest.fixture(scope="module")
def protocol(case):
    return Protocol.fit(case.model, case.X_train)


@pytest.fixture(scope="module")
def truth():
    return pipelines.split("credit_g").y_test


@pytest.fixture(scope="module")
def certs(case, protocol):
    return audit(case.model, case.X_test.iloc[:200], protocol, engine="blackbox")


@pytest.fixture(scope="module")
def evaluation(case, certs, truth):
    return evaluate(
        certs,
        case.model,
        case.X_test,
        truth,
        validation=(case.X_test.iloc[200:], truth.iloc[200:]),
        stress=LOOSE,
        baselines=Baselines(random_orders=2, resamples=300),
        engine="blackbox",
    )


# --- the evaluation ------------------------------------------------------------------------------------------------


def test_it_says_what_the_parts_say(evaluation, case, certs, protocol, truth):
    X = case.X_test.iloc[:200]
    labels = label_brittle(case.model, X, protocol, LOOSE)
    assert evaluation.counts == labels.counts()
    assert evaluation.report.brittle == labels.brittle.sum() >= MIN_CASES
    rows = bind(case.model, X, protocol)
    plain = compare_scores(certs, labels, probabilities=predict_rows(ModelOracle(rows)), resamples=300)
    for score in ("cfc_fds", "cfc_rcma", "margin"):
        assert evaluation.report.result(score, "paper").auroc == plain.result(score, "paper").auroc
    wrong = certs.to_pandas()["predicted"].to_numpy() != truth.iloc[:200].to_numpy()
    assert evaluation.report.wrong == int((wrong & labels.high_confidence).sum())
    assert evaluation.predictive.accuracy == pytest.approx(1 - wrong.mean())
    assert evaluation.report.orientation_source == "validation rows"
    assert {"random_order", "permutation_order"} <= {line.score for line in evaluation.report.results}


def test_exposures_to_failure_modes_are_scores_like_any_other(case, certs, protocol, truth):
    stress = Stress((Donor(),), tau_confidence=0.7, tau_collapse=0.3, draws=8)
    X = case.X_test.iloc[:200]
    settings = {"stress": stress, "baselines": CHEAP, "donors": case.X_train}
    found = evaluate(certs, case.model, case.X_test, truth, modes=("noisy", "wrong"), by="wrong", **settings)
    labels = label_brittle(case.model, X, protocol, stress, donors=case.X_train)
    assert found.counts == labels.counts()
    losses = assess_modes(case.model, X, protocol, ["wrong", "noisy"])
    for mode in ("wrong", "noisy"):
        own = found.report.result(f"exposure_{mode}")
        assert own.kind == "mode" and own.direction == 1
        exposure, brittle = (a[labels.high_confidence] for a in (losses[mode].exposure, labels.brittle))
        assert own.auroc == pytest.approx(auroc(exposure, brittle), abs=1e-6)
    assert [line.score for line in found.lines][-6:] == [
        *["exposure_wrong"] * 2,
        *["exposure_noisy"] * 2,
        *["rehearsal"] * 2,
    ]
    assert found.verdict.against_confidence.score == "exposure_wrong"
    assert "exposure_wrong" in found.verdict.sentence and "exposure_wrong differs from it" in found.to_text()
    without = evaluate(certs, case.model, case.X_test, truth, **settings)
    shared = [line for line in found.lines if line.kind != "mode"]
    assert shared == list(without.lines)


def test_modes_that_are_not_declared_are_refused(case, certs):
    with pytest.raises(FragilityError, match="declares the modes lost, wrong, noisy, got 'outage'"):
        evaluate(certs, case.model, case.X_test, modes=("outage",))
    with pytest.raises(DataError, match="judges a ranking by exposure or fds or rehearsal or noisy, got 'wrong'"):
        evaluate(certs, case.model, case.X_test, modes=("noisy",), by="wrong")


def test_the_verdict_follows_from_the_interval(evaluation):
    found = evaluation.verdict.against_confidence
    expected = BETTER if found.low > 0 else WORSE if found.high < 0 else NOT_SHOWN
    assert evaluation.verdict.state == expected
    assert f"AUROC {evaluation.report.result('cfc_exposure').auroc:.3f}" in evaluation.verdict.sentence
    assert evaluation.verdict.against_others.baseline in {"one_step_drop", "random_order", "permutation_order"}


@pytest.mark.parametrize(
    ("exposure", "confidence", "state", "opening"),
    [
        ("label", "noise", BETTER, "Yes: exposure finds"),
        ("noise", "label", WORSE, "No: the model's own confidence"),
        ("label", "label", NOT_SHOWN, "Not shown:"),
    ],
)
def test_every_verdict_has_its_sentence(exposure, confidence, state, opening):
    generator = np.random.default_rng(0)
    brittle = generator.random(200) < 0.3
    kinds = {"label": brittle + generator.normal(0, 0.4, 200), "noise": generator.normal(size=200)}
    labels = given_labels(brittle)
    given = {"margin": -kinds[confidence], "cfc_exposure": kinds[exposure], "cfc_fds": kinds["noise"]}
    report = compare_scores(None, labels, scores=given, resamples=300)
    verdict = judge(report)
    assert verdict.state == state
    assert verdict.sentence.startswith(opening)
    assert judge(report, by="fds").sentence.count("FDS") > 0


def given_labels(brittle):
    n = len(brittle)
    return SimpleNamespace(
        id=np.arange(n), high_confidence=np.ones(n, dtype=bool), brittle=brittle, statistic=brittle.astype(float)
    )


def test_too_few_brittle_rows_cannot_be_judged(case, certs):
    found = evaluate(certs, case.model, case.X_test, stress=Stress(tau_collapse=5.0), baselines=CHEAP)
    assert found.verdict.state == CANNOT_TELL
    assert found.verdict.sentence.startswith("Cannot be judged: of 200 rows")
    assert "at least 10 brittle" in found.to_text()
    json.dumps(found.to_dict(), allow_nan=False)


def test_nothing_confident_is_a_report_too(case, certs):
    found = evaluate(certs, case.model, case.X_test, stress=Stress(tau_confidence=1.0), baselines=CHEAP)
    assert found.verdict.state == CANNOT_TELL
    assert found.report.undefined() == {"undefined: no rows": len({r.score for r in found.report.results})}


def test_text_json_and_csv_say_the_same(evaluation, tmp_path):
    text = str(evaluation)
    assert text.startswith(evaluation.verdict.sentence)
    assert "Label-noise ceiling" in text and "Brittle by stressor: mask(0.3)" in text
    evaluation.save(tmp_path / "e.json")
    evaluation.save(tmp_path / "e.csv")
    document = json.loads((tmp_path / "e.json").read_text())
    table = pd.read_csv(tmp_path / "e.csv")
    assert document["verdict"]["state"] == evaluation.verdict.state
    assert Stress.from_dict(document["stress"]) == LOOSE
    assert document["report"]["results"][0]["auroc"] == pytest.approx(table["auroc"][0])
    assert len(table) == len(evaluation.to_pandas())


def test_a_file_name_must_name_a_format(evaluation, tmp_path):
    evaluation.save(tmp_path / "e.parquet")
    assert pq.read_table(tmp_path / "e.parquet").num_rows == len(evaluation.to_pandas())
    with pytest.raises(DataError, match=r"e\.xlsx must end in \.json or \.parquet or \.csv"):
        evaluation.save(tmp_path / "e.xlsx")


def test_rows_bound_before_give_the_same_answer(case, certs, protocol, truth):
    options = {"stress": LOOSE, "baselines": CHEAP}
    bound = bind(case.model, case.X_test, protocol)
    assert (
        evaluate(certs, case.model, bound, truth, **options).to_dict()
        == evaluate(certs, case.model, case.X_test, truth, **options).to_dict()
    )


@pytest.mark.parametrize("family", ["lightgbm", "random_forest"])
def test_no_engine_changes_the_answer(family):
    case = pipelines.fitted("credit_g", family, "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    certs = audit(case.model, case.X_test.iloc[:120], protocol, engine="blackbox")
    options = {"stress": LOOSE, "baselines": Baselines(2, resamples=100)}
    by_engine = [evaluate(certs, case.model, case.X_test, engine=e, **options).to_dict() for e in ("auto", "blackbox")]
    assert by_engine[0] == by_engine[1]


def test_the_same_question_has_the_same_answer(case, certs, evaluation, truth):
    again = evaluate(
        certs,
        case.model,
        case.X_test.iloc[::-1],
        truth.iloc[::-1],
        validation=(case.X_test.iloc[200:], truth.iloc[200:]),
        stress=LOOSE,
        baselines=Baselines(random_orders=2, resamples=300),
        engine="blackbox",
    )
    assert again.to_dict() == evaluation.to_dict()


@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_rows_may_come_as_another_kind_of_table(case, certs, truth, library):
    pytest.importorskip(library)
    ids = [int(i) for i in case.X_test.index]
    table, labels = pa.Table.from_pandas(case.X_test, preserve_index=False), pa.array(truth.tolist())
    if library == "polars":
        polars = pytest.importorskip("polars")
        table, labels = polars.from_arrow(table), polars.Series(truth.tolist())
    options = {"stress": LOOSE, "baselines": CHEAP}
    other = evaluate(certs, case.model, table, ids=ids, y=labels, **options)
    assert other.to_dict() == evaluate(certs, case.model, case.X_test, y=truth, **options).to_dict()


def test_group_shap_joins_when_asked(case, certs):
    pytest.importorskip("shap")
    found = evaluate(certs, case.model, case.X_test, stress=LOOSE, baselines=Baselines(0, shap_rows=30, resamples=100))
    assert found.report.result("group_shap").rows == 30


def test_many_classes_and_the_raw_space():
    case = pipelines.fitted("credit_g_property", "lightgbm", "raw")
    protocol = Protocol.fit(case.model, case.X_train, space="raw")
    X = case.X_test.iloc[:120]
    found = evaluate(
        audit(case.model, X, protocol, engine="blackbox"),
        case.model,
        X,
        stress=LOOSE,
        baselines=Baselines(1, resamples=100),
    )
    assert found.report.rows == 120
    assert {"negative_entropy", "negative_energy"} <= {line.score for line in found.report.results}


def test_wrong_requests_are_refused(case, certs):
    other = pipelines.fitted("credit_g", "logistic", "transformed").model
    with pytest.raises(ModelError, match="give the model that was audited"):
        evaluate(certs, other, case.X_test)
    with pytest.raises(DataError, match="190 of the 200 audited rows are not among them"):
        evaluate(certs, case.model, case.X_test.iloc[:10])
    with pytest.raises(DataError, match="one label for each of the 400 rows given, got 3"):
        evaluate(certs, case.model, case.X_test, y=["good", "bad", "good"])
    with pytest.raises(DataError, match="resamples must be at least 100"):
        Baselines(resamples=0)
    with pytest.raises(DataError, match="must be at least 0, got -1 and 0"):
        Baselines(random_orders=-1)


# --- the commands --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory, case, certs, truth):
    path = tmp_path_factory.mktemp("evaluate")
    joblib.dump(case.model, path / "model.joblib")
    case.X_test.assign(risk=truth).iloc[:200].to_parquet(path / "test.parquet")
    case.X_test.assign(risk=truth).iloc[200:].to_parquet(path / "valid.parquet")
    case.X_train.to_parquet(path / "train.parquet")
    pd.DataFrame({"event": [1, 1, 2], "field": ["age", "job", "checking_status"]}).to_csv(
        path / "outages.csv", index=False
    )
    certs.save(path / "audit")
    return path


def run(folder, *words):
    common = ["--model", folder / "model.joblib", "--trust", "--data", folder / "test.parquet", "--target", "risk"]
    return CliRunner().invoke(app, [str(word) for word in [*words, *common]])


def test_evaluate_command(folder, tmp_path):
    options = ["--tau-confidence", 0.7, "--tau-collapse", 0.3, "--validation", folder / "valid.parquet"]
    files = ["--out", tmp_path / "e.json", "--out", tmp_path / "e.csv"]
    done = run(folder, "evaluate", folder / "audit", *options, *files)
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "e.json").read_text())
    assert document["verdict"]["sentence"] in done.stdout
    assert document["report"]["orientation_source"] == "validation rows"
    assert document["predictive"]["rows"] == 200
    assert "permutation_order" in set(pd.read_csv(tmp_path / "e.csv")["score"])


@pytest.mark.parametrize("source", ["audit", "audit/protocol-*.json"])
def test_labels_command(folder, tmp_path, source):
    (declared,) = folder.glob(source)
    done = run(folder, "evaluate", "labels", declared, "--tau-confidence", 0.7, "--out", tmp_path / "labels.parquet")
    assert done.exit_code == 0, done.output
    table = pq.read_table(tmp_path / "labels.parquet").to_pandas()
    assert f"{int(table['brittle'].sum()):8d}  brittle rows" in done.stdout
    assert "Label-noise ceiling" in done.stdout


def test_labels_command_with_an_outage_log(folder, tmp_path):
    done = run(
        folder,
        "evaluate",
        "labels",
        folder / "audit",
        "--outages",
        folder / "outages.csv",
        "--out",
        tmp_path / "l.csv",
    )
    assert done.exit_code == 0, done.output
    assert {"kappa_outages", "flip_outages"} <= set(pd.read_csv(tmp_path / "l.csv").columns)


def test_labels_command_with_markers(folder, tmp_path):
    words = ["--outages", folder / "train.parquet", "--markers", "no checking,no known savings"]
    done = run(folder, "evaluate", "labels", folder / "audit", *words)
    assert done.exit_code == 0, done.output
    (tmp_path / "markers.json").write_text(json.dumps({"checking_status": ["no checking"]}))
    words = ["--outages", folder / "train.parquet", "--markers", tmp_path / "markers.json"]
    assert run(folder, "evaluate", "labels", folder / "audit", *words).exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--markers", "?"], "--markers has no effect without --outages; give --outages too"),
        (["--out", "labels.xlsx"], "must end in .parquet or .csv"),
        (["--rule", "some"], "rule of a stress must be one of"),
    ],
)
def test_wrong_options_are_refused(folder, words, message):
    done = run(folder, "evaluate", "labels", folder / "audit", *words)
    assert isinstance(done.exception, FragilityError)
    assert message in str(done.exception)
