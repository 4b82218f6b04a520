"""Stability intervals: what a twin that asks the model for every value says, and never a wrong one."""

import functools

import numpy as np
import pandas as pd
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import naive_support_margin
from naive_stability import flipping_categories, stability_interval
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)

import fragility as fg
from fragility.base.errors import DataError, ProtocolError
from fragility.evidence.fields import Field
from fragility.evidence.modes import Range
from fragility.questions.modes.scales import Scale, rank_decimals, unrank_decimals
from fragility.questions.modes.searching import Bracket, narrow

RESOLUTION = 1e-6


def asking(model, X, i, name):
    """The model's own answers for one raw row in which a field takes other values."""

    def ask(values):
        rows = X.iloc[[i] * len(values)].reset_index(drop=True)
        column = pd.Series(list(values))
        return model.predict_proba(rows.assign(**{name: column.astype(X[name].dtype)}))

    return ask


def as_twin(one):
    """An interval in the form of the twin's; classes as they are."""
    below, above = (None if f is None else (f.value, f.predicted) for f in (one.flips_below, one.flips_above))
    return {"below": (one.low, below), "above": (one.high, above)}


def with_labels(found, classes):
    return {side: (end, None if flip is None else (flip[0], classes[flip[1]])) for side, (end, flip) in found.items()}


# --- integers, all families -----------------------------------------------------------------------------------------

TREES = ["random_forest", "gradient_boosting", "hist_gradient_boosting", "lightgbm", "xgboost", "catboost"]


