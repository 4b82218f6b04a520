"""Tables that a user names on the command line, with the options for their format, rows and columns."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fragility.base.errors import DataError
from fragility.cli.terminal import note

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    import fragility as fg
    from fragility.audits import StoredAudit
    from fragility.tables.formats import CsvFormat
    from fragility.tables.sources import RowSource

MOST_LABELLED = 500_000  # rows whose labels are read for the report after an audit
PART_ROWS = 100_000  # rows whose labels are read at a time
MOST_READ_AGAIN = 256 * 1024**2  # bytes of files that are not Parquet, which have to be read whole


def is_csv(path: str | Path) -> bool:
    """Return whether a table is a CSV file, or a folder with some."""
    if Path(path).is_dir():
        return any(is_csv(inside) for inside in Path(path).rglob("*") if inside.is_file())
    return str(path).lower().endswith((".csv", ".csv.gz"))


# --- columns ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """The roles of columns in a command's tables: target, ids, columns to leave out, and fields of the model."""

    target: str | None = None
    id_column: str | None = None
    drop: tuple[str, ...] = ()
    fields: tuple[str, ...] | None = None  # the model's fields; None if it has no names for them
    ignore_extra: bool = False
    dropped: set[str] = field(default_factory=set)  # columns of `drop` that some table has

    def __post_init__(self) -> None:
        """Refuse options that would remove a field of the model."""
        options = [("--target", self.target), ("--id", self.id_column), *(("--drop", name) for name in self.drop)]
        for option, name in options:
            if self.fields is not None and name in self.fields:
                raise DataError(
                    f"{option} names the column {name!r}, which is a field of the model; name a column that the model "
                    f"does not take, or leave out {option}"
                )
        if self.ignore_extra and self.fields is None:
            raise DataError(
                "--ignore-extra needs a model with named columns, which this one does not have; name the columns to "
                "leave out with --drop"
            )

    def to_leave_out(self, names: Iterable[str], path: str | Path) -> list[str]:
        """Return the columns of a table to leave out, besides labels and ids; note those left out as unknown."""
        in_table = [str(name) for name in names]
        dropped = [name for name in in_table if name in self.drop]
        self.dropped.update(dropped)
        known = {*(self.fields or ()), *dropped, self.target, self.id_column}
        # LightGBM stores a column "mean radius" as "mean_radius".
        extra = [name for name in in_table if not known & {name, name.replace(" ", "_")}] if self.ignore_extra else []
        if extra:
            more = f" and {len(extra) - 5} more" if len(extra) > 5 else ""
            note(f"left out of {path}, because the model does not know them: {', '.join(extra[:5])}{more}")
        return [*dropped, *extra]

    def check_dropped(self) -> None:
        """Refuse a --drop that matches no column, which is probably a typing error."""
        for name in self.drop:
            if name not in self.dropped:
                raise DataError(f"--drop names the column {name!r}, which no table has; leave it out or correct it")


def field_names(model: fg.Model | None, protocol: fg.Protocol | None) -> tuple[str, ...] | None:
    """Return the names of the model's fields; None if neither model nor protocol has names."""
    if protocol is not None:
        return tuple(entry.name for entry in protocol.fields)
    return None if model is None else model.columns


# --- rows ---------------------------------------------------------------------------------------------------


def open_data(
    data: str | Path, form: CsvFormat | None, *, target: str | None = None, id_column: str | None = None,
    rows: str | None = None,
) -> RowSource:  # fmt: skip
    """Open a table; refuse, before any work, one without rows or without the id column."""
    from dataclasses import replace

    from fragility.tables.sources import open_source

    selection = slice(None) if rows is None else row_range(rows)
    source = open_source(data, id_column=id_column, target=target, rows=selection, csv=form)
    replace(source, id_column=None).head(1)
    if id_column is not None:
        source.check_has(id_column)
    return source


def row_range(text: str) -> slice:
    """Parse `N` (the first N rows) or `START:STOP` as a slice."""
    if not re.fullmatch(r"\d+|\d*:\d*", text.strip()):
        raise DataError(f"--rows must be a number of rows or START:STOP, such as 100 or 100:200, got {text!r}")
    return slice(*(int(part) if part.strip() else None for part in text.split(":")))


def read_table(path: Path, form: CsvFormat | None = None) -> pd.DataFrame:
    """Read all rows and columns of a table."""
    from fragility.tables.sources import open_source

    return open_source(path, csv=form).read_all().frame


