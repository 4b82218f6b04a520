"""Canonical bytes and digests: equal for equal content, different for anything else."""

from __future__ import annotations

import hashlib
import json
import math
import struct

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fragility.base.canonical import (
    BLOCK_BYTES,
    Texts,
    canonical_bytes,
    combine_digests,
    digest_of,
    row_digests,
    table_digest,
)

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=8)
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(documents)
@settings(max_examples=200, deadline=None)
def test_canonical_bytes_are_stable_compact_json(document) -> None:
    data = canonical_bytes(document)
    assert data == canonical_bytes(document)
    again = json.loads(data)
    assert canonical_bytes(again) == data  # floats have become their exact text, so a second pass changes nothing
    assert digest_of(document) == "sha256:" + hashlib.sha256(data).hexdigest()


def test_key_order_does_not_matter_and_list_order_does() -> None:
    assert digest_of({"a": 1, "b": [1, 2]}) == digest_of({"b": [1, 2], "a": 1})
    assert digest_of([1, 2]) != digest_of([2, 1])


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_one_bit_of_a_float_changes_the_digest(value: float) -> None:
    assert digest_of({"v": value}) != digest_of({"v": math.nextafter(value, math.inf)})


def test_numpy_values_mean_what_python_values_mean() -> None:
    python = {"a": [1.5, 2.0], "n": 3, "flag": True, "missing": None}
    arrays = {"a": np.array([1.5, 2.0]), "n": np.int64(3), "flag": np.bool_(True), "missing": math.nan}
    assert canonical_bytes(python) == canonical_bytes(arrays)
    assert canonical_bytes({"v": 0.1}) == b'{"v":"0x1.999999999999ap-4"}'


def test_integers_beyond_the_doubles_keep_their_digits() -> None:
    assert digest_of(2**53) != digest_of(2**53 + 1)


def test_what_has_no_canonical_form_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="cannot put a set into a canonical document"):
        canonical_bytes({"a": {1, 2}})


def columns_of(table: pd.DataFrame) -> dict[str, np.ndarray]:
    return {str(name): table[name].to_numpy() for name in table.columns}


TABLE = pd.DataFrame(
    {
        "age": [31, 45, 45, 22],
        "income": [1.5, np.nan, 0.0, -2.25],
        "city": ["Ulm", None, "Köln", "Ulm"],
        "owner": [True, False, True, True],
    }
)


@given(st.permutations(range(4)), st.permutations(list(TABLE.columns)), st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_table_digest_ignores_row_order_column_order_and_splitting(rows, names, cut) -> None:
    shuffled = TABLE.iloc[list(rows)][list(names)]
    assert table_digest(columns_of(shuffled)) == table_digest(columns_of(TABLE))
    parts = [shuffled.iloc[:cut], shuffled.iloc[cut:]]
    digests = [d for part in parts for d in row_digests(columns_of(part))]
    assert combine_digests(digests) == table_digest(columns_of(TABLE))


def changed(table: pd.DataFrame, column: str, row: int, value: object) -> pd.DataFrame:
    out = table.copy().astype({column: object})
    out.loc[row, column] = value
    return out


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("age", 0, 32),
        ("income", 0, np.nextafter(1.5, 2)),
        ("income", 1, 0.0),
        ("income", 2, np.nan),
        ("city", 0, "ulm"),
        ("city", 1, "None"),
        ("city", 1, "nan"),
        ("owner", 0, False),
    ],
)
def test_table_digest_sees_every_changed_cell(column: str, row: int, value: object) -> None:
    assert table_digest(columns_of(changed(TABLE, column, row, value))) != table_digest(columns_of(TABLE))


def test_table_digest_sees_names_repeats_and_swapped_columns() -> None:
    base = table_digest(columns_of(TABLE))
    assert table_digest(columns_of(TABLE.rename(columns={"age": "Age"}))) != base
    assert table_digest(columns_of(pd.concat([TABLE, TABLE.iloc[:1]]))) != base
    assert table_digest(columns_of(TABLE.iloc[:3])) != base
    swapped = TABLE.rename(columns={"age": "income", "income": "age"})
    assert table_digest(columns_of(swapped)) != base


def test_table_digest_does_not_depend_on_how_numbers_are_stored() -> None:
    base = table_digest(columns_of(TABLE))
    for dtype in ("int8", "float32", "float64", "object"):
        assert table_digest(columns_of(TABLE.astype({"age": dtype}))) == base
    assert table_digest(columns_of(TABLE.astype({"city": "category"}))) == base
    negative_zero = TABLE.copy()
    negative_zero.loc[2, "income"] = -0.0
    assert table_digest(columns_of(negative_zero)) == base


@pytest.mark.parametrize("dtype", ["int64", "uint64", "Int64", "object"])
def test_whole_numbers_beyond_the_doubles_differ_in_their_rows(dtype: str) -> None:
    column = pd.Series([2**53, 2**53 + 1, 2**53 + 2, 2**60, 2**60 + 1, 2**63 - 1], dtype=dtype)
    digests = row_digests({"a": column})
    assert len(set(digests)) == len(column)
    as_decimals = row_digests({"a": np.array([2.0**53, 2.0**60])})
    assert as_decimals == [digests[0], digests[3]]  # a number that a double holds is that number


