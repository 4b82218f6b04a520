"""The guard: what a check says is what the library says elsewhere, and what a user gets wrong is said in a sentence."""

import json
import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pandas as pd
import pipelines
import pytest
import scipy.sparse as sp
from naive_deciding import row_as_decided
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, QuantileTransformer, StandardScaler

import fragility as fg
from fragility.base.errors import EvidenceError
from fragility.deciding import changing, decisions
from fragility.deciding import guard as guarding
from fragility.evidence.modes import weigh_values

CASES = [("lightgbm", "transformed"), ("logistic", "transformed"), ("mlp", "transformed"), ("lightgbm", "raw")]


@pytest.fixture(scope="module")
def case():
    return pipelines.fitted("credit_g", "lightgbm", "transformed")


@pytest.fixture(scope="module")
def guard(case):
    return fg.Guard(case.model, fg.Protocol.fit(case.model, case.X_train, catalogue=8))


@pytest.fixture(scope="module")
def strict():
    """A model that has no answer without a field: nothing imputes, and the encoder refuses what it does not know."""
    data = pipelines.split("credit_g")
    numeric = list(data.X_train.select_dtypes("number"))
    nominal = [name for name in data.X_train if name not in numeric]
    encode = make_column_transformer((OneHotEncoder(), nominal), (StandardScaler(), numeric))
    model = make_pipeline(encode, LogisticRegression(max_iter=500)).fit(data.X_train, data.y_train)
    return pipelines.Case("logistic", "credit_g", "transformed", model, data.X_train, data.X_test)


@pytest.mark.parametrize(("family", "space"), CASES)
def test_a_check_says_what_the_library_says(family, space):
    case = pipelines.fitted("credit_g", family, space)
    protocol = fg.Protocol.fit(case.model, case.X_train, space=space, catalogue=6)
    guard = fg.Guard(case.model, protocol, rates=0.05)
    X = case.X_test[:12]
    checks = guard.check_rows(X, [["duration"], ["age", "checking_status"], []] * 4, intervals=True)
    rows, certs = checks.rows, checks.certificates
    assert certs.table.equals(fg.audit(case.model, rows, protocol, lattice=False).table)
    modes = fg.assess_modes(case.model, rows, protocol)
    sets = fg.find_failing_sets(case.model, rows, protocol)
    lost = fg.assess_reliability(case.model, rows, protocol, 0.05)
    stable = fg.find_stability_intervals(case.model, rows, protocol)
    for i, check in enumerate(checks):
        assert check.id == X.index[i] and check.certificate == certs[i]
        assert check.decision == certs[i].predicted and check.confidence == certs[i].confidence
        for mode, exposure in check.exposure.items():
            assert exposure == pytest.approx(modes[mode].exposure[i], abs=1e-6)
        if check.failing_sets_exact and sets.resolved[i]:
            assert len(check.failing_sets[0] if check.failing_sets else ()) == (sets.size[i] if sets.found[i] else 0)
        if sets.method[i] == "lattice" and sets.found[i] and check.failing_sets_exact:
            assert check.failing_sets[0] == sets.groups(i)
            assert len(check.failing_sets) == min(20, sets.count[i])
        if lost.exact[i]:
            assert check.failure_probability == pytest.approx(lost.p_flip[i], abs=1e-9)
            assert check.failure_interval is None
        elif check.failure_interval is not None:
            assert check.failure_interval == (lost.low[i], lost.high[i])
        assert check.intervals == {name: stable.interval(i, name) for name in stable.by_field}
        json.dumps(check.to_dict(), allow_nan=False)
    assert checks.to_pandas()["id"].tolist() == X.index.tolist() and len(checks[2:4]) == 2


def test_the_rows_as_decided_verify(case, guard, tmp_path):
    checks = guard.check_rows(case.X_test[:20], [["duration", "purpose"]] * 20)
    checks.certificates.save(tmp_path / "audit")
    assert fg.verify(tmp_path / "audit", case.model, checks.rows)
    known = case.X_test[:20].drop(columns=["duration", "purpose"])
    pd.testing.assert_frame_equal(checks.rows[list(known)], known, check_dtype=False)
    assert checks.rows["duration"].isna().all() and checks.rows["purpose"].isna().all()