@pytest.mark.repeats
@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("family", [*TREES, "logistic"])
def test_whole_numbers_end_where_asking_for_each_of_them_says(family, space):
    case = pipelines.fitted("credit_g", family, "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, space=space)
    X, names = case.X_test[:12], ["duration", "age", "installment_commitment"]
    found = fg.find_stability_intervals(case.model, X, protocol, names)
    flips = 0
    for i in range(len(X)):
        for name in names:
            one = found.interval(i, name)
            assert one.exact and isinstance(one.low, int)
            values = range(int(case.X_train[name].min()), int(case.X_train[name].max()) + 1)
            twin = stability_interval(asking(case.model, X, i, name), int(X[name].iloc[i]), values)
            assert as_twin(one) == with_labels(twin, case.model.classes_)
            flips += one.flips_below is not None or one.flips_above is not None
    assert flips  # the comparison is about something


@pytest.mark.parametrize("family", ["lightgbm", "logistic"])
def test_decimals_that_are_whole_in_training_end_at_whole_numbers(family):
    """As whole numbers with gaps are read by pandas; they end where those without gaps do."""
    case, names = pipelines.fitted("credit_g", family, "transformed"), ["duration", "age"]
    decimals = {name: "float64" for name in names}
    protocol = fg.Protocol.fit(case.model, case.X_train)
    floating = fg.Protocol.fit(case.model, case.X_train.astype(decimals))
    assert {one.field for one in floating.modes.ranges if one.whole} >= set(names)
    X = case.X_test[:12]
    found = fg.find_stability_intervals(case.model, X, protocol, names)
    same = fg.find_stability_intervals(case.model, X.astype(decimals), floating, names)
    for i in range(len(X)):
        for name in names:
            one, other = found.interval(i, name), same.interval(i, name)
            assert other.exact and as_twin(other) == as_twin(one) and isinstance(other.low, float)
    half = X.astype(decimals).assign(age=X["age"] + 0.5)
    states = {
        fg.find_stability_intervals(case.model, half, floating, ["age"]).interval(i, "age").state for i in range(12)
    }
    assert states == {"not whole"}


@pytest.mark.repeats
@pytest.mark.parametrize("family", ["lightgbm", "logistic", "random_forest"])
def test_several_classes_flip_to_the_first_rival_that_overtakes(family):
    case = pipelines.fitted("credit_g_property", family, "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    X, classes = case.X_test[:15], set()
    found = fg.find_stability_intervals(case.model, X, protocol, ["duration", "age"])
    for i in range(len(X)):
        for name in ("duration", "age"):
            values = range(int(case.X_train[name].min()), int(case.X_train[name].max()) + 1)
            twin = stability_interval(asking(case.model, X, i, name), int(X[name].iloc[i]), values)
            own = as_twin(found.interval(i, name))
            assert own == with_labels(twin, case.model.classes_)
            classes |= {flip[1] for _, flip in own.values() if flip is not None}
    assert len(classes) > 1


@pytest.mark.repeats
@pytest.mark.parametrize("family", ["lightgbm", "random_forest", "logistic"])
def test_a_declared_threshold_decides(family):
    case = pipelines.fitted("credit_g", family, "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, decision=0.3)
    X = case.X_test[:12]
    found = fg.find_stability_intervals(case.model, X, protocol, ["duration"])
    positive = list(case.model.classes_).index(protocol.decision.label)
    limit = np.log(0.3 / 0.7)

    def margin(p, original):
        lead = naive_support_margin(p, positive) - limit
        return lead if original == positive else -lead

    values = range(int(case.X_train["duration"].min()), int(case.X_train["duration"].max()) + 1)
    for i in range(len(X)):
        ask, own = asking(case.model, X, i, "duration"), int(X["duration"].iloc[i])
        original = positive if margin(list(ask([own])[0]), positive) >= -RESOLUTION else 1 - positive
        assert found.predicted[i] == original
        twin = stability_interval(ask, own, values, original=original, margin=margin)
        one = found.interval(i, "duration")
        assert (one.low, one.high) == (twin["below"][0], twin["above"][0])
        for flip, side in ((one.flips_below, "below"), (one.flips_above, "above")):
            expected = None if twin[side][1] is None else (twin[side][1][0], case.model.classes_[1 - original])
            assert (None if flip is None else (flip.value, flip.predicted)) == expected


# --- decimals -------------------------------------------------------------------------------------------------------


@functools.cache
def decimals(family, precision, classes=2):
    """A model on four columns of decimals, and rows that it was not trained on."""
    chance = np.random.default_rng(3)
    X = pd.DataFrame(chance.normal(size=(900, 4)) * [1.0, 30.0, 0.01, 5e5], columns=list("abcd"))
    score = X["a"] - (X["b"] / 30) ** 2 + np.sin(X["c"] * 200) + X["d"] / 5e5 * (X["a"] > 0)
    y = pd.qcut(score + chance.normal(size=900) / 2, classes, labels=False)
    X["c"] = X["c"].where(chance.random(900) > 0.1) if family in ("lightgbm", "xgboost", "catboost") else X["c"]
    X = X.astype(precision)
    head = pipelines.estimator(family)
    scaled = family in ("logistic", "random_forest")
    model = (make_pipeline(StandardScaler(), head) if scaled else head).fit(X[:600], y[:600])
    return model, X[:600], X[600:].reset_index(drop=True)


def check_ends(model, X, i, name, one, shares, train):
    """The definition: values inside hold, ends hold, one representable step beyond flips.

    A linear model's own answers at an end are rounded by the shape of their batch.
    """
    rounding = 1e-9 if isinstance(getattr(model, "steps", [(0, model)])[-1][1], LogisticRegression) else 0.0
    precision = X[name].dtype.type
    low, high = precision(one.low), precision(one.high)
    inside = [precision(low + share * (high - low)) for share in shares]
    inside = [v for v in inside if low <= v <= high]
    ask = asking(model, X, i, name)
    original = int(np.argmax(ask([X[name].iloc[i]])[0]))
    for p in ask([low, high, *inside]):
        assert naive_support_margin(list(p), original) >= -RESOLUTION - rounding
    known = train[name].dropna()
    ends = ((one.flips_below, low, -np.inf, min), (one.flips_above, high, np.inf, max))
    for flip, end, toward, outermost in ends:
        if flip is None:
            limit = known.min() if outermost is min else known.max()
            assert end == outermost(precision(limit), X[name].iloc[i])
        else:
            beyond = np.nextafter(end, precision(toward))
            assert flip.value == float(beyond)
            p = ask([beyond])[0]
            assert naive_support_margin(list(p), original) < -RESOLUTION + rounding
            assert flip.predicted == model.classes_[int(np.argmax(p))]


@pytest.mark.repeats
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(
    "family", ["lightgbm", "xgboost", "random_forest", "hist_gradient_boosting", "catboost", "logistic"]
)
def test_no_interval_of_decimals_is_wrong(family, precision):
    model, train, X = decimals(family, precision)
    protocol = fg.Protocol.fit(model, train)
    found = fg.find_stability_intervals(model, X, protocol)
    refused = family == "logistic" and precision == "float32"  # the linear engine leaves float32 to the model
    states = {found.interval(i, name).state for i in range(len(X)) for name in "abcd"}
    assert states <= {"bracketed" if refused else "exact", "missing"}
    if refused:
        return

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, len(X) - 1), st.sampled_from("abcd"), st.lists(st.floats(0, 1), max_size=6))
    def check(i, name, shares):
        one = found.interval(i, name)
        if pd.isna(X[name].iloc[i]):
            assert one.state == "missing" and one.low is None
        else:
            check_ends(model, X, i, name, one, shares, train)

    check()


@pytest.mark.repeats
@pytest.mark.parametrize("family", ["lightgbm", "logistic", "random_forest"])
def test_no_interval_of_several_classes_is_wrong(family):
    model, train, X = decimals(family, "float64", 4)
    protocol = fg.Protocol.fit(model, train)
    found = fg.find_stability_intervals(model, X[:60], protocol)
    shares = np.random.default_rng(0).random(20)
    for i in range(60):
        for name in "abcd":
            if not pd.isna(X[name].iloc[i]):
                check_ends(model, X, i, name, found.interval(i, name), shares, train)


SCALERS = [
    StandardScaler(),
    MinMaxScaler((-1, 3)),
    RobustScaler(),
    MaxAbsScaler(),
    QuantileTransformer(n_quantiles=50),
    PowerTransformer(),
    KBinsDiscretizer(6, encode="ordinal", strategy="uniform"),
]


@pytest.mark.repeats
@pytest.mark.parametrize("scaler", SCALERS, ids=lambda scaler: type(scaler).__name__)
@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_scalers_keep_ends_exact(scaler, space):
    _, train, X = decimals("random_forest", "float64")
    y = (train["a"] + train["b"] / 30 > 0).to_numpy()
    shares = np.random.default_rng(1).random(10)
    for head in (pipelines.estimator("lightgbm"), LogisticRegression()):
        model = make_pipeline(scaler, head).fit(train, y)
        found = fg.find_stability_intervals(model, X[:15], fg.Protocol.fit(model, train, space=space))
        for i in range(15):
            for name in "ab":
                one = found.interval(i, name)
                assert one.exact
                check_ends(model, X, i, name, one, shares, train)


def test_columns_that_rise_and_fall_are_bracketed():
    _, train, X = decimals("random_forest", "float64")
    y = (train["a"] ** 2 > 0.5).to_numpy()
    model = make_pipeline(SplineTransformer(), pipelines.estimator("lightgbm")).fit(train, y)
    protocol = fg.Protocol.fit(model, train, space="raw")
    found = fg.find_stability_intervals(model, X[:10], protocol, ["a"])
    assert {found.interval(i, "a").state for i in range(10)} == {"bracketed"}


def test_one_against_rest_is_bracketed():
    _, train, X = decimals("logistic", "float64")
    y = pd.qcut(train["a"], 3, labels=False)
    model = make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", random_state=0)).fit(train, y)
    found = fg.find_stability_intervals(model, X[:5], fg.Protocol.fit(model, train), ["a"])
    assert found.interval(0, "a").state == "bracketed"


# --- dates ----------------------------------------------------------------------------------------------------------


def day_number(X):
    return X.apply(lambda column: (column - pd.Timestamp("2020-01-01")).dt.days)


def days_ago(X):
    return X.apply(lambda column: (pd.Timestamp("2024-01-01") - column).dt.days)


def weekday(X):
    return X.apply(lambda column: column.dt.day_of_week)


def dated(head, function, unit="ns"):
    chance = np.random.default_rng(5)
    days = pd.to_datetime("2021-01-01") + pd.to_timedelta(chance.integers(0, 700, 500), unit="D")
    X = pd.DataFrame({"day": pd.Series(days).astype(f"datetime64[{unit}]"), "z": chance.normal(size=500)})
    shift = function(X[["day"]])["day"]
    y = (X["z"] + (shift - shift.mean()) / shift.std() + chance.normal(size=500) / 3 > 0).astype(int)
    dates = make_pipeline(FunctionTransformer(function, feature_names_out="one-to-one"), StandardScaler())
    prepare = make_column_transformer((dates, ["day"]), remainder="passthrough")
    return make_pipeline(prepare, head).fit(X[:300], y[:300]), X[:300], X[300:].reset_index(drop=True)


@pytest.mark.samples
@pytest.mark.parametrize(
    ("family", "function"),
    [
        ("lightgbm", day_number),
        ("logistic", day_number),
        ("lightgbm", days_ago),
        ("logistic", days_ago),
        ("lightgbm", weekday),
        ("catboost", weekday),
    ],
)
@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_dates_end_at_a_day(family, function, space):
    model, train, X = dated(pipelines.estimator(family), function)
    protocol = fg.Protocol.fit(model, train, space=space)
    assert next(each for each in protocol.modes.ranges if each.field == "day").whole
    found = fg.find_stability_intervals(model, X[:12], protocol, ["day"])
    values = list(pd.date_range(train["day"].min(), train["day"].max()))
    for i in range(12):
        one = found.interval(i, "day")
        assert one.exact
        twin = stability_interval(asking(model, X, i, "day"), X["day"][i], values)
        words = {
            side: (f"{end:%Y-%m-%d}", None if flip is None else (f"{flip[0]:%Y-%m-%d}", model.classes_[flip[1]]))
            for side, (end, flip) in twin.items()
        }
        assert as_twin(one) == words


def test_dates_outside_training_and_with_times_have_their_states():
    model, train, X = dated(pipelines.estimator("lightgbm"), day_number)
    X = X[:3].copy()
    X.loc[0, "day"] = pd.Timestamp("2030-01-01")
    X.loc[1, "day"] = pd.Timestamp("2021-05-05 10:00")
    X.loc[2, "day"] = pd.NaT
    found = fg.find_stability_intervals(model, X[:2], fg.Protocol.fit(model, train), ["day"])
    assert [found.interval(i, "day").state for i in range(2)] == ["bracketed", "not whole"]
    assert found.interval(0, "day").high == "2030-01-01"


# --- nominal fields -------------------------------------------------------------------------------------------------


@pytest.mark.samples
@pytest.mark.parametrize(
    ("family", "space"),
    [
        ("lightgbm", "transformed"),
        ("logistic", "transformed"),
        ("mlp", "transformed"),
        ("lightgbm", "raw"),
        ("catboost", "raw"),
    ],
)
def test_categories_that_flip_are_those_that_asking_for_each_finds(family, space):
    case = pipelines.fitted("credit_g", family, space)
    protocol = fg.Protocol.fit(case.model, case.X_train, space=space)
    X, names = case.X_test[:15], ["checking_status", "purpose", "housing"]
    found, flips = fg.find_stability_intervals(case.model, X, protocol, names), 0
    for i in range(len(X)):
        for name in names:
            one, own = found.interval(i, name), X[name].astype(object).iloc[i]
            values = [value for value in case.X_train[name].astype(object).unique() if not pd.isna(value)]
            twin = flipping_categories(asking(case.model, X, i, name), own, values)
            assert {f.value: f.predicted for f in one.categories} == {
                v: case.model.classes_[c] for v, c in twin.items()
            }
            assert one.state == "exact" and one.value == own
            flips += len(twin)
    assert flips


# --- models that can only be asked ----------------------------------------------------------------------------------


@pytest.mark.repeats
@pytest.mark.parametrize(("family", "engine"), [("mlp", "auto"), ("lightgbm", "blackbox")])
def test_other_models_have_ends_between_values_of_the_catalogue(family, engine):
    case = pipelines.fitted("credit_g", family, "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    X = case.X_test[:15]
    found = fg.find_stability_intervals(case.model, X, protocol, ["duration"], engine=engine)
    entry = next(entry for entry in protocol.modes.catalogue if entry.group == "duration")
    tried = sorted(
        {value for (value,) in entry.values} | {case.X_train["duration"].min(), case.X_train["duration"].max()}
    )
    for i in range(len(X)):
        one = found.interval(i, "duration")
        assert one.state == "bracketed" and not one.exact
        twin = stability_interval(asking(case.model, X, i, "duration"), int(X["duration"].iloc[i]), tried)
        assert as_twin(one) == with_labels(twin, case.model.classes_)


# --- states, limits, order ------------------------------------------------------------------------------------------


def test_missing_fractional_and_outer_values():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    X = case.X_test[:3].astype({"age": float, "duration": float})
    X.loc[0, "age"], X.loc[1, "age"], X.loc[2, "age"] = np.nan, 33.5, 150.0
    found = fg.find_stability_intervals(case.model, X, protocol)
    assert [found.interval(i, "age").state for i in range(3)] == ["missing", "not whole", "exact"]
    assert found.describe(0, "age") == "age is missing, so it has no stable interval"
    outer = found.interval(2, "age")
    assert outer.high == 150 and outer.flips_above is None  # the hull of the range and the value
    table = found.to_pandas()
    assert len(table) == 3 * X.shape[1] and set(table["state"]) == {"exact", "missing", "not whole"}


@pytest.mark.parametrize("family", ["lightgbm", "logistic"])
def test_a_field_that_no_row_knows_has_no_interval(family):
    case = pipelines.fitted("credit_g", family, "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, catalogue=4)
    X = case.X_test[:2].astype({"age": float}).assign(age=np.nan)
    found = fg.find_stability_intervals(case.model, X, protocol)
    assert [found.interval(i, "age").state for i in range(2)] == ["missing", "missing"]
    assert found.interval(0, "duration").state == "exact"


@pytest.mark.repeats
@pytest.mark.parametrize("family", ["lightgbm", "logistic"])
def test_order_and_batch_change_nothing(family):
    model, train, X = decimals(family, "float64")
    protocol = fg.Protocol.fit(model, train)
    whole = fg.find_stability_intervals(model, X[:40], protocol)
    few = fg.find_stability_intervals(model, X[:7], protocol)

    @settings(max_examples=4, deadline=None)
    @given(st.permutations(range(40)), st.integers(2**14, 2**18))
    def check(order, budget):
        turned = fg.find_stability_intervals(model, X[:40].iloc[order], protocol, byte_budget=budget)
        for name in "abcd":
            for i in range(40):
                assert turned.interval(i, name) == whole.interval(order[i], name)

    check()
    assert all(few.interval(i, name) == whole.interval(i, name) for i in range(7) for name in "abcd")


def test_intervals_say_themselves():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    found = fg.find_stability_intervals(case.model, case.X_test[:60], protocol)
    ordered = [found.interval(i, "duration") for i in range(60)]
    for i, one in enumerate(ordered):
        words = found.describe(i, "duration")
        if one.flips_below is None and one.flips_above is None:
            assert words == "no value of duration in training flips it"
        elif one.flips_below is None:
            assert words == f"stable while duration is at most {one.high} (now {one.value})"
        elif one.flips_above is None:
            assert words == f"stable while duration is at least {one.low} (now {one.value})"
        else:
            assert words == f"stable while duration is between {one.low} and {one.high} (now {one.value})"
    assert len({found.describe(i, "duration").split(" is ")[0] for i in range(60)}) > 1
    assert any(found.describe(i, "checking_status").startswith("flips if checking_status is '") for i in range(60))


def test_what_cannot_be_answered_is_refused():
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    with pytest.raises(ProtocolError, match="got 'nobody'"):
        fg.find_stability_intervals(case.model, case.X_test[:3], protocol, ["nobody"])
    found = fg.find_stability_intervals(case.model, case.X_test[:3], protocol, ["age"])
    with pytest.raises(DataError, match="the fields searched are age, got 'duration'"):
        found.interval(0, "duration")
    encode = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), pipelines.nominal_names(case.X_train)))
    matrix = encode.fit_transform(case.X_train)
    y = pipelines.split("credit_g").y_train
    model = LogisticRegression().fit(matrix, y)
    with pytest.raises(DataError, match="need rows in a table or dense array, got a sparse matrix"):
        fg.find_stability_intervals(model, matrix[:3], fg.Protocol.fit(model, matrix))


