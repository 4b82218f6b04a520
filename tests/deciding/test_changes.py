"""P_change and acquire: what a twin that asks the model for every value says, whatever engine, batch and order."""

import numpy as np
import pandas as pd
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_deciding import changes_to, drawn_states, known_part, nearest, p_change, product, reduction
from scipy.stats import qmc
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler

import fragility as fg
from fragility.base.canonical import row_digests
from fragility.base.errors import ProtocolError
from fragility.deciding.values import JointValues, choose_units, draw_states, list_states

ROWS = 3
CASES = [
    ("credit_g", "logistic", "transformed"),
    ("credit_g", "lightgbm", "transformed"),
    ("credit_g", "random_forest", "transformed"),
    ("credit_g", "mlp", "transformed"),
    ("credit_g", "lightgbm", "raw"),
    ("credit_g", "hist_gradient_boosting", "raw"),
    ("credit_g_property", "lightgbm", "transformed"),
]


def make_guard(case, catalogue=5, **settings):
    protocol = fg.Protocol.fit(case.model, case.X_train, space=case.space, catalogue=catalogue)
    return fg.Guard(case.model, protocol, **settings)


def ask(case):
    said = {}  # the twin asks about the same states for every field

    def probabilities(row):
        cells = tuple(row[name] for name in case.X_test)
        if cells not in said:
            said[cells] = case.model.predict_proba(pipelines.raw_row_table(case, list(cells)))[0]
        return said[cells]

    return probabilities


def units_of(protocol, unknown):
    """The values of unknown fields by group, as the protocol lists them."""
    found = []
    for entry in protocol.modes.catalogue:
        values = [
            (dict(zip(entry.fields, value, strict=True)), count / sum(entry.counts))
            for value, count in zip(entry.values, entry.counts, strict=True)
        ]
        if own := [name for name in entry.fields if name in unknown]:
            found.append(known_part(values, own))
    return found


def compare_with_twin(case, guard, unknown, rows=ROWS, stale=()):
    X = case.X_test[:rows]
    checks = guard.check_rows(X, [unknown] * rows, [stale] * rows)
    classes = list(guard.model.classes)
    units = units_of(guard.protocol, [*unknown, *stale])
    asked = ask(case)
    for check, (_, decided) in zip(checks, checks.rows.astype(object).iterrows(), strict=True):
        x, original = dict(decided), classes.index(check.decision)
        states = product(units)
        assert check.p_change == pytest.approx(p_change(asked, x, original, states), abs=1e-9)
        assert check.p_change_exact and check.p_change_low == check.p_change == check.p_change_high
        to = changes_to(asked, x, original, states)
        assert check.changes_to == (None if to is None else classes[to])
        own = {name: reduction(asked, x, original, units, name) for name in (*unknown, *stale)}
        assert dict(check.acquire) == pytest.approx(own, abs=1e-9)
        assert [value for _, value in check.acquire] == sorted(own.values(), reverse=True) or len(own) > 1


@pytest.mark.repeats
@pytest.mark.parametrize(("dataset", "family", "space"), CASES)
def test_changes_are_what_asking_for_every_value_says(dataset, family, space):
    case = pipelines.fitted(dataset, family, space)
    guard = make_guard(case)
    compare_with_twin(case, guard, ["duration"])
    compare_with_twin(case, guard, ["checking_status", "age"])


def test_stale_fields_keep_their_values():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    guard = make_guard(case)
    compare_with_twin(case, guard, ["checking_status"], stale=["duration"])
    row = case.X_test.iloc[0]
    stale, known = guard.check(dict(row), stale=["duration"]), guard.check(dict(row))
    assert stale.decision == known.decision and stale.certificate.digest == known.certificate.digest
    assert known.p_change is None and known.acquire == () and stale.p_change is not None


def test_fields_of_one_group_keep_their_joint_values():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    blocks = {name: name for name in case.X_train} | {"duration": "loan", "credit_amount": "loan", "purpose": "loan"}
    protocol = fg.Protocol.fit(case.model, case.X_train, groups=blocks, catalogue=6)
    guard = fg.Guard(case.model, protocol)
    compare_with_twin(case, guard, ["duration", "credit_amount", "purpose"])
    compare_with_twin(case, guard, ["duration", "purpose", "age"])  # only some of the group