def test_stand_ins_are_the_baseline_in_raw_units(strict):
    case = strict
    checks = fg.Guard(case.model, fg.Protocol.fit(case.model, case.X_train)).check_rows(
        case.X_test[:1], [list(case.X_test)]
    )
    rows = checks.rows
    assert dict(checks[0].stand_ins) == rows.iloc[0].to_dict()
    for name in case.X_train:
        column = case.X_train[name]
        if pd.api.types.is_numeric_dtype(column):
            wanted = round(column.mean()) if pd.api.types.is_integer_dtype(column) else column.mean()
            assert float(rows[name].iloc[0]) == pytest.approx(wanted, rel=1e-6)
        else:
            assert rows[name].iloc[0] == column.mode().iloc[0]


def test_a_monotone_transformation_is_inverted():
    X, y = fg.load_credit_g()
    X = X[["credit_amount", "age"]].astype(float)
    model = make_pipeline(QuantileTransformer(n_quantiles=50), LogisticRegression()).fit(X[:600], y[:600])
    guard = fg.Guard(model, fg.Protocol.fit(model, X[:600]))
    rows = guard.check_rows(X[700:701], [["credit_amount"]]).rows
    encoded = model[0].transform(rows)[0, 0]
    assert encoded == pytest.approx(model[0].transform(X[:600])[:, 0].mean(), abs=1e-3)


def test_the_rows_own_nulls_count(case, guard):
    row = dict(case.X_test.iloc[3].astype(object))
    told = guard.check(row, missing=["duration", "purpose"])
    absent = {name: value for name, value in row.items() if name not in ("duration", "purpose")}
    nulls = {**row, "duration": None, "purpose": float("nan")}
    table = pd.DataFrame([nulls])[list(case.X_test)]
    for found in (
        guard.check(absent, missing=None),
        guard.check(nulls, missing=None),
        guard.check(absent, missing=["duration", "purpose"]),
        guard.check_rows([absent])[0],
        guard.check_rows(table)[0],
        guard.check_rows(table.drop(columns="purpose"))[0],
    ):
        assert found.to_dict() == told.to_dict() and found.missing == ("duration", "purpose")


def test_under_the_baseline_missing_the_imputer_decides():
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "credit_amount"]].astype(float).mask(np.random.default_rng(0).random((1000, 3)) < 0.05)
    model = make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), LogisticRegression()).fit(
        X[:600], y[:600]
    )
    guard = fg.Guard(model, fg.Protocol.fit(model, X[:600], baseline="missing"))
    checks = guard.check_rows(X[700:710], [["duration"]] * 10)
    assert checks.rows["duration"].isna().all()
    hidden = X[700:710].assign(duration=np.nan)
    assert [check.decision for check in checks] == model.predict(hidden).tolist()
    assert [check.confidence for check in checks] == pytest.approx(model.predict_proba(hidden).max(axis=1))


def test_a_policy_says_what_goes_to_review(case):
    protocol = fg.Protocol.fit(case.model, case.X_train, catalogue=6)
    certs = fg.audit(case.model, case.X_test, protocol, modes=["wrong"])
    labels = fg.label_brittle(case.model, case.X_test, protocol)
    for by in ("exposure", "wrong"):
        for segments in (None, "predicted"):
            policy = fg.ReviewPolicy.fit(certs, labels, risk=0.3, by=by, segments=segments)
            checks = fg.Guard(case.model, protocol, policy).check_rows(case.X_test[:60])
            selected = set(policy.select(certs[:60]).table.column("id").to_pylist())
            assert {check.id for check in checks if check.review} == selected
    assert fg.Guard(case.model, protocol).check(dict(case.X_test.iloc[0])).review is None


def test_rates_of_modes_and_recorded_events(case):
    protocol = fg.Protocol.fit(case.model, case.X_train, catalogue=4)
    events = fg.Outages.from_events([{"duration", "age"}, {"checking_status"}])
    for rates in (events, {"duration": {"lost": 0.1, "wrong": 0.2}}, {"duration": 0.5, "age": 0.1}):
        checks = fg.Guard(case.model, protocol, rates=rates).check_rows(case.X_test[:5])
        own = fg.assess_reliability(case.model, case.X_test[:5], protocol, rates)
        assert [check.failure_probability for check in checks] == pytest.approx(own.p_flip, abs=1e-9)
        assert {check.failure_condition for check in checks} == {own.condition}


def test_threads_and_pickles_change_nothing(case, guard):
    rows = [dict(row.astype(object)) for _, row in case.X_test[:16].iterrows()]
    missing = [["duration"], ["age", "purpose"], [], ["checking_status"]] * 4
    alone = [guard.check(row, names).to_dict() for row, names in zip(rows, missing, strict=True)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda pair: guard.check(*pair).to_dict(), zip(rows, missing, strict=True))) == alone
    again = pickle.loads(pickle.dumps(guard))
    assert [again.check(row, names).to_dict() for row, names in zip(rows, missing, strict=True)] == alone