# --- scales and searches --------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([np.float64, np.float32, np.float16]))
def test_neighbouring_ranks_are_neighbouring_decimals(value, precision):
    with np.errstate(over="ignore"):
        number = np.array([value]).astype(precision)
    if not np.isfinite(number[0]):
        return
    rank = rank_decimals(number)
    assert unrank_decimals(rank, precision)[0] == number[0]
    for step in (-1, 1):
        with np.errstate(over="ignore"):
            beyond = np.nextafter(number, precision(step * np.inf))
        if np.isfinite(beyond[0]):
            assert unrank_decimals(rank + step, precision)[0] == beyond[0]


def finish(probes, measure):
    """Return what a search finds; measure(searches, places) -> residuals."""
    try:
        asked = next(probes)
        while True:
            asked = probes.send(measure(*asked))
    except StopIteration as stop:
        return stop.value


@settings(deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(-1e12, 1e12)] * 3), min_size=1, max_size=8),
    st.booleans(),
    st.sampled_from([1.0, 1e-9, 1e9]),
)
def test_a_search_ends_at_the_neighbours_of_the_turn(triples, whole, slope):
    own = Range("a", -1e12, 1e12, whole)
    scale = Scale(Field("a", "numeric", "integer" if whole else "number"), own, np.float64)
    ends = np.array([sorted(t)[:1] + sorted(t)[2:] for t in triples])
    limits = np.array([sorted(t)[1] for t in triples])
    places = scale.nearest(ends)

    def measure(some, at):
        return (limits[some] - scale.numbers(at)) * slope

    every = np.arange(len(limits))
    first, last = measure(every, places[:, 0]), measure(every, places[:, 1])
    good = np.flatnonzero((first >= 0) & (last < 0))
    start = Bracket(places[good, 0], places[good, 1], first[good], last[good])
    inside, outside = finish(narrow(scale, start), lambda some, at: measure(good[some], at))
    assert (outside == inside + 1).all()
    assert (measure(good, inside) >= 0).all() and (measure(good, outside) < 0).all()


