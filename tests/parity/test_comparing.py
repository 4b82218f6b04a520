"""`check_parity` against its slow twin, and what must not change the result."""

import json

import naive_parity
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import fragility as fg
from fragility.parity.states import Histogram

COUNTS = ("states", "differing", "labels", "ties", "only_a", "only_b", "neither", "outside")


def one_row(model):
    """A model as a function of one row."""

    known = {}

    def ask(row):
        key = str(row)
        if key not in known:
            frame = pd.DataFrame([row]).astype({"duration": float, "age": float})
            try:
                known[key] = fg.Model.wrap(model).probabilities(frame)[0]
            except ValueError as error:
                known[key] = error
        if isinstance(known[key], ValueError):
            raise known[key]
        return known[key]

    return ask


def refuse_missing(model, name):
    """The model, which now refuses a missing value of one field."""

    def ask(rows):
        if rows[name].isna().any():
            raise ValueError(f"{name} is missing")
        return model.predict_proba(rows)

    return fg.Model.wrap(ask, classes=["bad", "good"])


def test_counts_are_those_of_the_slow_twin(credit, trained, faulty):
    X, _, rest = credit
    rows = rest[:5]
    reference = refuse_missing(trained, "housing")
    protocol = fg.Protocol.fit(reference, X, space="raw", catalogue=2, depth=3, severities=[0.3, 1.0])
    found = fg.check_parity(reference, faulty, rows, protocol)
    table = json.loads(protocol.to_json())
    plain = [{name: row[name] for name in rows} for _, row in rows.iterrows()]
    expected, revealed = naive_parity.compare(one_row(reference), one_row(faulty), plain, table, 1e-5)
    assert {one.kind for one in found.kinds} == set(expected)
    for one in found.kinds:
        assert {name: getattr(one, name) for name in COUNTS} == {n: expected[one.kind].get(n, 0) for n in COUNTS}
        assert one.probability.largest == pytest.approx(expected[one.kind]["gap"], abs=1e-12)
    alarms = {place: c for place, c in revealed.items() if c["differing"] or c["only_a"] or c["only_b"]}
    own = [one for one in found.reveals if one.kind != "clean"]
    assert sorted((one.kind, one.unit, one.states, one.labels, one.differing, one.only_a) for one in own) == sorted(
        (kind, unit, c["states"], c["labels"], c["differing"], c["only_a"]) for (kind, unit, _), c in alarms.items()
    )
    assert found["missing"].outside and found["missing"].only_a and found["missing"].differing
    assert ("a", "ValueError: housing is missing", 5) in found["missing"].refusals


def test_the_result_says_what_differs_and_shows_the_smallest_example(credit, trained, faulty):
    rest = credit[2]
    off = rest[(rest["housing"] == "rent") & (rest["age"] > 50)]
    found = fg.check_parity(
        trained, faulty, pd.concat([rest[:40].drop(off.index, errors="ignore"), off[:3]]), names=("trained", "served")
    )
    assert not found and not found.agrees and found["clean"].differing == found["clean"].rows == found["clean"].labels
    example = found.smallest
    assert len(example.changed) == 1
    row = example.to_pandas()
    p, q = trained.predict_proba(row)[0], faulty.probabilities(row)[0]
    assert example.a.probabilities == pytest.approx(p) and example.b.probabilities == pytest.approx(q)
    assert example.a.label != example.b.label
    before = row.assign(**example.changed)
    assert trained.predict_proba(before)[0] == pytest.approx(faulty.probabilities(before)[0])
    clean = next(one for one in found.examples if one.kind == "clean")
    assert not clean.changed and set(clean.cleared_by) == {"age", "housing"}
    missing = next(one for one in found.examples if one.kind == "missing")
    assert list(missing.changed) == ["duration"] and missing.row["duration"] is None
    assert {one.unit for one in found.reveals if one.kind == "clean"} == {"age", "housing"}
    assert "unmodified rows show it" in str(found)
    assert found["missing"].only_a == 16 and found["missing"].skipped == found.rows - 16
    assert "served refuses every missing value of 'age' that was tried: further rows were not asked" in found.notes