def test_negative_and_enormous_whole_numbers_keep_their_digits() -> None:
    values = [-(2**53) - 1, -(2**53), 10**400, 10**400 + 1]
    assert len(set(row_digests({"a": np.array(values, dtype=object)}))) == 4
    assert len(set(row_digests({"a": pd.Series([-(2**53) - 1, -(2**53) - 2])}))) == 2


def test_a_cell_is_32_bytes_and_a_text_the_whole_of_its_hash() -> None:
    head = hashlib.sha256(canonical_bytes(["a"])).digest()

    def hashed(cell: bytes) -> bytes:
        assert len(cell) == 32
        return hashlib.sha256(head + cell).digest()

    texts = row_digests({"a": np.array(["Ulm", None], dtype=object)})
    assert texts[0] == hashed(hashlib.sha256(b"text:Ulm").digest())
    assert texts[1] == row_digests({"a": np.array([np.nan])})[0] == hashed(bytes(24) + np.float64("nan").tobytes())
    assert row_digests({"a": np.array([1.5])}) == [hashed(bytes(24) + np.float64(1.5).tobytes())]


def test_a_number_and_its_text_differ() -> None:
    assert table_digest({"a": np.array([1.0])}) != table_digest({"a": np.array(["1.0"], dtype=object)})


def test_an_empty_table_has_a_digest_of_its_own() -> None:
    empty = table_digest({"a": np.array([], dtype=float)})
    assert empty.startswith("sha256:") and empty != table_digest({"a": np.array([1.0])})


def cell_as_defined(value: object) -> bytes:
    """One cell as docs/format.md defines it."""
    if value is None or value != value:
        return bytes(24) + struct.pack("<d", math.nan)
    if isinstance(value, str):
        return hashlib.sha256(b"text:" + value.encode()).digest()
    if isinstance(value, int) and float(value) != value:
        return hashlib.sha256(b"integer:" + str(value).encode()).digest()
    return bytes(24) + struct.pack("<d", float(value) + 0.0)


def test_rows_are_hashed_as_defined_across_the_blocks_they_are_hashed_in() -> None:
    """Rows, of which thousands share a buffer, hold whole numbers too wide for a double in some blocks only."""
    n = BLOCK_BYTES // 32 // 5 * 2 + 3
    rng = np.random.default_rng(0)
    columns = {
        "wide": [2**53 + 1 + i if i < 4 or i == n - 2 else i for i in range(n)],
        "number": [None if i % 7 == 0 else -0.0 if i % 5 == 0 else float(i) for i in range(n)],
        "text": [None if i % 3 == 0 else f"t{i % 11}" for i in range(n)],
        "id": [f"row {i}" for i in range(n)],
    }
    head = hashlib.sha256(canonical_bytes(sorted(columns))).digest()
    series = {name: pd.Series(values, index=60_000.5 + np.arange(n)) for name, values in columns.items()}
    found = row_digests({**series, "id": Texts(columns["id"])})
    assert row_digests(series) == found
    for i in {0, 3, 4, n - 3, n - 2, n - 1, *rng.integers(0, n, 300).tolist()}:
        cells = b"".join(cell_as_defined(columns[name][i]) for name in sorted(columns))
        assert found[i] == hashlib.sha256(head + cells).digest(), i
    assert len(found) == n


def test_few_rows_have_the_digests_of_many():
    """A few rows are hashed cell by cell, many column by column: the same bytes for every type of column."""
    n = 40
    rng = np.random.default_rng(3)
    dates = pd.date_range("2024-01-01", periods=n, freq="7h")
    columns = {
        "whole": pd.Series(rng.integers(-5, 5, n)),
        "wide": pd.Series(2**53 + np.arange(n)),
        "small": pd.Series(np.arange(n, dtype=np.uint8)),
        "number": pd.Series(np.where(np.arange(n) % 5 == 0, np.nan, rng.normal(size=n))),
        "zero": pd.Series(np.where(np.arange(n) % 2 == 0, 0.0, -0.0)),
        "single": pd.Series(rng.normal(size=n).astype(np.float32)),
        "flag": pd.Series(np.arange(n) % 3 == 0),
        "nullable": pd.Series([None, 1, 2**60] * 13 + [4], dtype="Int64"),
        "nullable flag": pd.Series([None, True, False] * 13 + [True], dtype="boolean"),
        "text": pd.Series(["a", None, "7", "Ä"] * 10),
        "object": pd.Series(["a", None, 1, 1.5, True, np.nan, 2**70, pd.Timestamp("2024-02-03")] * 5, dtype=object),
        "category": pd.Series(pd.Categorical(["x", None, "y", "x"] * 10)),
        "coded": pd.Series(pd.Categorical([1, None, 2, 1] * 10)),
        "date": pd.Series(dates),
        "zone": pd.Series(dates.tz_localize("Europe/Vienna")),
        "day": pd.Series([d.date() for d in dates]),
        "span": pd.Series(dates - dates[0]),
        "array": rng.normal(size=n),
        "whole array": np.arange(n),
        "id": Texts(str(i) for i in range(n)),
    }
    whole = row_digests(columns)
    for size in (1, 3, 8, 9):
        for start in range(0, n - size, size):
            part = {name: column[start : start + size] for name, column in columns.items()}
            assert row_digests(part) == whole[start : start + size]
    assert row_digests({"a": np.empty(0)}) == []
