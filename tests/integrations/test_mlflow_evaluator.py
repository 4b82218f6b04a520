"""The evaluator `fragility` of `mlflow.models.evaluate`: flavours of models, thresholds, artefacts, settings."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run

import fragility as fg
from fragility.base.errors import DataError, FragilityError, ModelError, ProtocolError

NUMBERS = ["duration", "credit_amount", "age"]
BOTH: dict[str, object] = {"protocol": None, "train": None}


def evaluate(mlflow, model, case, settings, **more):
    given = {"data": case.data, "targets": "risk", "model_type": "classifier", "evaluators": ["fragility"]}
    return mlflow.models.evaluate(model, **(given | {"evaluator_config": {"fragility": settings}} | more))


def download(mlflow, result, path: str, home: Path) -> Path:
    found = mlflow.artifacts.download_artifacts(run_id=result.run_id, artifact_path=path, dst_path=str(home))
    return Path(found)


def test_mlflow_finds_the_evaluator(tracking) -> None:
    assert "fragility" in tracking.models.list_evaluators()


def test_the_evaluation_is_the_audit(tracking, address, case, tmp_path) -> None:
    result = evaluate(tracking, address, case, {"protocol": case.protocol})
    certs = fg.audit(case.model, case.rows, case.protocol, progress=False)
    run_id = fg.log_audit(certs)
    logged, plain = tracking.get_run(result.run_id).data, tracking.get_run(run_id).data
    assert logged.metrics == plain.metrics == result.metrics
    own = {key: value for key, value in plain.tags.items() if key.startswith("fragility/")}
    assert own.items() <= logged.tags.items() and plain.params.items() <= logged.params.items()
    assert result.artifacts["fragility/certificates"].content.table.equals(certs.table)


def test_artefacts_download_and_the_command_line_accepts_them(
    tracking, store, address, case, tmp_path, monkeypatch
) -> None:
    result = evaluate(tracking, address, case, {"train": case.train.assign(risk="good")})
    home = download(tracking, result, "fragility", tmp_path)
    assert fg.Protocol.load(home / "protocol.json") == case.protocol
    case.data.to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    words = ["--model", address, "--data", tmp_path / "rows.parquet", "--target", "risk"]
    done = run("verify", home / "certificates", *words)
    assert done.code == 0 and "every claim of all 200 certificates holds" in done.out, done.err
    page = (home / "report.html").read_text()
    assert f"fragility verify certificates --model {address} --data DATA" in page
    (home / "certificates" / "manifest.json").write_text("{}")
    assert run("verify", home / "certificates", *words).code == 2


def test_thresholds_of_mlflow_pass_and_fail(tracking, address, case) -> None:
    from mlflow.models import MetricThreshold
    from mlflow.models.evaluation.validation import ModelValidationFailedException

    own = {"protocol": case.protocol, "min_confidence": 0.8, "lattice": True}  # the upper end then leaves nothing open
    result = evaluate(tracking, address, case, own)
    share, upper = (result.metrics[f"fragility/{name}"] for name in ("flips_early", "flips_early_high"))
    assert 0.0 < share < upper < 1.0

    def check(name: str, limit: float, baseline=None, **more: object) -> None:
        threshold = MetricThreshold(**({"threshold": limit, "greater_is_better": False} | more))
        tracking.validate_evaluation_results({f"fragility/{name}": threshold}, result, baseline)

    check("flips_early", share)
    check("flips_early_high", upper)
    with pytest.raises(
        ModelValidationFailedException, match=r"fragility/flips_early_high value threshold check failed"
    ):
        check("flips_early_high", share)
    with pytest.raises(ModelValidationFailedException, match=r"fragility/brittle was missing"):
        check("brittle", 1.0)
    with pytest.raises(ModelValidationFailedException, match=r"minimum absolute change check failed"):
        check("flips_early", 1.0, result, min_absolute_change=0.01)


def test_beside_the_default_evaluator_of_mlflow(tracking, address, case) -> None:
    own = {"protocol": case.protocol, "min_confidence": 0.8}
    settings = {"fragility": own, "default": {"log_model_explainability": False}}
    found = evaluate(tracking, address, case, {}, evaluators=["default", "fragility"], evaluator_config=settings)
    assert {"accuracy_score", "roc_auc", "fragility/flips_early"} <= found.metrics.keys()
    assert {"confusion_matrix", "fragility/report"} <= found.artifacts.keys()
    linked = {own.key: own.value for own in tracking.get_logged_model(address.removeprefix("models:/")).metrics}
    assert linked["fragility/flips_early"] == found.metrics["fragility/flips_early"]
    about = [tracking.MlflowClient().get_metric_history(found.run_id, name) for name in ("roc_auc", "fragility/rows")]
    assert {(own.model_id, own.dataset_name) for own in about[0]} == {
        (own.model_id, own.dataset_name) for own in about[1]
    }


def test_whoever_names_no_evaluator_is_not_disturbed(tracking, address, case) -> None:
    """MLflow then asks all that are installed, with settings that may be another's."""
    for config in ({"log_model_explainability": False}, {"default": {"log_model_explainability": False}}):
        with pytest.warns(UserWarning, match=r"^the evaluator 'fragility' is skipped"):
            found = evaluate(tracking, address, case, {}, evaluators=None, evaluator_config=config)
        assert "accuracy_score" in found.metrics and "fragility/rows" not in found.metrics
    both = {"default": {"log_model_explainability": False}, "fragility": {"protocol": case.protocol}}
    found = evaluate(tracking, address, case, {}, evaluators=None, evaluator_config=both)
    assert {"accuracy_score", "fragility/rows"} <= found.metrics.keys()


