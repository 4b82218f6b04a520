"""The report with the audited rows: shares by a column, the values of cases and what replaces them, and other rows."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from small_audits import FIELDS, InParts, declared_model, small_audit, whole_numbers

import fragility as fg
from fragility.base.errors import DataError
from fragility.base.shares import paired_difference
from fragility.pages.wording import describe_replacement
from fragility.report import ShownRows
from fragility.report.sentences import describe_case

ROWS = 300


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    frame = whole_numbers(ROWS, 1)
    frame["shop"] = np.random.default_rng(5).choice(["north", "south"], ROWS)
    return frame


@pytest.fixture(scope="module")
def certs() -> fg.Certificates:
    """Of a model that knows its columns by name."""
    return named_audit()


def named_audit(**declared: object) -> fg.Certificates:
    model, training = declared_model(), whole_numbers(50, 0)
    model.feature_names_in_ = np.array(FIELDS, dtype=object)
    return fg.audit(model, whole_numbers(ROWS, 1), fg.Protocol.fit(model, training, **declared), progress=False)


def test_shares_by_a_column_are_those_of_share_by(certs, rows) -> None:
    report = fg.Report.of(certs, rows=rows, by=["shop", "debt:-2,2"])
    shop, debt = report.summary.audits[0].segments
    assert shop == fg.share_by(certs, rows, by="shop") and debt == fg.share_by(certs, rows, by="debt:-2,2")
    assert [one.name for one in debt.segments] == ["under -2", "-2 to under 2", "2 or more"]
    assert "## By shop" in report.to_markdown() and "## By debt" in report.to_markdown()
    assert 'id="by-1"' in report.to_html() and "2 or more" in report.to_html()
    assert not any(one.confident.differs for one in debt.segments)
    assert (
        "None of the 3 segments of debt flips early clearly more or less often than the others" in report.to_markdown()
    )
    in_parts = fg.Report.of(InParts(certs, 11), rows=rows.sample(frac=1, random_state=0), by=["shop", "debt:-2,2"])
    assert in_parts.to_dict() == report.to_dict()


def test_the_headline_names_the_segment_that_flips_early_most(certs, rows) -> None:
    early = {str(cert.id) for cert in certs if cert.flipped and cert.flip_budget <= 2}
    marked = rows.assign(batch=["new" if str(own) in early else "old" for own in rows.index])
    report = fg.Report.of(certs, rows=marked, by="batch")
    worst = report.summary.audits[0].worst
    assert worst is not None and (worst.column, worst.name) == ("batch", "new")
    assert worst.flips_early.value == 1.0 and worst.rest.value == 0.0 and worst.difference.lower > 0.5
    count = worst.flips_early.count
    assert f"{count} of {count} confident predictions with batch new flip early, 100%" in report.to_markdown()
    plain = fg.Report.of(certs, rows=rows, by="shop")
    assert plain.summary.audits[0].worst is None
    assert "No predicted class flips early clearly more often than the others." in plain.to_markdown()


def test_cases_show_their_values_and_what_replaces_them(certs, rows) -> None:
    report = fg.Report.of(certs, rows=rows)
    baseline = {column.name: column.baseline for column in certs.protocol.columns}
    for case in report.summary.audits[0].focus.cases:
        assert case.values is not None and len(case.values) == len(case.path)
        for group, values in zip(case.path, case.values, strict=True):
            (own,) = values
            assert own.field == group and own.value == f"{rows.loc[int(case.id), group]:g}"
            assert float(own.becomes) == pytest.approx(baseline[group], rel=1e-5)
    first = report.summary.audits[0].focus.cases[0]
    assert f"{first.path[0]} ({first.values[0][0].value} → " in report.to_markdown()
    lost = {one.field: f"{one.field} ({one.value} → {one.becomes})" for values in first.values for one in values}
    assert f"but without {lost[first.path[0]]}" in describe_case(first)  # a reader quotes the sentence alone
    same = replace(first.values[0][0], becomes=first.values[0][0].value)
    two = next(case for case in report.summary.audits[0].focus.cases if (case.flip_step or 0) >= 2)
    own = two.values[0][0]
    told = describe_case(replace(two, values=((replace(own, becomes=own.value),), *two.values[1:])))
    after = two.values[1][0]
    assert f"but without {after.field} ({after.value} → {after.becomes})" in told  # what is not lost is told apart
    assert f"; {own.field} ({own.value}, already its replacement) stays as it is" in told
    assert describe_replacement(same.value, same.becomes) == f"{same.value}, already its replacement"
    assert "after the arrow, the value that replaces it when lost" in report.to_html()
    assert fg.Report.of(certs).summary.audits[0].focus.cases[0].values is None
    assert "after the arrow" not in fg.Report.of(certs).to_html()


def test_a_pipeline_needs_its_model_to_tell_what_replaces_a_value() -> None:
    X, y = fg.load_credit_g()
    names, numbers = ["checking_status", "purpose"], ["duration", "age"]
    X = X[names + numbers]
    shared = make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(), names))
    pipeline = make_pipeline(shared, LogisticRegression()).fit(X, y)
    protocol = fg.Protocol.fit(pipeline, X, groups={"who": ["age"], "loan": ["duration", *names]})
    certs = fg.audit(pipeline, X[:200], protocol, progress=False)
    report = fg.Report.of(certs, rows=X[:200], model=pipeline, min_confidence=0.8)
    told = report.summary.audits[0].focus.cases[0]
    found = {one.field: (one.value, one.becomes) for values in told.values for one in values}
    own = X.loc[int(told.id)]
    assert found["age"] == (str(own["age"]), f"{X['age'].mean():.6g}")
    assert found["checking_status"] == (own["checking_status"], X["checking_status"].mode()[0])
    groups = {group.name: dict(group.becomes) for group in report.summary.audits[0].protocol.groups}
    assert groups["who"] == {"age": f"{X['age'].mean():.6g}"} and set(groups["loan"]) == {"duration", *names}
    assert "becomes when lost" in report.to_markdown()
    alone = fg.Report.of(certs, rows=X[:200], min_confidence=0.8)
    assert not any(group.becomes for group in alone.summary.audits[0].protocol.groups)
    assert "becomes when lost" not in alone.to_markdown()
    assert all(not values for values in alone.summary.audits[0].focus.cases[0].values)


def test_rows_that_were_not_audited_are_refused(certs, rows) -> None:
    with pytest.raises(DataError, match=r"the given rows are not the audited rows: ids or values differ"):
        fg.Report.of(certs, rows=rows.assign(debt=rows["debt"] + 1))
    with pytest.raises(DataError, match=r"are not the audited rows"):
        fg.Report.of(certs, rows=rows.iloc[:-1])
    with pytest.raises(DataError, match=r"by groups rows by one of their columns; give the audited rows too"):
        fg.Report.of(certs, by="shop")
    more = pd.concat([rows, rows.set_axis(range(1000, 1000 + ROWS))]).sample(frac=1, random_state=1)
    assert fg.Report.of(certs, rows=more, by="shop").to_dict() == fg.Report.of(certs, rows=rows, by="shop").to_dict()
    selection = certs.take(range(20))
    assert fg.Report.of(selection, rows=rows).summary.audits[0].focus.cases[0].values is not None
    with pytest.raises(
        DataError, match=r"the given rows lack the audited row '\d+'; give the audited rows with the ids"
    ):
        fg.Report.of(selection, rows=rows.iloc[200:])


def test_a_table_of_segments_without_the_models_fields_is_enough(certs, rows) -> None:
    report = fg.Report.of(certs, rows=rows[["shop"]], by="shop")
    assert report.summary.audits[0].segments == (fg.share_by(certs, rows, by="shop"),)
    assert "Their values are not shown: the given rows lack the field income." in report.to_markdown()


def test_segments_of_two_audits_are_paired(certs, rows) -> None:
    other = named_audit(baseline="zero", depth=3)
    report = fg.Report.of({"a": certs, "b": other}, rows=rows, by="shop")
    (pair,) = report.summary.paired
    (found,) = pair.segments
    assert found.column == "shop" and [name for name, _ in found.segments] == list(rows["shop"].value_counts().index)
    for name, compared in found.segments:
        both = [
            (a.flipped and a.flip_budget <= 2, b.flipped and b.flip_budget <= 2)
            for a, b in zip(certs, other, strict=True)
            if min(a.confidence, b.confidence) >= 0.9 and rows.loc[a.id, "shop"] == name
        ]
        assert (compared.first.count, compared.first.rows) == (sum(a for a, _ in both), len(both))
        assert compared.second.count == sum(b for _, b in both)
        gained, lost = both.count((False, True)), both.count((True, False))
        assert compared.difference == paired_difference(gained, lost, len(both))
    assert "Confident predictions that flip early, by shop" in report.to_markdown()
    apart = other.table.set_column(0, "id", [[own + 1000 for own in other.table.column("id").to_pylist()]])
    strangers = fg.Certificates(apart, other.protocol, other.manifest).take(range(ROWS - 1))
    both_rows = pd.concat([rows, rows.set_axis(range(1000, 1000 + ROWS))])
    report = fg.Report.of({"a": certs, "b": strangers}, rows=both_rows, by="shop")
    (pair,) = report.summary.paired
    assert pair.shared == 0 and not pair.segments[0].segments[0][1].difference.paired
    assert "no row in common, so each audit's own rows (Newcombe's interval)" in report.to_markdown()


def test_the_byline_is_what_was_said(certs) -> None:
    report = fg.Report.of(
        certs, author="A. <b>Author</b>", purpose="annual review", date="2026-11-16", signed_by="ab12cd34"
    )
    line = "By A. <b>Author</b> · Purpose: annual review · 2026-11-16 · Signature of key ab12cd34 verified"
    assert line.replace("<", r"\<").replace(">", r"\>") in report.to_markdown()
    assert "A. &lt;b&gt;Author&lt;/b&gt; · Purpose: annual review · 2026-11-16" in report.to_html()
    assert report.to_dict()["byline"] == {
        "author": "A. <b>Author</b>",
        "purpose": "annual review",
        "date": "2026-11-16",
    }
    assert "Purpose" not in fg.Report.of(certs).to_markdown()
    with pytest.raises(DataError, match=r"one signing key of each of 1 audits was expected, got 2"):
        fg.Report.of(certs, signed_by=["a", "b"])


def test_a_stored_audit_names_the_command_that_opens_a_case(certs, rows, tmp_path) -> None:
    folder = certs.save(tmp_path / "my audit")
    report = fg.Report.of(fg.open_audit(folder), rows=rows)
    case = report.summary.audits[0].focus.cases[0]
    assert f"fragility review '{folder}' --row {case.id}" in report.to_markdown()
    assert 'id="case-1"' in report.to_html() and 'href="#case-1"' in report.to_html()
    assert "fragility review" not in fg.Report.of(certs).to_markdown()
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["audits"][0]["confident"]["cases"][0]["values"]


def test_values_are_shown_as_text_whatever_they_hold() -> None:
    X, y = fg.load_credit_g()
    X = X[["purpose", "age"]].assign(purpose=X["purpose"].astype(str) + "<script>alert(1)</script>\u202e")
    pipeline = make_pipeline(make_column_transformer((OneHotEncoder(), ["purpose"]), remainder="passthrough"))
    pipeline.steps.append(("model", LogisticRegression(max_iter=500)))
    pipeline.fit(X, y)
    certs = fg.audit(pipeline, X[:60], fg.Protocol.fit(pipeline, X), progress=False)
    page = fg.Report.of(certs, rows=X[:60], by="purpose", model=pipeline).to_html()
    assert "<script>alert(1)" not in page and "&lt;script&gt;alert(1)" in page


def test_small_audits_of_arrays_take_their_rows_too() -> None:
    certs = small_audit(60)
    values = whole_numbers(60, 1).to_numpy()
    case = fg.Report.of(certs, rows=values, by="x0").summary.audits[0].focus.cases[0]
    assert case.values is not None and case.values[0][0].field == case.path[0]


@dataclass(frozen=True)
class Many:
    """As many rows as asked for, made as they are read: 2,000 certificates over and over, each time with new ids."""

    certs: fg.Certificates
    rows: pd.DataFrame
    count: int
    column_names = (*FIELDS, "shop", "years")

    protocol = property(lambda self: self.certs.protocol)
    manifest = property(lambda self: self.certs.manifest)
    classes = property(lambda self: self.certs.classes)
    baselines = None

    def __getattr__(self, name: str):  # what follows from protocol and manifest
        return getattr(self.certs, name)

    def __len__(self) -> int:
        return self.count

    def batches(self, columns=None):
        table = self.certs.table if columns is None else self.certs.table.select(list(columns))
        for start in range(0, self.count, len(table)):
            part = table
            if "id" in table.column_names:
                ids = pa.array(range(start, start + len(table)), type=pa.int64())
                part = table.set_column(table.column_names.index("id"), "id", ids)
            yield part

    def values(self, names, rows):
        for start in range(0, self.count, len(self.rows)):
            yield list(range(start, start + len(self.rows))), self.rows[list(names)]


@pytest.mark.slow
def test_a_million_rows_are_reported_in_little_memory() -> None:
    model, training, rows = declared_model(), whole_numbers(50, 0), whole_numbers(2000, 1)
    model.feature_names_in_ = np.array(FIELDS, dtype=object)
    certs = fg.audit(model, rows, fg.Protocol.fit(model, training), progress=False)
    rng = np.random.default_rng(0)
    rows["shop"], rows["years"] = rng.choice(["a", "b"], 2000), rng.integers(18, 90, 2000)
    peaks = []
    for count in (100_000, 1_000_000):
        many = Many(certs, rows, count)
        tracemalloc.start()
        try:
            report = fg.Report.of(many, rows=ShownRows(many, just_audited=True), by=["shop", "years:q5"])
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert report.summary.audits[0].everything.rows == count and len(report.to_html()) < 1_000_000
    assert peaks[1] < 100 * 2**20 and peaks[1] - peaks[0] < 64 * 900_000