def read_stress_labels(path: Path, form: CsvFormat | None = None) -> pa.Table:
    """Read a table of `fragility evaluate labels`; Parquet also stores the declared stress."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix.lower() == ".parquet" and path.is_file():
        return pq.read_table(path)
    return pa.Table.from_pandas(read_table(path, form), preserve_index=False)


@dataclass(frozen=True)
class AuditRows:
    """Rows for a model: its fields, and the ids and labels, which it must not see."""

    X: pd.DataFrame
    ids: tuple[Hashable, ...] | None  # None if they were not requested
    labels: pd.Series | None


def read_rows(
    path: str | Path, columns: Columns, *, rows: str | None = None, form: CsvFormat | None = None, ids: bool = True
) -> AuditRows:
    """Read a table and split it into fields, ids and labels; `rows` is `N` or `START:STOP`.

    Ids are the column of --id, else the index that pandas stored, else row numbers. The label column may be absent,
    since rows to audit are often not labelled yet; the id column may be absent only if `ids` is False.
    """
    from fragility.evidence.rows import row_ids
    from fragility.tables.sources import open_source

    selection = slice(None) if rows is None else row_range(rows)
    part = open_source(path, id_column=columns.id_column if ids else None, rows=selection, csv=form).read_all()
    table = part.frame
    labels = table[columns.target] if columns.target in table.columns else None
    left_out = [columns.id_column, columns.target, *columns.to_leave_out(table.columns, path)]
    table = table.loc[:, [str(name) not in left_out for name in table.columns]]
    if table.shape[1] == 0:
        raise DataError(f"{path} has no field left besides the id and target columns")
    return AuditRows(table, row_ids(part.ids, None, len(part)) if ids else None, labels)


def read_training(path: Path, columns: Columns, form: CsvFormat | None = None) -> pd.DataFrame:
    """Read the training rows; a named target must be present, because a typing error would make it a field."""
    try:
        rows = read_rows(path, columns, form=form, ids=False)
    except DataError as error:
        raise DataError("--train: ", error) from error
    if columns.target is not None:
        require_labels(rows, columns.target, path)
    return rows.X


def require_labels(rows: AuditRows, target: str, path: str | Path) -> pd.Series:
    """Return the labels of rows that were read from `path`; refuse rows without labels."""
    if rows.labels is None:
        names = ", ".join(map(str, rows.X.columns))
        raise DataError(f"--target names the column {target!r}, but {path} has {names}")
    return rows.labels


def read_labels(
    path: Path | None, target: str | None, id_column: str | None, form: CsvFormat
) -> Mapping[Any, Any] | None:
    """Return the true classes by row id; None if no table is named."""
    if path is None:
        return None
    if target is None:
        raise DataError("--labels needs --target, the column with the true class")
    table = read_rows(path, Columns(target, id_column), form=form)
    assert table.ids is not None
    return dict(zip(table.ids, require_labels(table, target, path).tolist(), strict=True))


def open_rows(
    data: str | None, by: Sequence[str] | None, protocol: fg.Protocol, id_column: str | None, form: CsvFormat
) -> RowSource | None:
    """Return the rows of `--data`, after checking the columns of `--by`; None without `--data`."""
    from dataclasses import replace

    from fragility.analysis.segments import read_by

    if data is None:
        if by:
            raise DataError("--by groups rows by one of their columns; name the audited rows with --data")
        return None
    Columns(None, id_column, fields=field_names(None, protocol))  # refuses a field of the model
    source = replace(open_data(data, form, id_column=id_column), fields=protocol.fields)
    read_by(by or (), source.column_names)
    return source


def take_rows(audit: StoredAudit, ids: Sequence[Any] | None) -> fg.Certificates:
    """Return the certificates of the rows with these ids; an audit may have many more."""
    if ids is None:
        return audit.take(range(len(audit)))
    certs = audit.of_rows(ids)
    if not len(certs):
        from fragility.base.ids import IdSpan, say_other_rows

        audited, first = IdSpan.of_tables(audit.batches(["id"])), audit.take([0]).claims.ids[0]
        raise DataError(*say_other_rows(len(audit), len(audit), first, audited, IdSpan(ids)))
    if len(certs) < len(audit):
        note(f"{len(certs)} of the {len(audit)} audited rows are among those given, and only these are used")
    return certs


def note_unlabelled(has_labels: bool, target: str | None, path: str | Path) -> None:
    """Note that --target had no effect on a table without such a column."""
    if target is not None and not has_labels:
        note(f"{path} has no column {target!r}, so --target has no effect on it")


def labels_of(source: RowSource, count: int, classes: Sequence[object]) -> dict[Any, Any] | None:
    """Return the true classes by id if every row has one and they are the model's; None otherwise.

    Labels of very many rows, or in files that must be read whole, are left out, because reading them would not be
    bounded in memory as the audit is.
    """
    import pandas as pd

    if source.target is None or source.target not in source.column_names:
        return None
    if count > MOST_LABELLED or must_be_read_whole(source):
        note(
            "the report was written without labels, since there are too many rows; fragility report --labels adds them"
        )
        return None
    labels = read_own_labels(source, source.target)
    values = pd.Series(list(labels.values()), dtype=object)
    names = {str(label) for label in classes}
    return None if values.isna().any() or not set(map(str, values.unique())) <= names else labels


def read_own_labels(source: RowSource, target: str) -> dict[Any, Any]:
    """Return the labels in a column of the rows, by id."""
    labels: dict[Any, Any] = {}
    for ids, frame in source.values([target], PART_ROWS):
        labels.update(zip(ids, frame[target].tolist(), strict=True))
    return labels


def must_be_read_whole(source: RowSource) -> bool:
    """Return whether the files are large and of a kind that has to be read whole to get some rows or columns."""
    return source.kind != "parquet" and sum(file.size for file in source.files) > MOST_READ_AGAIN
