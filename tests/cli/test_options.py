"""What an option may hold: a word, numbers, labels or the name of a JSON file; anything else is refused by its name."""

import pandas as pd
import pytest
from command_line import COLUMNS, refuse, run

import fragility as fg


def write_words(made, file, *more: object) -> list[object]:
    train = ["--model", made / "model.skops", "--train", made / "train.parquet"]
    return ["protocol", "write", file, *train, *COLUMNS, *more]


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("--weights", "1,two,3", "--weights must be numbers with commas between, got '1,two,3'"),
        ("--severities", "", "--severities must be numbers with commas between, got ''"),
        ("--baseline", "absent.json", "--baseline names the file absent.json, which does not exist"),
        ("--classes", "good", "--classes must name at least two labels with commas between"),
        ("--classes", "good,,bad", "--classes must name at least two labels with commas between"),
    ],
)
def test_what_an_option_cannot_hold_is_refused(made, tmp_path, option, given, said):
    assert said in refuse(*write_words(made, tmp_path / "protocol.json", option, given))
    assert not (tmp_path / "protocol.json").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{'age': 30}", "is not valid JSON: Expecting property name"),
        (b'{"age": \xff}', "is not valid JSON: 'utf-8' codec"),
        (b"[30, 1000]", "must contain a JSON object, got list"),
    ],
)
def test_a_file_of_values_must_be_a_json_object(made, tmp_path, content, said):
    (tmp_path / "values.json").write_bytes(content)
    words = write_words(made, tmp_path / "protocol.json", "--baseline", tmp_path / "values.json")
    assert f"--baseline {tmp_path / 'values.json'} {said}" in refuse(*words)


def test_values_of_a_file_are_the_baseline(made, tmp_path, table, model):
    typical = {"duration": 24, "credit_amount": 3000, "age": 35}
    typical |= {"checking_status": "no checking", "savings_status": "<100", "purpose": "radio/tv"}
    (tmp_path / "typical.json").write_text(pd.Series(typical).to_json())
    words = write_words(made, tmp_path / "protocol.json", "--baseline", tmp_path / "typical.json")
    assert run(*words).code == 0
    X = table[:700].drop(columns=["risk", "loan"])
    expected = fg.Protocol.fit(model, X, baseline=typical)
    assert fg.Protocol.load(tmp_path / "protocol.json").digest == expected.digest


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (pd.DataFrame({"age": []}), "holds no rows; at least one row and one column were expected"),
        (
            pd.DataFrame([[1, 2]], columns=["age", "age"]),
            "has two columns named 'age'; column names must differ",
        ),
    ],
    ids=["empty", "twice"],
)
def test_tables_that_say_nothing_or_two_things_are_refused(made, tmp_path, rows, said):
    stream(rows, tmp_path / "rows.arrow")
    train = ["--train", made / "train.parquet", "--out", tmp_path / "audit"]
    assert said in refuse("audit", made / "model.skops", tmp_path / "rows.arrow", *train)


def stream(rows: pd.DataFrame, path) -> None:
    """An Arrow file without a footer; other writers refuse a name that comes twice."""
    import pyarrow as pa

    table = pa.table([pa.array(rows.iloc[:, j]) for j in range(rows.shape[1])], names=list(rows.columns))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def test_rows_of_an_arrow_stream_are_the_rows_of_the_file(made, tmp_path):
    stream(pd.read_parquet(made / "test.parquet"), tmp_path / "rows.arrow")
    words = ["audit", made / "model.skops", tmp_path / "rows.arrow", "--train", made / "train.parquet", *COLUMNS]
    assert run(*words, "--out", tmp_path / "audit").code == 0
    again, first = (fg.Certificates.load(folder / "audit").to_pandas() for folder in (tmp_path, made))
    assert again["digest"].tolist() == first["digest"].tolist()
