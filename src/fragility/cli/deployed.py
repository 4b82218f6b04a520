"""`fragility parity`, `serve` and `watch`: compare the deployed model with the audited one, serve it, monitor it."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.base.files import replacing
from fragility.base.libraries import say_lacking
from fragility.cli.options import (
    argument,
    find_log,
    load_protocol,
    option,
    read_name_or_json,
    read_rates,
    refuse_without,
)
from fragility.cli.outputs import plan_files, plan_results, save_result
from fragility.cli.review import MissingExtraError
from fragility.cli.tables import field_names, note_unlabelled, read_rows, read_table, read_training
from fragility.cli.terminal import EXIT_CLAIM_FAILED, note, out, say
from fragility.pages.results import TABLE_SUFFIXES, checked_suffix

PARITY_FORMS = (".json", ".txt", *TABLE_SUFFIXES)
WATCH_FORMS = (".html", ".md", ".json", ".prom", ".txt")  # .prom is for Prometheus
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
SERVE_PORT = 8809


def parity(
    *,
    model_a: Annotated[str, argument("MODEL_A", f"The reference, such as the audited model. {opt.MODEL_HELP}")],
    model_b: Annotated[str, argument("MODEL_B", "The artefact to compare with it; the same kinds of files.")],
    data: Annotated[str, opt.DATA],
    protocol: opt.SomeProtocol = None,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    tolerance: Annotated[
        float, option("--tolerance T", "How far probabilities may differ.", min=0.0, max=0.999999)
    ] = 1e-5,
    most_rows: Annotated[
        int, option("--most-rows N", "Compare at most N rows, those with the smallest digests.", min=1)
    ] = 1000,
    top: opt.Top = 10,
    out_files: Annotated[list[Path] | None, opt.results(*PARITY_FORMS)] = None,
    example: Annotated[
        Path | None, option("--example FILE", "Write the smallest example as a CSV file of one row.")
    ] = None,
    values: opt.Values = False,
    rows: opt.RowRange = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Check whether two artefacts of one model give the same answers.

    Also with lost, missing, wrong or noisy evidence. Without --protocol one is fitted on the rows. Tables list the
    fields and values that reveal a difference.

    Exit code 0 if they do, 1 if answers differ or only one of them answers.

    [bold]Examples[/bold]

      fragility parity model.skops model.onnx --data test.parquet --target class

      fragility parity model.joblib booster.txt --data test.parquet --protocol audit/ --trust

      fragility parity model.skops service:predict --data test.parquet --out parity.json
    """
    from fragility.parity.pairing import given_names

    if model_a == model_b:
        raise DataError(f"MODEL_A and MODEL_B are both {model_a}; name another artefact to compare it with")
    inputs: dict[str, str | Path | None] = {"MODEL_A": model_a, "MODEL_B": model_b, "--data": data}
    inputs |= {"--protocol": protocol}
    plan_results(out_files, PARITY_FORMS, inputs)
    if example is not None:
        checked_suffix(example, (".csv",))
    results = {f"--out ({path.suffix})": path for path in out_files or ()}
    plan_files({"--example": example}, inputs | results)
    form = csv.form(data)
    a, b = loading.load(model_a), loading.load(model_b)
    declared = None if protocol is None else load_protocol(protocol)
    names = field_names(None, declared) or given_names(a.columns) or given_names(b.columns)
    table_columns = columns.declare(names, target)
    table = read_rows(data, table_columns, rows=rows, form=form)
    table_columns.check_dropped()
    note_unlabelled(table.labels is not None, target, data)
    comparison = fg.check_parity(
        a, b, table.X, declared, tolerance=tolerance, most_rows=most_rows, names=(model_a, model_b), ids=table.ids
    )
    text = comparison.to_text(top)
    say(text)
    save_result(comparison if values else comparison.without_values(), out_files, text)
    if example is not None:
        if comparison.smallest is None:
            note(f"the artefacts agree, so there is no example to write to {example}")
        else:
            with replacing(example) as temporary:
                Path(temporary).write_text(comparison.smallest.to_csv(), encoding="utf-8")
            note(f"written to {example}")
    if not comparison:
        raise typer.Exit(EXIT_CLAIM_FAILED)