def test_a_model_agrees_with_itself(credit, trained):
    found = fg.check_parity(trained, fg.Model.wrap(trained.predict_proba, classes=[0, 1]), credit[2][:20])
    assert found and found.smallest is None and not found.reveals and not found.examples
    assert found.notes == ("classes are matched by order: bad = 0, good = 1",)
    assert str(found).startswith(f"model_b answers as model_a does in all {found.states:,} states of 20 rows")
    assert found.a.columns == "name" and found.b.columns == "order"


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 999), budget=st.sampled_from([1_000, 20_000, 2**28]))
def test_rows_in_any_order_and_batches_of_any_size_give_the_same_result(numbers, seed, budget):
    model, X = numbers

    def ask(rows):  # reads a missing duration as 0, refuses a high age
        if (rows["age"] > 60).any():
            raise ValueError("too old")
        return model.predict_proba(rows.fillna({"duration": 0}))

    reference = fg.Model.wrap(lambda rows: model.predict_proba(rows.fillna(30)), classes=["bad", "good"])
    faulty = fg.Model.wrap(ask, classes=["bad", "good"])
    protocol = fg.Protocol.fit(reference, X[100:], space="raw", catalogue=2, severities=[0.5, 1.0])
    rows = X[:24]
    shuffled = rows.sample(frac=1, random_state=seed)
    one = fg.check_parity(reference, faulty, rows, protocol, most_rows=20).to_dict()
    other = fg.check_parity(reference, faulty, shuffled, protocol, most_rows=20, byte_budget=budget).to_dict()
    assert approximate(one) == approximate(other) and not one["agrees"]


def approximate(document):
    if isinstance(document, float):
        return round(document, 9)
    if isinstance(document, dict):
        return {name: approximate(each) for name, each in document.items()}
    return [approximate(each) for each in document] if isinstance(document, (list, tuple)) else document


# --- ties, rounding, decisions ------------------------------------------------------------------------------


def test_a_label_that_differs_at_a_tie_is_no_difference():
    X = pd.DataFrame({"a": [0.0, 1.0, 2.0], "b": [1.0, 0.0, 5.0]})
    one = fg.Model.wrap(lambda rows: np.tile([0.5 + 2e-6, 0.5 - 2e-6], (len(rows), 1)), classes=[0, 1])
    other = fg.Model.wrap(lambda rows: np.tile([0.5 - 2e-6, 0.5 + 2e-6], (len(rows), 1)), classes=[0, 1])
    found = fg.check_parity(one, other, X)
    assert found.agrees and found["clean"].ties == 3 and found["clean"].labels == 0
    strict = fg.check_parity(one, other, X, tolerance=1e-6)
    assert not strict and strict["clean"].labels == strict["clean"].differing == 3 and strict["clean"].ties == 0


def test_a_number_rounded_to_single_precision_is_no_difference():
    X = pd.DataFrame({"a": np.linspace(0.1, 1.0, 40) + 1e-9, "b": np.arange(40.0)})
    y = (X["a"] > X["a"].iloc[19]).astype(int)
    tree = DecisionTreeClassifier().fit(X, y)
    edge = float(np.float32(X["a"].iloc[19])) + 1e-9  # the same number in single precision
    single = fg.Model.wrap(
        lambda rows: (rows.to_numpy(np.float32)[:, :1] > np.float32(0.5)) * [[1.0, -1.0]] + [[0.0, 1.0]], classes=[0, 1]
    )
    double = fg.Model.wrap(lambda rows: (rows.to_numpy()[:, :1] > 0.5) * [[1.0, -1.0]] + [[0.0, 1.0]], classes=[0, 1])
    rows = pd.DataFrame({"a": [0.5 + 1e-12, 0.25, edge], "b": [1.0, 2.0, 3.0]})
    found = fg.check_parity(double, single, rows)
    assert found.agrees and found["clean"].rounded == 1 and found["clean"].differing == 0
    assert fg.check_parity(single, double, rows)["clean"].rounded == 1
    assert fg.check_parity(tree, fg.Model.wrap(tree.predict_proba, classes=[0, 1]), X).agrees


