"""Fields of every type go through requests, answers and the log, and come back as what was decided."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

import fragility as fg
from fragility.apps.guards import RequestError
from fragility.apps.serving.app import describe_api
from fragility.apps.serving.log import ServingLog, list_audits, read_events
from fragility.apps.serving.requests import Answering, RequestReader, example_row
from fragility.auditing.auditor import Auditor
from fragility.base.errors import ProtocolError

FIRST = pd.Timestamp("2020-01-01")


def encode(table: pd.DataFrame) -> np.ndarray:
    """Return the fields as numbers; missing ones stay missing."""
    day = (pd.to_datetime(table["day"]) - FIRST).dt.days
    word = table["word"].map({"a": 0, "b": 1, "ü": 2})
    length = pd.to_timedelta(table["length"]).dt.total_seconds()
    numbers = [table[name].astype(float) for name in ("whole", "decimal", "flag")]
    return np.column_stack([*numbers, word, day, length]).astype(float)


@pytest.fixture(scope="module")
def made():
    rng, n = np.random.default_rng(3), 300
    X = pd.DataFrame(
        {
            "whole": rng.integers(0, 9, n),
            "decimal": rng.normal(size=n),
            "flag": rng.random(n) > 0.5,
            "word": rng.choice(["a", "b", "ü"], n),
            "day": FIRST + pd.to_timedelta(rng.integers(0, 900, n), "D"),
            "length": pd.to_timedelta(rng.integers(1, 90, n), "m"),
        }
    )
    y = np.where(X["decimal"] + X["whole"] / 9 + X["flag"] > 0.9, "yes", "no")
    model = make_pipeline(
        FunctionTransformer(encode, feature_names_out="one-to-one"), HistGradientBoostingClassifier(max_iter=5)
    ).fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    return model, protocol, X


def as_json(row: pd.Series) -> dict:
    plain = {"whole": int(row["whole"]), "decimal": float(row["decimal"]), "flag": bool(row["flag"])}
    return {**plain, "word": row["word"], "day": f"{row['day']:%Y-%m-%d}", "length": row["length"].isoformat()}


def test_every_type_is_answered_as_audit_does_and_logged_as_decided(made, tmp_path) -> None:
    model, protocol, X = made
    answering = Answering(fg.Model.wrap(model), protocol)
    manifest = answering.warm_up()
    reader, rows = RequestReader(protocol, 10), X[:4]
    asked = reader.read(
        json.dumps({"rows": [{"row": as_json(row), "id": i} for i, row in rows.iterrows()]}).encode(), "certify"
    )
    answers = answering.answer("certify", asked.rows)
    expected = fg.audit(model, rows.set_axis(["0", "1", "2", "3"]), protocol, progress=False, lattice=False)
    stated = answers.certificates.table
    assert stated.column("path").equals(expected.table.column("path"))
    assert stated.column("digest").equals(expected.table.column("digest"))
    gaps = {**as_json(X.iloc[9]), "word": None, "decimal": None, "whole": 7.0}
    sent = {"row": gaps, "id": "gaps", "missing": ["decimal", "word"], "stale": ["day"]}
    check = reader.read(json.dumps(sent).encode(), "check")
    checked = answering.answer("check", check.rows)
    assert checked.events[0]["missing"] == ("decimal", "word") and checked.rows["whole"] == [7]
    assert checked.rows["decimal"] == checked.rows["word"] == [None] and checked.documents[0]["stand_ins"] == {}
    with ServingLog.open(tmp_path / "log", protocol, manifest) as log:
        log.append(answers.to_entry(asked.rows), checked.to_entry(check.rows))
    (audit,) = list_audits(tmp_path / "log")
    stored = pq.read_table(tmp_path / "log" / "rows" / audit.name).to_pandas().set_index("id")
    outcome = fg.verify(audit, model, stored)
    assert outcome, str(outcome)
    events = [event for batch in read_events(tmp_path / "log") for event in batch.to_pylist()]
    assert events[-1]["stale"] == ["day"] and events[-1]["p_change"] is not None
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)


def test_the_model_is_made_ready_once(made, monkeypatch) -> None:
    model, protocol, _ = made
    own, count = Auditor.__init__, []
    monkeypatch.setattr(
        Auditor, "__init__", lambda self, *given, **named: count.append(1) or own(self, *given, **named)
    )
    answering = Answering(fg.Model.wrap(model), protocol)
    assert len(count) == 1 and answering.guard.auditor is answering.auditor


def test_the_log_holds_what_stood_in_for_a_field_that_the_model_cannot_do_without(made, tmp_path) -> None:
    _, _, X = made
    pre = make_column_transformer((OneHotEncoder(), ["word"]), (SimpleImputer(strategy="median"), ["decimal", "whole"]))
    X = X[["decimal", "whole", "word"]]
    model = make_pipeline(pre, LogisticRegression()).fit(X, X["whole"] > 4)
    protocol = fg.Protocol.fit(model, X)
    answering, reader = Answering(fg.Model.wrap(model), protocol), RequestReader(protocol, 10)
    manifest, sent = answering.warm_up(), {"row": {"decimal": None, "whole": 3, "word": None}, "id": "gaps"}
    asked = reader.read(json.dumps(sent).encode(), "check")
    answers = answering.answer("check", asked.rows)
    typical = X["word"].mode()[0]
    assert answers.documents[0]["missing"] == ["decimal", "word"]
    assert answers.documents[0]["stand_ins"] == {"word": typical}
    assert answers.rows == {"decimal": [None], "whole": [3], "word": [typical]}
    p = model.predict_proba(pd.DataFrame([{"decimal": np.nan, "whole": 3, "word": typical}]))
    assert answers.documents[0]["confidence"] == pytest.approx(p.max())
    with ServingLog.open(tmp_path / "log", protocol, manifest) as log:
        log.append(answers.to_entry(asked.rows))
    (audit,) = list_audits(tmp_path / "log")
    stored = pq.read_table(tmp_path / "log" / "rows" / audit.name).to_pandas().set_index("id")
    assert fg.verify(audit, model, stored)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "length",
            "a while",
            "'length' of row 0 must be a duration as ISO 8601 text, such as P1DT12H or null, got text",
        ),
        ("length", "", "'length' of row 0 must be a duration as ISO 8601 text"),
        ("length", "nan", "'length' of row 0 must be a duration as ISO 8601 text"),
        ("length", "7", "'length' of row 0 must be a duration as ISO 8601 text"),
        ("length", "P999999999D", "'length' of row 0 must be a duration as ISO 8601 text"),
        *(
            ("day", value, "'day' of row 0 must be a date as ISO 8601 text or null, got text")
            for value in ("now", "today", "", "NaT", "nan", "12/11/2020", "2020", "20200101", " 2020-01-01", "tomorrow")
        ),
        ("day", 3, "'day' of row 0 must be a date as ISO 8601 text or null, got a whole number"),
        ("flag", 1, "'flag' of row 0 must be true or false or null, got a whole number"),
        ("decimal", "x", "'decimal' of row 0 must be a number or null, got text"),
    ],
)
def test_values_of_other_types_are_refused(made, name, value, said) -> None:
    _, protocol, X = made
    row = {**as_json(X.iloc[0]), name: value}
    with pytest.raises(RequestError, match=said):
        RequestReader(protocol, 5).read(json.dumps({"row": row}).encode(), "certify")


def test_dates_that_are_none_are_refused_by_the_auditor(made) -> None:
    model, protocol, X = made
    row = {**as_json(X.iloc[0]), "day": "2020-02-30"}
    asked = RequestReader(protocol, 5).read(json.dumps({"row": row}).encode(), "certify")
    with pytest.raises(RequestError, match=r"column 'day' held dates in the training data") as error:
        Answering(fg.Model.wrap(model), protocol).answer("certify", asked.rows)
    assert error.value.status == 422


def test_schemas_name_the_types(made) -> None:
    model, protocol, _ = made
    document = describe_api(fg.Model.wrap(model), protocol, 10, token=False)
    types = {name: schema["type"][0] for name, schema in document["components"]["schemas"]["Row"]["properties"].items()}
    wanted = {"whole": "integer", "decimal": "number", "flag": "boolean", "word": "string", "day": "string"}
    assert types == {**wanted, "length": "string"} and "security" not in document
    assert set(example_row(protocol)) == set(types)


def test_a_model_that_cannot_be_tried_is_refused(case, monkeypatch) -> None:
    answering = Answering(fg.Model.wrap(case.model), case.protocol)

    def fail(*_, **__):
        raise fg.FragilityError("no")

    monkeypatch.setattr(answering.guard, "check_rows", fail)
    with pytest.raises(
        ProtocolError, match=r"the model cannot be tried on values that the .* knows \(no\); give "
    ) as error:
        answering.warm_up()
    assert error.value.in_options().endswith("give training rows with --train")
