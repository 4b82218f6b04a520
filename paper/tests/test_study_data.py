"""The study's data sets: declarations, verification, splits, and fetching from OpenML out of scikit-learn's cache."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from study_helpers import data_folder

from fragility.base.errors import DataError
from fragility_paper import data as ds
from fragility_paper.data.content import verify_rows
from fragility_paper.data.loading import collapsed
from fragility_paper.data.openml import original_table

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
    assert collapsed(table, "Soil_Type").tolist() == [3, 1]
    with pytest.raises(DataError, match="exactly one 1"):
        collapsed(table * 0, "Soil_Type")


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


def arff_of(table: pd.DataFrame) -> bytes:
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
    return ("\n".join(lines) + "\n").encode()


def cached(folder: Path, number: int, table: pd.DataFrame, body: bytes = b"") -> Path:
    """Put a table into a folder as scikit-learn keeps what it fetched from OpenML, so that no network is needed."""
    body = body or arff_of(table)
    address = f"data/v1/download/{number}/credit-g.arff"
    features = [
        {
            "index": str(place),
            "name": name,
            "data_type": "numeric" if pd.api.types.is_numeric_dtype(table[name]) else "nominal",
            "is_target": "false",
            "is_ignore": "false",
            "is_row_identifier": "false",
        }
        for place, name in enumerate(table.columns)
    ]
    description = {
        "id": str(number),
        "name": "credit-g",
        "version": "1",
        "status": "active",
        "format": "ARFF",
        "description": "",
        "url": f"https://www.openml.org/{address}",
        "md5_checksum": hashlib.md5(body, usedforsecurity=False).hexdigest(),
    }
    qualities = {"data_qualities": {"quality": [{"name": "NumberOfInstances", "value": str(len(table))}]}}
    files = {
        f"api/v1/json/data/{number}": json.dumps({"data_set_description": description}).encode(),
        f"api/v1/json/data/features/{number}": json.dumps({"data_features": {"feature": features}}).encode(),
        f"api/v1/json/data/qualities/{number}": json.dumps(qualities).encode(),
        address: body,
    }
    for name, content in files.items():
        path = folder / "openml" / "openml.org" / f"{name}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content))
    return folder


def test_a_fetched_table_is_verified_and_then_loads(tmp_path):
    table = ds.load_table("credit_g", data=tmp_path)
    path = ds.download("credit_g", tmp_path / "fetched", cache=cached(tmp_path / "cache", 31, table))
    assert path == tmp_path / "fetched" / "credit_g.parquet"
    fetched = ds.load("credit_g", data=path.parent)
    assert fetched.X.equals(ds.prepare(fetched.spec, table).X)


def test_a_fetched_table_with_other_values_is_not_written(tmp_path):
    table = ds.load_table("credit_g", data=tmp_path)
    cache = cached(tmp_path / "cache", 31, table.assign(age=table["age"] + 1))
    with pytest.raises(DataError, match="content digest"):
        ds.download("credit_g", tmp_path / "fetched", cache=cache)
    assert not (tmp_path / "fetched").exists()


def test_a_short_fetched_table_is_not_written(tmp_path):
    cache = cached(tmp_path / "cache", 31, ds.load_table("credit_g", data=tmp_path).head(10))
    with pytest.raises(DataError, match="must have 1000 rows"):
        ds.download("credit_g", tmp_path / "fetched", cache=cache)
    assert not (tmp_path / "fetched").exists()


def test_other_columns_are_refused(tmp_path):
    cache = cached(tmp_path / "cache", 31, pd.DataFrame({"a": [1.0], "class": ["good"]}))
    with pytest.raises(DataError, match="must have the columns"):
        ds.download("credit_g", tmp_path / "fetched", cache=cache)


def test_a_file_that_does_not_fit_its_description_says_what_failed(tmp_path):
    table = ds.load_table("credit_g", data=tmp_path)
    cache = cached(tmp_path / "cache", 31, table, body=arff_of(table.assign(more=1)))
    with pytest.raises(
        DataError, match=r"OpenML data set 31 \('credit_g'\) could not be fetched: The number of columns"
    ):
        ds.download("credit_g", tmp_path / "fetched", cache=cache)


def test_heloc_cannot_be_downloaded(tmp_path):
    with pytest.raises(DataError, match="not on OpenML in its original form"):
        ds.download("heloc", tmp_path)


def test_openml_names_and_codes_turn_back_into_the_original():
    spec = ds.dataset_spec("bank_marketing")
    row = [30, "admin.", "single", "tertiary", "no", 10, "no", "no", "unknown", 5, "may", 7, 1, -1, 0, "unknown", "2"]
    table = original_table(spec, pd.DataFrame([row], columns=list(spec.openml_columns)))
    assert list(table.columns) == [*spec.fields, "y"]
    assert table.loc[0, "y"] == "yes"


def openml_form(spec: ds.DatasetSpec, table: pd.DataFrame) -> pd.DataFrame:
    """The original as OpenML has it: its names and class codes, categories for nominal fields, markers missing."""
    plain = table.drop(columns=list(spec.drop))
    fields = [name for name in plain.columns if name != spec.target]
    found = plain[[*fields, spec.target]].set_axis(list(spec.openml_columns), axis=1)
    if spec.openml_classes:
        codes = dict(zip(spec.classes, spec.openml_classes, strict=True))
        found[spec.openml_columns[-1]] = found[spec.openml_columns[-1]].map(codes)
    nominal = [n for n, field in zip(spec.openml_columns, spec.fields, strict=False) if field in spec.nominal]
    nominal = [] if spec.collapse else nominal
    for name in [*nominal, spec.openml_columns[-1]]:
        found[name] = found[name].astype(str).where(found[name].astype(str) != "?").astype("category")
    return found


@pytest.mark.repeats
@pytest.mark.parametrize("name", [name for name in PRESENT if ds.dataset_spec(name).openml_id is not None])
def test_every_data_set_comes_back_from_openmls_form(name):
    spec = ds.dataset_spec(name)
    table = ds.load_table(name, data=data_folder())
    verify_rows(spec, original_table(spec, openml_form(spec, table)), "the round trip")