def test_a_threshold_that_was_lost_in_deployment_is_found(credit):
    X, y, rest = credit
    numbers = ["duration", "age", "installment_commitment"]
    inner = LogisticRegression(max_iter=2000).fit(X[numbers], y)
    chooser = LogisticRegression(max_iter=2000)
    decided = FixedThresholdClassifier(chooser, threshold=0.8, pos_label="good").fit(X[numbers], y)
    found = fg.check_parity(decided, inner, rest[numbers][:40])
    p = inner.predict_proba(rest[numbers][:40])[:, 1]
    assert found["clean"].labels == found["clean"].differing == int(((p >= 0.5) & (p < 0.8)).sum()) > 0
    assert found["clean"].probability.largest < 1e-9


# --- protocols ----------------------------------------------------------------------------------------------


def test_a_protocol_of_the_transformed_space_is_read_in_raw_fields(credit, trained, faulty):
    X, _, rest = credit
    protocol = fg.Protocol.fit(trained, X, catalogue=3, sentinels={"duration": [-999]})
    assert protocol.space == "transformed"
    found = fg.check_parity(trained, faulty, rest[:20], protocol)
    assert found["wrong"].states and found["sentinel"].states == 20 and found["lost"].states
    plain = make_pipeline(FunctionTransformer(), LogisticRegression(max_iter=2000)).fit(
        X[["duration", "age"]], credit[1]
    )
    bare = fg.Protocol.fit(plain[-1], X[["duration", "age"]])
    assert fg.check_parity(plain[-1], plain, rest[["duration", "age"]][:10], bare)


def test_recorded_outages_are_compared(credit, trained, faulty):
    X, _, rest = credit
    outages = fg.Outages((("age", "housing"), ("duration",)), (2, 1))
    protocol = fg.Protocol.fit(trained, X, space="raw", outages=outages, modes=("lost",))
    found = fg.check_parity(trained, faulty, rest[:20], protocol)
    assert found["outage"].states and [one.kind for one in found.kinds] == [
        "clean",
        "lost",
        "missing",
        "outage",
        "path",
        "faded",
    ]


def test_rows_that_one_model_refuses_are_counted(numbers):
    """Also where they are clean rows that the reference refuses."""
    model, X = numbers
    rows = X[:20].copy()
    rows.iloc[3, 0] = np.nan
    lenient = fg.Model.wrap(lambda rows: model.predict_proba(rows.fillna(30)), classes=["bad", "good"])
    protocol = fg.Protocol.fit(lenient, rows, space="raw", catalogue=2)
    found = fg.check_parity(model, lenient, rows, protocol)
    assert found["clean"].only_b == 1 and not found.agrees
    assert found["missing"].outside == 3 * 20 - 1 and found["missing"].only_b == 0
    other = fg.check_parity(lenient, model, rows, protocol)
    assert not fg.check_parity(model, lenient, rows[2:5])  # its protocol is fitted on rows that the reference answers
    assert other["clean"].only_a == 1 and other["missing"].only_a and other["missing"].skipped
    example = next(one for one in other.examples if one.kind == "missing")
    assert example.b.label is None and str(example.b).startswith("refuses: ValueError: Input X contains NaN")


# --- refused ------------------------------------------------------------------------------------------------


