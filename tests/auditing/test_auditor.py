"""An auditor that is made ready once certifies rows as `audit` does, whatever the batch, the thread or the process."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import disagreeing_engine
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import BLAS, FAMILIES, NATIVE, Case, fitted, split
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import fragility as fg
from fragility.auditing import auditor as auditor_module
from fragility.audits import Certificates
from fragility.base.errors import DataError, ModelError, ProtocolError
from fragility.engines import choice
from fragility.engines.engine import Values
from fragility.engines.oracle import ModelOracle
from fragility.evidence.modes import NO_MODES
from fragility.models import Model
from fragility.protocol import bind

pytest.importorskip("numba")
ROWS = 40
CASES = [(family, "transformed") for family in FAMILIES] + [(family, "raw") for family in NATIVE]


@cache
def ready(family: str, space: str = "transformed") -> tuple[Case, fg.Protocol, fg.Auditor]:
    case = fitted("credit_g", family, space)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        protocol = fg.Protocol.fit(case.model, case.X_train, depth=5, severities=(0.25, 0.5, 1.0))
    return case, protocol, fg.Auditor(case.model, protocol)


def audit(case: Case, rows: Any, protocol: fg.Protocol, **options: Any) -> Certificates:
    return fg.audit(case.model, rows, protocol, lattice=False, progress=False, **options)


def assert_same(one: Certificates, other: Certificates, family: str) -> None:
    """The same bytes; only where a dot product's rounding depends on its batch, the same up to that rounding."""
    if family not in BLAS:
        assert one.table.equals(other.table)
        assert one.manifest == other.manifest
        return
    assert one.manifest.input == other.manifest.input and one.manifest.engine.name == other.manifest.engine.name
    for name in ("predicted", "flip_budget", "thresholds", "path", "path_predicted"):
        np.testing.assert_array_equal(getattr(one.claims, name), getattr(other.claims, name), err_msg=name)
    for name in ("confidence", "margin", "path_margin", "one_step_drop"):
        np.testing.assert_allclose(getattr(one.claims, name), getattr(other.claims, name), atol=1e-9, err_msg=name)