def test_columns_made_from_several_fields_are_asked_of_the_model():
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "credit_amount", "purpose"]]
    pairs = make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False))
    encode = make_column_transformer((pairs, ["duration", "age"]), (OneHotEncoder(), ["purpose"]))
    model = make_pipeline(encode, LogisticRegression(max_iter=500)).fit(X[:600], y[:600])
    blocks = {"person": ["duration", "age"], "purpose": ["purpose"]}
    protocol = fg.Protocol.fit(model, X[:600], groups=blocks, catalogue=6)
    case = pipelines.Case("logistic", "credit_g", "transformed", model, X[:600], X[600:])
    guard = fg.Guard(model, protocol)
    compare_with_twin(case, guard, ["duration"])
    compare_with_twin(case, guard, [], stale=["duration", "age", "purpose"])
    # the model never sees this field, so nothing changes when it is known
    check = guard.check(dict(X.iloc[700]), missing=["credit_amount"])
    assert check.p_change == 0.0 and check.acquire == (("credit_amount", 0.0),)


def test_a_declared_threshold_decides():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, catalogue=5, decision=0.8)
    guard = fg.Guard(case.model, protocol)
    checks = guard.check_rows(case.X_test[:6], [["duration", "age"]] * 6)
    units, classes = units_of(protocol, ["duration", "age"]), list(guard.model.classes)
    for check, (_, decided) in zip(checks, checks.rows.astype(object).iterrows(), strict=True):
        original = classes.index(check.decision)
        own = p_change(ask(case), dict(decided), original, product(units), decision=(1, 0.8))
        assert check.p_change == pytest.approx(own, abs=1e-9)


def test_one_stale_field_has_the_flip_chance_of_its_wrong_values():
    """A missing field has none: evidence that is not there cannot be wrong."""
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    guard = make_guard(case, catalogue=24)
    for name in ("duration", "checking_status", "credit_amount"):
        checks = guard.check_rows(case.X_test[:20], stale=[[name]] * 20)
        wrong = fg.assess_modes(case.model, checks.rows, guard.protocol, ["wrong"])["wrong"]
        chances = wrong.flip_chance[:, wrong.units.index(name)]
        np.testing.assert_allclose([check.p_change for check in checks], chances, atol=1e-12)


# --- quasi-random states --------------------------------------------------------------------------------------


def test_too_many_states_are_drawn_as_the_twin_draws_them():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    guard = make_guard(case, draws=32)
    unknown = ["checking_status", "duration", "age"]
    checks = guard.check_rows(case.X_test[:ROWS], [unknown] * ROWS)
    units, classes = units_of(guard.protocol, unknown), list(guard.model.classes)
    order = [name for unit in units for name in unit[0][0]]
    digests = row_digests({name: checks.rows[name] for name in checks.rows})
    points = qmc.Sobol(len(units), scramble=False).random_base2(1).tolist()
    for i, check in enumerate(checks):
        key = "\x1f".join([digests[i].hex(), *order])
        x, original = dict(checks.rows.astype(object).iloc[i]), classes.index(check.decision)
        states = drawn_states(units, points, key)
        assert check.p_change == pytest.approx(p_change(ask(case), x, original, states), abs=1e-9)
        assert not check.p_change_exact and check.p_change_low <= check.p_change <= check.p_change_high