def test_a_fork_in_the_middle_of_a_check_leaves_nothing_held(strict, monkeypatch):
    """A child has none of its parent's other threads: a lock that one of them held would never be released."""
    case = strict
    row = dict(case.X_test.iloc[0].astype(object))
    protocol = fg.Protocol.fit(case.model, case.X_train, catalogue=4)
    fresh, begun, forked = fg.Guard(case.model, protocol), threading.Event(), threading.Event()

    def wait(own, *given):
        begun.set()
        forked.wait(60)
        return own(*given)

    for module, name in ((guarding, "find_lattice"), (decisions, "find_standins")):
        monkeypatch.setattr(module, name, partial(wait, getattr(module, name)))
        begun.clear()
        forked.clear()
        with ThreadPoolExecutor(1) as threads:
            check = threads.submit(fresh.check, row, missing=["duration"])
            assert begun.wait(60)
            child = os.fork()
            if child == 0:  # pragma: no cover
                signal.alarm(30)  # ends a child that waits
                forked.set()
                fresh.check(row, missing=["duration"])
                os._exit(0)
            forked.set()
            assert check.result().p_change is not None
        assert os.waitpid(child, 0)[1] == 0
        monkeypatch.undo()
        fresh = fg.Guard(case.model, protocol)


def test_forms_that_take_turns_are_held_ready(case, monkeypatch):
    own, made = guarding.find_lattice, []
    monkeypatch.setattr(guarding, "find_lattice", lambda *given: made.append(1) or own(*given))
    fresh = fg.Guard(case.model, fg.Protocol.fit(case.model, case.X_train, catalogue=4))
    table = case.X_test[:1].astype({"duration": float})
    for _ in range(3):
        fresh.check(dict(case.X_test.iloc[0].astype(object)))
        fresh.check(table)
    assert len(made) <= 2


def test_only_so_many_sets_of_unknown_fields_are_kept(case, guard, monkeypatch):
    monkeypatch.setattr(changing, "MOST_LISTED", 3)
    row = dict(case.X_test.iloc[0].astype(object))
    for name in list(row)[:8]:
        guard.check(row, missing=[name])
    assert len(guard._decider._cells[1].listed) <= 3


def test_what_a_missing_field_holds_is_not_looked_at(case, guard):
    for name in ("age", "purpose"):
        expected = guard.check(case.X_test[:1], missing=[name]).to_dict()
        for rubbish in ("rubbish", 7, True):
            assert guard.check(case.X_test[:1].assign(**{name: rubbish}), missing=[name]).to_dict() == expected
    spoilt = case.X_test[:2].assign(age=pd.Series(["a", "b"], dtype=object))
    with pytest.raises(fg.DataError, match="column 'age' held whole numbers in the training data, now it holds"):
        guard.check_rows(spoilt, [["age"], []])


def test_stand_ins_of_groups_come_from_the_encoder(strict):
    """The joint values of a group are those of a few training rows, which need not hold the most frequent category."""
    case = strict
    groups = {"money": ["purpose", "credit_amount", "savings_status"]}
    groups |= {name: [name] for name in case.X_train if name not in groups["money"]}
    protocol = fg.Protocol.fit(case.model, case.X_train, groups=groups, catalogue=2)
    typical = case.X_train["purpose"].mode()[0]
    assert typical not in weigh_values(protocol.modes, "purpose")
    checks = fg.Guard(case.model, protocol).check_rows(case.X_test[:2], [["purpose"]] * 2)
    assert set(checks.rows["purpose"]) == {typical}


def test_arrays_and_polars_are_checked(case):
    polars = pytest.importorskip("polars")
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "credit_amount"]]
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X.to_numpy(), y)
    guard = fg.Guard(model, fg.Protocol.fit(model, X.to_numpy()))
    checks = guard.check_rows(X[:4].to_numpy(), [["x0"]] * 4)
    again = guard.check({"x1": X["age"][0], "x2": X["credit_amount"][0]}, missing=["x0"])
    assert again.p_change == checks[0].p_change and again.decision == checks[0].decision
    encode = make_column_transformer((StandardScaler(), ["duration", "age"]), (StandardScaler(), ["credit_amount"]))
    named = make_pipeline(encode, LogisticRegression()).fit(polars.from_pandas(X), y)
    guard = fg.Guard(named, fg.Protocol.fit(named, polars.from_pandas(X)))
    with_gap = polars.from_pandas(X[:4]).with_columns(polars.Series("duration", [None, 12, None, 24]))
    found = guard.check_rows(with_gap)
    assert [check.missing for check in found] == [("duration",), (), ("duration",), ()]