def records_of(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as a service receives them: Python values, None where one is missing."""
    plain = rows.astype(object).where(rows.notna(), None)
    return plain.to_dict("records")


# --- the certificates of an audit ---------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "space"), CASES)
def test_certificates_are_those_of_an_audit_for_every_batch(family: str, space: str) -> None:
    case, protocol, auditor = ready(family, space)
    rows = case.X_test[:ROWS]
    whole = audit(case, rows, protocol)
    assert auditor.engine == whole.engine
    for size in (1, 3, ROWS):
        for start in range(0, min(ROWS, 2 * size), size):
            part = rows[start : start + size]
            certs = auditor.certify(part)
            assert_same(certs, audit(case, part, protocol), family)
            assert certs.manifest.root_digest == certs.take(range(len(part))).manifest.root_digest
            digests = certs.table.column("digest").to_pylist()
            if family not in BLAS:
                assert digests == whole.table.column("digest").to_pylist()[start : start + size]


@pytest.mark.repeats
@pytest.mark.parametrize("family", ["lightgbm", "xgboost", "random_forest"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_batches_of_any_size_and_order_give_the_same_bytes(family: str, data: st.DataObject) -> None:
    case, protocol, auditor = ready(family)
    places = data.draw(st.lists(st.integers(0, 199), min_size=1, max_size=100, unique=True))
    rows = case.X_test.iloc[places]
    assert_same(auditor.certify(rows), audit(case, rows, protocol), family)


@pytest.mark.parametrize("family", ["lightgbm", "logistic"])
def test_many_rows_are_certified_as_well(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, protocol, auditor = ready(family)
    monkeypatch.setattr(auditor_module, "FEW_ROWS", 16)
    assert_same(auditor.certify(case.X_test[:50]), audit(case, case.X_test[:50], protocol), family)


@pytest.mark.parametrize(
    "options", [{"lattice": True}, {"lattice": None}, {"rates": 0.05}, {"modes": True}, {"intervals": ["duration"]}]
)
def test_blocks_are_those_of_an_audit(options: dict[str, Any]) -> None:
    case, protocol, _ = ready("lightgbm")
    auditor = fg.Auditor(case.model, protocol, **options)
    rows = case.X_test[:6]
    expected = fg.audit(case.model, rows, protocol, **({"lattice": False} | options))
    assert_same(auditor.certify(rows), expected, "lightgbm")


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_a_black_box_is_asked_as_by_an_audit(space: str) -> None:
    case, protocol, _ = ready("lightgbm", space)
    auditor = fg.Auditor(case.model, protocol, engine="blackbox")
    assert auditor.engine == "blackbox"
    for rows in (case.X_test[:1], case.X_test[1:6]):
        assert_same(auditor.certify(rows), audit(case, rows, protocol, engine="blackbox"), "lightgbm")
    bound = auditor.bind(case.X_test[:2])
    assert isinstance(auditor.choose_oracle(bound), ModelOracle)


def test_calibrated_boosters_and_thresholds() -> None:
    lightgbm, case = pytest.importorskip("lightgbm"), fitted("credit_g", "lightgbm", "transformed")
    booster = lightgbm.LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1, random_state=0)
    transform, y = case.model[:-1], split("credit_g").y_train
    for model, decision in ((CalibratedClassifierCV(booster, cv=3), None), (booster, 0.7)):
        model = make_pipeline(transform, model.fit(transform.transform(case.X_train), y))
        protocol = fg.Protocol.fit(model, case.X_train, decision=decision)
        auditor = fg.Auditor(model, protocol)
        for rows in (case.X_test[:1], case.X_test[5:25]):
            assert_same(auditor.certify(rows), fg.audit(model, rows, protocol, lattice=False), "lightgbm")


def test_boosters_without_labels() -> None:
    """A booster has no predict that names classes: the decision rule gives them, and the model is asked once."""
    xgboost, data = pytest.importorskip("xgboost"), split("credit_g")
    X = data.X_train[["duration", "age", "credit_amount"]].astype(float)
    matrix = xgboost.DMatrix(X, label=data.y_train.astype("category").cat.codes)
    booster = xgboost.train({"objective": "binary:logistic", "nthread": 1}, matrix, 20)
    protocol = fg.Protocol.fit(booster, X)
    auditor = fg.Auditor(booster, protocol)
    assert auditor.engine == "trees"
    for rows in (X[:1], X[1:30]):
        assert_same(auditor.certify(rows), fg.audit(booster, rows, protocol, lattice=False), "xgboost")


def test_one_row_takes_one_call_of_the_model_and_of_its_preprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    case, _, auditor = ready("random_forest")
    calls: list[str] = []
    for step, method in ((case.model[-1], "predict_proba"), (case.model[0], "transform")):  # predict asks the first
        own = getattr(step, method)
        monkeypatch.setattr(step, method, lambda X, own=own, name=method: (calls.append(name), own(X))[1])
    auditor.certify(case.X_test[:1])
    assert sorted(calls) == ["predict_proba", "transform"]
    calls.clear()
    bound = auditor.bind(case.X_test[1:2])
    auditor.certify(bound)
    assert not auditor.choose_oracle(bound).asks_model(bound.dense()).any()
    assert sorted(calls) == ["predict_proba", "transform"]


def test_models_fitted_on_bare_arrays() -> None:
    data = split("credit_g")
    X = data.X_train[["duration", "age", "credit_amount"]].to_numpy(dtype=float)
    model = RandomForestClassifier(10, random_state=0).fit(X, data.y_train)
    protocol = fg.Protocol.fit(model, X)
    auditor = fg.Auditor(model, protocol)
    expected = fg.audit(model, X[:2], protocol, lattice=False)
    assert_same(auditor.certify(X[:2]), expected, "random_forest")
    records = [dict(zip(("x0", "x1", "x2"), row.tolist(), strict=True)) for row in X[:2]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no names for a model that knows none
        assert_same(auditor.certify(records), expected, "random_forest")


def test_without_known_values_the_first_rows_make_it_ready() -> None:
    case, protocol, _ = ready("lightgbm")
    X = sp.csr_matrix(case.model[:-1].transform(case.X_train))
    model = LogisticRegression(max_iter=400).fit(X, split("credit_g").y_train)
    sparse = fg.Protocol.fit(model, X)
    assert sparse.modes.catalogue == ()
    auditor = fg.Auditor(model, sparse)
    assert auditor.engine == "auto"
    for rows in (X[:2], X[2:3]):
        assert_same(auditor.certify(rows), fg.audit(model, rows, sparse, lattice=False), "logistic")
        assert auditor.engine == "linear"
    bare = fg.Protocol.from_dict(protocol.to_dict() | {"modes": NO_MODES.to_dict(), "domains": []})
    first = fg.Auditor(case.model, bare)
    assert first.engine == "auto"
    for start in (0, 2):
        rows = case.X_test[start : start + 2]
        assert_same(first.certify(rows), audit(case, rows, bare), "lightgbm")
    assert first.engine == "trees"


# --- rows as a service receives them ------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "space"), CASES)
def test_mappings_are_rows(family: str, space: str) -> None:
    case, protocol, auditor = ready(family, space)
    rows = case.X_test[:5]
    records = records_of(rows)
    assert_same(auditor.certify(records), audit(case, rows, protocol), family)
    assert_same(auditor.certify(records[3], ids=[3]), audit(case, rows[3:4], protocol), family)
    backwards = dict(reversed(records[3].items()))
    assert_same(auditor.certify(backwards, ids=["x"]), audit(case, rows[3:4], protocol, ids=["x"]), family)


def test_values_of_a_mapping_take_the_type_of_their_field() -> None:
    case, protocol, auditor = ready("lightgbm")
    record = records_of(case.X_test[:1])[0]
    expected = auditor.certify(record)
    for other in (float(record["duration"]), np.int32(record["duration"]), np.float64(record["duration"])):
        assert_same(auditor.certify(record | {"duration": other}), expected, "lightgbm")
    missing = auditor.certify(record | {"duration": None, "purpose": None})
    for gap in (float("nan"), pd.NA):
        assert_same(auditor.certify(record | {"duration": gap, "purpose": gap}), missing, "lightgbm")
    frame = case.X_test[:1].astype({"duration": float})
    frame[["duration", "purpose"]] = np.nan
    assert_same(missing, audit(case, frame, protocol), "lightgbm")
    assert missing[0].digest != expected[0].digest


@pytest.mark.parametrize("family", ["lightgbm", "hist_gradient_boosting"])
def test_decimals_beyond_whole_numbers_stay_what_they_are(family: str) -> None:
    """JSON writes 1e18 for a number that is no count: it must not become a whole number of which digits are lost."""
    data = split("credit_g")
    X = data.X_train[["duration", "age", "credit_amount"]]
    model = make_pipeline(FunctionTransformer(), fitted("credit_g", family, "transformed").model[-1].__class__())
    model.fit(X, data.y_train)
    protocol = fg.Protocol.fit(model, X, space="raw", depth=3)
    auditor = fg.Auditor(model, protocol)
    rows = X[:1].astype({"age": float}).assign(age=1e18)
    expected = fg.audit(model, rows, protocol, lattice=False)
    assert_same(auditor.certify(records_of(rows)), expected, family)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda r: {k: v for k, v in r.items() if k != "age"},
            "the row lacks the field 'age'; give every field, and None",
        ),
        (lambda r: {}, "the row lacks the fields 'checking_status', 'duration', .* and 15 more; give every field"),
        (
            lambda r: {("alter" if k == "age" else k): v for k, v in r.items()},
            r"the row lacks the field 'age' \(it has 'alter', which the protocol does not know\); give every field",
        ),
        (lambda r: r | {"class": 1}, "the row has the field 'class', which the protocol does not know; leave out"),
        (lambda r: [r, r | {"a": 1, "b": 2}], "row 1 has the fields 'a', 'b', which the protocol does not know"),
        (lambda r: [r, "x"], "row 1 must be a mapping from fields to values, got str"),
        (lambda r: r | {"age": "old"}, "column 'age' held whole numbers in the training data, now it holds text"),
        (lambda r: r | {"age": float("inf")}, "column 'age' holds an infinite value"),
        (lambda r: r | {"age": 10**25}, "column 'age' holds a whole number of 26 digits, beyond 64 bits; give it as a"),
        (lambda r: r | {"age": 10**400}, "column 'age' holds a whole number of more than 100 digits, beyond 64 bits"),
        (lambda r: r | {"age": 1 + 2j}, "column 'age' held whole numbers .*, now it holds values of no one type"),
        (lambda r: r | {"age": np.complex64(1)}, "column 'age' held whole numbers .*, now it holds values of no one"),
        (lambda r: r | {"purpose": "\ud800"}, r"a text holds the lone surrogate '\\ud800', which no file can"),
        (lambda r: r | {"purpose": 3}, "column 'purpose' held text in the training data, now it holds whole numbers"),
        (lambda r: r | {"purpose": ["car"]}, "column 'purpose' held text in the training data, now it holds values of"),
        (lambda r: [], "at least one row and one column are needed|rows must form a 2-d array"),
        (lambda r: None, "rows must be a pandas, polars or Arrow table or a 2-d array, got NoneType"),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_a_sentence(change: Any, message: str) -> None:
    case, _, auditor = ready("lightgbm")
    with pytest.raises(DataError, match=message):
        auditor.certify(change(records_of(case.X_test[:1])[0]))


@pytest.mark.parametrize("family", ["lightgbm", "catboost"])  # with categorical columns, and with plain ones
def test_lone_surrogates_are_refused_in_every_column(family: str) -> None:
    case, _, auditor = ready(family, "raw")
    with pytest.raises(DataError, match=r"a text holds the lone surrogate '\\ud800', which no file can hold"):
        auditor.certify(records_of(case.X_test[:1])[0] | {"purpose": "\ud800"})


def test_ids_are_checked() -> None:
    case, _, auditor = ready("lightgbm")
    with pytest.raises(DataError, match="one id per row is needed: 2 rows, 1 ids"):
        auditor.certify(case.X_test[:2], ids=["a"])
    with pytest.raises(DataError, match=r"a text holds the lone surrogate '\\ud800', which no file can"):
        auditor.certify(case.X_test[:1], ids=["\ud800"])
    with pytest.raises(DataError, match="ids must be distinct, 'a' appears 2 times"):
        auditor.certify(case.X_test[:2], ids=["a", "a"])


def test_model_and_protocol_must_belong_together() -> None:
    case, protocol, _ = ready("lightgbm")
    other = LogisticRegression().fit(case.X_train[["duration", "age"]], split("credit_g").y_train)
    with pytest.raises(ProtocolError, match="the protocol was made for the columns"):
        fg.Auditor(other, protocol)
    with pytest.raises(ProtocolError, match="a Protocol was expected, got dict"):
        fg.Auditor(case.model, protocol.to_dict())  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="LogisticRegression is not fitted"):
        fg.Auditor(LogisticRegression(), protocol)


# --- nothing is believed that the model contradicts ---------------------------------------------------------


def test_a_model_that_contradicts_itself_is_refused_when_it_is_made_ready() -> None:
    case = fitted("credit_g", "lightgbm", "transformed")
    calls: list[int] = []

    def drifts(rows: pd.DataFrame) -> Any:
        calls.append(1)
        p = np.asarray(case.model.predict_proba(rows))
        return np.clip(p + len(calls) * 1e-3 * np.array([1, -1]), 1e-9, 1) / 1.0

    def normalised(rows: pd.DataFrame) -> Any:
        p = drifts(rows)
        return p / p.sum(axis=1, keepdims=True)

    model = Model.wrap(normalised, classes=[str(c) for c in case.model.classes_])
    raw = fg.Protocol.fit(case.model, case.X_train, space="raw", depth=3)
    with pytest.raises(ModelError, match="gives different answers for the same row"):
        fg.Auditor(model, raw)


@pytest.mark.parametrize("fault", ["margin", "confidence", "states"])
def test_rows_that_the_engine_gets_wrong_are_asked_of_the_model(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, protocol, _ = ready("lightgbm")
    engine = disagreeing_engine.DisagreeingEngine
    monkeypatch.setattr(choice, "NATIVE", (engine,))
    wrong = bind(case.model, case.X_test[:1], protocol).dense()
    monkeypatch.setattr(disagreeing_engine, "FAULT", fault)
    monkeypatch.setattr(disagreeing_engine, "ROWS", wrong)
    auditor = fg.Auditor(case.model, protocol)
    assert auditor.engine == "disagreeing"
    with pytest.warns(UserWarning, match="1 of 3 rows were audited by asking the model instead of the disagreeing"):
        certs = auditor.certify(case.X_test[:3])
    assert certs.manifest.engine.blackbox_rows == 1
    plain = audit(case, case.X_test[:3], protocol, engine="blackbox")
    np.testing.assert_array_equal(certs.claims.path_margin, plain.claims.path_margin)


def test_a_failing_model_is_named_with_the_rows_at_hand() -> None:
    case = fitted("credit_g", "lightgbm", "transformed")

    def refuse_old(rows: pd.DataFrame) -> pd.DataFrame:
        if (rows["age"] > 1000).any():
            raise ValueError("nobody is that old")
        return rows

    model = make_pipeline(FunctionTransformer(refuse_old), *(step for _, step in case.model.steps))
    auditor = fg.Auditor(model, fg.Protocol.fit(model, case.X_train, space="raw", depth=3))
    record = records_of(case.X_test[:1])[0]
    assert len(auditor.certify(record)) == 1
    with pytest.raises(ModelError, match="the model failed on these rows: ValueError: nobody is that old"):
        auditor.certify(record | {"age": 2000})


# --- bound rows and answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "space"), CASES)
def test_bound_rows_and_answers_are_those_of_the_slow_way(family: str, space: str) -> None:
    case, protocol, auditor = ready(family, space)
    rows = case.X_test[:4]
    bound, slow = auditor.bind(rows), bind(case.model, rows, protocol)
    np.testing.assert_array_equal(bound.decided, slow.decided)
    np.testing.assert_allclose(bound.predict(bound.dense()), slow.predict(slow.dense()), atol=1e-12)
    assert bound.ids == slow.ids
    assert_same(auditor.certify(bound), audit(case, rows, protocol), family)
    one, other = auditor.choose_oracle(bound), choice.choose_oracle(slow)
    groups = np.arange(len(protocol.groups))
    for pair in ((ModelOracle(bound), ModelOracle(slow)), (one, other)):
        p, q = (
            next(oracle.answer_values(cells, [Values(cells[::-1].copy(), oracle.rows.column_group, groups)]))
            for oracle, cells in zip(pair, (bound.dense(), slow.dense()), strict=True)
        )
        np.testing.assert_allclose(p, q, atol=1e-9)
    single = auditor.bind(rows[:1])
    taken = Values(bound.dense()[1], single.column_group, groups)
    p = next(auditor.choose_oracle(single).answer_values(single.dense(), [taken]))
    cells = np.where(single.column_group == groups[:, None], bound.dense()[1], single.dense())
    own = bound.predict(cells) if space == "transformed" else None
    if own is not None:
        np.testing.assert_allclose(p[:, 0], own, atol=1e-6)


# --- threads, forks and pickles -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["lightgbm", "logistic", "catboost"])
def test_many_threads_certify_at_once(family: str) -> None:
    case, _, auditor = ready(family)
    alone = [auditor.certify(case.X_test[i : i + 1]) for i in range(ROWS)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: auditor.certify(case.X_test[i % ROWS : i % ROWS + 1]), range(4 * ROWS)))
    for i, certs in enumerate(together):
        assert certs.table.equals(alone[i % ROWS].table) and certs.manifest == alone[i % ROWS].manifest


@pytest.mark.parametrize("family", ["lightgbm", "mlp"])
def test_a_fork_certifies_as_its_parent(family: str) -> None:
    """Threads of torch, which answers for networks, stay behind in the parent: a child must not wait for them."""
    if family == "mlp":
        pytest.importorskip("torch")
    case, _, auditor = ready(family)
    expected = auditor.certify(case.X_test[:1])[0].digest
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            signal.alarm(60)  # ends a child that waits
            os.write(write, auditor.certify(case.X_test[:1])[0].digest.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == expected
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("family", "space"), [("lightgbm", "transformed"), ("logistic", "transformed"), ("xgboost", "raw")]
)
def test_an_auditor_can_be_pickled(family: str, space: str) -> None:
    case, protocol, auditor = ready(family, space)
    again = pickle.loads(pickle.dumps(auditor))
    assert (again.engine, again.protocol.digest) == (auditor.engine, protocol.digest)
    assert again.model.fingerprint == auditor.model.fingerprint
    assert_same(again.certify(case.X_test[:3]), audit(case, case.X_test[:3], protocol), family)


@pytest.mark.parametrize("family", ["lightgbm", "catboost"])
def test_values_that_are_new_are_remembered(family: str) -> None:
    """A category that the protocol does not list is certified as by an audit, and is known from then on."""
    case, protocol, _ = ready(family, "raw")
    auditor = fg.Auditor(case.model, protocol)
    record = records_of(case.X_test[:1])[0]
    for purpose in ("a boat", "a plane", "a boat", "new car"):
        rows = pd.DataFrame([record | {"purpose": purpose}]).astype(dict(case.X_test.dtypes) | {"purpose": object})
        if isinstance(case.X_test["purpose"].dtype, pd.CategoricalDtype):
            known = case.X_test["purpose"].cat.categories
            rows["purpose"] = pd.Categorical([purpose], categories=[*known, *({purpose} - set(known))])
        assert_same(auditor.certify(rows), audit(case, rows, protocol), family)
        assert_same(auditor.certify(record | {"purpose": purpose}), audit(case, rows, protocol), family)
    forms = auditor._forms
    for purpose in ("a plane", "a boat", "new car", record["purpose"]):
        auditor.certify(record | {"purpose": purpose})
    assert auditor._forms is forms


def test_categories_that_are_read_by_their_codes_need_a_table() -> None:
    """A function that reads ``cat.codes`` answers by the order of the categories, which a mapping does not have."""
    data = split("credit_g")
    X = data.X_train[["duration", "purpose"]].astype({"purpose": "category"})

    def by_codes(rows: pd.DataFrame) -> Any:
        z = 0.1 * rows["purpose"].cat.codes.to_numpy() + 0.01 * rows["duration"].to_numpy() - 0.5
        p = 1 / (1 + np.exp(-z))
        return np.stack([1 - p, p], axis=1)

    model = Model.wrap(by_codes, classes=["bad", "good"])
    protocol = fg.Protocol.fit(model, X)
    auditor = fg.Auditor(model, protocol)
    assert_same(auditor.certify(X[:2]), fg.audit(model, X[:2], protocol, lattice=False), "own")
    with pytest.raises(
        DataError, match=r"by_codes reads categories by their codes, .*; give a table whose categorical"
    ):
        auditor.certify({"duration": 6, "purpose": "new car"})