@pytest.mark.repeats
@pytest.mark.parametrize("config", [None, {}, {"fragility": {}}])
def test_missing_settings_are_one_sentence(tracking, address, case, config) -> None:
    with (
        pytest.warns(UserWarning) as said,
        pytest.raises(tracking.exceptions.MlflowException, match="could not be evaluated by any of the registered"),
    ):
        evaluate(tracking, address, case, {}, evaluator_config=config)
    assert [str(one.message) for one in said if "fragility" in str(one.message)] == [
        "the evaluator 'fragility' is skipped, because neither 'protocol' nor 'train' is set; give "
        "evaluator_config={'fragility': {'protocol': 'protocol.json'}}, or name the evaluators to use, such as "
        "evaluators='default'"
    ]


@pytest.mark.parametrize(
    ("settings", "kind", "sentence"),
    [
        ({"protcol": 1, "name": "a"}, DataError, r"^the evaluator 'fragility' has no setting 'protcol'; it has pro"),
        ({"name": "a"}, DataError, r"^the evaluator 'fragility' needs either .* or .*, got neither; for example "),
        (BOTH, DataError, r"^the evaluator 'fragility' needs either .*, got both; for example evaluator_config="),
        ({"protocol": 7}, ProtocolError, r"^'protocol' must be a Protocol, its plain form or its file, got int$"),
        ({"protocol": "nothing.json"}, FragilityError, r"nothing\.json"),
        ({"train": "nothing.parquet"}, FragilityError, r"nothing\.parquet"),
        ({"protocol": None, "ids": [1]}, DataError, r"^'ids' must have one id per row: 200 rows, got 1 ids$"),
        ({"protocol": None, "rules": "nothing.toml"}, DataError, r"^cannot read the rules nothing\.toml"),
        ({"protocol": None, "name": "a/b"}, DataError, r"^name must consist of letters, .* and blanks, got 'a/b'; "),
        ({"protocol": None, "rules": 7}, DataError, r"^'rules' must be a path or of type Gate, got int$"),
        ({"protocol": None, "against": 7}, DataError, r"^'against' must be a path or of type Audit, got int$"),
        ({"protocol": None, "min_confidence": "high"}, DataError, r"^'min_confidence' must lie within 0 and 1, got 'h"),
        ({"protocol": None, "stress": {}}, ProtocolError, r"^the stress lacks the field 'draw_format'"),
        ({"protocol": None, "stress": "hard"}, ProtocolError, r"^the stress must be an object, got 'hard'$"),
        ({"protocol": None, "by": ["height"]}, DataError, r"height"),
        ({"protocol": None, "modes": ["bent"]}, FragilityError, r"bent"),
    ],
)  # fmt: skip
def test_wrong_settings_are_one_sentence(tracking, address, case, settings, kind, sentence: str) -> None:
    own = {"protocol": case.protocol, "train": case.train}  # None stands for the one of the case
    given = {name: own[name] if name in own and value is None else value for name, value in settings.items()}
    with pytest.raises(kind, match=sentence) as caught:
        evaluate(tracking, address, case, given)
    assert "\n" not in str(caught.value)
    assert not [key for key in tracking.last_active_run().data.metrics if key.startswith("fragility")]