def test_bad_settings_are_refused(credit, trained):
    rows = credit[2][:5]
    for given_, message in (
        ({"tolerance": -1.0}, "tolerance must be a number from 0 to 1, got -1.0"),
        ({"most_rows": 0}, "most_rows must be a whole number of at least 1, got 0"),
        ({"names": ("a", "a")}, r"names must be two different names, one for each model, got \('a', 'a'\)"),
        ({"protocol": "p.json"}, "a Protocol was expected, got str; make one with Protocol.fit"),
    ):
        with pytest.raises(fg.FragilityError, match=message):
            fg.check_parity(trained, trained, rows, **given_)


def test_a_model_that_answers_nothing_is_refused(credit, trained):
    def fail(rows):
        raise RuntimeError("the service is down")

    broken = fg.Model.wrap(fail, classes=["bad", "good"])
    message = "model_b answers none of the first 5 rows: RuntimeError: the service is down; give it rows that it takes"
    with pytest.raises(fg.ModelError, match=message):
        fg.check_parity(trained, broken, credit[2][:5])
    with pytest.raises(fg.ModelError, match="model_a answers none of the 5 rows: RuntimeError: the service is down"):
        fg.check_parity(broken, trained, credit[2][:5])


def test_a_model_that_depends_on_its_batch_is_refused(credit, trained):
    def centre(rows):
        return trained.predict_proba(rows.assign(duration=rows["duration"] - rows["duration"].mean()))

    with pytest.raises(fg.ModelError, match="model_b answers a row alone otherwise than among other rows"):
        fg.check_parity(trained, fg.Model.wrap(centre, classes=["bad", "good"]), credit[2][:20])

    def impute(rows):  # only where a value is missing
        known = rows["duration"].dropna()
        return trained.predict_proba(rows.assign(duration=rows["duration"].fillna(known.max() if len(known) else 21)))

    with pytest.raises(fg.ModelError, match="model_b answers a row alone otherwise than among other rows"):
        fg.check_parity(trained, fg.Model.wrap(impute, classes=["bad", "good"]), credit[2][:20])


def test_quantiles_are_upper_bounds_within_six_percent():
    values = np.abs(np.random.default_rng(0).normal(size=1000)) * 1e-4
    histogram = Histogram()
    for part in np.array_split(values, 7):
        histogram.add(part)
    for q in (0.5, 0.9, 0.99):
        exact = np.sort(values)[int(np.ceil(q * 1000)) - 1]
        assert exact <= histogram.quantile(q) <= exact * 1.06
    assert histogram.gaps().largest == values.max() and Histogram().quantile(0.5) == 0.0


def test_a_lost_boolean_is_a_value_of_the_raw_protocol():
    X, y = fg.load_credit_g()
    X = X[["duration", "age"]].assign(foreign=(X["foreign_worker"] == "yes").to_numpy())
    made = make_column_transformer((OneHotEncoder(), ["foreign"]), remainder="passthrough")
    model = make_pipeline(made, LogisticRegression(max_iter=400)).fit(X[:600], y[:600])
    protocol = fg.Protocol.fit(model, X[:600])
    assert protocol.space == "transformed"
    assert fg.check_parity(model, model, X[600:640], protocol=protocol)


@pytest.mark.parametrize("groups", [None, {"both": ["a", "number"], "rest": ["b"]}])
def test_whole_numbers_beyond_doubles_are_compared_under_a_transformed_protocol(groups):
    chance = np.random.default_rng(0)
    X = pd.DataFrame({"a": chance.normal(size=60), "b": chance.normal(size=60)})
    X["number"] = 2**60 + chance.integers(0, 2**58, 60)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, X["a"] > 0)
    other = make_pipeline(StandardScaler(), LogisticRegression(C=0.01)).fit(X, X["a"] > 0)
    protocol = fg.Protocol.fit(model, X, groups=groups or "raw-origin", sentinels={"number": [-999]}, catalogue=4)
    assert protocol.space == "transformed"
    found = fg.check_parity(model, model, X, protocol)
    assert found and found["sentinel"].states == 60 and found["wrong"].states and found["lost"].states
    assert not fg.check_parity(model, other, X, protocol)
