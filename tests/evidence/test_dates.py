"""Dates in the raw space: the typical date is the median day, and the form in which dates come does not matter."""

from __future__ import annotations

import datetime as dt
import functools
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from naive import naive_certificate
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from twins import assert_equal, remembered

import fragility as fg
from fragility.base.canonical import table_digest
from fragility.base.errors import EvidenceError
from fragility.evidence.fields import date_text, read_date
from fragility.models import Model
from fragility.protocol import Protocol, bind

ZONES = [None, "Europe/Berlin"]
DAYS = 301  # an odd number: one of them lies in the middle


def calendar(X: pd.DataFrame) -> np.ndarray:
    dates = pd.to_datetime(X.iloc[:, 0])
    return np.column_stack([dates.dt.month, dates.dt.day_of_week, dates.dt.hour]).astype(float)


def calendar_names(_: Any, names: Any) -> list[str]:
    return [f"{names[0]}_{part}" for part in ("month", "weekday", "hour")]


@functools.cache
def case(zone: str | None) -> tuple[Pipeline, pd.DataFrame]:
    random = np.random.default_rng(0)
    dates = pd.Series(pd.date_range("2020-01-01", periods=DAYS, tz=zone)).sample(frac=1.0, random_state=0)
    X = pd.DataFrame(
        {
            "opened": dates.to_numpy() if zone is None else dates.array,
            "age": random.normal(40, 10, DAYS).round(1),
            "kind": random.choice(["a", "b"], DAYS).astype(object),
        }
    )
    X.loc[::11, "age"] = np.nan
    y = ((X["opened"].dt.month > 5) ^ (random.random(DAYS) < 0.1)).astype(int)
    return pipeline(calendar_names).fit(X, y), X


def pipeline(names: Any = None) -> Pipeline:
    parts = FunctionTransformer(calendar, feature_names_out=names)
    pre = ColumnTransformer(
        [
            ("d", make_pipeline(parts, SimpleImputer()), ["opened"]),
            ("n", make_pipeline(SimpleImputer(), StandardScaler()), ["age"]),
            ("c", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["kind"]),
        ]
    )
    return make_pipeline(pre, LogisticRegression(max_iter=500))


