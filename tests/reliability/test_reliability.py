"""Failure probabilities: what is declared, what recorded outages give, and what is said of it."""

import json
import re

import numpy as np
import pandas as pd
import pipelines
import pytest
from naive_lattice import Enumerated
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

import fragility as fg
from fragility.base.errors import DataError
from fragility.pages.wording import describe_chance
from fragility.protocol import bind
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.questions.stress.stressors import Layout, Outages

BLOCKS = {
    "checking_status": "account", "savings_status": "account", "duration": "loan", "credit_amount": "loan",
    "purpose": "purpose", "installment_commitment": "terms", "other_payment_plans": "terms", "other_parties": "terms",
    "credit_history": "history", "existing_credits": "history", "employment": "work", "job": "work",
    "residence_since": "home", "housing": "home", "property_magnitude": "home", "age": "person",
    "personal_status": "person", "num_dependents": "person", "own_telephone": "contact", "foreign_worker": "contact",
}  # fmt: skip
pytest.importorskip("numba")


@pytest.fixture(scope="module")
def lending():
    case = pipelines.fitted("credit_g", "gradient_boosting", "transformed")
    return case.model, case.X_test.iloc[:20], fg.Protocol.fit(case.model, case.X_train, groups=BLOCKS)


def enumerated(model, X, protocol):
    rows = bind(model, X, protocol)
    x, group = rows.dense(), rows.column_group.tolist()
    return [Enumerated(row, rows.predict, rows.baseline, group, rows.n_groups, protocol.resolution) for row in x]


def test_rates_by_number_group_and_field(lending):
    model, X, protocol = lending
    X = X.iloc[:6]
    names = protocol.group_names
    declared = {"account": 0.1, "duration": 0.2, "credit_amount": 0.25, "purpose": 0.0}
    found = fg.assess_reliability(model, X, protocol, declared)
    rates = [0.0] * len(names)
    rates[names.index("account")] = 0.1
    rates[names.index("loan")] = 1 - 0.8 * 0.75  # either field takes the group down
    assert found.rates == pytest.approx(rates)
    for chance, truth in zip(found.p_flip, enumerated(model, X, protocol), strict=True):
        assert chance == pytest.approx(truth.probability(rates), abs=1e-9)
    same = fg.assess_reliability(model, X, protocol, 0.1)
    spelled = fg.assess_reliability(model, X, protocol, {name: 0.1 for name in names})
    assert np.array_equal(same.p_flip, spelled.p_flip)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (1.5, "rates must be a number from 0 to 1, got 1.5"),
        ("often", "rates must be a number from 0 to 1, got 'often'"),
        ({}, "must name at least one group or field"),
        ({"account": float("nan")}, "the rate of 'account' must be a number from 0 to 1"),
        ({"acount": 0.1}, "neither a group nor a field"),
        ({"account": 0.1, "savings_status": 0.2}, "give one of the two"),
    ],
)
def test_wrong_rates_are_refused(lending, rates, message):
    model, X, protocol = lending
    with pytest.raises(DataError, match=message):
        fg.assess_reliability(model, X, protocol, rates)


def test_a_number_of_draws_is_a_power_of_two(lending):
    model, X, protocol = lending
    with pytest.raises(DataError, match="draws must be a power of two of at least 16, got 1000"):
        fg.assess_reliability(model, X, protocol, 0.1, draws=1000)


def test_certain_failures_and_none_at_all(lending):
    model, X, protocol = lending
    never = fg.assess_reliability(model, X, protocol, 0.0)
    assert (never.p_flip == 0.0).all() and never.lost == 0.0 and (never.kept == 0.0).all()
    always = fg.assess_reliability(model, X, protocol, 1.0)
    for chance, truth in zip(always.p_flip, enumerated(model, X, protocol), strict=True):
        assert chance == float(tuple(range(truth.n_groups)) in truth.failing)


def test_recorded_outages_are_taken_as_they_co_occurred(lending):
    model, X, protocol = lending
    events = [("checking_status",)] * 6 + [("duration", "purpose")] * 3 + [("age", "job", "housing")]
    outages = Outages.from_events(events)
    found = fg.assess_reliability(model, X, protocol, outages)
    names = list(protocol.group_names)
    patterns = [(tuple(sorted({names.index(BLOCKS[f]) for f in event})), 1 / len(events)) for event in events]
    for i, truth in enumerate(enumerated(model, X, protocol)):
        assert found.p_flip[i] == pytest.approx(sum(w for s, w in patterns if s in truth.failing))
        for g in range(len(names)):
            spared = sum(w for s, w in patterns if tuple(k for k in s if k != g) in truth.failing)
            assert found.kept[i, g] == pytest.approx(found.p_flip[i] - spared)
    assert found.exact.all() and set(found.method) == {"events"} and np.isnan(found.importance).all()
    assert found.rates is None and "when one of 10 recorded outages strikes" in found.to_text()


