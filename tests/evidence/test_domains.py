"""Domains: what values a field may take, as they are fitted, declared, stored and refused."""

import dataclasses

import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import fragility as fg
from fragility.evidence.domains import Domain


@pytest.fixture(scope="module")
def case():
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    rows = 120
    X = pd.DataFrame(
        {
            "age": [20 + i % 50 for i in range(rows)],
            "income": [None if i % 10 == 0 else 1.5 * i for i in range(rows)],
            "home": [["own", "rent", None][i % 3] for i in range(rows)],
            "name": [f"person {i}" for i in range(rows)],
        }
    )
    y = [i % 2 for i in range(rows)]
    made = make_column_transformer(
        (SimpleImputer(), ["age", "income"]), (OneHotEncoder(handle_unknown="ignore"), ["home", "name"])
    )
    return make_pipeline(made, LogisticRegression()).fit(X, y), X


def domains(case, **settings):
    return {own.field: own for own in fg.Protocol.fit(*case, **settings).domains}


def test_training_values_are_the_default(case):
    found = domains(case)
    assert found["age"] == Domain("age") and found["income"] == Domain("income", missing=True)
    assert found["home"] == Domain("home", categories=("own", "rent"), missing=True)
    assert "name" not in found  # each row has a value of its own


def test_quantiles_limits_categories_and_fixed_fields(case):
    found = domains(case, domain="0.1-0.9", immutable=["home"])
    assert (found["age"].low, found["age"].high) == (
        case[1]["age"].quantile(0.1, interpolation="nearest"),
        case[1]["age"].quantile(0.9, interpolation="nearest"),
    )
    assert found["home"] == Domain("home", fixed=True)
    found = domains(case, domain={"age": (18, 99), "home": ["rent", "caravan"]})
    assert (found["age"].low, found["age"].high) == (18.0, 99.0) and found["income"] == Domain("income", missing=True)
    assert found["home"].categories == ("caravan", "rent")


@pytest.mark.parametrize(
    "settings",
    [{}, {"domain": "0.05-0.95"}, {"domain": {"age": (18, 99), "home": ["rent", None]}}, {"immutable": ["age"]}],
)
def test_a_file_holds_them_and_the_digest_covers_them(case, settings):
    protocol = fg.Protocol.fit(*case, **settings)
    again = fg.Protocol.from_json(protocol.to_json())
    assert again == protocol and again.digest == protocol.digest
    assert (protocol.digest == fg.Protocol.fit(*case).digest) == (not settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"domain": "wide"}, "domain must be range, two quantiles"),
        ({"domain": "declared"}, "domain must be range, two quantiles"),
        ({"domain": {"agee": (1, 2)}}, "must name fields, got 'agee'"),
        ({"immutable": ["agee"]}, "must name fields, got 'agee'"),
        ({"domain": {"age": (9, 1)}}, "must not end before it starts"),
        ({"domain": {"age": (1.5, 9)}}, "must end at whole numbers"),
        ({"domain": {"age": [1]}}, "must be its lowest and highest value"),
        ({"domain": {"age": "old"}}, "must be a list of values"),
        ({"domain": {"age": ["a", "b"]}}, "must hold two values of the field"),
    ],
)
def test_what_makes_no_domain_is_refused(case, settings, says):
    with pytest.raises(fg.FragilityError, match=says):
        fg.Protocol.fit(*case, **settings)


def test_a_file_that_contradicts_itself_is_refused(case):
    protocol = fg.Protocol.fit(*case)
    age, income, home = protocol.domains
    for wrong, says in (
        ((income, age, home), "in the order of the table"),
        ((dataclasses.replace(age, low=1.0, high=2.0), income, home), "must be the training range"),
        ((dataclasses.replace(age, low=1.0), income, home), "or neither"),
        ((dataclasses.replace(age, fixed=True, missing=True), income, home), "must hold no values"),
        ((age, income, dataclasses.replace(home, categories=())), "must be a list of categories"),
        ((age, income, dataclasses.replace(home, categories=("rent", "own"))), "in sorted order"),
    ):
        with pytest.raises(fg.FragilityError, match=says):
            dataclasses.replace(protocol, domains=wrong)
    with pytest.raises(fg.FragilityError, match="must have the quantiles"):
        dataclasses.replace(protocol, domain="0.1-0.9")
