"""`fragility review` refuses what cannot work before it serves anything; `review export` writes what was decided."""

import re
import shutil

import pyarrow.csv
import pyarrow.parquet
import pytest
from command_line import COLUMNS, refuse, run

from fragility.apps.review.history import DEFAULT_REASONS, Case, read_reasons
from fragility.apps.review.store import Store
from fragility.base.errors import DataError


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "review.sqlite"
    opened = Store.open(path)
    opened.write(Case("sha256:a", "sha256:audit", 0, "L1"), "Ana", "reacquire", ["age"], "-1 is not an age")
    entry = opened.write(Case("sha256:b", "sha256:audit", 1, "L2"), "Ana", "accept")
    opened.undo(entry.seq, "Ana")
    opened.close()
    return path


def test_export(store, tmp_path):
    done = run("review", "export", "--store", store, "--out", tmp_path / "decisions.csv")
    assert done.code == 0 and "1 decisions" in done.out
    read = pyarrow.csv.read_csv(tmp_path / "decisions.csv").to_pylist()
    assert [(row["digest"], row["groups"], row["note"]) for row in read] == [
        ("sha256:a", '["age"]', "'-1 is not an age")
    ]
    done = run("review", "export", "--store", store, "--out", tmp_path / "all.parquet", "--history")
    assert done.code == 0 and "3 entries" in done.out
    assert pyarrow.parquet.read_table(tmp_path / "all.parquet")["decision"].to_pylist() == [
        "reacquire",
        "accept",
        "undo",
    ]


def test_what_cannot_be_exported(store, tmp_path):
    assert "does not exist" in refuse(
        "review", "export", "--store", tmp_path / "no.sqlite", "--out", tmp_path / "a.csv"
    )
    assert "must end in .parquet or .csv" in refuse("review", "export", "--store", store, "--out", tmp_path / "a.xlsx")
    assert "never overwritten" in refuse("review", "export", "--store", store, "--out", store)
    assert not (tmp_path / "no.sqlite").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model", "model.skops"], "--model has no effect without --data; give --data too"),
        (["--target", "risk"], "--target has no effect without --data"),
        (["--trust"], "--trust has no effect without --model; give --model too"),
        (["--data", "absent.parquet"], "absent.parquet does not exist"),
        (["--policy", "absent.json"], "cannot read the policy"),
        (["--reasons", "absent.txt"], "cannot read the reasons in absent.txt"),
        (["--store", "no/such/folder.sqlite"], "choose another place with --store"),
        (["--port", "-1"], "--port"),
        (["--row", "L9999"], "this audit has no row 'L9999'; ids run like ['L0700', 'L0701', 'L0702']"),
        (["--separator", ";"], "is for CSV files"),
    ],
    ids=str,
)
def test_what_cannot_be_reviewed(made, words, sentence):
    assert sentence in refuse("review", made / "audit", "--no-open", *words)
    assert not (made / "audit" / "review.sqlite").exists()


def test_another_folder_other_rows_and_another_model_are_refused(made, tmp_path):
    assert "is not an audit folder" in refuse("review", tmp_path, "--no-open")
    given = ["--data", made / "train.parquet", *COLUMNS, "--no-open"]
    assert "60 of the 60 audited rows are not among them" in refuse("review", made / "audit", *given)
    said = refuse("review", made / "audit", "--data", made / "test.csv", "--target", "risk")
    assert "ids of the audit: 'L0700' to 'L0759'; ids of the rows: 0 to 59" in said and "--id" in said
    assert not (made / "audit" / "review.sqlite").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("confirmed", "line 1 of {} must be a code of at most 80 characters, a colon and words, got 'confirmed'"),
        ("# ours\n\na: b\n: c", "line 4 of {} must be a code"),
        ("a: b\na: c", "line 2 of {} names the code 'a' again"),
        ("# nothing\n", "{} holds no reason"),
        ("x" * 81 + ": y", "line 1 of {} must be a code of at most 80"),
    ],
)
def test_reasons_that_cannot_be_read(tmp_path, text, sentence):
    path = tmp_path / "reasons.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(sentence.format(path))):
        read_reasons(path)


def test_reasons_of_a_file(tmp_path):
    path = tmp_path / "reasons.txt"
    path.write_text("\ufeff# ours\nR1: income: confirmed \n\n  R2 : see the note\n", encoding="utf-8")
    assert read_reasons(path) == {"R1": "income: confirmed", "R2": "see the note"}
    assert len(DEFAULT_REASONS) > 5


def test_an_audit_under_review_is_not_replaced_without_consent(made, tmp_path):
    """Decisions speak of certificates that an audit into the same folder would remove."""
    folder = tmp_path / "audit"
    shutil.copytree(made / "audit", folder)
    before = sorted(each.name for each in folder.iterdir())
    words = ["audit", made / "model.joblib", made / "test.parquet", "--trust", "--train", made / "train.parquet"]
    words += [*COLUMNS, "--out", folder]
    store = Store.open(folder / "review.sqlite")
    assert run(*words).code == 0  # nobody has decided yet
    store.write(Case("sha256:a", "sha256:audit", 0, "L1"), "Ana", "accept")
    store.close()
    refused = refuse(*words)
    assert "is under review: 1 entry of review.sqlite refers" in refused and "--overwrite" in refused
    assert "is under review" in refuse(*words, "--resume") and "is under review" in refuse("demo", "--out", folder)
    assert run(*words, "--overwrite").code == 0
    assert sorted(each.name for each in folder.iterdir() if "review" not in each.name) == before