def test_a_story_is_told(case, guard):
    check = guard.check(dict(case.X_test.iloc[0].astype(object)), missing=["duration"], stale=["age"], id="A-17")
    told = str(check)
    assert told.startswith("row A-17: ") and "decided without duration and on stale values of age" in told
    assert "knowing duration and age would" in told and "exposure: lost" in told
    hanging = f"it hangs on {check.failing_sets[0][0]}" if check.failing_sets else "no loss of whole groups flips it"
    assert hanging in told
    plain = str(guard.check(dict(case.X_test.iloc[0].astype(object))))
    assert "knowing" not in plain and "decided without" not in plain


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"missing": ["income"]}, "the missing fields of row 0 name 'income', which the model does not know"),
        ({"stale": ["incme", "x"]}, "the stale fields of row 0 name 'incme', 'x', which the model does not know"),
        ({"missing": [["age"]]}, r"the missing fields of row 0 name \"\['age'\]\", which the model does not know"),
        ({"missing": 3}, r"the missing fields of row 0 must be a collection of names, such as \['age'\], got 3"),
        ({"missing": ["age"], "stale": ["age"]}, "row 0 names 'age' as missing and as stale; name it once"),
    ],
)
def test_unknown_fields_are_refused(case, guard, how, message):
    with pytest.raises(fg.DataError, match=message):
        guard.check(dict(case.X_test.iloc[0].astype(object)), **how)


def test_other_mistakes_are_said_in_a_sentence(case, guard):
    row = dict(case.X_test.iloc[0].astype(object))
    X = case.X_test[:2]
    protocol = guard.protocol
    with pytest.raises(fg.DataError, match=r"or a table of one row, got 2 rows; use check_rows"):
        guard.check(X, missing=None)
    for given, got in (("a", "str"), (None, "NoneType")):
        with pytest.raises(fg.DataError, match=f"check takes a mapping .*, got {got}; give a dict"):
            guard.check(given)
    with pytest.raises(fg.DataError, match="one collection of missing fields per row is needed: 2 rows, 1 given"):
        guard.check_rows(X, [["age"]])
    with pytest.raises(fg.DataError, match="one collection of stale fields per row is needed: 2 rows, 1 given"):
        guard.check_rows(X, None, [["age"]])
    with pytest.raises(fg.DataError, match="one collection of missing fields per row is needed: 2 rows, 5"):
        guard.check_rows(X, 5)
    with pytest.raises(fg.DataError, match=r"fields of row 0 must be a collection of names, such as .*, got 'age'"):
        guard.check_rows(X, ["age", "duration"])  # two fields, not one field for each of two rows
    assert guard.check(row, missing="age", stale=None).missing == ("age",)
    with pytest.raises(fg.DataError, match="'age'"):
        guard.check({name: value for name, value in row.items() if name != "age"}, missing=())
    with pytest.raises(fg.DataError, match="'nonsense'"):
        guard.check({**row, "nonsense": 1})
    with pytest.raises(fg.DataError, match="got a sparse matrix"):
        guard.check_rows(sp.csr_matrix(np.ones((2, len(row)))))
    with pytest.raises(fg.DataError, match="draws must be a power of two of at least 16, got 100"):
        fg.Guard(case.model, protocol, draws=100)
    with pytest.raises(fg.DataError, match=r"conditional=True takes values from training rows; give training=\.\.\."):
        fg.Guard(case.model, protocol, conditional=True)
    with pytest.raises(fg.DataError, match="training rows are given, but are read for conditional=True alone"):
        fg.Guard(case.model, protocol, training=case.X_train)
    with pytest.raises(fg.DataError, match=r"policy must be a ReviewPolicy, got dict; make one with ReviewPolicy\.fit"):
        fg.Guard(case.model, protocol, {})
    with pytest.raises(fg.ProtocolError, match="a Protocol was expected, got dict"):
        fg.Guard(case.model, {})