def test_intervals_of_drawn_states_hold_the_exact_probability():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    X, unknown = case.X_test[:150], ["checking_status", "duration", "credit_amount"]
    exact = make_guard(case, catalogue=10, draws=1024).check_rows(X, [unknown] * len(X))
    drawn = make_guard(case, catalogue=10, draws=256).check_rows(X, [unknown] * len(X))
    assert all(check.p_change_exact for check in exact) and not any(check.p_change_exact for check in drawn)
    pairs = list(zip(exact, drawn, strict=True))
    held = [d.p_change_low - 1e-12 <= e.p_change <= d.p_change_high + 1e-12 for e, d in pairs]
    assert np.mean(held) > 0.9
    assert np.mean([abs(e.p_change - d.p_change) for e, d in pairs]) < 0.02


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
    content=st.binary(min_size=32, max_size=32),
)
def test_weights_sum_to_one(sizes, seed, content):
    generator = np.random.default_rng(seed)
    units = []
    for u, size in enumerate(sizes):
        weights = generator.random(size) + 1e-3
        values = tuple((float(v),) for v in range(size))
        units.append(JointValues((f"f{u}",), values, weights / weights.sum(), np.arange(size)))
    for states in (list_states(units), draw_states(units, 64, content)):
        np.testing.assert_allclose(states.weight.sum(axis=1), 1.0, atol=1e-9)
        assert (states.codes >= 0).all() and (states.codes < np.array(sizes)).all()
        assert len(np.unique(states.codes, axis=0)) == len(states.codes)
    again = draw_states(units, 64, content)
    assert np.array_equal(again.codes, states.codes) and np.array_equal(again.weight, states.weight)


def test_fields_without_values_are_refused():
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, modes=["lost"])
    with pytest.raises(ProtocolError, match=r"what 'duration' might hold is not known.*declares the mode 'wrong'"):
        choose_units(protocol, ["duration"])
    with pytest.raises(ProtocolError, match="no value catalogue"):
        fg.Guard(case.model, protocol).check(dict(case.X_test.iloc[0]), stale=["duration"])


# --- nearest training rows ------------------------------------------------------------------------------------


def test_conditional_values_are_those_of_the_nearest_training_rows():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    guard = make_guard(case, training=case.X_train, conditional=True)
    numeric = list(case.X_train.select_dtypes("number"))
    training = [dict(row) for _, row in case.X_train.astype(object).iterrows()]
    digests = row_digests({name: case.X_train[name] for name in case.X_train})
    classes, asked = list(guard.model.classes), ask(case)
    for unknown in (["duration"], ["checking_status", "credit_amount"]):
        checks = guard.check_rows(case.X_test[:ROWS], [unknown] * ROWS)
        for i, check in enumerate(checks):
            x = dict(checks.rows.astype(object).iloc[i])
            near = nearest(training, digests, x, unknown, numeric, 24)
            original = classes.index(check.decision)
            assert check.p_change == pytest.approx(p_change(asked, x, original, near), abs=1e-9)
            for name, own in check.acquire:
                assert own == pytest.approx(reduction(asked, x, original, [near], name), abs=1e-9)


def test_the_order_of_training_rows_changes_nothing():
    case = pipelines.fitted("credit_g", "hist_gradient_boosting", "raw")
    X, unknown = case.X_test[:30], ["checking_status", "credit_amount"]
    found = []
    for training in (case.X_train, case.X_train.sample(frac=1.0, random_state=3)):
        checks = make_guard(case, training=training, conditional=True).check_rows(X, [unknown] * len(X))
        found.append([(check.p_change, check.changes_to, check.acquire) for check in checks])
    assert found[0] == found[1]


# --- nothing else matters -------------------------------------------------------------------------------------


def told(check):
    return (
        check.id,
        check.decision,
        check.p_change,
        check.p_change_low,
        check.p_change_high,
        check.changes_to,
        check.acquire,
    )


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_batch_and_order_change_nothing(data):
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    guard = shared_guard()
    n = 8
    places = data.draw(st.lists(st.integers(0, len(case.X_test) - 1), min_size=n, max_size=n, unique=True))
    X = case.X_test.iloc[places].set_axis(places, axis=0)
    fields = st.lists(st.sampled_from(list(X)), max_size=4, unique=True)
    missing = [data.draw(fields) for _ in places]
    together = [told(check) for check in guard.check_rows(X, missing)]
    alone = [
        told(guard.check(dict(row.astype(object)), names, id=int(i)))
        for (i, row), names in zip(X.iterrows(), missing, strict=True)
    ]
    order = data.draw(st.permutations(range(n)))
    shuffled = guard.check_rows(X.iloc[list(order)], [missing[i] for i in order])
    again = {check.id: told(check) for check in shuffled}
    assert together == alone == [again[i] for i in places]
    for _, _, chance, low, high, to, _ in together:
        assert chance is None or 0.0 <= low <= chance <= high <= 1.0
        assert (to is not None) == bool(chance)