def test_predictions_alone_do_not_do(tracking, case) -> None:
    with pytest.raises(DataError, match=r"^the evaluator 'fragility' predicts modified rows, so it needs the model"):
        evaluate(
            tracking, None, case, {"protocol": case.protocol}, data=case.data.assign(told="good"), predictions="told"
        )


def test_other_types_of_models_are_left_to_others(tracking, address, case) -> None:
    with pytest.raises(tracking.exceptions.MlflowException, match="could not be evaluated by any"):
        evaluate(tracking, address, case, {"protocol": case.protocol}, model_type="regressor")


def test_twice_in_one_run(tracking, address, case) -> None:
    with tracking.start_run() as active:
        first = evaluate(tracking, address, case, {"protocol": case.protocol})
        again = evaluate(tracking, address, case, {"protocol": case.protocol})
        assert first.metrics == again.metrics and first.run_id == again.run_id == active.info.run_id
        with pytest.raises(DataError, match=r"holds another audit as 'fragility'.*; give this one another name, or"):
            evaluate(tracking, address, case, {"protocol": case.protocol}, data=case.data[:100])
        named = evaluate(tracking, address, case, {"protocol": case.protocol, "name": "half"}, data=case.data[:100])
    assert named.metrics["half/rows"] == 100 and "half/report" in named.artifacts
    assert tracking.get_run(active.info.run_id).data.metrics["fragility/rows"] == 200


def test_everything_that_can_be_asked_for(tracking, address, case, tmp_path) -> None:
    rules = fg.Gate(
        (
            fg.Rule(measure="flips_early", at_most=1.0, by="age:30"),
            fg.Rule(measure="brittle", at_most=0.0),
            fg.Rule(measure="accuracy", at_least=0.1),
            fg.Rule(measure="exposure", mode="wrong", allowance=0.1),
        ),
        min_confidence=0.8,
    ).save(tmp_path / "gate.toml")
    earlier = fg.audit(case.model, case.rows, case.protocol, modes=True, progress=False).save(tmp_path / "earlier")
    case.protocol.save(tmp_path / "protocol.json")
    settings = {
        "protocol": str(tmp_path / "protocol.json"), "rules": str(rules), "against": str(earlier), "modes": True,
        "rates": 0.05, "lattice": True, "intervals": 5, "stress": fg.Stress(tau_confidence=0.8).to_dict(),
        "min_confidence": 0.8, "by": "housing", "show_values": True, "engine": "blackbox",
    }  # fmt: skip
    found = evaluate(tracking, address, case, settings)
    wanted = {
        "lost",
        "brittle",
        "confident_mean_exposure_wrong",
        "confident_mean_exposure_noisy",
        "gate_passed",
        "gate_failed",
    }
    assert {f"fragility/{name}" for name in wanted} <= found.metrics.keys()
    verdicts = found.artifacts["fragility/gate"].content
    assert [one["measure"] for one in verdicts["verdicts"]] == ["flips_early"] * 2 + ["brittle", "accuracy", "exposure"]
    assert verdicts["outcome"] == "fail" and found.metrics["fragility/gate_failed"] >= 1.0
    page = found.artifacts["fragility/report"].content
    assert "housing" in page and tracking.get_run(found.run_id).data.params["fragility/engine"] == "blackbox"
    home = download(tracking, found, "fragility", tmp_path / "back")
    assert fg.verify(home / "certificates", fg.load_model(address, trust=True), case.rows)
    assert json.loads((home / "gate.json").read_text())["outcome"] == "fail"


@pytest.mark.repeats
@pytest.mark.parametrize("stress", [True, 0.2, fg.Stress((fg.Donor(0.5),), tau_confidence=0.8)])
def test_stress_is_declared_in_several_ways(tracking, address, case, stress) -> None:
    settings = {"train": case.train, "stress": stress, "min_confidence": 0.8}
    declared = stress
    if not isinstance(stress, fg.Stress):
        declared = replace(fg.Stress() if stress is True else fg.Stress.at(stress), tau_confidence=0.8)
    labels = fg.label_brittle(case.model, case.rows, case.protocol, declared, donors=case.train, progress=False)
    found = evaluate(tracking, address, case, settings)
    assert found.metrics["fragility/brittle"] == pytest.approx(labels.brittle.sum() / labels.high_confidence.sum())


