"""A form is learned once from a model, a space and rows; further rows are bound by it as if they were learned anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import fragility as fg
from fragility.evidence.form import Form, bind_rows
from fragility.evidence.rows import read_rows
from fragility.models import Model
from fragility.protocol import Protocol

SPACES = ("transformed", "raw")


@pytest.fixture(scope="module")
def case() -> tuple[Any, pd.DataFrame]:
    X, y = fg.load_credit_g()
    X = X[["age", "duration", "purpose"]]
    encoded = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["purpose"]), remainder="passthrough")
    return make_pipeline(encoded, LogisticRegression(max_iter=500)).fit(X[:700], y[:700]), X


@pytest.mark.parametrize("space", SPACES)
def test_further_rows_are_bound_as_if_they_were_learned_anew(case, space) -> None:
    model, X = case
    evidence = Protocol.fit(model, X[:700], space=space).evidence
    form = Form.learn(Model.wrap(model), X[:700], evidence)
    for rows in (X[700:701], X[700:760]):
        bound = form.bind(rows)
        assert bound is not None
        one, other = bound.answer(), bind_rows(model, rows, form.list_values())
        assert one.form is form and one.ids == other.ids
        assert np.array_equal(one.decided, other.decided)
        assert (one.own is None) == (other.own is None)
        assert np.allclose(one.predict(one.dense()), model.predict_proba(rows), rtol=0, atol=1e-12)


@pytest.mark.parametrize("space", SPACES)
def test_raw_rows_are_encoded_and_asked_about_in_the_form(case, space) -> None:
    model, X = case
    rows = bind_rows(model, X[700:720], Protocol.fit(model, X[:700], space=space).evidence)
    assert rows.encode is not None and rows.ask_table is not None
    table = X[700:720].assign(purpose=rows.source.frame["purpose"].iloc[0], age=40)
    assert np.allclose(rows.ask_table(table), model.predict_proba(table), rtol=0, atol=1e-12)
    assert np.allclose(rows.predict(rows.encode(table)), model.predict_proba(table), rtol=0, atol=1e-12)


def test_rows_in_another_form_are_learned_anew(case) -> None:
    model, X = case
    evidence = Protocol.fit(model, X[:700], space="raw").evidence
    form = Form.learn(Model.wrap(model), X[:100], evidence)
    assert form.bind(X[100:101].astype({"age": np.int32})) is None
    new = X[100:101].assign(purpose="a boat").astype(X.dtypes.to_dict() | {"purpose": object})
    assert Form.learn(Model.wrap(model), X[:100].astype({"purpose": object}), evidence).bind(new) is None


def test_a_form_can_be_laid_out_without_asking_the_model(case) -> None:
    model, X = case
    calls: list[int] = []

    def ask(rows: pd.DataFrame) -> Any:
        calls.append(len(rows))
        return model.predict_proba(rows)

    wrapped = Model.wrap(ask, classes=["bad", "good"])
    evidence = Protocol.fit(model, X[:700], space="raw").evidence
    form = Form.of(wrapped, read_rows(X[700:710]), evidence, ask=False)
    assert not calls and form.first.matrix.shape == (10, 3)
    form.first.predict(form.first.dense())
    assert calls == [10]


def test_columns_stand_in_the_order_of_the_protocol(case) -> None:
    """Whatever the order of the table: the model is handed its own."""
    model, X = case
    evidence = Protocol.fit(model, X[:700], space="raw").evidence
    turned = replace(evidence, columns=evidence.columns[::-1])
    one, other = (bind_rows(model, X[700:720], space) for space in (evidence, turned))
    assert np.array_equal(one.matrix, other.matrix[:, ::-1]) and np.array_equal(one.baseline, other.baseline[::-1])
    assert np.array_equal(one.predict(one.dense()), other.predict(other.dense()))


def test_what_was_asked_before_is_not_asked_again(case) -> None:
    model, X = case
    form = Form.learn(Model.wrap(model), X[:700], Protocol.fit(model, X[:700]).evidence)
    bound = form.bind(X[700:703])
    assert bound is not None
    calls: list[int] = []
    ask = bound.rows.ask_model
    listening = replace(bound.rows, ask_model=lambda cells: calls.append(len(cells)) or ask(cells))
    x = listening.dense()
    states = np.concatenate([x, x + 1.0])
    answered = bound._replace(rows=listening).answer(states)
    assert calls == [6]
    assert np.array_equal(answered.predict(states[2:5]), ask(states)[2:5]) and calls == [6]
    answered.predict(x + 2.0)
    assert calls == [6, 3]
