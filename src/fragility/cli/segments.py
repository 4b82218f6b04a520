"""`--by COLUMN` in `audit`, `report` and `compare`: the rows that are cut, and the tables that say what came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fragility.cli.tables import Columns, CsvFormat, field_names, many_rows
from fragility.errors import DataError

if TYPE_CHECKING:
    from fragility.intervals import Share
    from fragility.protocol import Protocol
    from fragility.report.summary import PairedAudits
    from fragility.segments import SegmentShares
    from fragility.tables import RowSource

ByColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="COL",
        help="Shares by a column: its values, bands of it (age:25,40,60) or so many bands (age:q5). May be repeated.",
    ),
]
AuditedRows = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="The audited rows, for --by and for the values of cases: a file, a folder, a pattern or an address.",
    ),
]


def open_rows(
    data: str | None, by: Sequence[str] | None, protocol: Protocol, id_column: str | None, form: CsvFormat
) -> RowSource | None:
    """Return the rows that `--data` names, after a look at the columns that `--by` names; None without `--data`."""
    from fragility.segments import read_by

    if data is None:
        if by:
            raise DataError("--by cuts rows by a column of theirs; name the audited rows with --data")
        return None
    columns = Columns.declare(field_names(None, protocol), None, id_column)
    source = many_rows(data, protocol, columns, rows=None, form=form)
    if id_column is not None:
        source.check_has(id_column)
    read_by(by or (), source.column_names)
    return source


def segment_table(shares: SegmentShares) -> Table:
    """Return one line per segment."""
    table = Table(escape(shares.column), title_justify="left")
    for name in ("rows", "confident", "flip early", "95% interval", "median k*", "mean exposure"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in shares.segments:
        own = one.confident
        counts = (f"{one.everything.rows:,}", f"{own.rows:,}")
        if not own.rows:
            table.add_row(escape(one.name), *counts, "-", "-", "-", "-")
            continue
        median = "no flip" if own.median_flip_budget is None else str(own.median_flip_budget)
        table.add_row(escape(one.name), *counts, *_told(own.flips_early), median, f"{own.mean_exposure:.3f}")
    return table


def _told(share: Share) -> tuple[str, str]:
    return f"{share.count:,} ({share.value:.1%})", f"{share.lower:.1%} to {share.upper:.1%}"


def compared_tables(pair: PairedAudits) -> list[Table]:
    """Return one table per column: two audits side by side, segment by segment."""
    tables = []
    for compared in pair.segments:
        table = Table(escape(compared.column))
        for name in (pair.first, pair.second, "difference", "95% interval"):
            table.add_column(escape(name), justify="right", overflow="fold")
        for name, one in compared.segments:
            if not one.first.rows or not one.second.rows:
                table.add_row(escape(name), f"{one.first.count} of {one.first.rows}", f"of {one.second.rows}", "-", "-")
                continue
            shares = (f"{share.count} of {share.rows} ({share.value:.1%})" for share in (one.first, one.second))
            difference = one.difference
            ends = f"{100 * difference.lower:+.1f} to {100 * difference.upper:+.1f}"
            table.add_row(escape(name), *shares, f"{100 * difference.value:+.1f} points", ends)
        tables.append(table)
    return tables
