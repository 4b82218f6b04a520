"""`fragility serve`: check and certify decisions over HTTP, and log them as ordinary audits."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.base.libraries import say_lacking
from fragility.cli.options import load_protocol, option, refuse_without
from fragility.cli.reliability import find_log, read_rates
from fragility.cli.review import MissingExtraError
from fragility.cli.tables import field_names, read_training
from fragility.cli.terminal import note, out

UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def serve(
    *,
    context: typer.Context,
    model: opt.ModelArgument,
    protocol: Annotated[
        Path, option("--protocol PROTOCOL", "A protocol file, or the folder that `fragility audit` wrote.")
    ],
    log: Annotated[
        Path | None, option("--log DIR", "The folder to log every answered row in: a new one, or an earlier log.")
    ] = None,
    policy: Annotated[
        Path | None, option("--policy FILE", "Say which rows this review policy sends to review.")
    ] = None,
    rates: Annotated[
        str | None,
        option(
            "--rates FILE|R",
            "Also say how likely each decision is lost, given how often evidence fails: one number, a JSON file "
            "{field: rate}, or a log of outages.",
        ),
    ] = None,
    train: Annotated[
        Path | None,
        option("--train TRAIN", "Take what missing fields may hold from similar training rows, not from the protocol."),
    ] = None,
    target: opt.Target = None,
    host: Annotated[
        str, option("--host ADDRESS", "The address to listen on; any but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, option("--port N", "The port to listen on; 0 for any free one.", min=0, max=65535)] = 8809,
    token_file: Annotated[
        Path | None,
        option(
            "--token-file FILE", "The file with the token that clients send. (default: the variable FRAGILITY_TOKEN)"
        ),
    ] = None,
    wait: Annotated[str, option("--wait TIME", "How long a row waits for others to be answered with it: 2ms.")] = "0ms",
    batch: Annotated[int, option("--batch N", "The most rows that are answered together.", min=1, max=512)] = 256,
    max_rows: Annotated[int, option("--max-rows N", "The most rows of a request.", min=1)] = 1000,
    max_bytes: Annotated[int, option("--max-bytes N", "The largest request.", min=1)] = 2**20,
    timeout: Annotated[str, option("--timeout TIME", "How long a request may take.")] = "30s",
    seal_rows: Annotated[int, option("--seal-rows N", "Seal the log when so many rows are pending.", min=1)] = 1000,
    seal_every: Annotated[
        str, option("--seal-every TIME", "Seal the log when a row has been pending so long.")
    ] = "60s",
    roll: Annotated[
        int, option("--roll N", "Begin a new audit folder in the log after so many rows.", min=1)
    ] = 100_000,
    engine: opt.Engine = "auto",
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Serve a model's decisions with checks and certificates over HTTP, until Ctrl-C or SIGTERM.

    POST /v1/check says what a decision hangs on, and what its missing or stale fields would have changed; POST
    /v1/certify returns its certificate. With --log, an answer is given after its row is on the disk, and rows are
    sealed into ordinary audit folders that `fragility verify`, `report` and `review` read. The address that is printed
    leads to a page about the endpoints and fields.

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
        note(f"every user of this machine can read the token in {token_file}; `chmod o-r` it")
    if token is None and not is_loopback(host):
        raise DataError(
            f"--host {host} can be reached from other machines, so it needs a token: write one to a file and give "
            f"--token-file, or set {TOKEN_VARIABLE}"
        )
    declared = load_protocol(protocol)
    outages = None if rates is None else find_log(rates)
    form = csv.form(train, outages)
    failing = None if rates is None else read_rates(rates, outages, None, None, form)
    chosen = None if policy is None else fg.ReviewPolicy.load(policy)
    loaded = loading.load(model)
    training = None
    if train is not None:
        columns = opt.ColumnOptions(ignore_extra=True).declare(field_names(loaded, declared), target)
        training = read_training(train, columns, form)
    with listen(host, port) as listening, ExitStack() as held:
        answering = Answering(loaded, declared, policy=chosen, rates=failing, training=training, engine=engine)
        manifest = answering.warm_up()
        kept = None
        if log is not None:
            kept = ServingLog.open(log, declared, manifest, SealingRules(seal_rows, sealed_every, roll))
            held.callback(kept.close)
            if kept.rows_recovered:
                note(f"sealed {kept.rows_recovered} rows that an earlier server left pending in {log}")
            if kept.bytes_torn:
                note(
                    f"left out the last {kept.bytes_torn} bytes of a journal: a kill cut that write off before its "
                    "clients were answered, or the disk has damaged it since"
                )
        rules = ServiceRules(BatchRules(waited, batch), GuardRules(token, max_bytes, patience), max_rows)

        def announce(address: str) -> None:
            out().print(address, soft_wrap=True)
            note(f"engine {answering.auditor.engine}; Ctrl-C or SIGTERM ends the server")
            if log is None:
                note("answers are not logged; give --log DIR to keep them as certificates that can be verified")

        serve_http(answering, kept, rules, listening, announce=announce)
    if kept is not None:
        rest = f"; {kept.rows_pending} stay pending until the next start" if kept.rows_pending else ""
        note(f"stopped; {kept.rows_sealed} rows were sealed in {log}{rest}")


def parse_time(text: str, flag: str) -> float:
    """Return `2ms`, `1.5s`, `10min` or `1h` in seconds; a bare number is one of seconds."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|min|h)?", text.strip())
    if found is None:
        raise DataError(f"{flag} must be a time such as 2ms, 1.5s, 10min or 1h, got {text!r}")
    return float(found[1]) * UNITS[found[2] or "s"]
