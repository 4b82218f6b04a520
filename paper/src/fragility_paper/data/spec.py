"""What is declared about a data set before any row is read."""

from __future__ import annotations

from dataclasses import dataclass

from fragility.base.errors import DataError


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """One data set: target, class order, nominal fields, markers, domain blocks, size and digests.

    ``collapse`` names indicator columns that together are one nominal raw field: ``(field, prefix)`` turns the
    columns ``prefix1, prefix2, ...`` into the field with the number of the column that holds 1.
    ``markers`` lists, for a field, the values that stand for "not available".
    ``blocks`` is the domain grouping: every field is in exactly one block.
    ``openml_columns`` are OpenML's names of the original's columns (without ``drop``), the target last.
    """

    name: str
    title: str
    rows: int
    columns: int
    file_sha256: str
    content_sha256: str
    target: str
    classes: tuple[str, ...]
    fields: tuple[str, ...]
    nominal: tuple[str, ...]
    blocks: tuple[tuple[str, tuple[str, ...]], ...]
    markers: tuple[tuple[str, tuple[str | int, ...]], ...] = ()
    drop: tuple[str, ...] = ()
    collapse: tuple[tuple[str, str], ...] = ()
    coded: bool = False  # nominal fields are numbers in the original file
    train_cap: int | None = None
    openml_id: int | None = None
    openml_columns: tuple[str, ...] = ()
    openml_classes: tuple[str, ...] = ()
    openml_note: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        blocked = [field for _, fields in self.blocks for field in fields]
        if sorted(blocked) != sorted(self.fields):
            odd = sorted(set(blocked) ^ set(self.fields)) or "a field twice"
            raise DataError(f"the domain blocks of {self.name!r} must hold every field once; look at {odd}")
        for label, names in (("nominal", self.nominal), ("markers", [field for field, _ in self.markers])):
            unknown = sorted(set(names) - set(self.fields))
            if unknown:
                raise DataError(f"{label} of {self.name!r} names unknown fields {unknown}")

    @property
    def numeric(self) -> tuple[str, ...]:
        return tuple(field for field in self.fields if field not in self.nominal)

    @property
    def block_of(self) -> dict[str, str]:
        """Field -> domain block."""
        return {field: block for block, fields in self.blocks for field in fields}


def names(text: str) -> tuple[str, ...]:
    """Words of a text, for declarations that can be read."""
    return tuple(text.split())


def blocks(**members: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Block -> fields, each block's fields as one text."""
    return tuple((name, names(fields)) for name, fields in members.items())
