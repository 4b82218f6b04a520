"""`fragility review` and `fragility review export`: decide about the cases that matter, and hand the decisions on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import FragilityError
from fragility.base.libraries import say_lacking
from fragility.cli.options import MODEL_HELP, load_protocol, option, refuse_without
from fragility.cli.outputs import plan_files
from fragility.cli.tables import Columns, field_names, note_unlabelled, read_rows
from fragility.cli.terminal import note, out


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
        str | None, option("--model MODEL", f"The audited model, for what-if and missing fields. {MODEL_HELP}")
    ] = None,
    data: Annotated[Path | None, option("--data DATA", "The audited rows, to show and filter their fields.")] = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    policy: Annotated[
        Path | None, option("--policy FILE", "Begin with what this review policy sends to review.")
    ] = None,
    reasons: Annotated[Path | None, option("--reasons FILE", "Reasons to choose from: lines of `code: words`.")] = None,
    row: Annotated[str | None, option("--row ID", "Begin with the case of this row.")] = None,
    store: Annotated[
        Path | None, option("--store FILE", "Where decisions are kept. (default DIR/review.sqlite)")
    ] = None,
    port: Annotated[int | None, option("--port N", "The port to listen on. (default 8808)", min=1, max=65535)] = None,
    no_open: Annotated[bool, option("--no-open", "Print the address, but do not open the browser.")] = False,
    plain_address: Annotated[
        bool, option("--plain-address", "Serve under 127.0.0.1, for browsers that do not find .localhost names.")
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
    if data is None:
        refuse_without("--data", context, "model", "target", "id_column")
    if model is None:
        refuse_without("--model", context, "trust", "classes")
    if lacking := say_lacking_workbench():
        raise MissingExtraError(lacking)
    from fragility.apps.review.app import Place, listen, open_workbench, serve
    from fragility.apps.review.history import DEFAULT_REASONS, read_reasons
    from fragility.apps.review.store import STORE_FILE

    form = csv.form(data)
    X = ids = audited = None
    if data is not None:
        columns = Columns(target, id_column, fields=field_names(None, load_protocol(directory)))
        rows = read_rows(data, columns, form=form)
        note_unlabelled(rows.labels is not None, target, data)
        X, ids, audited = rows.X, rows.ids, None if model is None else loading.load(model)
    chosen = None if policy is None else fg.ReviewPolicy.load(policy)
    codes = DEFAULT_REASONS if reasons is None else read_reasons(reasons)
    listening = listen(port, Place.recall(store or directory / STORE_FILE).port)
    bench = open_workbench(directory, store=store, policy=chosen, X=X, ids=ids, model=audited, reasons=codes, row=row)

    def announce(address: str) -> None:
        out().print(address, soft_wrap=True)
        note("this address lets one browser in, once; if a browser does not find it, add --plain-address")
        note(f"decisions are kept in {bench.store.path}; Ctrl-C ends the workbench")

    serve(bench, listening, announce=announce, browser=not no_open, plain=plain_address)
    note(f"stopped; next: fragility review export --store {bench.store.path} --out decisions.csv")


def export(
    store: Annotated[Path, option("--store FILE", "The file with the decisions.")],
    out_file: Annotated[Path, option("--out FILE", "The table to write (.csv or .parquet).")],
    history: Annotated[bool, option("--history", "Every entry, not only the decisions that stand.")] = False,
) -> None:
    """Write decisions as a table, keyed by the digest of the certificate each one speaks of.

    [bold]Examples[/bold]

      fragility review export --store audit/review.sqlite --out decisions.csv

      fragility review export --store audit/review.sqlite --out history.parquet --history
    """
    from fragility.apps.review.history import escape_formulas, tabulate_decisions
    from fragility.apps.review.store import Store
    from fragility.pages.results import TABLE_SUFFIXES, checked_suffix, write_table

    plan_files({"--out": out_file}, {"--store": store})
    suffix = checked_suffix(out_file, TABLE_SUFFIXES)
    found = Store.open_to_read(store)
    try:
        table = tabulate_decisions(found.everything(), history=history)
    finally:
        found.close()
    write_table(out_file, escape_formulas(table) if suffix == ".csv" else table)
    out().print(f"{table.num_rows} {'entries' if history else 'decisions'} in {out_file}")
