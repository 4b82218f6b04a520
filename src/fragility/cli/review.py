"""`fragility review` and `fragility review export`: decide about the cases that matter, and hand the decisions on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.cli.options import MODEL_HELP, is_given, load_protocol
from fragility.cli.outputs import plan_files
from fragility.cli.tables import Columns, field_names, note_unlabelled, read_rows
from fragility.cli.terminal import note, out
from fragility.errors import DataError, FragilityError
from fragility.libraries import say_lacking


class MissingExtraError(FragilityError):
    """A command needs libraries that a plain install does not have."""


def say_lacking_workbench() -> str | None:
    """Return what to install before the workbench can be opened; None where it can."""
    return say_lacking("the review workbench", "duckdb", "fastapi", "uvicorn")


def review(
    *,
    context: typer.Context,
    directory: opt.DirArgument,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help=f"The audited model, for what-if. {MODEL_HELP}")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DATA", help="The audited rows, to show and filter their fields.")
    ] = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="FILE", help="Begin with what this review policy sends to review."),
    ] = None,
    reasons: Annotated[
        Path | None, typer.Option("--reasons", metavar="FILE", help="Reasons to choose from: lines of `code: words`.")
    ] = None,
    row: Annotated[str | None, typer.Option("--row", metavar="ID", help="Begin with the case of this row.")] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="FILE", help="Where decisions are kept. (default DIR/review.sqlite)"),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="N", min=1, max=65535, help="The port to listen on. (default 8808)")
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address, but do not open the browser.")] = False,
    plain_address: Annotated[
        bool,
        typer.Option("--plain-address", help="Serve under 127.0.0.1, for browsers that do not find .localhost names."),
    ] = False,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Open the review workbench: a page in your browser, served by this machine to this machine only.

    [bold]Examples[/bold]

      fragility review audit/

      fragility review audit/ --model model.skops --data test.parquet --target class --id loan_id

      fragility review audit/ --row L0703

      fragility review audit/ --policy policy.json --store decisions.sqlite --no-open
    """
    for name, option, needed, about in (
        ("model", "--model", "--data", "audited rows; name them"),
        ("target", "--target", "--data", "audited rows; name them"),
        ("id_column", "--id", "--data", "audited rows; name them"),
        ("trust", "--trust", "--model", "model; name it"),
        ("classes", "--classes", "--model", "model; name it"),
    ):
        if is_given(context, name) and (data if needed == "--data" else model) is None:
            raise DataError(f"{option} speaks of the {about} with {needed}, or leave out {option}")
    if lacking := say_lacking_workbench():
        raise MissingExtraError(lacking)
    from fragility.review.history import DEFAULT_REASONS, read_reasons
    from fragility.review.serving import Given, listen, open_workbench, serve

    form = csv.form(data)
    given = None
    if data is not None:
        columns = Columns.declare(field_names(None, load_protocol(directory)), target, id_column)
        rows = read_rows(data, columns, form=form)
        note_unlabelled(rows.labels is not None, target, data)
        given = Given(rows.X, rows.ids, None if model is None else loading.load(model))
    chosen = None if policy is None else fg.ReviewPolicy.load(policy)
    codes = DEFAULT_REASONS if reasons is None else read_reasons(reasons)
    listening = listen(port)
    bench = open_workbench(directory, store=store, policy=chosen, given=given, reasons=codes, row=row)

    def announce(address: str) -> None:
        out().print(address, soft_wrap=True)
        note("this address lets one browser in, once; if a browser does not find it, add --plain-address")
        note(f"decisions are kept in {bench.store.path}; Ctrl-C ends the workbench")

    serve(bench, listening, announce=announce, browser=not no_open, plain=plain_address)
    note(f"stopped; next: fragility review export --store {bench.store.path} --out decisions.csv")


def export(
    store: Annotated[
        Path, typer.Option("--store", metavar="FILE", help="The file with the decisions.", show_default=False)
    ],
    out_file: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The table to write (.csv or .parquet).", show_default=False)
    ],
    history: Annotated[bool, typer.Option("--history", help="Every entry, not only the decisions that stand.")] = False,
) -> None:
    """Write decisions as a table, keyed by the digest of the certificate each one speaks of.

    [bold]Examples[/bold]

      fragility review export --store audit/review.sqlite --out decisions.csv

      fragility review export --store audit/review.sqlite --out history.parquet --history
    """
    from fragility.review.history import escape_formulas, tabulate_decisions
    from fragility.review.store import Store
    from fragility.saving import TABLE_SUFFIXES, checked_suffix, write_table

    plan_files({"--out": out_file}, {"--store": store})
    suffix = checked_suffix(out_file, TABLE_SUFFIXES)
    found = Store.open_to_read(store)
    try:
        table = tabulate_decisions(found.everything(), history=history)
    finally:
        found.close()
    write_table(out_file, escape_formulas(table) if suffix == ".csv" else table)
    out().print(f"{table.num_rows} {'entries' if history else 'decisions'} in {out_file}")