class CountedScaler(StandardScaler):
    """A preprocessing that counts how often it is asked."""

    calls = 0

    def transform(self, X, copy=None):
        CountedScaler.calls += 1
        return super().transform(X, copy)


@pytest.mark.parametrize("family", ["logistic", "mlp", "lightgbm"])
@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_more_fields_take_no_more_calls(family, space):
    """All fields are searched together: a call costs a pipeline far more than a row."""
    values = np.random.default_rng(4).normal(size=(300, 10))
    X = pd.DataFrame(values, columns=[f"v{j}" for j in range(10)])
    y = (values.sum(axis=1) > 0).astype(int)
    model = make_pipeline(CountedScaler(), pipelines.estimator(family)).fit(X, y)
    protocol, counts = fg.Protocol.fit(model, X, space=space), []
    for names in (["v0"], list(X)):
        CountedScaler.calls = 0
        fg.find_stability_intervals(model, X[:20], protocol, names)
        counts.append(CountedScaler.calls)
    assert counts[1] < 3 * counts[0]  # the longest search decides


# --- columns of several fields, sparse rows, times ------------------------------------------------------------------


def test_columns_of_several_fields_are_asked_with_the_whole_row():
    _, train, X = decimals("random_forest", "float64")
    y = (train["a"] * train["b"] > 0).to_numpy()
    model = make_pipeline(StandardScaler(), PolynomialFeatures(2), pipelines.estimator("lightgbm")).fit(train, y)
    protocol = fg.Protocol.fit(model, train, space="raw")
    found, flips = fg.find_stability_intervals(model, X[:12], protocol, ["a"]), 0
    (entry,) = (entry for entry in protocol.modes.catalogue if entry.group == "a")
    tried = sorted({value for (value,) in entry.values} | {train["a"].min(), train["a"].max()})
    for i in range(12):
        one = found.interval(i, "a")
        assert one.state == "bracketed"
        twin = stability_interval(asking(model, X, i, "a"), X["a"][i], tried)
        assert as_twin(one) == with_labels(twin, model.classes_)
        flips += one.flips_below is not None or one.flips_above is not None
    assert flips


