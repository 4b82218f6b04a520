"""Rows that a command reads: one rule for their ids, columns to leave out, and rows that belong to another audit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from command_line import refuse, run
from sklearn.linear_model import LogisticRegression

import fragility as fg

FIELDS = ["duration", "credit_amount", "age"]
ROWS = 40


def indexes() -> dict[str, pd.Index]:
    return {
        "a range from 9000": pd.RangeIndex(9000, 9000 + ROWS),
        "shuffled numbers": pd.Index(np.random.default_rng(3).permutation(4 * ROWS)[:ROWS]),
        "text": pd.Index([f"L{i:03}" for i in range(ROWS)]),
        "dates": pd.date_range("2026-01-01", periods=ROWS),
        "two levels": pd.MultiIndex.from_arrays([np.arange(ROWS) // 7, np.arange(ROWS) % 7], names=["a", "b"]),
    }


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Path:
    """A folder with a model, its training rows, rows to audit and a protocol."""
    folder = tmp_path_factory.mktemp("rows")
    X, y = fg.load_credit_g()
    model = LogisticRegression(max_iter=2000).fit(X[FIELDS][:600], y[:600])
    joblib.dump(model, folder / "model.joblib")
    table = X[FIELDS].assign(risk=y, loan=[f"K{i}" for i in range(len(X))])
    table[:600].to_parquet(folder / "train.parquet")
    table[600:700].to_parquet(folder / "validation.parquet")
    fg.Protocol.fit(model, X[FIELDS][:600]).save(folder / "protocol.json")
    return folder


def rows_of(case: Path) -> pd.DataFrame:
    X, y = fg.load_credit_g()
    return X[FIELDS].assign(risk=y)[700 : 700 + ROWS].reset_index(drop=True)


def common(case: Path) -> list[object]:
    return ["--model", case / "model.joblib", "--trust", "--target", "risk", "--ignore-extra"]


def ids_of_audit(case: Path, data: Path, out: Path, *more: object) -> list[Any]:
    words = ["audit", case / "model.joblib", data, "--trust", "--protocol", case / "protocol.json", "--target", "risk"]
    assert run(*words, "--ignore-extra", *more, "--out", out / "audit").code == 0
    return fg.Certificates.load(out / "audit").table.column("id").to_pylist()


def ids_of_stress(case: Path, data: Path, out: Path, *more: object) -> list[Any]:
    done = run(
        "evaluate",
        "labels",
        case / "protocol.json",
        *common(case),
        "--data",
        data,
        *more,
        "--out",
        out / "labels.parquet",
    )
    assert done.code == 0, done.err
    return pd.read_parquet(out / "labels.parquet")["id"].tolist()


def ids_of_reliability(case: Path, data: Path, out: Path, *more: object) -> list[Any]:
    words = ["reliability", case / "protocol.json", *common(case), "--data", data, "--rates", "0.05"]
    done = run(*words, *more, "--out", out / "lost.csv")
    assert done.code == 0, done.err
    return pd.read_csv(out / "lost.csv")["id"].tolist()


def ids_of_several(case: Path, data: Path, out: Path, *more: object) -> list[Any]:
    ids_of_audit(case, data, out, *more)
    labels = ["--labels", data, "--target", "risk", *more]
    shutil.copytree(out / "audit", out / "again")
    done = run("report", out / "audit", out / "again", *labels, "--out", out / "changes.csv")
    assert done.code == 0, done.err
    return pd.read_csv(out / "changes.csv")["id"].tolist()


def ids_of_evaluate(case: Path, data: Path, out: Path, *more: object) -> list[Any]:
    found = ids_of_audit(case, data, out, *more)
    done = run("evaluate", out / "audit", *common(case), "--data", data, *more, "--random-orders", "0")
    assert done.code == 0 and "among those given" not in done.err, done.err  # every row found its certificate
    return found


def ids_of_report(case: Path, data: Path, out: Path, *more: object) -> list[Any]:
    found = ids_of_audit(case, data, out, *more)
    ids_of_stress(case, data, out, *more)
    labels = ["--labels", data, "--target", "risk", *more, "--stress", out / "labels.parquet"]
    done = run("report", out / "audit", *labels, "--out", out / "report.md")
    assert done.code == 0, done.err
    return found


def ids_of_verify(case: Path, data: Path, out: Path, *more: object) -> list[Any]:
    found = ids_of_audit(case, data, out, *more)
    words = ["--model", case / "model.joblib", "--trust", "--data", data, "--target", "risk"]
    done = run("verify", out / "audit", *words, *more)
    assert done.code == 0, done.out + done.err
    return found


COMMANDS: dict[str, Callable[..., list[Any]]] = {
    "audit": ids_of_audit,
    "verify": ids_of_verify,
    "labels": ids_of_stress,
    "reliability": ids_of_reliability,
    "several": ids_of_several,
    "evaluate": ids_of_evaluate,
    "report": ids_of_report,
}


@pytest.mark.samples
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("index", indexes())
def test_every_command_takes_the_stored_index_as_ids(case, tmp_path, command: str, index: str) -> None:
    table = rows_of(case).set_axis(indexes()[index])
    table.to_parquet(tmp_path / "rows.parquet")
    expected = ["/".join(map(str, key)) for key in table.index] if index == "two levels" else list(table.index)
    found = COMMANDS[command](case, tmp_path / "rows.parquet", tmp_path)
    assert [str(own_id) for own_id in found] == [str(own_id) for own_id in expected]


@pytest.mark.repeats
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_the_id_column_as_ids(case, tmp_path, command: str) -> None:
    table = rows_of(case).assign(account=[f"A{i}" for i in range(ROWS)])  # not in VALIDATION, nor in training rows
    table.to_parquet(tmp_path / "rows.parquet")
    found = COMMANDS[command](case, tmp_path / "rows.parquet", tmp_path, "--id", "account")
    assert found == table["account"].tolist()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_numbers_rows_that_have_no_ids(case, tmp_path, command: str) -> None:
    rows_of(case).to_csv(tmp_path / "rows.csv", index=False)
    assert COMMANDS[command](case, tmp_path / "rows.csv", tmp_path) == list(range(ROWS))


# --- rows and audit that do not belong together ------------------------------------------------------------------


@pytest.fixture(scope="module")
def mismatch(case, tmp_path_factory) -> Path:
    """An audit of rows with shuffled ids, some of them small, and the same rows without their ids."""
    folder = tmp_path_factory.mktemp("mismatch")
    table = rows_of(case).set_axis(indexes()["shuffled numbers"])
    table.to_parquet(folder / "rows.parquet")
    table.to_csv(folder / "bare.csv", index=False)
    table.set_axis(pd.RangeIndex(9000, 9000 + ROWS)).to_parquet(folder / "elsewhere.parquet")
    ids_of_audit(case, folder / "rows.parquet", folder)
    assert 0 < len(set(table.index) & set(range(ROWS))) < ROWS
    return folder


@pytest.mark.parametrize(("data", "span"), [("bare.csv", "0 to 39"), ("elsewhere.parquet", "9000 to 9039")])
def test_verify_cannot_check_rows_under_other_ids(case, mismatch, data: str, span: str) -> None:
    said = refuse(
        "verify", mismatch / "audit", "--model", case / "model.joblib", "--trust", "--data", mismatch / data,
        "--target", "risk",
    )  # fmt: skip
    ids = indexes()["shuffled numbers"]
    lacking = ROWS - len(set(ids) & set(range(ROWS))) if data == "bare.csv" else ROWS
    assert f"{lacking} of the {ROWS} audited rows are not among them" in said
    assert f"; ids of the audit: {min(ids)} to {max(ids)}; ids of the rows: {span})" in said and "--id" in said


def test_a_false_claim_about_other_rows_is_still_a_false_claim(case, mismatch, tmp_path) -> None:
    """What is wrong with the audit itself is said, whichever rows are given."""
    folder = shutil.copytree(mismatch / "audit", tmp_path / "audit")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["root_digest"] = "sha256:" + 64 * "0"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    words = ["--model", case / "model.joblib", "--trust", "--data", mismatch / "bare.csv", "--target", "risk"]
    done = run("verify", folder, *words)
    assert done.code == 1 and "FAILED" in done.out


def test_evaluate_refuses_other_rows_under_the_same_ids(case, mismatch) -> None:
    words = ["evaluate", mismatch / "audit", *common(case), "--random-orders", "0", "--data"]
    none = refuse(*words, mismatch / "elsewhere.parquet")
    assert "40 of the 40 audited rows are not among them" in none and "9000 to 9039" in none and "--id" in none
    done = run(*words, mismatch / "bare.csv")
    assert done.code == 2 and "the ids are those of other rows" in done.err and "--id" in done.err


@pytest.mark.parametrize("data", ["bare.csv", "elsewhere.parquet"])
def test_policy_and_report_refuse_labels_of_other_rows(case, mismatch, tmp_path, data: str) -> None:
    ids_of_stress(case, mismatch / data, tmp_path)
    labels = tmp_path / "labels.parquet"
    done = run("policy", mismatch / "audit", "--stress", labels)
    assert done.code == 2 and "--id" in done.err, done
    assert ("the ids are those of other rows" if data == "bare.csv" else "9000 to 9039") in done.err
    for words in (["--stress", labels], ["--labels", mismatch / data, "--target", "risk"]):
        said = refuse("report", mismatch / "audit", *words, "--out", tmp_path / "report.md")
        assert "audited rows have no label (first: " in said and "--id" in said


def test_a_report_of_two_audits_refuses_labels_of_other_rows(mismatch) -> None:
    shutil.copytree(mismatch / "audit", mismatch / "again", dirs_exist_ok=True)
    words = ["report", mismatch / "audit", mismatch / "again", "--target", "risk", "--labels"]
    said = refuse(*words, mismatch / "elsewhere.parquet")
    assert "40 of the 40 audited rows have no label" in said and "9000 to 9039" in said and "--id" in said


def test_review_refuses_other_rows(mismatch) -> None:
    said = refuse("review", mismatch / "audit", "--data", mismatch / "elsewhere.parquet", "--target", "risk")
    assert "40 of the 40 audited rows are not among them" in said and "9000 to 9039" in said and "--id" in said


# --- columns to leave out -----------------------------------------------------------------------------------------


def row_commands(case: Path, data: Path, out: Path) -> dict[str, list[object]]:
    """Every command that refuses columns the model does not know, on a table that has some."""
    model, protocol = case / "model.joblib", case / "protocol.json"
    given = ["--model", model, "--trust", "--data", data, "--target", "risk"]
    trained = [model, "--train", data, "--trust", "--target", "risk"]
    return {
        "audit": ["audit", model, data, "--trust", "--protocol", protocol, "--target", "risk", "--out", out / "audit"],
        "audit --train": ["audit", model, data, *trained[1:], "--out", out / "audit"],
        "protocol write": ["protocol", "write", out / "p.json", "--model", *trained],
        "verify": ["verify", protocol, *given],
        "evaluate labels": ["evaluate", "labels", protocol, *given],
        "evaluate": ["evaluate", case / "audit", *given, "--random-orders", "0"],
        "reliability": ["reliability", protocol, *given, "--rates", "0.1"],
        "evaluate missing": ["evaluate", "missing", model, data, "--trust", "--protocol", protocol, "--target", "risk"],
        "harden": ["harden", *trained, "--out", out / "hardened.joblib"],
    }


COMMAND_NAMES = list(row_commands(Path(), Path(), Path()))


@pytest.fixture(scope="module")
def extra(case, tmp_path_factory) -> Path:
    """Rows with two columns the model does not know."""
    path = tmp_path_factory.mktemp("extra") / "rows.parquet"
    rows_of(case).assign(branch="north", officer=7).to_parquet(path)
    ids_of_audit(case, path, case)
    return path


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_extra_columns_are_named_and_can_be_left_out(case, extra, tmp_path, name: str) -> None:
    words = row_commands(case, extra, tmp_path)[name]
    said = refuse(*words)
    assert "columns 'branch', 'officer', which the model does not know" in said
    assert "--drop COL" in said and "--ignore-extra" in said
    said = refuse(*words, "--drop", "branch")
    assert "column 'officer', which the model does not know" in said and "branch" not in said
    done = run(*words, "--drop", "branch", "--drop", "officer")
    assert done.code == 0, done.err
    assert "left out" not in done.err  # they were named


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_ignored_columns_are_named(case, extra, tmp_path, name: str) -> None:
    done = run(*row_commands(case, extra, tmp_path)[name], "--ignore-extra")
    assert done.code == 0, done.err
    assert f"left out of {extra}, because the model does not know them: branch, officer" in done.err


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_a_column_to_drop_must_be_somewhere(case, extra, tmp_path, name: str) -> None:
    said = refuse(*row_commands(case, extra, tmp_path)[name], "--drop", "branch", "--drop", "officer", "--drop", "tpyo")
    assert "--drop names the column 'tpyo', which no table has" in said


@pytest.mark.parametrize("name", COMMAND_NAMES)
@pytest.mark.parametrize("option", ["--id", "--target", "--drop"])
def test_a_field_of_the_model_is_no_id_and_no_label(case, extra, tmp_path, name: str, option: str) -> None:
    words = row_commands(case, extra, tmp_path)[name]
    if option == "--target":
        place = words.index("--target")
        words = words[:place] + words[place + 2 :]
    said = refuse(*words, option, "age")
    assert f"{option} names the column 'age', which is a field of the model; name a column that" in said


@pytest.mark.parametrize("command", ["verify", "review"])
def test_verify_and_review_leave_other_columns_out_by_themselves_but_no_field(case, extra, command: str) -> None:
    model = ["--model", case / "model.joblib", "--trust", "--data", extra]
    said = refuse(command, case / "audit", *model, "--id", "age")
    assert "--id names the column 'age', which is a field of the model" in said
    if command == "verify":
        assert run(command, case / "audit", *model, "--target", "risk").code == 0


def test_a_model_without_names_cannot_tell_extra_columns(case, tmp_path) -> None:
    X, y = fg.load_credit_g()
    joblib.dump(LogisticRegression(max_iter=2000).fit(X[FIELDS].to_numpy(), y), tmp_path / "bare.joblib")
    words = ["protocol", "write", tmp_path / "p.json", "--model", tmp_path / "bare.joblib", "--trust"]
    words += ["--train", case / "train.parquet", "--target", "risk"]
    said = refuse(*words, "--ignore-extra")
    assert "--ignore-extra needs a model with named columns" in said and "--drop" in said
    assert run(*words, "--drop", "loan").code == 0


def test_an_interrupted_audit_goes_on_with_the_same_columns_left_out(case, extra, tmp_path) -> None:
    """The library's own door: columns that are not there are no error, and a resumed audit must leave out the same."""
    model, protocol = joblib.load(case / "model.joblib"), fg.Protocol.load(case / "protocol.json")
    drop = ["risk", "branch", "officer", "elsewhere"]
    made = fg.audit_files(model, extra, protocol, tmp_path / "a", drop=drop, progress=False)
    assert len(made) == ROWS
    with pytest.raises(fg.FragilityError, match=r"columns 'branch', 'officer', which the model does not know"):
        fg.audit_files(model, extra, protocol, tmp_path / "b", target="risk", progress=False)