def test_an_evaluation_is_saved_and_loaded(tracking, address, case, tmp_path) -> None:
    result = evaluate(tracking, address, case, {"protocol": case.protocol})
    result.save(str(tmp_path / "saved"))
    loaded = type(result).load(str(tmp_path / "saved"))
    assert loaded.metrics == result.metrics
    certs = loaded.artifacts["fragility/certificates"].content
    assert fg.verify(certs, case.model, case.rows)
    fetched = type(result.artifacts["fragility/certificates"])(result.artifacts["fragility/certificates"].uri).content
    assert fetched.manifest.root_digest == certs.manifest.root_digest
    assert loaded.artifacts["fragility/protocol"].content["format"]


def test_targets_that_are_no_classes_are_said(tracking, address, case) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = evaluate(tracking, address, case, {"protocol": case.protocol}, data=case.data.assign(risk=1))
    assert found.metrics["fragility/rows"] == 200
    assert any(
        "the target 1 is no class of the model, whose classes are 'bad', 'good'" in str(one.message) for one in said
    )


def test_ids_are_given_or_taken_from_the_index(tracking, address, case) -> None:
    numbered = [f"loan-{place}" for place in range(len(case.rows))]
    for settings, wanted in (({}, case.rows.index.tolist()), ({"ids": numbered}, numbered)):
        found = evaluate(tracking, address, case, {"protocol": case.protocol, "show_values": True} | settings)
        assert found.artifacts["fragility/certificates"].content.table.column("id").to_pylist() == wanted


# --- flavours -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def numeric(case):
    """The numeric fields, with classes 0 and 1."""
    codes = lambda labels: (labels == "good").astype(int)  # noqa: E731
    y = fg.load_credit_g()[1].astype(str)
    return case.train[NUMBERS], codes(y[:300]), case.rows[NUMBERS], codes(case.labels)


@pytest.mark.repeats
@pytest.mark.parametrize("flavour", ["lightgbm", "lightgbm-booster", "xgboost", "xgboost-booster", "catboost"])
def test_boosters_are_read_natively_and_verify_with_their_folder(tracking, numeric, flavour, tmp_path) -> None:
    train, y, rows, targets = numeric
    library = flavour.split("-")[0]
    pytest.importorskip(library)
    flavours = __import__(f"mlflow.{library}", fromlist=["log_model"])
    if library == "lightgbm":
        import lightgbm

        model = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(train, y)
    elif library == "xgboost":
        import xgboost

        model = xgboost.XGBClassifier(n_estimators=5, max_depth=3).fit(train, y)
    else:
        import catboost

        model = catboost.CatBoostClassifier(iterations=5, verbose=0, allow_writing_files=False).fit(train, y)
    if flavour.endswith("booster"):
        model = model.booster_ if library == "lightgbm" else model.get_booster()
    signature = tracking.models.infer_signature(train)
    with tracking.start_run():
        address = flavours.log_model(model, name=flavour, signature=signature, pip_requirements=[]).model_uri
        found = tracking.models.evaluate(
            address, rows.assign(y=targets), targets="y", model_type="classifier", evaluators="fragility",
            evaluator_config={"train": train, "min_confidence": 0.7},
        )  # fmt: skip
    certs = found.artifacts["fragility/certificates"].content
    loaded = fg.load_model(address, trust=True)
    assert certs.engine == "trees" and certs.manifest.model.fingerprint == loaded.fingerprint
    home = download(tracking, found, "fragility/certificates", tmp_path)
    assert fg.verify(home, loaded, rows)