def test_a_field_without_answer_and_without_stand_in_is_refused(strict):
    row = dict(strict.X_test.iloc[0].astype(object))
    paper = fg.Guard(strict.model, fg.Protocol.paper(strict.model, strict.X_train))
    with pytest.raises(
        EvidenceError, match=r"'purpose' is missing, the model has no answer without it, and no raw value stands for"
    ):
        paper.check(row, missing=["purpose"])
    check = paper.check(row, missing=["duration"])
    assert check.p_change is not None and list(check.stand_ins) == ["duration"]


def test_a_policy_of_something_else_is_refused(case):
    protocol = fg.Protocol.fit(case.model, case.X_train, catalogue=4)
    certs = fg.audit(case.model, case.X_test, protocol)
    labels = fg.label_brittle(case.model, case.X_test, protocol)
    policy = fg.ReviewPolicy.fit(certs, labels, risk=0.3)
    with pytest.raises(fg.DataError, match="fitted under another protocol"):
        fg.Guard(case.model, fg.Protocol.fit(case.model, case.X_train, catalogue=5), policy)
    by_id = {own: str(i % 2) for i, own in enumerate(certs.table.column("id").to_pylist())}
    declared = fg.ReviewPolicy.fit(certs, labels, risk=0.3, segments=by_id)
    with pytest.raises(fg.DataError, match="declared segments, which a row at decision time does not name"):
        fg.Guard(case.model, protocol, declared)


def test_one_hot_categories_that_were_never_seen_are_only_the_models_business(case):
    """A category outside the catalogue stands in the row, and the unknown field takes those of the catalogue."""
    X = case.X_train
    numeric = list(X.select_dtypes("number"))
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), [name for name in X if name not in numeric]),
        (StandardScaler(), numeric),
    )
    model = make_pipeline(encode, LogisticRegression(max_iter=500)).fit(X, np.arange(len(X)) % 3 == 0)
    guard = fg.Guard(model, fg.Protocol.fit(model, X))
    row = {**dict(X.iloc[0].astype(object)), "purpose": "yacht"}
    assert guard.check(row, stale=["purpose"]).p_change is not None


# --- the decision is the deployed model's own -------------------------------------------------------------------


@pytest.fixture(scope="module")
def imputing():
    """A pipeline whose imputers answer otherwise than the baseline: a long duration, a purpose that is not frequent."""
    X, y = fg.load_credit_g()
    numeric, nominal = ["duration", "age"], ["purpose"]
    X = X[[*numeric, *nominal, "checking_status"]].astype({name: float for name in numeric})
    train = X[:700].copy()
    train.loc[::10, "age"] = np.nan
    train.loc[::7, "purpose"] = None
    encode = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="constant", fill_value=70), StandardScaler()), numeric),
        (
            make_pipeline(
                SimpleImputer(strategy="constant", fill_value="education"),
                OneHotEncoder(sparse_output=False, handle_unknown="ignore"),
            ),
            nominal,
        ),
        (OneHotEncoder(sparse_output=False), ["checking_status"]),
    )
    model = make_pipeline(encode, LogisticRegression(max_iter=500)).fit(train, y[:700])
    return pipelines.Case("logistic", "credit_g", "transformed", model, train, X[700:])


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_the_decision_is_the_models_own_on_the_row_as_it_arrives(imputing, space):
    case = imputing
    guard = fg.Guard(case.model, fg.Protocol.fit(case.model, case.X_train, space=space, catalogue=6))
    baseline = {"checking_status": case.X_train["checking_status"].mode()[0]}
    X = case.X_test[:25]

    def ask(row):
        kinds = {name: float if name in ("duration", "age") else object for name in row}
        cells = {n: pd.Series([np.nan if v is None else v], dtype=kinds[n]) for n, v in row.items()}
        return case.model.predict_proba(pd.DataFrame(cells))[0]

    differ = 0
    for missing in (
        ["duration"],
        ["purpose"],
        ["age", "purpose"],
        ["checking_status"],
        ["duration", "checking_status"],
    ):
        checks = guard.check_rows(X, [missing] * len(X))
        for check, (_, row) in zip(checks, X.astype(object).iterrows(), strict=True):
            p = ask(row_as_decided(ask, dict(row), missing, baseline))
            decision = case.model.classes_[p.argmax()]
            assert check.decision == decision and check.confidence == pytest.approx(p.max(), abs=1e-9)
            assert dict(check.stand_ins) == (
                baseline if "checking_status" in missing else {}
            ) and check.missing == tuple(n for n in case.X_train if n in missing)
            differ += decision != case.model.predict(typical_row(case, row, missing))[0]
        assert all(("stands in" in str(check)) == ("checking_status" in missing) for check in checks)
    assert differ  # the imputer and the baseline lead to other decisions


