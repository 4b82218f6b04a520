"""`fragility report`, and the report that `fragility audit` writes."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from command_line import COLUMNS, audit_words, refuse, run

import fragility as fg


@pytest.fixture(scope="module")
def labels(made) -> list[object]:
    return ["--labels", made / "test.parquet", *COLUMNS]


def test_an_audit_writes_its_report_with_labels_and_the_exact_command(made) -> None:
    page = (made / "audit" / "report.html").read_text(encoding="utf-8")
    assert "Right and wrong" in page
    command = html.unescape(re.search(r"<code>(.*?)</code>", page)[1])
    assert command.startswith("fragility verify ")
    assert run(*command.split()[1:]).code == 0


def test_the_report_is_written_beside_the_audit_or_where_it_is_asked_for(made, labels, tmp_path) -> None:
    target = fg.Certificates.load(made / "audit").save(tmp_path / "audit")
    done = run("report", target)
    assert done.code == 0 and f"written to {target / 'report.html'}" in done.err
    assert b"Right and wrong" not in (target / "report.html").read_bytes()
    for name in ("report.html", "report.md", "report.json"):
        assert run("report", target, *labels, "--out", tmp_path / name).code == 0
    assert "## Right and wrong" in (tmp_path / "report.md").read_text(encoding="utf-8")
    document = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert document["audits"][0]["accuracy"]["right"]["rows"] == 60
    before = (tmp_path / "report.html").read_bytes()
    assert run("report", target, *labels, "--out", tmp_path / "report.html").code == 0
    assert (tmp_path / "report.html").read_bytes() == before
    assert len(fg.Certificates.load(target)) == 60


def test_several_audits_are_printed_or_have_files_of_their_own(made, tmp_path) -> None:
    words = [made / "audit", made / "audit-again"]
    assert run(*audit_words(made), "--depth", "3", "--out", words[1]).code == 0
    before = {path.name: path.stat().st_mtime_ns for folder in words for path in folder.iterdir()}
    printed = run("report", *words)
    assert printed.code == 0 and "The audits in numbers" in printed.out and "written to" not in printed.err
    assert {path.name: path.stat().st_mtime_ns for folder in words for path in folder.iterdir()} == before
    assert run("report", *words, "--out", tmp_path / "both.txt").code == 0
    assert (tmp_path / "both.txt").read_text(encoding="utf-8").strip() == printed.out.strip()
    assert run("report", *words, "--out", tmp_path / "both.md").code == 0
    assert "## The comparison" in (tmp_path / "both.md").read_text(encoding="utf-8")
    assert "an audit is named twice" in refuse("report", words[0], words[0], "--out", tmp_path / "x.html")


def test_shares_by_a_column_stand_in_the_report_and_on_the_terminal(made, tmp_path) -> None:
    given = ["--by", "age:25,40", "--by", "purpose"]
    done = run(*audit_words(made), *given, "--out", tmp_path / "audit")
    assert done.code == 0 and "under 25" in done.out and "25 to under 40" in done.out and "radio/tv" in done.out
    assert "flip early" in done.out and "95% interval" in done.out
    page = (tmp_path / "audit" / "report.html").read_text(encoding="utf-8")
    assert "<h2>By age</h2>" in page and "<h2>By purpose</h2>" in page
    for data in ("test.parquet", "test.csv", "test.arrow"):
        words = ["--data", made / data, *COLUMNS, *given, "--model", made / "model.skops"]
        assert run("report", tmp_path / "audit", *words, "--out", tmp_path / f"{data}.json").code == 0
    first, *others = (json.loads((tmp_path / f"test.{kind}.json").read_text()) for kind in ("parquet", "csv", "arrow"))
    for document in (first, *others):
        assert document["audits"][0]["facts"].pop("verify").count("test.") == 1  # it names the rows that were given
    assert first == others[0] == others[1]
    found = first["audits"][0]
    assert [one["column"] for one in found["segments"]] == ["age", "purpose"]
    assert found["accuracy"]["right"]["rows"] == 60  # the rows hold the labels, too
    case = found["confident"]["cases"][0] if found["confident"]["cases"] else found["everything"]["cases"][0]
    values = {one["field"]: one for group in case["values"] for one in group}
    assert set(values) == {"duration", "credit_amount", "age", "checking_status", "savings_status", "purpose"}
    assert values["checking_status"]["becomes"] in ("no checking", "0<=X<200", "<0", ">=200")
    written = json.dumps(case["values"][0][0]["value"]).strip('"')
    assert html.escape(written) in page  # an audit's own report shows the values as well


def test_a_column_that_the_model_must_not_see_can_cut_the_rows(made, table, tmp_path) -> None:
    rows = table[700:760].assign(sex=["f", "m", "m"] * 20)
    rows.to_parquet(tmp_path / "rows.parquet")
    words = [*audit_words(made)[:2], tmp_path / "rows.parquet", *audit_words(made)[3:]]
    assert "sex" in refuse(*words, "--out", tmp_path / "a")
    done = run(*words, "--drop", "sex", "--by", "sex", "--out", tmp_path / "a")
    assert done.code == 0, done.err
    assert "│ m " in done.out and "│ f " in done.out
    given = ["--data", tmp_path / "rows.parquet", "--id", "loan", "--by", "sex"]
    assert run("report", tmp_path / "a", *given, "--out", tmp_path / "sex.json").code == 0
    (found,) = json.loads((tmp_path / "sex.json").read_text())["audits"][0]["segments"]
    assert [(one["name"], one["everything"]["rows"]) for one in found["segments"]] == [("m", 40), ("f", 20)]


def test_a_report_of_two_audits_by_a_column_prints_paired_differences(made, tmp_path) -> None:
    assert run(*audit_words(made), "--baseline", "zero", "--out", tmp_path / "zero").code == 0
    words = ["report", made / "audit", tmp_path / "zero", "--min-confidence", "0.7"]
    done = run(*words, "--data", made / "test.parquet", "--id", "loan", "--by", "age:30,50")
    assert done.code == 0 and "Confident predictions that flip early, by age" in done.out
    assert (
        "30 to under 50" in done.out
        and "points" in done.out
        and "confident in both (Tango's paired interval)" in done.out
    )
    assert "--by groups rows by one of their columns; name the audited rows with --data" in refuse(
        *words, "--by", "age"
    )


def test_columns_and_rows_that_do_not_fit_are_refused(made, table, tmp_path) -> None:
    audit, out = made / "audit", ["--out", tmp_path / "x.html"]
    data = ["--data", made / "test.parquet", *COLUMNS]
    assert "name the audited rows with --data" in refuse("report", audit, "--by", "age", *out)
    assert "by names the column 'height', but the rows have" in refuse("report", audit, *data, "--by", "height", *out)
    assert "bands are for numbers and dates" in refuse("report", audit, *data, "--by", "purpose:1,2", *out)
    assert "by names the column 'height'" in refuse(*audit_words(made), "--by", "height", "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    other = tmp_path / "other.parquet"
    table[700:760].assign(age=1).to_parquet(other)
    foreign = refuse("report", audit, "--data", other, "--id", "loan", *out)
    assert "the given rows are not the audited rows" in foreign
    assert "--id names the column 'lone', which is not in" in refuse(
        "report", audit, "--data", other, "--id", "lone", *out
    )
    assert "'x', which the rows of --data do not have" in refuse(
        "report", audit, "--data", made / "test.parquet", "--id", "loan", "--target", "x", *out
    )
    assert "--model has no effect without --data" in refuse("report", audit, "--model", made / "model.skops", *out)
    assert "--trust has no effect without --model" in refuse("report", audit, *data, "--trust", *out)
    assert not (tmp_path / "x.html").exists()


def test_who_made_it_what_for_and_who_signed_it_are_options(made, tmp_path) -> None:
    pytest.importorskip("securesystemslib")
    audit = fg.Certificates.load(made / "audit").save(tmp_path / "audit")
    key, out = fg.generate_keys(tmp_path / "key"), tmp_path / "report.md"
    said = ["--author", "M. Okafor", "--purpose", "annual review", "--date", "2026-11-16"]
    signed = ["--public-key", key]
    assert "the signature of" in refuse("report", audit, *signed, "--out", out) and not out.exists()
    fg.sign(audit, tmp_path / "key")
    assert run("report", audit, *said, *signed, "--out", out).code == 0
    told = out.read_text(encoding="utf-8")
    assert "By M. Okafor · Purpose: annual review · 2026-11-16 · Signature of key " in told and "verified" in told
    (audit / "signature.dsse.json").unlink()
    refused = refuse("report", audit, *signed, "--out", out)
    assert "is not valid (signature: there is no signature" in refused


def test_stress_labels_add_what_a_review_would_find(made, tmp_path) -> None:
    given = ["--model", made / "model.skops", "--data", made / "test.parquet", *COLUMNS]
    assert (
        run("evaluate", "labels", made / "audit", *given, "--draws", "4", "--out", tmp_path / "stress.parquet").code
        == 0
    )
    assert run("evaluate", "labels", made / "audit", *given, "--draws", "4", "--out", tmp_path / "stress.csv").code == 0
    for kind in ("parquet", "csv"):
        out = tmp_path / f"{kind}.md"
        assert (
            run("report", made / "audit", "--stress", tmp_path / f"stress.{kind}", "--risk", "0.2", "--out", out).code
            == 0
        )
        assert "## What a review would find" in out.read_text(encoding="utf-8") and "brittle" in out.read_text()


def test_a_page_of_somebody_else_stays(made, tmp_path) -> None:
    target = fg.Certificates.load(made / "audit").save(tmp_path / "audit")
    (target / "report.html").write_text("mine")
    assert "is not a report of fragility's; choose another name with --out" in refuse("report", target)
    done = run(*audit_words(made), "--out", target)
    assert done.code == 0 and "was kept" in done.err
    assert (target / "report.html").read_text() == "mine"


def test_labels_that_do_not_fit_are_refused_in_one_sentence(made, labels, table, tmp_path) -> None:
    audit, out = made / "audit", ["--out", tmp_path / "x.html"]
    assert "--labels needs --target" in refuse("report", audit, "--labels", made / "test.parquet", *out)
    assert "--target has no effect without --labels" in refuse("report", audit, "--target", "risk", *out)
    assert "does not exist" in refuse("report", audit, "--labels", tmp_path / "absent.csv", "--target", "risk", *out)
    unknown = refuse("report", audit, "--labels", made / "test.parquet", "--target", "x", "--id", "loan", *out)
    assert "--target names the column 'x'" in unknown
    # row numbers are not the ids the audit was made with
    foreign = refuse("report", audit, "--labels", made / "test.parquet", "--target", "risk", *out)
    assert "60 of the 60 audited rows have no label (first: 'L0700'; ids of the audit: 'L0700' to 'L0759'; " in foreign
    assert "ids of the labels: 0 to 59)" in foreign and "--id" in foreign
    part = tmp_path / "part.parquet"
    table[700:730].to_parquet(part)
    assert "30 of the 60 audited rows have no label (first: 'L0730'" in refuse(
        "report", audit, "--labels", part, *COLUMNS, *out
    )
    other = ["--labels", made / "test.parquet", "--target", "purpose", "--id", "loan"]
    assert "no label is one of the model's classes" in refuse("report", audit, *other, *out)
    assert not Path(tmp_path / "x.html").exists()


def test_other_mistakes_are_refused_in_one_sentence(made, tmp_path) -> None:
    audit = made / "audit"
    assert "must end in .txt or .md or .html or .json" in refuse("report", audit, "--out", tmp_path / "x.pdf")
    assert "is not an audit folder" in refuse("report", tmp_path, "--out", tmp_path / "x.html")
    assert "is not an audit folder" in refuse("report", tmp_path / "absent")
    assert "lies in a folder that does not exist" in refuse("report", audit, "--out", tmp_path / "no" / "x.html")
    assert "this one lacks 'id'" in refuse(
        "report", audit, "--stress", made / "train.parquet", "--out", tmp_path / "x.md"
    )
    assert "risk must lie between 0 and 1" in refuse("report", audit, "--risk", "0", "--out", tmp_path / "x.html")


def test_labels_that_are_not_classes_leave_the_audits_report_without_accuracy(made, table, tmp_path) -> None:
    rows = table[700:720].assign(risk=["?"] + ["good"] * 19)
    rows.to_parquet(tmp_path / "rows.parquet")
    assert (
        run(*audit_words(made)[:2], tmp_path / "rows.parquet", *audit_words(made)[3:], "--out", tmp_path / "a").code
        == 0
    )
    assert b"Right and wrong" not in (tmp_path / "a" / "report.html").read_bytes()


def test_a_reliability_analysis_gives_its_section(made, tmp_path) -> None:
    rows = ["--data", made / "test.parquet", *COLUMNS]
    words = ["reliability", made / "audit", "--model", made / "model.skops", *rows, "--rates", "0.1"]
    assert run(*words, "--out", tmp_path / "lost.json").code == 0
    done = run("report", made / "audit", "--reliability", tmp_path / "lost.json", "--out", tmp_path / "report.md")
    assert done.code == 0, done.err
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "## What to make reliable first" in page and "if each field is missing 10% of the time" in page
    assert run(*words, "--rows", "20", "--out", tmp_path / "few.json").code == 0
    refused = refuse("report", made / "audit", "--reliability", tmp_path / "few.json", "--out", tmp_path / "no.md")
    assert "the failure probabilities are of other rows than the audit" in refused
    (tmp_path / "list.json").write_text("[]")
    refused = refuse("report", made / "audit", "--reliability", tmp_path / "list.json", "--out", tmp_path / "no.md")
    assert "expected a reliability analysis of format" in refused and not (tmp_path / "no.md").exists()


def test_the_command_to_verify_names_what_was_given(made, tmp_path) -> None:
    words = ["--data", made / "test.parquet", *COLUMNS, "--model", made / "model.skops"]
    assert run("report", made / "audit", *words, "--out", tmp_path / "r.md").code == 0
    (command,) = re.findall(r"fragility verify [^\n]*", (tmp_path / "r.md").read_text(encoding="utf-8"))
    assert "MODEL" not in command and run(*command.split()[1:]).code == 0
