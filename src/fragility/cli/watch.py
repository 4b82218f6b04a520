"""`fragility watch`: what happened to decisions and their evidence over time, and what to worry about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.cli.options import MODEL_HELP, argument, load_protocol, option, read_name_or_json, refuse_without
from fragility.cli.outputs import plan_files, save_result
from fragility.cli.tables import read_table
from fragility.cli.terminal import EXIT_CLAIM_FAILED, out
from fragility.pages.results import checked_suffix


def watch(
    *,
    context: typer.Context,
    folders: Annotated[
        list[Path],
        argument(
            "FOLDER...", "The log of `fragility serve`, or dated audit folders; with --replay and --time a table."
        ),
    ],
    dates: Annotated[
        str | None,
        option("--dates A,B", "The date of each audit. (default: those in the names of the folders)"),
    ] = None,
    replay: Annotated[
        bool, option("--replay", "List every alarm that would have been raised, and when; exit with 0.")
    ] = False,
    time: Annotated[
        str | None, option("--time COL", "Of a table to replay: the column that says when each row was decided.")
    ] = None,
    model: Annotated[str | None, option("--model MODEL", f"What decides the rows of a table. {MODEL_HELP}")] = None,
    protocol: Annotated[
        Path | None,
        option("--protocol PROTOCOL", "The protocol of a table: a file, or the folder that `fragility audit` wrote."),
    ] = None,
    reference_days: Annotated[
        int | None,
        option("--reference-days N", "The first N days are the reference. (default 7, of audits the first)", min=1),
    ] = None,
    released: Annotated[
        Path | None,
        option("--released DIR", "The audit that the model was released with, as reference of its certificates."),
    ] = None,
    rates: Annotated[
        str | None,
        option(
            "--rates FILE|R", "How often fields are expected to be missing: a number, or a JSON file {field: rate}."
        ),
    ] = None,
    reliability: Annotated[
        Path | None,
        option("--reliability FILE", "The JSON file of `fragility reliability`, for decisions expected to be lost."),
    ] = None,
    alpha: Annotated[
        float, option("--alpha", "The chance of any false alarm over the horizon.", min=0.0, max=1.0)
    ] = 0.05,
    horizon: Annotated[int, option("--horizon DAYS", "The days over which --alpha is spent.", min=1)] = 365,
    allowance: Annotated[
        float, option("--allowance SHARE", "How far a share may move from the reference without an alarm.", min=0.0)
    ] = 0.0,
    window: Annotated[int, option("--window DAYS", "The last days from which current rates are taken.", min=1)] = 7,
    min_confidence: opt.MinConfidence = None,
    out_files: Annotated[
        list[Path] | None,
        option(
            "--out FILE", "Write the page (.html), everything (.json), .prom (Prometheus) or .txt; may be repeated."
        ),
    ] = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Watch decisions over time: exposure, flips, missing and stale fields, and decisions expected to be lost.

    Alarms hold however often the command is run. A log is read part by part; rows that are not sealed yet are left out.
    Exit code 0: no alarm is open. 1: an alarm is open. 2: it could not be read. With --replay 0 instead of 1.

    [bold]Examples[/bold]

      fragility watch log/ --out watch.html --out watch.prom

      fragility watch audit-2026-09-30/ audit-2026-10-31/ audit-2026-11-30/ --out watch.html

      fragility watch log/ --replay --reference-days 14 --reliability lost.json

      fragility watch past.parquet --replay --time decided_at --model model.skops --protocol audit/
    """
    if not replay:
        refuse_without("--replay", context, "time")
    if time is None:
        refuse_without("--time", context, "model", "protocol", *opt.list_options(opt.CsvOptions))
    if model is None:
        refuse_without("--model", context, *opt.list_options(opt.LoadingOptions))
    from fragility.apps.watching.outcome import WatchResult

    for path in out_files or ():
        checked_suffix(path, WatchResult.SUFFIXES)
    outputs = {f"--out ({path.suffix})": path for path in out_files or ()}
    if len(outputs) < len(out_files or ()):
        raise DataError("--out names two files of the same kind; name each kind once: .html, .json, .prom or .txt")
    from fragility.apps.serving.log import LOG_FILE  # slow to import

    read = folders[:1] if time is not None else [folder / LOG_FILE for folder in folders]
    plan_files(outputs, {"--reliability": reliability, "--protocol": protocol, **{f"{each}": each for each in read}})
    source: Any = folders
    if time is not None:
        if len(folders) > 1:
            raise DataError(f"--replay takes one table, got {len(folders)}; put their rows into one")
        if model is None or protocol is None:
            raise DataError("rows are replayed as a model decides them; give --model and --protocol")
        source = read_table(folders[0], csv.form(folders[0]))
    found = fg.watch(
        source,
        dates=None if dates is None else [date.strip() for date in dates.split(",")],
        time=time,
        model=None if model is None else loading.load(model),
        protocol=None if protocol is None else load_protocol(protocol),
        reference_days=reference_days,
        released=released,
        rates=None if rates is None else _read_rates(rates),
        reliability=reliability,
        alpha=alpha,
        horizon=horizon,
        allowance=allowance,
        window=window,
        min_confidence=min_confidence,
    )
    out().print(escape(found.to_text(replay=replay)))
    save_result(found, *(out_files or ()))
    if found.open_alarms and not replay:
        raise typer.Exit(EXIT_CLAIM_FAILED)


def _read_rates(rates: str) -> Any:
    try:
        return float(rates)
    except ValueError:
        return read_name_or_json(rates, "--rates")