@pytest.mark.parametrize("family", ["lightgbm", "xgboost"])
def test_sparse_rows_end_where_asking_says(family):
    split = pipelines.split("credit_g")
    scaled = make_column_transformer(
        (StandardScaler(with_mean=False), ["duration", "credit_amount"]),
        (OneHotEncoder(handle_unknown="ignore"), ["housing", "purpose"]),
        ("passthrough", ["existing_credits", "num_dependents"]),
        sparse_threshold=1.0,
    )
    train = split.X_train.assign(num_dependents=split.X_train["num_dependents"].astype(int) - 1)  # zeros are absent
    X = split.X_test[:12].assign(num_dependents=split.X_test["num_dependents"][:12].astype(int) - 1)
    y = (split.y_train == "good").astype(int)
    model = make_pipeline(scaled, pipelines.estimator(family)).fit(train, y)
    found = fg.find_stability_intervals(model, X, fg.Protocol.fit(model, train))
    for i in range(12):
        for name in ("duration", "num_dependents"):
            values = range(int(train[name].min()), int(train[name].max()) + 1)
            twin = stability_interval(asking(model, X, i, name), int(X[name].iloc[i]), values)
            one = found.interval(i, name)
            assert one.exact and as_twin(one) == with_labels(twin, model.classes_)


def test_times_of_day_are_bracketed():
    model, train, X = dated(pipelines.estimator("lightgbm"), day_number)
    train, X = (table.assign(day=table["day"] + pd.Timedelta("90min")) for table in (train, X))
    protocol = fg.Protocol.fit(model, train)
    one = fg.find_stability_intervals(model, X[:3], protocol, ["day"]).interval(0, "day")
    assert one.state == "bracketed" and one.value == X["day"][0].isoformat()