def middle(zone: str | None) -> pd.Timestamp:
    return pd.Timestamp("2020-01-01", tz=zone) + pd.DateOffset(days=DAYS // 2)


@pytest.mark.samples
@pytest.mark.parametrize("baseline", ["typical", "mean", "median"])
@pytest.mark.parametrize("zone", ZONES)
def test_the_typical_date_is_the_median_day(zone: str | None, baseline: str) -> None:
    model, X = case(zone)
    protocol = Protocol.fit(model, X, space="raw", baseline=baseline)
    opened = protocol.columns[0]
    assert opened.kind == "nominal" and pd.Timestamp(opened.baseline) == middle(zone)
    assert opened.baseline == ("2020-05-30" if zone is None else "2020-05-30T00:00:00+02:00")
    assert protocol.fields[0].dtype == str(X["opened"].dtype) and protocol.artificial == ()
    again = Protocol.from_json(protocol.to_json())
    assert again == protocol and again.digest == protocol.digest
    shuffled = Protocol.fit(model, X.sample(frac=1.0, random_state=1), space="raw", baseline=baseline)
    assert shuffled.columns == protocol.columns and shuffled.training_digest == protocol.training_digest


@pytest.mark.samples
@pytest.mark.parametrize("baseline", ["typical", "missing"])
@pytest.mark.parametrize("zone", ZONES)
def test_certificates_of_dates_equal_the_slow_twin(zone: str | None, baseline: str) -> None:
    model, X = case(zone)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        protocol = Protocol.fit(model, X, space="raw", baseline=baseline)
    wrapped = Model.wrap(model)

    def ask(cells: Any) -> Any:
        opened, age, kind = cells
        row = pd.DataFrame({"opened": pd.Series([opened], dtype=X["opened"].dtype), "age": [age], "kind": [kind]})
        return wrapped.probabilities(row.astype({"age": float, "kind": object}))[0]

    typical = [middle(zone), protocol.columns[1].baseline, protocol.columns[2].baseline]
    certs = fg.audit(model, X[1:5], protocol)
    for i in range(4):
        expected = naive_certificate(
            remembered(ask),
            [X["opened"].iloc[i + 1], float(X["age"].iloc[i + 1]), X["kind"].iloc[i + 1]],
            typical if baseline == "typical" else [None, float("nan"), None],
            [[0], [1], [2]],
            protocol.depth,
            protocol.operators,
            protocol.severities,
            protocol.reading,
            protocol.weights,
            protocol.resolution,
            [True, baseline == "missing", True],
        )
        assert_equal(certs, i, expected, f"{zone} {baseline} row {i}")


def test_the_columns_of_a_date_take_those_of_the_median_day() -> None:
    model, X = case(None)
    protocol = Protocol.fit(model, X)
    assert protocol.space == "transformed" and protocol.artificial == ()
    values = [column.baseline for column in protocol.columns if column.name.startswith("d__")]
    assert values == [5.0, float(middle(None).day_of_week), 0.0]
    assert {c.kind for c in protocol.columns if c.name.startswith("d__")} == {"nominal"}


def test_a_missing_date_is_no_date_and_the_model_answers(recwarn) -> None:
    model, X = case("Europe/Berlin")
    protocol = Protocol.fit(model, X, space="raw", baseline="missing")
    assert protocol.artificial == ("opened", "kind")
    seen: list[pd.DataFrame] = []
    watched = Model.wrap(lambda rows: (seen.append(rows), model.predict_proba(rows))[1], classes=[0, 1])
    rows = bind(watched, X[:3], protocol)
    rows.predict(rows.baseline[None])
    assert seen[-1]["opened"].isna().all() and seen[-1]["opened"].dtype == X["opened"].dtype


def test_the_field_that_is_refused_is_the_one_that_is_named() -> None:
    """Ages are missing too, and imputed: the sentence is about the date (REVIEW 13)."""
    _, X = case(None)
    y = (X["opened"].dt.month > 5).astype(int)
    pre = ColumnTransformer(
        [("n", SimpleImputer(), ["age"]), ("d", FunctionTransformer(calendar), ["opened"])], remainder="drop"
    )
    model = make_pipeline(pre, LogisticRegression(max_iter=500)).fit(X, y)
    with pytest.raises(EvidenceError, match=r"no answer when the field 'opened' is missing \(Input X contains NaN"):
        Protocol.fit(model, X, baseline="missing", space="raw")
    protocol = Protocol.fit(model, X, space="raw")
    gaps = X[:20].copy()
    gaps.loc[3, "opened"] = pd.NaT
    with pytest.raises(fg.DataError, match=r"columns 'opened', 'age' hold missing values and the model refuses"):
        fg.audit(model, gaps, protocol)


# --- the form of dates ----------------------------------------------------------------------------------------------


def forms(X: pd.DataFrame) -> dict[str, Any]:
    """The same days as pandas, Arrow and polars hold them, and as a CSV file has them."""
    pa, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    days = X.assign(opened=X["opened"].dt.date)
    found: dict[str, Any] = {
        f"datetime64[{u}]": X.astype({"opened": f"datetime64[{u}]"}) for u in ("s", "ms", "us", "ns")
    }
    return found | {
        "python dates": days,
        "python datetimes": X.assign(opened=pd.Series(X["opened"].dt.to_pydatetime(), dtype=object)),
        "arrow date32": pa.table(days),
        "arrow timestamps": pa.Table.from_pandas(X, preserve_index=False),
        "pandas with arrow": X.astype({"opened": pd.ArrowDtype(pa.timestamp("us"))}),
        "polars date": polars.from_pandas(X).with_columns(polars.col("opened").cast(polars.Date)),
        "polars datetime": polars.from_pandas(X),
        "text": X.assign(opened=X["opened"].dt.strftime("%Y-%m-%d")),
    }


def test_every_form_of_the_same_days_has_one_digest_and_one_certificate() -> None:
    model, X = case(None)
    X = X[:40]
    protocol = Protocol.fit(model, X, space="raw")
    expected = fg.audit(model, X, protocol)
    for name, table in forms(X).items():
        ids = list(range(len(X)))
        if name.startswith("polars"):  # this pipeline takes pandas tables
            table = table.to_arrow()
        certs = fg.audit(model, table, protocol, ids=ids)
        assert certs.manifest.input.digest == expected.manifest.input.digest, name
        assert certs.to_pandas()["digest"].tolist() == expected.to_pandas()["digest"].tolist(), name


def test_files_of_dates_have_the_digest_of_the_table(tmp_path) -> None:
    model, X = case(None)
    protocol = Protocol.fit(model, X, space="raw")
    X[:40].to_csv(tmp_path / "rows.csv", index=False)
    X[:40].to_parquet(tmp_path / "rows.parquet")
    expected = fg.audit(model, X[:40], protocol).manifest.input.digest
    for name in ("rows.csv", "rows.parquet"):
        audited = fg.audit_files(model, tmp_path / name, protocol, tmp_path / f"{name} audit")
        assert audited.manifest.input.digest == expected, name


def test_digests_tell_times_and_zones_apart() -> None:
    day = pd.Series(pd.to_datetime(["2020-01-01"]))
    digests = {
        table_digest({"d": column})
        for column in (
            day,
            day.dt.tz_localize("UTC"),
            day.dt.tz_localize("Europe/Berlin"),
            day + pd.Timedelta(hours=1),
            day + pd.Timedelta(nanoseconds=1).as_unit("ns"),
        )
    }
    assert len(digests) == 5
    assert table_digest({"d": [dt.date(2020, 1, 1)]}) == table_digest({"d": ["2020-01-01"]}) == table_digest({"d": day})


def test_rows_in_another_zone_are_the_same_instants() -> None:
    model, X = case("Europe/Berlin")
    protocol = Protocol.fit(model, X, space="raw")
    other = X[:20].assign(opened=X["opened"][:20].dt.tz_convert("America/Lima"))
    same, moved = (fg.audit(model, rows, protocol).claims for rows in (X[:20], other))
    np.testing.assert_array_equal(same.margin, moved.margin)
    texts = X[:20].assign(opened=[stamp.isoformat() for stamp in X["opened"][:20]])
    np.testing.assert_array_equal(same.margin, fg.audit(model, texts, protocol).claims.margin)


@pytest.mark.parametrize(
    ("zone", "change", "message"),
    [
        (None, lambda d: d.dt.tz_localize("UTC"), r"'opened' had no time zone in the training data, now it has 'UTC'"),
        ("Europe/Berlin", lambda d: d.dt.tz_localize(None),
         r"'opened' had the time zone 'Europe/Berlin' in the training data, now it has none"),
        (None, lambda d: d.dt.strftime("%d.%m.%Y"), r"'opened' held dates in the training data, now it holds text"),
        (None, lambda d: d.dt.year, r"'opened' held dates in the training data, now it holds whole numbers"),
        ("Europe/Berlin", lambda d: d.dt.strftime("%Y-%m-%d"), r"'opened' held dates .* now it holds text"),
        (None, lambda d: d.dt.strftime("%Y-%m-%d").mask(d.index == 3, "now"), r"'opened' held dates .* it holds text"),
        (None, lambda d: d.dt.strftime("%Y-%m-%d").mask(d.index == 3, ""), r"'opened' held dates .* it holds text"),
    ],
)  # fmt: skip
def test_dates_that_are_not_those_of_training_are_refused(zone: str | None, change: Any, message: str) -> None:
    model, X = case(zone)
    protocol = Protocol.fit(model, X, space="raw")
    with pytest.raises(fg.DataError, match=message):
        fg.audit(model, X[:9].assign(opened=change(X["opened"][:9])), protocol)


def test_a_part_without_any_date_keeps_the_form() -> None:
    model, X = case("Europe/Berlin")
    protocol = Protocol.fit(model, X, space="raw")
    empty = X[:3].assign(opened=[np.nan] * 3)
    bound = bind(model, empty, protocol)
    np.testing.assert_allclose(
        bound.predict(bound.dense()),
        model.predict_proba(X[:3].assign(opened=pd.Series(pd.NaT, index=X.index[:3], dtype=X["opened"].dtype))),
    )


# --- explicit baselines and files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["raw", "transformed"])
@pytest.mark.parametrize("form", [str, dt.date.fromisoformat, dt.datetime.fromisoformat, pd.Timestamp, np.datetime64])
def test_explicit_dates(form: Any, space: str) -> None:
    model, X = case(None)
    protocol = Protocol.fit(model, X, baseline={"opened": form("2020-03-04"), "age": 40.0, "kind": "a"}, space=space)
    first = protocol.columns[0].baseline
    assert first == ("2020-03-04" if space == "raw" else 3.0)
    assert protocol.artificial == ()
    with pytest.raises(EvidenceError, match=r"column 'opened' must be a date as in training \(datetime64\[us\]\)"):
        Protocol.fit(model, X, baseline={"opened": "spring", "age": 40.0, "kind": "a"}, space=space)


def test_a_date_that_training_does_not_have_is_artificial() -> None:
    model, X = case(None)
    row = {"opened": "2031-01-01", "age": 40.0, "kind": "a"}
    assert Protocol.fit(model, X, baseline=row, space="raw").artificial == ("opened",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["fields"][0].update(dtype="datetime64[us, Mars/Olympus]"), r"dtype of 'opened' must be null or"),
        (lambda d: d["fields"][1].update(dtype="datetime64[us]"), r"dtype of 'age' must be null or that of timestamps"),
        (lambda d: d["fields"][0].update(dtype="int64"), r"dtype of 'opened' must be null or that of timestamps"),
        (lambda d: d["columns"][0].update(baseline="spring"), r"baseline of 'opened' must be a date in ISO form"),
        (lambda d: d["columns"][0].update(baseline="2020-05-30T00:00:00"), r"'opened' must be a date in ISO form"),
        (lambda d: d["alternatives"]["mean"]["values"].__setitem__(0, 7), r"must be a date in ISO form .* got 7"),
    ],
)  # fmt: skip
def test_malformed_dates_in_protocols_are_refused(change: Any, message: str) -> None:
    model, X = case(None)
    document = Protocol.fit(model, X, space="raw").to_dict()
    change(document)
    with pytest.raises(fg.ProtocolError, match=message):
        Protocol.from_dict(document)


def test_texts_of_dates() -> None:
    for text in ("2020-05-17", "2020-05-17T13:45:00", "2020-05-17T13:45:00.250000", "2020-05-17T00:00:00+02:00"):
        assert date_text(read_date(text)) == text
    for text in ("17.5.2020", "2020-5-17", "today", "", "NaT", 20200517, None):
        assert read_date(text) is None
