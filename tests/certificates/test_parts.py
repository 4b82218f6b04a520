"""Data files of unknown origin: what they may take in memory."""

import os
import tracemalloc
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fragility.audits.parts import decode_table
from fragility.base.errors import CertificateError
from fragility.base.files import read_digested, stored_size


def encode(table, **settings):
    sink = BytesIO()
    pq.write_table(table, sink, compression="zstd", **settings)
    return sink.getvalue()


def test_tables_come_back_as_they_were():
    table = pa.table(
        {
            "id": ["a", "b", None, "a"],
            "path": [["x", "y"], [], None, ["x", None]],
            "set": pa.array([[[1.0], []], None, [], [[2.0]]]),
            "raw": pa.array([b"1", None, b"", b"\x00"]),
            "flips": [True, False, None, True],
        }
    ).replace_schema_metadata({"made by": "a test"})
    again = decode_table(encode(table), "file", most_rows=4, most_values=4)
    assert again.equals(table) and again.schema.metadata == {b"made by": b"a test"}
    some = decode_table(encode(table), "file", ["raw", "id"], most_rows=4, most_values=4)
    assert some.select(["id", "raw"]).equals(table.select(["id", "raw"]))


@pytest.mark.parametrize("nested", [False, True])
def test_a_text_that_every_row_names_is_counted_each_time(nested):
    indices, long = pa.array([0] * 1000), pa.array([os.urandom(150_000).hex()])
    texts = pa.DictionaryArray.from_arrays(indices, long)
    if nested:
        texts = pa.ListArray.from_arrays(pa.array(range(1001), type=pa.int32()), texts)
    data = encode(pa.table({"id": range(1000), "text": texts}))
    assert len(data) < 700_000
    with pytest.raises(CertificateError, match=r"cannot read file: its columns take 30\d{7} bytes in memory, which a"):
        decode_table(data, "file", most_rows=1000)


def test_holes_are_digested_before_they_are_read(tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(200 * 2**20)
    if stored_size(path) > 2**20:
        pytest.skip("the file system has no holes")
    tracemalloc.start()
    try:
        assert read_digested(path, "0" * 64) is None
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