def serve(
    *,
    context: typer.Context,
    model: opt.ModelArgument,
    protocol: Annotated[Path, opt.PROTOCOL_FILE],
    log: Annotated[
        Path | None,
        option("--log DIR", "The folder to log every answered row in: a new one, or an earlier log."),
    ] = None,
    policy: opt.Policy = None,
    rates: opt.SomeRates = None,
    train: opt.SomeTrain = None,
    target: opt.Target = None,
    host: Annotated[
        str, option("--host ADDRESS", "The address to listen on; one that other machines can reach needs a token.")
    ] = "127.0.0.1",
    port: opt.Port = None,
    token_file: Annotated[
        Path | None,
        option(
            "--token-file FILE", "The file with the token that clients send. (default: the variable FRAGILITY_TOKEN)"
        ),
    ] = None,
    wait: Annotated[
        str,
        option("--wait TIME", "How long a row waits to be answered in a batch, such as 2ms.", panel=opt.SERVING),
    ] = "0ms",
    batch: Annotated[int, option("--batch N", "The largest batch, in rows.", min=1, max=512, panel=opt.SERVING)] = 256,
    max_rows: Annotated[int, option("--max-rows N", "The largest request, in rows.", min=1, panel=opt.SERVING)] = 1000,
    max_bytes: Annotated[int, option("--max-bytes N", "The largest request, in bytes.", min=1, panel=opt.SERVING)] = 2
    ** 20,
    timeout: Annotated[str, option("--timeout TIME", "How long a request may take.", panel=opt.SERVING)] = "30s",
    seal_rows: Annotated[
        int, option("--seal-rows N", "Seal the log when N rows are pending.", min=1, panel=opt.SERVING)
    ] = 1000,
    seal_every: Annotated[
        str, option("--seal-every TIME", "Seal the log when a row has been pending for this time.", panel=opt.SERVING)
    ] = "60s",
    roll: Annotated[
        int, option("--roll N", "Begin a new audit folder in the log after N rows.", min=1, panel=opt.SERVING)
    ] = 100_000,
    engine: opt.Engine = "auto",
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Serve decisions with checks and certificates over HTTP.

    POST /v1/check says what a decision depends on, and whether its missing or stale fields could change it; POST
    /v1/certify returns its certificate. With --log, a row is written to disk before it is answered, and rows are
    sealed into ordinary audit folders that `fragility verify`, `report` and `review` read. With --rates answers also
    say how likely each decision is lost; with --train missing fields take values of similar training rows, not the
    protocol's. The printed address leads to a page about the endpoints and fields.

    [bold]Examples[/bold]

      fragility serve model.skops --protocol audit/ --log log/

      fragility serve model.skops --protocol protocol.json --policy policy.json --wait 2ms --port 9000

      fragility serve model.skops --protocol audit/ --log log/ --host 0.0.0.0 --token-file token.txt
    """
    if lacking := say_lacking("`fragility serve`", "prometheus_client", "fastapi", "uvicorn", extra="serve"):
        raise MissingExtraError(lacking)
    if log is None:
        refuse_without("--log", context, "seal_rows", "seal_every", "roll")
    if train is None:
        refuse_without("--train", context, "target")
    waited, patience, sealed_every = (
        parse_time(text, flag)
        for flag, text in {"--wait": wait, "--timeout": timeout, "--seal-every": seal_every}.items()
    )
    if not patience or not sealed_every:
        raise DataError("--timeout and --seal-every must be above 0")
    from fragility.apps.guards import GuardRules, is_loopback
    from fragility.apps.serving.app import TOKEN_VARIABLE, ServiceRules, listen, read_token
    from fragility.apps.serving.app import serve as serve_http
    from fragility.apps.serving.batching import BatchRules
    from fragility.apps.serving.log import SealingRules, ServingLog
    from fragility.apps.serving.requests import Answering

    token = read_token(token_file, os.environ)
    if token_file is not None and os.name == "posix" and token_file.stat().st_mode & 0o004:
        note(f"every user of this machine can read the token in {token_file}; restrict it with chmod o-r")
    if token is None and not is_loopback(host):
        raise DataError(
            f"--host {host} can be reached from other machines, so it needs a token: write one to a file and give "
            f"--token-file, or set {TOKEN_VARIABLE}"
        )
    declared = load_protocol(protocol)
    outages = None if rates is None else find_log(rates)
    form = csv.form(train, outages)
    failing = None if rates is None else read_rates(rates, outages, None, None, form)
    review_policy = None if policy is None else fg.ReviewPolicy.load(policy)
    loaded = loading.load(model)
    training = None
    if train is not None:
        columns = opt.ColumnOptions(ignore_extra=True).declare(field_names(loaded, declared), target)
        training = read_training(train, columns, form)
    with listen(host, SERVE_PORT if port is None else port) as listening, ExitStack() as stack:
        answering = Answering(loaded, declared, policy=review_policy, rates=failing, training=training, engine=engine)
        manifest = answering.warm_up()
        serving_log = None
        if log is not None:
            serving_log = ServingLog.open(log, declared, manifest, SealingRules(seal_rows, sealed_every, roll))
            stack.callback(serving_log.close)
            if serving_log.rows_recovered:
                note(f"sealed {serving_log.rows_recovered} rows that an earlier server left pending in {log}")
            if serving_log.bytes_torn:
                note(
                    f"left out the last {serving_log.bytes_torn} bytes of a journal: the server was killed during "
                    "this write, before its clients were answered, or the disk is damaged"
                )
        rules = ServiceRules(BatchRules(waited, batch), GuardRules(token, max_bytes, patience), max_rows)

        def announce(address: str) -> None:
            out().print(address, soft_wrap=True)
            note(f"engine {answering.auditor.engine}; Ctrl-C or SIGTERM ends the server")
            if log is None:
                note("answers are not logged; give --log DIR to keep them as certificates that can be verified")

        serve_http(answering, serving_log, rules, listening, announce=announce)
    if serving_log is not None:
        rest = f"; {serving_log.rows_pending} stay pending until the next start" if serving_log.rows_pending else ""
        note(f"stopped; {serving_log.rows_sealed} rows were sealed in {log}{rest}")


def parse_time(text: str, flag: str) -> float:
    """Return `2ms`, `1.5s`, `10min` or `1h` in seconds; a number without a unit is in seconds."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|min|h)?", text.strip())
    if match is None:
        raise DataError(f"{flag} must be a time such as 2ms, 1.5s, 10min or 1h, got {text!r}")
    return float(match[1]) * UNITS[match[2] or "s"]


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
    reference_days: Annotated[
        int | None,
        option("--reference-days N", "The first N days are the reference. (default 7; of audits, the first)", min=1),
    ] = None,
    released: Annotated[
        Path | None,
        option("--released DIR", "The audit that the model was released with, as reference of its certificates."),
    ] = None,
    allowance: opt.Allowance = None,
    alpha: Annotated[
        float, option("--alpha A", "The chance of any false alarm over the horizon.", min=0.0, max=1.0)
    ] = 0.05,
    horizon: Annotated[int, option("--horizon DAYS", "The days over which --alpha is spent.", min=1)] = 365,
    out_files: Annotated[list[Path] | None, opt.results(*WATCH_FORMS)] = None,
    replay: Annotated[
        bool, option("--replay", "List every alarm with its time instead; the exit code is then 0.")
    ] = False,
    time: Annotated[
        str | None,
        option("--time COL", "For a table to replay: the column with the time of each decision.", panel=opt.REPLAYING),
    ] = None,
    model: Annotated[str | None, option("--model MODEL", opt.MODEL_HELP, panel=opt.REPLAYING)] = None,
    protocol: Annotated[Path | None, option("--protocol PROTOCOL", opt.PROTOCOL_HELP, panel=opt.REPLAYING)] = None,
    rates: Annotated[str | None, option("--rates FILE|R", opt.RATES_HELP, panel=opt.ADDED)] = None,
    reliability: opt.Reliability = None,
    window: Annotated[
        int,
        option("--window DAYS", "Current rates are computed from the last DAYS days.", min=1, panel=opt.ADDED),
    ] = 7,
    min_confidence: opt.MinConfidence = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Watch decisions and their evidence over time.

    Monitors exposure, flips, missing and stale fields, and decisions expected to be lost, in the log of
    `fragility serve`, in dated audits, or with --replay and --time in a table of past decisions. The false alarm rate
    holds however often the command is run. A log is read part by part, without rows that are not sealed yet.

    Exit code 0: no alarm is open. 1: an alarm is open. 2: it could not be read. With --replay 0 instead of 1.

    [bold]Examples[/bold]

      fragility watch log/ --out watch.html --out watch.prom

      fragility watch audit-2026-09-30/ audit-2026-10-31/ audit-2026-11-30/ --out watch.html

      fragility watch past.parquet --replay --time decided_at --model model.skops --protocol audit/
    """
    if not replay:
        refuse_without("--replay", context, "time")
    if time is None:
        refuse_without("--time", context, "model", "protocol", *opt.list_options(opt.CsvOptions))
    if model is None:
        refuse_without("--model", context, *opt.list_options(opt.LoadingOptions))
    from fragility.apps.serving.log import LOG_FILE  # slow to import

    files = folders[:1] if time is not None else [folder / LOG_FILE for folder in folders]
    plan_results(
        out_files,
        WATCH_FORMS,
        {"--reliability": reliability, "--protocol": protocol, **{f"{file}": file for file in files}},
    )
    source: Any = folders
    if time is not None:
        if len(folders) > 1:
            raise DataError(f"--replay takes one table, got {len(folders)}; put their rows into one")
        if model is None or protocol is None:
            raise DataError("a replay needs the model's decisions; give --model and --protocol")
        source = read_table(folders[0], csv.form(folders[0]))
    result = fg.watch(
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
        allowance=0.0 if allowance is None else allowance,
        window=window,
        min_confidence=min_confidence,
    )
    out().print(escape(result.to_text(replay=replay)))
    save_result(result, out_files)
    if result.open_alarms and not replay:
        raise typer.Exit(EXIT_CLAIM_FAILED)


def _read_rates(rates: str) -> Any:
    try:
        return float(rates)
    except ValueError:
        pass
    if find_log(rates) is not None:
        raise DataError(f"--rates of watch must be a number or a JSON file; {rates} is a log of outages")
    return read_name_or_json(rates, "--rates")