def shared_guard(made={}):  # noqa: B006
    if not made:
        made["guard"] = make_guard(pipelines.fitted("credit_g", "lightgbm", "transformed"), catalogue=8, draws=64)
    return made["guard"]


@pytest.mark.parametrize(
    ("family", "space"), [("lightgbm", "transformed"), ("logistic", "transformed"), ("xgboost", "raw")]
)
def test_engines_agree(family, space):
    case = pipelines.fitted("credit_g", family, space)
    X, missing = case.X_test[:20], [["duration", "age"], ["checking_status"]] * 10
    native, asked = (make_guard(case, engine=engine).check_rows(X, missing) for engine in ("auto", "blackbox"))
    assert [told(check) for check in native] == [told(check) for check in asked]
    pd.testing.assert_frame_equal(native.rows, asked.rows)


# --- dates, flags and categories ------------------------------------------------------------------------------


class DatedModel(ClassifierMixin, BaseEstimator):
    """A model that takes a raw table with dates, truth values and categories."""

    def fit(self, X, y):
        self.classes_, self.feature_names_in_ = np.array(["bad", "good"]), np.array(list(X))
        return self

    def predict_proba(self, X):
        days = (X["opened"] - pd.Timestamp("2021-01-01")).dt.days
        z = 0.6 - 0.06 * (X["duration"].astype(float) - 20) + 0.004 * days + 0.7 * X["flag"].astype(float)
        z += 0.5 * (X["purpose"].astype(str) == "radio/tv")
        p = 1.0 / (1.0 + np.exp(-z.to_numpy()))
        return np.column_stack([1.0 - p, p])

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


@pytest.fixture(scope="module")
def dated():
    X, _ = fg.load_credit_g()
    generator = np.random.default_rng(0)
    opened = pd.Timestamp("2020-01-01") + pd.to_timedelta(generator.integers(0, 900, len(X)), unit="D")
    X = X[["duration", "purpose"]].assign(opened=opened, flag=generator.random(len(X)) < 0.4)
    return X.assign(purpose=X["purpose"].astype("category"))


@pytest.mark.parametrize("conditional", [False, True])
def test_dates_flags_and_categories_may_be_unknown(dated, conditional):
    model = DatedModel().fit(dated, None)
    protocol = fg.Protocol.fit(model, dated[:600], space="raw", catalogue=5)
    settings = {"training": dated[:600], "conditional": True} if conditional else {}
    guard = fg.Guard(model, protocol, **settings)
    X, unknown = dated[700:708], ["opened", "flag", "purpose"]
    checks = guard.check_rows(X, [unknown] * len(X))
    assert checks.rows.dtypes.to_dict() == X.dtypes.to_dict()
    training = [dict(row) for _, row in dated[:600].astype(object).iterrows()]
    digests = row_digests({name: dated[name][:600] for name in dated})

    def answer(row):
        table = pd.DataFrame([{**row, "opened": pd.Timestamp(row["opened"])}])
        return model.predict_proba(table)[0]

    found = []
    for check, (_, x) in zip(checks, checks.rows.astype(object).iterrows(), strict=True):
        states = product(units_of(protocol, unknown))
        if conditional:
            states = nearest(training, digests, dict(x), unknown, ["duration"], 24)
        original = list(model.classes_).index(check.decision)
        assert check.p_change == pytest.approx(p_change(answer, dict(x), original, states), abs=1e-9)
        alone = guard.check({name: value for name, value in dict(x).items() if name != "opened"}, unknown, id=check.id)
        assert told(alone) == told(check)
        found.append(check.p_change)
    assert any(found)
