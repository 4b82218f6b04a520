"""What the footer of a Parquet file declares, read before the file is: how many rows, values and bytes.

Compressed data can stand for any amount of memory, so a file of unknown origin is asked first. The footer is a Thrift
structure in the compact protocol; pyarrow would read it too, but ends the process where a column's part is malformed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fragility.files import open_regular

MAGIC = b"PAR1"
NESTING = 20
# Thrift's types in the compact protocol.
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
# Fields of Parquet's FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
NUM_ROWS, ROW_GROUPS, COLUMNS, META_DATA, NUM_VALUES, UNCOMPRESSED = 3, 4, 1, 3, 5, 6


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """One column of one row group: how many values, in how many bytes before compression."""

    values: int
    inflated: int


@dataclass(frozen=True, slots=True)
class Declared:
    """What a file declares to hold."""

    rows: int
    columns: tuple[DeclaredColumn, ...]


def read_footer(data: bytes) -> Declared:
    """Return what a Parquet file declares; ValueError where it has no footer."""
    size = int.from_bytes(data[-8:-4], "little")
    if data[-4:] != MAGIC or not 0 < size <= len(data) - 8:
        raise ValueError("it is no Parquet file, or cut off")
    try:
        footer = Thrift(data[len(data) - 8 - size : -8]).struct()
        return Declared(_whole(footer[NUM_ROWS]), tuple(_columns(footer)))
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("its footer is malformed") from error


def footer_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the end of a Parquet file, which is all that ``read_footer`` needs of it."""
    with open_regular(path) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - 8, 0))
        wanted = int.from_bytes(stream.read(4), "little") + 8
        stream.seek(max(size - wanted, 0))
        return stream.read()


def _columns(footer: dict[int, Any]) -> Iterator[DeclaredColumn]:
    for group in footer[ROW_GROUPS]:
        for chunk in group[COLUMNS]:
            column = chunk[META_DATA]
            yield DeclaredColumn(_whole(column[NUM_VALUES]), _whole(column[UNCOMPRESSED]))


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("its footer declares a number of things below 0")
    return value


class Thrift:
    """A reader of the compact protocol over bytes; each structure is a dict from field number to value."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the structure that begins here."""
        if depth > NESTING:
            raise ValueError("its footer is nested absurdly deep")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            number = number + step if step else self._signed()
            fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == BYTE:
            return self._byte()
        if kind in (I16, I32, I64):
            return self._signed()
        if kind == DOUBLE:
            return self._bytes(8)
        if kind == BINARY:
            return self._bytes(self._unsigned())
        if kind in (LIST, SET):
            return self._list(depth)
        if kind == STRUCT:
            return self.struct(depth + 1)
        raise ValueError("its footer holds what no Parquet footer does")  # maps among them

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        kind, size = head & 15, head >> 4
        size = self._unsigned() if size == 15 else size
        if size > len(self.data) - self.at:
            raise ValueError("its footer is cut off")  # an item takes a byte at least
        if kind in (TRUE, FALSE):
            return [self._byte() == TRUE for _ in range(size)]
        return [self._value(kind, depth + 1) for _ in range(size)]

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _bytes(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError("its footer is cut off")
        self.at += size
        return self.data[self.at - size : self.at]

    def _unsigned(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("its footer holds a number without end")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
