"""The value catalogue and the declaration of failure modes."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_modes import frequencies, mid_quantiles
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import fragility as fg
from fragility.base.errors import ProtocolError
from fragility.evidence.modes import Outage


def protocol_of(X, **settings):
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    return fg.Protocol.fit(model.fit(X, np.arange(len(X)) % 2), X, space="raw", **settings)


def weights_of(entry):
    return {value[0]: count / sum(entry.counts) for value, count in zip(entry.values, entry.counts, strict=True)}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-3, 3) | st.just(None), min_size=4, max_size=60), st.integers(1, 30), st.randoms())
def test_numbers_are_mid_quantiles_of_the_known_values(values, size, chance):
    if all(value is None for value in values):
        return
    column = [np.nan if value is None else value / 2 for value in values]
    X = pd.DataFrame({"a": column})
    shuffled = X.sample(frac=1.0, random_state=chance.randint(0, 99))
    model = LogisticRegression().fit(X.fillna(0.0), np.arange(len(X)) % 2)
    fitted = [fg.Protocol.fit(model, x.fillna(7.0), catalogue=size).modes for x in (X, shuffled)]
    assert fitted[0] == fitted[1]  # the order of the training rows changes nothing
    found = weights_of(fitted[0].catalogue[0])
    expected = mid_quantiles([7.0 if value is None else value / 2 for value in values], size)
    assert found == pytest.approx(expected)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from("abcdefg"), min_size=4, max_size=50), st.integers(1, 9))
def test_categories_have_their_frequencies(values, size):
    X = pd.DataFrame({"a": values})
    found = [weights_of(entry) for entry in protocol_of(X, catalogue=size).modes.catalogue]
    expected = frequencies(values, size)
    assert found == ([pytest.approx(expected)] if expected else [])


def test_dates_are_mid_quantiles():
    days = pd.date_range("2024-01-01", periods=48)
    X = pd.DataFrame({"day": days[::-1], "kind": ["a", "b"] * 24})
    entry = protocol_of(X, catalogue=4).modes.catalogue[0]
    assert [value for (value,) in entry.values] == ["2024-01-06", "2024-01-18", "2024-01-30", "2024-02-11"]


def test_a_group_of_several_fields_keeps_joint_values():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    blocks = {name: "loan" if name in ("duration", "credit_amount", "purpose") else name for name in case.X_train}
    protocol = fg.Protocol.fit(case.model, case.X_train, groups=blocks, catalogue=9)
    entry = next(entry for entry in protocol.modes.catalogue if entry.group == "loan")
    assert entry.fields == ("duration", "purpose", "credit_amount") and len(entry.values) == 9
    rows = {tuple(row) for row in case.X_train[list(entry.fields)].itertuples(index=False)}
    assert set(entry.values) <= rows
    again = fg.Protocol.fit(case.model, case.X_train[::-1], groups=blocks, catalogue=9)
    assert again.modes == protocol.modes


def made_rows(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    names = np.array([f"name {i}" for i in range(n)])
    names[:60] = "Smith"  # frequent, among names of single rows
    half = np.where(np.arange(n) % 2, "at home", names[rng.permutation(n)])
    return pd.DataFrame(
        {"age": rng.integers(18, 90, n), "surname": names, "work": half, "home": rng.choice(["own", "rent"], n)}
    )


def catalogue_of(table: pd.DataFrame, **settings: Any) -> dict[str, Any]:
    model = fg.Model.wrap(lambda rows: np.full((len(rows), 2), 0.5), classes=[0, 1])
    protocol = fg.Protocol.fit(model, table, space="raw", **settings)
    return {entry.group: [values[0] for values in entry.values] for entry in protocol.modes.catalogue}


def test_values_of_single_rows_are_not_listed():
    table = made_rows()
    found = catalogue_of(table)
    assert "surname" not in found and sorted(found["home"]) == ["own", "rent"] and len(found["age"]) == 24
    assert found["work"][0] == "at home" and set(found["work"]) <= {"at home", "Smith"}
    few = table.assign(home=np.where(np.arange(400) < 2, "other", table["home"]))
    assert sorted(catalogue_of(few)["home"]) == ["other", "own", "rent"]  # a short list of codes stays whole


def test_rows_of_many_fields_are_listed_only_if_asked_for():
    table = made_rows().assign(income=np.arange(400.0), debt=1.0)
    everything = {name: "all" for name in table}
    assert catalogue_of(table, groups=everything) == {}
    assert len(catalogue_of(table, groups=everything, joint_values=True)["all"]) == 24
    few = dict.fromkeys(("age", "income"), "both") | {name: name for name in table if name not in ("age", "income")}
    assert len(catalogue_of(table, groups=few)["both"]) == 24
    codes = pd.concat([table[["home"]].assign(**{f"code{i}": table["age"] > 40 for i in range(5)})])
    assert len(catalogue_of(codes, groups={name: "all" for name in codes})["all"]) == 4  # shared by many rows


def test_a_document_holds_them_and_one_validator_checks_them():
    case = pipelines.fitted("credit_g", "lightgbm", "raw")
    outages = fg.Outages.from_events([{"age"}, {"age", "housing"}])
    protocol = fg.Protocol.fit(case.model, case.X_train, sentinels={"age": [-1, "x * 12"]}, outages=outages)
    assert protocol.modes.declared == ("lost", "wrong", "noisy", "sentinel", "outage")
    assert fg.Protocol.from_json(protocol.to_json()).digest == protocol.digest
    modes, first = protocol.modes, protocol.modes.catalogue[0]
    broken = {
        "each once and in this order": {"declared": modes.declared[::-1]},
        "declared exactly if": {"outages": ()},
        "modes.noise must be a number above 0": {"noise": 0.0},
        "as many counts": {"catalogue": (dataclasses.replace(first, counts=first.counts[:-1]), *modes.catalogue[1:])},
        "groups in declared order": {"catalogue": modes.catalogue[::-1]},
        "which its fields cannot": {"catalogue": (dataclasses.replace(first, values=((None,),), counts=(1,)),)},
        "not written as the format says": {"sentinels": (dataclasses.replace(modes.sentinels[0], weights=(2.0, 1.0)),)},
        "must name groups in declared order": {"outages": (Outage(("nobody",), 1),)},
        "modes.outages.0.count must be a whole number from 1, got 0": {"outages": (Outage(("age",), 0),)},
        "whole columns of modes": {"whole": ("nobody",)},
        "in the order of the table, each once": {"ranges": modes.ranges[::-1]},
        "must hold two values of the field": {"ranges": (dataclasses.replace(modes.ranges[0], low="few"),)},
        "must not end before it starts": {"ranges": (dataclasses.replace(modes.ranges[0], low=1e9),)},
        "is of whole numbers, but ends at": {"ranges": (dataclasses.replace(modes.ranges[0], low=0.5, whole=True),)},
    }
    for words, change in broken.items():
        with pytest.raises(ProtocolError, match=words):
            dataclasses.replace(protocol, modes=dataclasses.replace(modes, **change))
    document = protocol.to_dict()
    document["modes"]["extra"] = 1
    with pytest.raises(ProtocolError, match=r"has the unknown field 'modes\.extra'"):
        fg.Protocol.from_dict(document)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"nobody": [1]}, "which is not a field"),
        ({"age": 3}, "must be a list"),
        ({"age": ["unknown"]}, "must be a number or a multiple"),
        ({"housing": [3]}, "must be of its type in training"),
        ({"age": [(1, 0.0)]}, "weights above 0"),
    ],
)
def test_sentinels_must_fit_their_field(declared, words):
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    with pytest.raises(ProtocolError, match=words):
        fg.Protocol.fit(case.model, case.X_train, sentinels=declared)


def test_other_baselines_keep_the_modes():
    case = pipelines.fitted("credit_g", "hist_gradient_boosting", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    for name in protocol.alternatives:
        other = protocol.with_baseline(name)
        assert other.modes.catalogue == protocol.modes.catalogue


@pytest.mark.parametrize("modes", [("lost",), ("lost", "wrong", "noisy")])
def test_ranges_are_fitted_whichever_modes_are_declared(modes):
    days = pd.date_range("2024-01-01", periods=20)
    times = days + pd.Timedelta("90min")
    X = pd.DataFrame({"n": range(20), "x": np.linspace(-1, 2, 20), "day": days, "time": times, "kind": ["a", "b"] * 10})
    X.loc[3, "x"] = np.nan
    encode = make_column_transformer((OneHotEncoder(), ["day", "time", "kind"]), remainder="passthrough")
    encode.set_params(sparse_threshold=0.0)
    model = make_pipeline(encode, HistGradientBoostingClassifier(max_iter=2)).fit(X, np.arange(20) % 2)
    fitted = [fg.Protocol.fit(model, x, modes=modes) for x in (X, X[::-1])]
    assert fitted[0].modes.ranges == fitted[1].modes.ranges
    assert [(each.field, each.low, each.high, each.whole) for each in fitted[0].modes.ranges] == [
        ("n", 0.0, 19.0, True),
        ("x", -1.0, 2.0, False),
        ("day", "2024-01-01", "2024-01-20", True),
        ("time", "2024-01-01T01:30:00", "2024-01-20T01:30:00", False),
    ]
    assert fg.Protocol.from_json(fitted[0].to_json()).modes == fitted[0].modes
