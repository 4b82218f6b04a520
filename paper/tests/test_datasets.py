"""The study's data sets: declarations, verification, splits, and the OpenML loader against a local server."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pandas as pd
import pytest
from conftest import data_folder

from fragility.errors import DataError
from fragility.study import datasets as ds

PRESENT = [name for name in ds.DATASETS if name == "credit_g" or (data_folder() / f"{name}.parquet").exists()]


# --- declarations ------------------------------------------------------------------------------------------------


def test_seven_data_sets_with_the_declared_number_of_fields():
    fields = {name: len(spec.fields) for name, spec in ds.DATASETS.items()}
    assert fields == {
        "adult": 14,
        "bank_marketing": 16,
        "credit_g": 20,
        "default_credit": 23,
        "electricity": 8,
        "heloc": 23,
        "covertype": 12,
    }


@pytest.mark.parametrize("spec", ds.DATASETS.values(), ids=list(ds.DATASETS))
def test_domain_blocks_partition_the_fields(spec):
    assert sorted(spec.block_of) == sorted(spec.fields)
    assert 1 < len(spec.blocks) < len(spec.fields)


def test_a_block_that_leaves_a_field_out_is_refused():
    with pytest.raises(DataError, match="must hold every field once"):
        ds.DatasetSpec(
            name="toy", title="Toy", rows=1, columns=2, file_sha256="", content_sha256="", target="y",
            classes=("0", "1"), fields=("a", "b"), nominal=(), blocks=(("only", ("a",)),),
        )  # fmt: skip


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(DataError, match="unknown data set 'iris'; expected one of adult"):
        ds.dataset_spec("iris")


# --- loading and verifying ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESENT)
def test_the_table_is_the_declared_one(name):
    data = ds.load(name, data=data_folder())
    assert data.X.shape == (data.spec.rows, len(data.spec.fields))
    assert list(data.X.columns) == list(data.spec.fields)
    assert set(np.unique(data.y)) == set(range(len(data.spec.classes)))
    assert not data.X.isna().to_numpy().any()


def test_credit_g_comes_with_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv(ds.DATA_VARIABLE, str(tmp_path))
    assert ds.load("credit_g").X.shape == (1000, 20)


def test_markers_are_counted_as_published(tmp_path):
    data = ds.load("credit_g")
    counts = dict(zip(data.spec.fields, data.unavailable.sum(axis=0), strict=True))
    assert counts["checking_status"] == 394
    assert counts["savings_status"] == 183
    assert counts["property_magnitude"] == 154
    assert sum(counts.values()) == 394 + 183 + 154


def test_adult_markers_are_counted_as_published():
    if "adult" not in PRESENT:
        pytest.skip("adult.parquet not found; set FRAGILITY_DATA to the folder with the benchmark data")
    data = ds.load("adult", data=data_folder())
    counts = dict(zip(data.spec.fields, data.unavailable.sum(axis=0), strict=True))
    assert (counts["workclass"], counts["occupation"], counts["native-country"]) == (2799, 2809, 857)
    assert counts["capital-gain"] == 244


def test_a_missing_file_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(DataError, match=r"adult\.parquet not found in .*point --data or FRAGILITY_DATA"):
        ds.load("adult", data=tmp_path)


def test_a_changed_value_is_refused(tmp_path):
    table = ds.load_table("credit_g", data=tmp_path)
    table.loc[17, "age"] += 1
    table.to_parquet(tmp_path / "credit_g.parquet")
    with pytest.raises(DataError, match="its values are not those the study was run on"):
        ds.load("credit_g", data=tmp_path)


def test_reordered_rows_are_refused_because_splits_go_by_position(tmp_path):
    ds.load_table("credit_g", data=tmp_path).iloc[::-1].to_parquet(tmp_path / "credit_g.parquet")
    with pytest.raises(DataError, match="content digest"):
        ds.load("credit_g", data=tmp_path)


def test_a_truncated_file_is_refused(tmp_path):
    ds.load_table("credit_g", data=tmp_path).head(900).to_parquet(tmp_path / "credit_g.parquet")
    with pytest.raises(DataError, match="must have 1000 rows and 21 columns, got 900 and 21"):
        ds.load("credit_g", data=tmp_path)


def test_the_same_rows_in_another_file_are_accepted(tmp_path):
    table = ds.load_table("credit_g", data=tmp_path)
    table.astype({"age": "int16"}).to_parquet(tmp_path / "credit_g.parquet", compression="zstd")
    assert len(ds.load("credit_g", data=tmp_path).X) == 1000


def test_indicator_columns_become_one_field():
    table = pd.DataFrame({"Soil_Type1": [0, 1], "Soil_Type2": [0, 0], "Soil_Type3": [1, 0]})
    assert ds._collapse(table, "Soil_Type").tolist() == [3, 1]
    with pytest.raises(DataError, match="exactly one 1"):
        ds._collapse(table * 0, "Soil_Type")


# --- splits ------------------------------------------------------------------------------------------------------


def test_splits_are_disjoint_stratified_and_repeatable():
    y = np.repeat([0, 1], [700, 300])
    first, again, other = ds.split(y, 0), ds.split(y, 0), ds.split(y, 1)
    assert [len(first.train), len(first.validation), len(first.test)] == [600, 200, 200]
    assert np.array_equal(first.test, again.test)
    assert not np.array_equal(first.test, other.test)
    for part in (first.train, first.validation, first.test):
        assert y[part].mean() == pytest.approx(0.3)
    assert len(np.unique(np.concatenate([first.train, first.validation, first.test]))) == 1000


def test_the_cap_thins_training_rows_alone():
    y = np.repeat([0, 1], [700, 300])
    whole, capped = ds.split(y, 0), ds.split(y, 0, train_cap=100)
    assert len(capped.train) == 100
    assert set(capped.train) <= set(whole.train)
    assert np.array_equal(capped.test, whole.test)
    assert np.array_equal(capped.validation, whole.validation)


# --- OpenML ------------------------------------------------------------------------------------------------------


def arff_of(table: pd.DataFrame) -> str:
    """The table as OpenML writes it: quoted categories, numbers bare."""
    lines = ["% a comment", "@RELATION credit-g", ""]
    for name in table.columns:
        if pd.api.types.is_numeric_dtype(table[name]):
            lines.append(f"@ATTRIBUTE {name} REAL")
        else:
            values = ",".join(f"'{value}'" for value in sorted(table[name].unique()))
            lines.append(f"@ATTRIBUTE '{name}' {{{values}}}")
    lines += ["", "@DATA"]
    for row in table.itertuples(index=False):
        lines.append(",".join(f"'{value}'" if isinstance(value, str) else str(value) for value in row))
    return "\n".join(lines) + "\n"


class Shelf:
    """What the stand-in server hands out."""

    def __init__(self, body: bytes, md5: str | None = None) -> None:
        self.body = body
        self.md5 = hashlib.md5(body, usedforsecurity=False).hexdigest() if md5 is None else md5


@pytest.fixture
def openml() -> Iterator[tuple[str, dict[int, Shelf]]]:
    """A server on 127.0.0.1 that answers like OpenML's JSON API and file store."""
    shelves: dict[int, Shelf] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _, number = self.path.rpartition("/")
            shelf = shelves.get(int(number)) if number.isdigit() else None
            if shelf is None:
                self.send_error(404)
                return
            body = shelf.body
            if kind == "/api/v1/json/data":
                host, port = self.server.server_address[:2]
                document = {"id": number, "url": f"http://{host}:{port}/data/{number}", "md5_checksum": shelf.md5}
                body = json.dumps({"data_set_description": document}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the test output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", shelves
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_download_is_verified_and_then_loads(openml, tmp_path):
    server, shelves = openml
    table = ds.load_table("credit_g", data=tmp_path)
    shelves[31] = Shelf(arff_of(table).encode())
    path = ds.download("credit_g", tmp_path / "fetched", server=server)
    assert path == tmp_path / "fetched" / "credit_g.parquet"
    fetched = ds.load("credit_g", data=path.parent)
    assert fetched.X.equals(ds.prepare(fetched.spec, table).X)


def test_a_download_with_another_checksum_is_not_written(openml, tmp_path):
    server, shelves = openml
    shelves[31] = Shelf(arff_of(ds.load_table("credit_g", data=tmp_path)).encode(), md5="0" * 32)
    with pytest.raises(DataError, match="OpenML states MD5 0000"):
        ds.download("credit_g", tmp_path, server=server)
    assert not list(tmp_path.iterdir())


def test_a_download_with_other_values_is_not_written(openml, tmp_path):
    server, shelves = openml
    table = ds.load_table("credit_g", data=tmp_path)
    shelves[31] = Shelf(arff_of(table.assign(age=table["age"] + 1)).encode())
    with pytest.raises(DataError, match="content digest"):
        ds.download("credit_g", tmp_path, server=server)
    assert not list(tmp_path.iterdir())


def test_a_short_download_is_not_written(openml, tmp_path):
    server, shelves = openml
    shelves[31] = Shelf(arff_of(ds.load_table("credit_g", data=tmp_path).head(10)).encode())
    with pytest.raises(DataError, match="must have 1000 rows"):
        ds.download("credit_g", tmp_path, server=server)


def test_other_columns_are_refused(openml, tmp_path):
    server, shelves = openml
    shelves[31] = Shelf(arff_of(pd.DataFrame({"a": [1.0], "class": ["good"]})).encode())
    with pytest.raises(DataError, match="must have the columns"):
        ds.download("credit_g", tmp_path, server=server)


def test_an_absent_data_set_says_what_failed(openml, tmp_path):
    server, _ = openml
    with pytest.raises(DataError, match="could not fetch"):
        ds.download("credit_g", tmp_path, server=server)


def test_heloc_cannot_be_downloaded(tmp_path):
    with pytest.raises(DataError, match="not on OpenML in its original form"):
        ds.download("heloc", tmp_path)


def test_openml_names_and_codes_turn_back_into_the_original():
    spec = ds.dataset_spec("bank_marketing")
    row = [30, "admin.", "single", "tertiary", "no", 10, "no", "no", "unknown", 5, "may", 7, 1, -1, 0, "unknown", "2"]
    table = ds.original_table(spec, pd.DataFrame([row], columns=list(spec.openml_columns)))
    assert list(table.columns) == [*spec.fields, "y"]
    assert table.loc[0, "y"] == "yes"


def test_arff_quotes_escapes_and_missing_values():
    text = (
        "@relation r\n@attribute a numeric\n@attribute 'b c' {'x, y','?',z}\n@data\n1,'x, y'\n?,'?'\n3,?\n% end\n4,z\n"
    )
    table = ds.parse_arff(text)
    assert table["a"].tolist()[0] == 1.0 and np.isnan(table["a"].tolist()[1])
    assert table["b c"].tolist()[:2] == ["x, y", "?"]
    assert table["b c"].isna().tolist() == [False, False, True, False]


def test_an_arff_row_of_another_width_is_refused():
    with pytest.raises(DataError, match="row 2 has 1 values, expected 2"):
        ds.parse_arff("@relation r\n@attribute a numeric\n@attribute b numeric\n@data\n1,2\n3\n")