def typical_row(case, row, missing):
    filled = dict(row)
    for name in missing:
        column = case.X_train[name]
        filled[name] = column.mean() if column.dtype == float else column.mode()[0]
    return pd.DataFrame([filled])


def test_one_row_is_answered_alike_however_it_comes(imputing):
    """As a mapping, a Series, a table of one row, among others; with None, NaN, or the field left out."""
    case = imputing
    guard = fg.Guard(case.model, fg.Protocol.fit(case.model, case.X_train, catalogue=6))
    for gaps in (["duration"], ["purpose"], ["age", "purpose", "checking_status"]):
        table = case.X_test[:6].copy()
        table.loc[table.index[0], gaps] = np.nan
        row = table.iloc[0]
        plain = {name: None if name in gaps else value for name, value in row.items()}
        expected = guard.check_rows(table)[0].to_dict()
        assert expected["missing"] == [name for name in table if name in gaps] and expected["p_change"] is not None
        for given in (plain, dict(row), {n: v for n, v in plain.items() if n not in gaps}, row, table[:1]):
            assert guard.check(given, id=int(table.index[0])).to_dict() == expected
        others = [dict(other) for _, other in case.X_test[1:6].iterrows()]
        together = guard.check_rows([plain, *others], ids=[int(i) for i in table.index])
        assert together[0].to_dict() == expected
        assert guard.check(row).id == table.index[0]
    null = {**dict(case.X_test.iloc[0]), "duration": None}
    assert guard.check(null, missing=()).p_change is None  # a null that is not named is a value like any other
    assert guard.check(null, missing=()).decision == guard.check(null).decision


def test_p_change_is_measured_from_the_decision_made(imputing):
    case = imputing
    protocol = fg.Protocol.fit(case.model, case.X_train, catalogue=6)
    guard = fg.Guard(case.model, protocol)
    listed = {name: entry for entry in protocol.modes.catalogue for name in entry.fields}
    for name in ("duration", "purpose"):
        checks = guard.check_rows(case.X_test[:20], [[name]] * 20)
        for check, (_, row) in zip(checks, case.X_test[:20].astype(object).iterrows(), strict=True):
            expected = 0.0
            for (value,), count in zip(listed[name].values, listed[name].counts, strict=True):
                known = pd.DataFrame([{**dict(row), name: value}])
                expected += (case.model.predict(known)[0] != check.decision) * count / sum(listed[name].counts)
            assert check.p_change == pytest.approx(expected, abs=1e-9)
            assert check.acquire == ((name, check.p_change),)


def test_a_state_within_rounding_of_a_flip_is_asked_of_the_model():
    draws = np.random.default_rng(0).normal(size=(300, 3))
    X = pd.DataFrame(draws, columns=list("abc"))
    model = LogisticRegression().fit(X, (X.a + X.b > X.c).astype(int))
    model.coef_, model.intercept_ = np.array([[1.0, 1.0, -1.0]]), np.zeros(1)
    protocol = fg.Protocol.fit(model, X, baseline="zero")
    row = {"a": 1.0, "b": 1.0, "c": 1.0 + protocol.resolution}  # without a, or without b, the score is -resolution
    check = fg.Guard(model, protocol).check(row)
    asked = fg.find_failing_sets(model, pd.DataFrame([row]), protocol, engine="blackbox", every=True)
    assert check.failing_sets == asked.every(0).sets and check.failing_sets_state == asked.state[0]


def test_numbered_columns_and_fields_without_any_value_are_checked():
    """A table made of an array has whole numbers for names, and a field that was always missing says nothing."""
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=[0, 1, 2]).assign(gone=np.nan)
    X.columns = [0, 1, 2, 3]
    model = make_pipeline(SimpleImputer(keep_empty_features=True), LogisticRegression()).fit(X, X[0] > 0)
    guard = fg.Guard(model, fg.Protocol.fit(model, X))
    row = X.iloc[0].to_dict()
    known = {name: value for name, value in row.items() if name != 3}
    for check in (guard.check(X.iloc[[0]]), guard.check(X.iloc[0]), guard.check(row), guard.check(known)):
        assert check.certificate.predicted == model.predict(X.iloc[[0]])[0] and check.missing == ()
    assert guard.check({**row, 1: None}).missing == ("1",)
    with pytest.raises(fg.DataError, match="row 1 must be a mapping from fields to values, got str"):
        guard.check_rows([row, "x"])