def test_a_function_is_asked_as_a_black_box(tracking, numeric, tmp_path) -> None:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from sklearn.linear_model import LogisticRegression

    train, y, rows, targets = numeric
    fitted = LogisticRegression(max_iter=1000).fit(train, y)

    class Own(tracking.pyfunc.PythonModel):
        def predict(self, context, model_input, params=None):
            return pd.DataFrame(fitted.predict_proba(model_input), columns=["0", "1"])

    signature = tracking.models.infer_signature(train)
    named = ModelSignature(signature.inputs, Schema([ColSpec("double", "0"), ColSpec("double", "1")]))
    addresses = []
    with tracking.start_run():
        for name, declared in (("bare", signature), ("named", named)):
            logged = tracking.pyfunc.log_model(name=name, python_model=Own(), signature=declared, pip_requirements=[])
            addresses.append(logged.model_uri)

    def ask(model, **settings):
        return tracking.models.evaluate(
            model, rows.assign(y=targets), targets="y", model_type="classifier", evaluators="fragility",
            evaluator_config={"train": train} | settings,
        )  # fmt: skip

    with pytest.raises(ModelError, match=r"^MLflow passes the model as a function, which does not name the classes"):
        ask(addresses[0])
    wanted = fg.audit(fitted, rows, fg.Protocol.fit(fitted, train), engine="blackbox", lattice=False, progress=False)
    for model, settings in ((addresses[0], {"classes": [0, 1]}), (addresses[1], {})):
        found = ask(model, **settings)
        certs = found.artifacts["fragility/certificates"].content
        assert certs.engine == "blackbox"
        budgets = [one.table.column("flip_budget").to_pylist() for one in (certs, wanted)]
        assert budgets[0] == budgets[1]
        loaded = fg.load_model(model, trust=True, classes=settings.get("classes"))
        assert certs.manifest.model.fingerprint == loaded.fingerprint
        assert fg.verify(download(tracking, found, "fragility/certificates", tmp_path / model[-8:]), loaded, rows)
    found = ask(lambda table: fitted.predict_proba(table), classes=[0, 1])  # not logged anywhere
    assert found.artifacts["fragility/certificates"].content.table.column("flip_budget").to_pylist() == budgets[1]
    with pytest.raises(ModelError, match=r"one value per row, such as a label, and a certificate needs a probability"):
        ask(lambda table: fitted.predict(table), classes=[0, 1])


@pytest.mark.slow
def test_a_graph_is_taken_from_the_store(tracking, numeric) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    pytest.importorskip("onnxruntime")
    import mlflow.onnx
    from sklearn.tree import DecisionTreeClassifier

    train, y, rows, targets = numeric
    fitted = DecisionTreeClassifier(max_depth=3, random_state=0).fit(train.to_numpy(np.float32), y)
    graph = skl2onnx.to_onnx(fitted, train.to_numpy(np.float32)[:1], options={"zipmap": False})
    with tracking.start_run():
        address = mlflow.onnx.log_model(graph, name="graph", pip_requirements=[]).model_uri
        found = tracking.models.evaluate(
            address, rows.to_numpy(np.float32), targets=targets.to_numpy(), model_type="classifier",
            evaluators="fragility", evaluator_config={"train": train.to_numpy(np.float32), "min_confidence": 0.6},
        )  # fmt: skip
    certs = found.artifacts["fragility/certificates"].content
    assert certs.manifest.model.fingerprint == fg.load_model(address).fingerprint and certs.engine == "trees"


@pytest.mark.slow
def test_a_network_is_taken_out_with_what_it_returns(tracking, numeric) -> None:
    torch = pytest.importorskip("torch")
    import mlflow.pytorch

    train, _, rows, targets = (each.to_numpy(np.float32) for each in numeric)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    declared = {"classes": [0, 1], "output": "logits"}
    with tracking.start_run():
        saved = {"serialization_format": "pickle", "pip_requirements": []}
        address = mlflow.pytorch.log_model(network, name="network", **saved).model_uri
        found = tracking.models.evaluate(
            address, rows, targets=targets.astype(int), model_type="classifier", evaluators="fragility",
            evaluator_config={"train": train, "min_confidence": 0.5} | declared,
        )  # fmt: skip
    certs, loaded = found.artifacts["fragility/certificates"].content, fg.load_model(address, trust=True, **declared)
    assert certs.engine == "neural" and certs.manifest.model.fingerprint == loaded.fingerprint
    assert fg.verify(certs, loaded, rows)


def test_an_array_has_no_index(tracking, numeric) -> None:
    from mlflow.sklearn import log_model
    from sklearn.linear_model import LogisticRegression

    train, y, rows, targets = numeric
    fitted = LogisticRegression(max_iter=1000).fit(train.to_numpy(), y)
    with tracking.start_run():
        address = log_model(fitted, name="array", pip_requirements=[]).model_uri
        found = tracking.models.evaluate(
            address, rows.to_numpy(), targets=targets.to_numpy(), model_type="classifier", evaluators="fragility",
            evaluator_config={"train": train.to_numpy(), "ids": list(range(1000, 1200)), "show_values": True},
        )  # fmt: skip
    certs = found.artifacts["fragility/certificates"].content
    assert certs.table.column("id").to_pylist() == list(range(1000, 1200))
    assert fg.verify(certs, fitted, rows.to_numpy(), ids=range(1000, 1200))
