"""audit: the same certificates whatever the batch, the order, the split, the container or the order of columns."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import BLAS, fitted, split
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import fragility as fg
from fragility.auditing.pipeline import audit
from fragility.audits import Certificates, Claims
from fragility.base.errors import EngineError
from fragility.models import Model
from fragility.protocol import Protocol, bind
from fragility.verification.recomputing import EXACT
from fragility.verification.verifying import verify

N = 16


def small(family: str, space: str) -> Protocol:
    case = fitted("credit_g", family, space)
    return Protocol.fit(case.model, case.X_train, space=space, depth=6, severities=(0.2, 0.5, 0.8, 1.0))


def assert_same(a: Certificates, b: Certificates, *, bitwise: bool) -> None:
    """The same certificates by id, in whatever order."""
    assert len(a) == len(b)
    position = {own_id: i for i, own_id in enumerate(b.claims.ids)}
    order = [position[own_id] for own_id in a.claims.ids]
    if bitwise:
        assert a.manifest.root_digest == b.manifest.root_digest
        assert a.to_pandas()["digest"].tolist() == b.to_pandas()["digest"].iloc[order].tolist()
    for name in Claims.__dataclass_fields__:
        one, two = getattr(a.claims, name), getattr(b.claims, name)
        if name == "ids":
            continue
        if name in ("predicted", "flip_budget", "flipped", "thresholds", "path", "path_predicted"):
            np.testing.assert_array_equal(one, two[order], err_msg=name)
        else:
            np.testing.assert_allclose(one, two[order], rtol=1e-9, atol=1e-9, err_msg=name)


CASES = [("lightgbm", "transformed"), ("random_forest", "transformed"), ("catboost", "raw"), ("mlp", "transformed")]


@pytest.mark.repeats
@pytest.mark.parametrize(("family", "space"), CASES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_order_split_budget_and_columns_change_nothing(family: str, space: str, data: st.DataObject) -> None:
    case, protocol = fitted("credit_g", family, space), small(family, space)
    X = case.X_test[:N]
    whole = audit(case.model, X, protocol, engine="blackbox")
    rows = data.draw(st.permutations(range(N)))
    columns = data.draw(st.permutations(list(X.columns)))
    cut = data.draw(st.integers(1, N - 1))
    budget = data.draw(st.sampled_from([2**13, 2**16, 2**20]))
    turned = X.iloc[list(rows)][list(columns)]
    together = audit(case.model, turned, protocol, engine="blackbox", byte_budget=budget)
    assert_same(whole, together, bitwise=family not in BLAS)
    assert together.manifest.input == whole.manifest.input
    parts = [audit(case.model, part, protocol, engine="blackbox") for part in (turned[:cut], turned[cut:])]
    ids = whole.claims.ids
    for part in parts:
        assert_same(part, whole.take([ids.index(own_id) for own_id in part.claims.ids]), bitwise=family not in BLAS)


@pytest.mark.parametrize("container", ["polars", "arrow", "object", "float", "reversed columns"])
def test_containers_and_dtypes_change_nothing(container: str) -> None:
    case, protocol = fitted("credit_g", "random_forest", "transformed"), small("random_forest", "transformed")
    X = case.X_test[:N]
    if container == "polars":
        polars = pytest.importorskip("polars")
        other = polars.from_pandas(X)
    elif container == "arrow":
        other = pa.Table.from_pandas(X)
    elif container == "object":
        other = X.astype({name: object for name in X if not pd.api.types.is_numeric_dtype(X[name])})
    elif container == "float":
        other = X.astype({name: float for name in X if pd.api.types.is_numeric_dtype(X[name])})
    else:
        other = X[X.columns[::-1]]
    one, two = (audit(case.model, frame, protocol, engine="blackbox") for frame in (X, other))
    assert_same(one, two, bitwise=True)
    assert one.manifest.input == two.manifest.input


def test_polars_in_polars_models() -> None:
    polars = pytest.importorskip("polars")
    data = split("credit_g")
    names = ["duration", "age", "credit_amount"]
    X, y = polars.from_pandas(data.X_train[names]), data.y_train
    forest = RandomForestClassifier(10, random_state=0).fit(X, y)
    protocol = Protocol.fit(forest, X)
    one = audit(forest, polars.from_pandas(data.X_test[names])[:N], protocol, engine="blackbox")
    two = audit(forest, data.X_test[names][:N], protocol, engine="blackbox")
    assert_same(one, two, bitwise=True)


def test_arrays_and_unnamed_models() -> None:
    data = split("credit_g")
    X = data.X_train[["duration", "age"]].to_numpy(dtype=float)
    model = RandomForestClassifier(10, random_state=0).fit(X, data.y_train)
    protocol = Protocol.fit(model, X)
    certs = audit(model, X[:N], protocol, engine="blackbox")
    assert certs.protocol.group_names == ("x0", "x1")
    assert verify(certs, model, X[:N])


def test_ids_come_from_the_index_or_as_declared() -> None:
    case, protocol = fitted("credit_g", "lightgbm", "transformed"), small("lightgbm", "transformed")
    X = case.X_test[:4]
    assert audit(case.model, X, protocol, engine="blackbox").claims.ids == (0, 1, 2, 3)
    named = X.set_index(pd.Index(["a", "b", "c", "d"]))
    assert audit(case.model, named, protocol, engine="blackbox").claims.ids == ("a", "b", "c", "d")
    declared = audit(case.model, named, protocol, ids=pd.Series([9, 8, 7, 6]), engine="blackbox")
    assert declared.claims.ids == (9, 8, 7, 6)
    several = X.set_index(pd.MultiIndex.from_tuples([(1, "x"), (1, "y"), (2, "x"), (2, "y")]))
    assert audit(case.model, several, protocol, engine="blackbox").claims.ids == ("1/x", "1/y", "2/x", "2/y")
    dates = X.set_index(pd.date_range("2024-01-01", periods=4))
    assert audit(case.model, dates, protocol, engine="blackbox")[0].id.startswith("2024-01-01")
    # the claims themselves do not depend on the id
    one, two = audit(case.model, X, protocol, engine="blackbox"), audit(case.model, named, protocol, engine="blackbox")
    np.testing.assert_array_equal(one.claims.path_margin, two.claims.path_margin)
    assert one[0].digest != two[0].digest


def test_a_row_is_audited_as_if_it_were_alone() -> None:
    for family, space in CASES:
        case, protocol = fitted("credit_g", family, space), small(family, space)
        whole = audit(case.model, case.X_test[:5], protocol, engine="blackbox")
        for i in range(5):
            alone = audit(case.model, case.X_test[i : i + 1], protocol, engine="blackbox")
            assert_same(alone, whole.take([i]), bitwise=family not in BLAS)


def test_repeated_rows_get_the_same_claims_under_their_own_ids() -> None:
    case, protocol = fitted("credit_g", "lightgbm", "transformed"), small("lightgbm", "transformed")
    X = case.X_test.iloc[[3, 3, 5, 3]].reset_index(drop=True)
    certs = audit(case.model, X, protocol, engine="blackbox")
    for i in (1, 3):
        np.testing.assert_array_equal(certs.claims.path_margin[i], certs.claims.path_margin[0])
        assert certs[i].digest != certs[0].digest


def test_other_certificates_for_another_model_protocol_or_class_name() -> None:
    case, protocol = fitted("credit_g", "xgboost", "transformed"), small("xgboost", "transformed")
    X = case.X_test[:2]
    base = audit(case.model, X, protocol, engine="blackbox")[0].digest
    other = Protocol.from_dict({**protocol.to_dict(), "weights": [0.2, 0.4, 0.4]})
    assert audit(case.model, X, other, engine="blackbox")[0].digest != base
    renamed = Model.wrap(case.model, classes=["x", "y"])
    certs = audit(renamed, X, protocol, engine="blackbox")
    assert certs[0].digest != base and certs[0].predicted in ("x", "y")


@pytest.mark.samples
@pytest.mark.parametrize("family", ["logistic", "random_forest", "lightgbm", "xgboost", "catboost", "mlp"])
@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property"])
def test_the_chosen_engine_claims_what_the_black_box_claims(family: str, dataset: str) -> None:
    """Whatever engine `auto` takes: exact claims equal, floats within the declared tolerance."""
    case = fitted(dataset, family, "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    auto = audit(case.model, case.X_test[:60], protocol)
    slow = audit(case.model, case.X_test[:60], protocol, engine="blackbox")
    for name in ("predicted", "flip_budget", "flipped", "thresholds", "path", "path_predicted"):
        np.testing.assert_array_equal(getattr(auto.claims, name), getattr(slow.claims, name), err_msg=name)
    for name in ("confidence", "margin", "path_margin", "one_step_drop"):
        np.testing.assert_allclose(getattr(auto.claims, name), getattr(slow.claims, name), atol=1e-6, err_msg=name)
    assert verify(auto, case.model, case.X_test[:60])


def digests_of(certs: Certificates) -> np.ndarray:
    return np.array(certs.table.column("digest").to_pylist())


def with_equal_claims(a: Certificates, b: Certificates) -> np.ndarray:
    """Mask of the rows whose exact claims are equal."""
    same = np.ones(len(a), dtype=bool)
    for name in EXACT:
        equal = getattr(a.claims, name) == getattr(b.claims, name)
        same &= equal if equal.ndim == 1 else equal.all(axis=1)
    return same


@pytest.mark.parametrize(
    ("dataset", "family"),
    [
        ("credit_g", "logistic"),
        ("credit_g", "lightgbm"),
        ("credit_g", "random_forest"),
        ("credit_g", "mlp"),
        ("adult", "logistic"),
        pytest.param("adult", "lightgbm", marks=pytest.mark.slow),
        pytest.param("adult", "xgboost", marks=pytest.mark.slow),
        pytest.param("adult", "catboost", marks=pytest.mark.slow),
        pytest.param("adult", "mlp", marks=pytest.mark.slow),
    ],
)
def test_a_row_has_one_digest_whatever_engine_and_batch(dataset: str, family: str) -> None:
    """Rounding noise moves a digest only where a number lies within the noise of the edge between two units."""
    if family == "mlp":
        pytest.importorskip("torch")  # its native engine
    case = fitted(dataset, family, "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    native = audit(case.model, case.X_test, protocol)
    asked = audit(case.model, case.X_test, protocol, engine="blackbox")
    batches = audit(case.model, case.X_test, protocol, engine="blackbox", byte_budget=2**19)
    assert native.engine != "blackbox"
    for other in (native, batches):
        same = with_equal_claims(asked, other)
        assert same.mean() >= 0.999
        assert (digests_of(asked) == digests_of(other))[same].mean() >= 0.999


@pytest.mark.parametrize("family", ["logistic", "lightgbm", "mlp"])
def test_rows_audited_in_parts_are_the_rows_audited_at_once(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one part is traced the one before is hashed; nothing of it shows in the certificates."""
    case, protocol = fitted("credit_g", family, "transformed"), small(family, "transformed")
    ids = [f"case {i}" for i in range(60)]
    once = audit(case.model, case.X_test[:60], protocol, ids=ids)
    monkeypatch.setattr("fragility.auditing.pipeline.LEAST_PART_ROWS", 7)
    seen: list[tuple[int, int]] = []
    given = (case.model, case.X_test[:60], protocol)
    # A block has progress of its own.
    audit(*given, ids=ids, lattice=False, baselines=False, progress=lambda *done: seen.append(done))
    parts = audit(*given, ids=ids)
    assert seen[-1] == (60, 60) and [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert parts.table["id"].num_chunks > 1
    assert parts.table["id"].to_pylist() == ids
    assert_same(once, parts, bitwise=family == "lightgbm")
    if family == "lightgbm":
        assert parts.table.equals(once.table)
        assert parts.manifest == once.manifest


def test_what_fails_in_a_part_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    case = fitted("credit_g", "mlp", "transformed")
    monkeypatch.setattr("fragility.auditing.pipeline.LEAST_PART_ROWS", 7)
    broken: list[bool] = []

    def fails_later(rows: pd.DataFrame) -> np.ndarray:
        if broken:
            raise ValueError("out of order")
        return np.asarray(case.model.predict_proba(rows))

    own = Model.wrap(fails_later, classes=[0, 1])
    protocol = Protocol.fit(own, case.X_train, space="raw")
    done: list[int] = []

    def after_two_parts(rows: int, _: int) -> None:
        done.append(rows)
        broken[:] = [True] * (rows >= 14)

    with pytest.raises(fg.FragilityError, match="out of order"):
        audit(own, case.X_test[:60], protocol, engine="blackbox", progress=after_two_parts)
    assert 14 <= max(done) < 60


def test_engines_that_cannot_are_refused() -> None:
    case, protocol = fitted("credit_g", "mlp", "transformed"), small("mlp", "transformed")
    with pytest.raises(EngineError, match=r"engine must be one of auto, blackbox.*got 'quantum'"):
        audit(case.model, case.X_test[:2], protocol, engine="quantum")
    with pytest.raises(
        EngineError, match=r"the trees engine cannot audit Pipeline\(ColumnTransformer -> MLPClassifier\)"
    ):
        audit(case.model, case.X_test[:2], protocol, engine="trees")


def test_calibrated_and_function_models() -> None:
    data = split("credit_g")
    names = ["duration", "age", "credit_amount"]
    X, y = data.X_train[names].astype(float), data.y_train
    calibrated = CalibratedClassifierCV(LogisticRegression(), cv=3).fit(X, y)
    protocol = Protocol.fit(calibrated, X)
    certs = audit(calibrated, data.X_test[names][:N], protocol)
    assert verify(certs, calibrated, data.X_test[names][:N])
    function = Model.wrap(lambda rows: calibrated.predict_proba(rows), classes=["bad", "good"])
    same = audit(function, data.X_test[names][:N].astype(float), Protocol.fit(function, X))
    np.testing.assert_array_equal(same.claims.flip_budget, certs.claims.flip_budget)
    np.testing.assert_allclose(same.claims.margin, certs.claims.margin, rtol=1e-12)


def test_the_public_door_offers_what_documents_rely_on() -> None:
    for name in ("Protocol", "audit", "verify", "CollapseDisplay", "FragilityMapDisplay", "load_credit_g"):
        assert name in fg.__all__ and hasattr(fg, name), name
    for name in fg.__all__:
        assert hasattr(fg, name), name


def test_progress_is_reported_and_silent_without_a_terminal(capsys) -> None:
    case, protocol = fitted("credit_g", "lightgbm", "transformed"), small("lightgbm", "transformed")
    seen: list[tuple[int, int]] = []
    audit(case.model, case.X_test[:5], protocol, engine="blackbox", progress=lambda a, b: seen.append((a, b)))
    assert seen[-1] == (5, 5)
    audit(case.model, case.X_test[:5], protocol)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""


def test_another_process_with_other_threads_gives_the_same_certificates(tmp_path) -> None:
    """Two auditors with the same inputs get the same certificate: no hash seed and no thread count enters."""
    case, protocol = fitted("credit_g", "lightgbm", "raw"), small("lightgbm", "raw")
    X = case.X_test[:N]
    here = audit(case.model, X, protocol, engine="blackbox")
    joblib.dump(case.model, tmp_path / "model.joblib")
    X.to_parquet(tmp_path / "rows.parquet")
    protocol.save(tmp_path / "protocol.json")
    script = textwrap.dedent(
        """
        import sys, joblib, pandas as pd, fragility as fg
        folder = sys.argv[1]
        model = joblib.load(f"{folder}/model.joblib").set_params(n_jobs=int(sys.argv[2]))
        protocol = fg.Protocol.load(f"{folder}/protocol.json")
        certs = fg.audit(model, pd.read_parquet(f"{folder}/rows.parquet"), protocol, engine="blackbox")
        print(certs.manifest.root_digest, certs.manifest.input.digest, certs.manifest.model.fingerprint)
        """
    )
    expected = [here.manifest.root_digest, here.manifest.input.digest, here.manifest.model.fingerprint]
    for threads in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": threads, "OMP_NUM_THREADS": threads}
        command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path), threads]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=True)
        assert done.stdout.split() == expected


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_rows_bound_before_are_audited_as_they_are(space):
    case = fitted("credit_g", "lightgbm", space)
    protocol = fg.Protocol.fit(case.model, case.X_train, space=space)
    X = case.X_test.iloc[:20]
    bound = bind(case.model, X, protocol)
    for rows, same in ((bound, X), (bound.take([4, 2]), X.iloc[[4, 2]])):
        once, afresh = (fg.audit(case.model, given, protocol, engine="blackbox") for given in (rows, same))
        assert once.to_arrow().equals(afresh.to_arrow())
        assert once.manifest.input == afresh.manifest.input
    other = fitted("credit_g", "logistic", space).model
    with pytest.raises(fg.ModelError, match="bound to another model"):
        fg.audit(other, bound, protocol)
    with pytest.raises(fg.ProtocolError, match="bound under other groups or another baseline"):
        fg.audit(case.model, bound, fg.Protocol.fit(case.model, case.X_train, space=space, baseline="median"))
    with pytest.raises(fg.DataError, match="have their ids already"):
        fg.audit(case.model, bound, protocol, ids=range(20))