def test_rates_of_an_outage_log(lending):
    model, X, protocol = lending
    outages = Outages.from_events([("checking_status",)] * 6 + [("duration", "checking_status")] * 2)
    assert outages.rates(100) == {"checking_status": 0.08, "duration": 0.02}
    with pytest.raises(DataError, match="observations must be at least the 8 recorded events"):
        outages.rates(7)
    found = fg.assess_reliability(model, X, protocol, outages.rates(100))
    layout = Layout.of(protocol, bind(model, X, protocol))
    assert found.rates[layout.groups_of("duration")[0]] == pytest.approx(0.02)


def test_the_population_adds_up(lending, tmp_path):
    model, X, protocol = lending
    found = fg.assess_reliability(model, X, protocol, 0.05)
    assert found.lost == pytest.approx(found.p_flip.sum())
    table = found.groups()
    assert table["decisions_kept"].is_monotonic_decreasing
    assert dict(zip(table["group"], table["decisions_kept"], strict=True)) == pytest.approx(
        dict(zip(protocol.group_names, 0.05 * found.importance.sum(axis=0), strict=True))
    )
    without = {name: 0.05 for name in protocol.group_names if name != table["group"][0]}
    mended = fg.assess_reliability(model, X, protocol, without)
    assert found.lost - mended.lost == pytest.approx(table["decisions_kept"][0], abs=1e-9)
    first, share = table["group"][0], table["decisions_kept"][0] / found.lost
    assert f"Make {first} reliable first: if it never failed, " in str(found) and f"kept ({share:.0%})." in str(found)
    assert "reliable first" not in str(fg.assess_reliability(model, X, protocol, 0.0))
    found.save(tmp_path / "lost.json")
    found.save(tmp_path / "lost.csv")
    found.save(tmp_path / "lost.parquet")
    document = json.loads((tmp_path / "lost.json").read_text())
    assert document["decisions_lost"] == pytest.approx(found.lost) and len(document["predictions"]) == 20
    assert pd.read_csv(tmp_path / "lost.csv")["p_flip"].to_numpy() == pytest.approx(found.p_flip)
    assert pd.read_parquet(tmp_path / "lost.parquet")["p_flip"].to_numpy() == pytest.approx(found.p_flip)
    display = found.plot(top=4)
    assert [t.get_text() for t in display.ax_.get_yticklabels()] == table["group"][:4].tolist()
    assert display.ax_.patches[0].get_width() == pytest.approx(table["decisions_kept"][0])


def test_words():
    assert describe_chance(0.125) == "lost in 1 of 8 cases"
    assert describe_chance(0.0) == "never lost" and describe_chance(1.0) == "always lost"
    assert describe_chance(0.0, exact=False) == "practically never lost"
    assert describe_chance(1e-6) == "practically never lost (in fewer than 1 of 10,000 cases)"
    assert describe_chance(1 - 1e-6) == "practically always lost (in all but fewer than 1 of 10,000 cases)"
    assert describe_chance(0.68) == "lost in 7 of 10 cases"
    assert describe_chance(0.99) == "lost in all but 1 of 100 cases"


def test_every_probability_has_words_that_are_near_it():
    for probability in np.linspace(1e-4, 1 - 1e-4, 4001):
        words = re.fullmatch(r"lost in (all but )?(\d+) of ([\d,]+) cases", describe_chance(probability))
        assert words is not None, probability
        share = int(words[2]) / int(words[3].replace(",", ""))
        assert (1 - share if words[1] else share) == pytest.approx(probability, rel=0.25), probability


def test_a_sentence_names_the_condition(lending):
    model, X, protocol = lending
    found = fg.assess_reliability(model, X, protocol, 0.05)
    worst = int(found.order()[0])
    assert (
        found.sentence(worst)
        == f"{describe_chance(found.p_flip[worst])} if each group of fields is missing 5% of the time"
    )
    asked = fg.assess_reliability(model, X.iloc[:3], protocol, 0.05, engine="blackbox", draws=16)
    assert not asked.exact.any() and "95% interval" in asked.sentence(0)
    assert ((asked.low <= asked.p_flip) & (asked.p_flip <= asked.high) & (asked.low < asked.high)).all()


@pytest.mark.slow
@pytest.mark.parametrize("family", [f for f in pipelines.FAMILIES if f not in ("mlp",)])
@pytest.mark.parametrize("dataset", ["adult", "heloc", "default_credit"])
def test_monte_carlo_agrees(dataset, family, load_data):
    targets = {"adult": "income", "heloc": "RiskPerformance", "default_credit": "default.payment.next.month"}
    table = pipelines.read_table(dataset)
    target = targets[dataset] if targets[dataset] in table else table.columns[-1]
    table = table.sample(900, random_state=1).reset_index(drop=True)
    X, y = table.drop(columns=[target]), pipelines.labels_for(family, table[target].astype(str))
    model = pipelines.Pipeline([("prepare", pipelines.preprocessing(X)), ("model", pipelines.estimator(family))])
    model.fit(X[:800], y[:800])
    protocol = fg.Protocol.fit(model, X[:800])
    found = fg.assess_reliability(model, X[800:830], protocol, 0.3)
    assert found.exact.all()
    rows = bind(model, X[800:830], protocol)
    draws = np.random.default_rng(0).random((1000, rows.n_groups)) < 0.3
    for i in range(0, 30, 3):
        x = rows.dense(i, i + 1)[0]
        p = rows.predict(np.where(draws[:, rows.column_group], rows.baseline, x))
        base = rows.predict(x[None])[0].argmax()
        share = (p.argmax(axis=1) != base).mean()
        assert abs(share - found.p_flip[i]) < 4 * np.sqrt(max(share * (1 - share), 1e-3) / 1000) + 2e-3


