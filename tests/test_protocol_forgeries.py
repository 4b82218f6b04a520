"""Protocols that say of a baseline what is not so: refused when they are read, or when an audit is verified."""

from __future__ import annotations

import functools
from dataclasses import replace

import pandas as pd
import pytest
from pipelines import split
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg
from fragility.base.errors import EvidenceError, ProtocolError

NUMERIC, WHOLE, NOMINAL = ["age"], ["duration"], ["purpose", "housing"]


@functools.cache
def case() -> tuple[Pipeline, pd.DataFrame]:
    data = split("credit_g")
    encode = ColumnTransformer(
        [
            ("n", StandardScaler(), NUMERIC),
            ("w", "passthrough", WHOLE),
            ("c", OneHotEncoder(handle_unknown="ignore"), NOMINAL),
        ]
    )
    X = data.X_train[NUMERIC + WHOLE + NOMINAL]
    return make_pipeline(encode, LogisticRegression(max_iter=500)).fit(X, data.y_train), X


def verify_under(protocol: fg.Protocol) -> str:
    """Verify an audit that was made under a protocol, forged or not; return what was found wrong."""
    model, X = case()
    result = fg.verify(fg.audit(model, X[:15], protocol), model, X[:15])
    return "; ".join(check.detail for check in result.checks if not check.passed)


def with_cells(protocol: fg.Protocol, **cells: float) -> fg.Protocol:
    columns = tuple(
        replace(column, baseline=cells.get(column.name.replace("__", "_").replace("/", "_"), column.baseline))
        for column in protocol.columns
    )
    return replace(protocol, columns=columns)


def declared(baseline: str, space: str = "transformed") -> fg.Protocol:
    model, X = case()
    return fg.Protocol.fit(model, X, baseline=baseline, space=space)


@pytest.mark.parametrize("baseline", ["typical", "median", "mean", "zero"])
def test_honest_protocols_verify(baseline: str) -> None:
    assert verify_under(declared(baseline)) == ""


def test_a_typical_category_is_the_encoding_of_one() -> None:
    forged = with_cells(declared("typical"), c_housing_own=0.7, c_housing_rent=0.2)
    assert "baseline 'typical' of 'housing' (0, 0.7, 0.2) is not the encoding of 'own'" in verify_under(forged)


def test_a_typical_category_is_the_most_frequent_one() -> None:
    forged = with_cells(declared("typical"), c_housing_own=0.0, c_housing_rent=1.0)
    assert "not the encoding of 'own', its most frequent value" in verify_under(forged)


def test_means_of_one_hot_columns_are_artificial() -> None:
    found = verify_under(replace(declared("mean"), artificial=()))
    assert "is the encoding of no category, yet not named artificial" in found


def test_a_typical_whole_number_is_whole() -> None:
    found = verify_under(with_cells(declared("typical"), w_duration=20.5))
    assert "baseline 'typical' of 'duration' (20.5) is no whole number" in found


def test_nothing_is_artificial_under_typical() -> None:
    with pytest.raises(ProtocolError, match="under 'typical' no baseline is artificial"):
        replace(declared("typical"), artificial=("housing",))


def test_raw_baselines_are_those_of_the_catalogue_and_of_the_type() -> None:
    protocol = declared("typical", "raw")

    def at(name: str, value: object) -> fg.Protocol:
        columns = tuple(replace(c, baseline=value) if c.name == name else c for c in protocol.columns)
        return replace(protocol, columns=columns)

    with pytest.raises(ProtocolError, match=r"that of 'housing' is 'rent', not the most frequent value .*'own'"):
        at("housing", "rent")
    with pytest.raises(ProtocolError, match=r"'duration' holds whole numbers, its baseline is 20.5"):
        at("duration", 20.5)


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_no_group_bears_the_name_of_a_field_it_does_not_hold(space: str) -> None:
    """Its losses would be read as those of the field, and verified under that name."""
    model, X = case()
    exchanged = {"age": ["duration"], "duration": ["age"]}
    with pytest.raises(EvidenceError, match="a group 'duration', and puts the field 'duration' into the group 'age'"):
        fg.Protocol.fit(model, X, groups=exchanged, space=space)
    protocol = fg.Protocol.fit(model, X, groups={"a": ["age"], "b": ["duration"]}, space=space)
    assert protocol.group_thing == "group of fields"
    other = {"a": "duration", "b": "age"}
    groups = tuple(replace(group, name=other.get(group.name, group.name)) for group in protocol.groups)
    stored = tuple(
        one
        if one.groups is None
        else replace(one, groups=tuple(replace(group, name=other.get(group.name, group.name)) for group in one.groups))
        for one in protocol.stored
    )
    entries = [replace(entry, group=other.get(entry.group, entry.group)) for entry in protocol.modes.catalogue]
    order = [group.name for group in groups]
    modes = replace(protocol.modes, catalogue=tuple(sorted(entries, key=lambda entry: order.index(entry.group))))
    with pytest.raises(ProtocolError, match="has the name of a field that it does not hold"):
        replace(protocol, groups=groups, stored=stored, modes=modes)