def test_few_groups_are_enumerated_for_every_model(lending):
    model, X, protocol = lending
    X = X.iloc[:6]
    rates = {"account": 0.3, "loan": 0.2, "work": 0.0, "person": 1.0, "terms": 0.25}
    by_group = [rates.get(name, 0.0) for name in protocol.group_names]
    asked = fg.assess_reliability(model, X, protocol, rates, engine="blackbox")
    read = fg.assess_reliability(model, X, protocol, rates)
    assert set(asked.method) == {"enumeration"} and asked.exact.all()
    for i, truth in enumerate(enumerated(model, X, protocol)):
        assert asked.p_flip[i] == pytest.approx(truth.probability(by_group), abs=1e-12)
        assert asked.importance[i] == pytest.approx(truth.importance(by_group), abs=1e-12)
    assert asked.p_flip == pytest.approx(read.p_flip, abs=1e-12)
    assert asked.kept == pytest.approx(read.kept, abs=1e-12)


# --- its file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rates",
    [0.1, {"x0": 0.2}, {"x0": {"lost": 0.1, "wrong": 0.05}}, fg.Outages.from_events([["x0"], ["x0", "x1"]])],
    ids=["one", "some", "modes", "events"],
)
def test_a_saved_result_is_read_back_whole(tmp_path, rates):
    X, y = make_classification(120, 6, random_state=0)
    model = LogisticRegression().fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    engine = "auto" if isinstance(rates, float) else "blackbox"
    found = fg.assess_reliability(model, X[:20], protocol, rates, engine=engine, draws=16)
    assert found.save(tmp_path / "lost.json") == tmp_path / "lost.json"
    again = FailureProbability.load(tmp_path / "lost.json")
    assert again.to_dict() == found.to_dict()
    for name in ("kept", "importance", "rates", "one_failure", "id", "predicted"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    again.check_audit(fg.audit(model, X[:20], protocol, lattice=False))


def test_a_file_that_contradicts_itself_is_refused(tmp_path):
    X, y = make_classification(120, 6, random_state=0)
    model = LogisticRegression().fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    found = fg.assess_reliability(model, X[:20], protocol, 0.1)

    def refuse(match, **changed):
        with pytest.raises(fg.DataError, match=match):
            FailureProbability.from_dict(found.to_dict() | changed)

    def rows(**changed):
        first, *others = found.to_dict()["predictions"]
        return [first | changed, *others]

    refuse("expected a reliability analysis of format 'fragility-reliability/1', got 'other/1'", format="other/1")
    refuse("that decisions_lost is 3.0, but its rows add up to", decisions_lost=3.0)
    refuse("malformed: it is to have 21 predictions, and has 20", rows=21)
    refuse("malformed: p_flip must lie between 0 and 1", predictions=rows(p_flip=1.5))
    refuse("malformed: the interval of an exact probability must be", predictions=rows(low=0.0, p_flip=0.5, high=1.0))
    refuse("malformed: ids must be distinct", predictions=rows(id=1))
    refuse("malformed: the entries of each prediction must be", predictions=rows(more=1))
    refuse("malformed: kept must be a number, got 'x'", predictions=rows(kept=["x"] * 6))
    refuse("malformed: groups must list each of group_names once", group_names=["x0"])
    groups = found.to_dict()["groups"]
    refuse("does not list its groups by the decisions kept", groups=groups[::-1])
    refuse(
        "that decisions_kept of .* is 100.0, but its rows add up",
        groups=[groups[0] | {"decisions_kept": 100.0}, *groups[1:]],
    )


def test_an_audit_of_something_else_is_refused():
    X, y = make_classification(120, 6, random_state=0)
    model, other = LogisticRegression().fit(X, y), LogisticRegression(C=0.01).fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    found = fg.assess_reliability(model, X[:20], protocol, 0.1)
    zero = fg.Protocol.fit(model, X, baseline="zero")
    for differs, audited in {
        "another model": fg.audit(other, X[:20], protocol, lattice=False),
        "another protocol": fg.audit(model, X[:20], zero, lattice=False),
        "other rows": fg.audit(model, X[:20], protocol, ids=range(1, 21), lattice=False),
    }.items():
        with pytest.raises(fg.DataError, match=f"the failure probabilities are of {differs} than the audit; make them"):
            found.check_audit(audited)
