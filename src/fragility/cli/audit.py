"""`fragility audit` and `fragility verify`: make certificates, and check them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.markup import escape

import fragility as fg
from fragility.cli.group import AUDIT
from fragility.cli.options import (
    Baseline,
    BaselineUnits,
    Classes,
    DataArgument,
    Decimal,
    Depth,
    DirArgument,
    Encoding,
    Engine,
    Groups,
    Id,
    ManyDataOption,
    ModelArgument,
    ModelOption,
    Positive,
    Reading,
    RowRange,
    Separator,
    Space,
    Target,
    Threshold,
    Trust,
    load_protocol,
    name_or_json,
    parse_classes,
    parse_decision,
    refuse_declared,
)
from fragility.cli.outputs import plan_folder
from fragility.cli.tables import CsvFormat, check_many, csv_format, many_rows, read_training, row_range
from fragility.cli.terminal import EXIT_CLAIM_FAILED, note, out
from fragility.cli.wording import in_options
from fragility.errors import ClusterError, FragilityError, ProtocolError

if TYPE_CHECKING:
    from fragility import fitting, scores
    from fragility.certificates import Extent
    from fragility.scale.making import Workers
    from fragility.scale.source import RowSource

Train = Annotated[
    Path | None,
    typer.Option("--train", metavar="TRAIN", help="The training rows; groups and baseline are fitted on them."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.", show_default=False)]
ProtocolFile = Annotated[
    Path | None,
    typer.Option("--protocol", metavar="FILE", help="Use this protocol file instead of fitting one on --train."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an audit into DIR that was interrupted.")]
ClaimsExtent = Annotated[
    str,
    typer.Option(
        "--claims", metavar="EXTENT", help="full, or summary: scores without the lists of every step and group."
    ),
]
PartRows = Annotated[
    int | None,
    typer.Option(
        "--part-rows", metavar="N", min=1, help="Rows held at a time and written to one file. (default 50000)"
    ),
]
On = Annotated[
    str | None,
    typer.Option("--on", metavar="NAME", help="Let the workers of a cluster, ray or spark, make the parts."),
]
WorkerCount = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="How many workers of --on; one a core if absent.")
]
Sample = Annotated[
    int | None, typer.Option("--sample", metavar="N", min=1, help="Recompute only N rows, chosen at random.")
]


DECLARED_BY_PROTOCOL = (
    "train", "groups", "baseline", "baseline_units", "depth", "reading", "space", "threshold", "positive",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command("audit", rich_help_panel=AUDIT)(audit)
    app.command("verify", rich_help_panel=AUDIT)(verify)


def audit(
    context: typer.Context,
    model: ModelArgument,
    data: DataArgument,
    out_dir: Out,
    train: Train = None,
    target: Target = None,
    id_column: Id = None,
    groups: Groups = "raw-origin",
    protocol: ProtocolFile = None,
    baseline: Baseline = "mean",
    baseline_units: BaselineUnits = "raw",
    depth: Depth = None,
    reading: Reading = "support",
    space: Space = None,
    threshold: Threshold = None,
    positive: Positive = None,
    engine: Engine = "auto",
    rows: RowRange = None,
    claims: ClaimsExtent = "full",
    part_rows: PartRows = None,
    resume: Resume = False,
    on: On = None,
    workers: WorkerCount = None,
    separator: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    classes: Classes = None,
    trust: Trust = False,
) -> None:
    """Audit a model's predictions on DATA and write one certificate for each row.

    DATA may be larger than memory: it is read, audited and written part by part. What is finished is kept when the
    audit is interrupted, and [bold]--resume[/bold] goes on from there.

    [bold]Examples[/bold]

      fragility audit model.skops test.parquet --train train.parquet --target class --out audit/

      fragility audit model.joblib test.csv --train train.csv --trust --baseline mode --out audit/

      fragility audit credit.scoring:pipeline new.parquet --protocol protocol.json --id loan_id --out audit/

      fragility audit model.skops 'rows/2026-*.parquet' --protocol protocol.json --out audit/ --resume

      fragility audit model.skops rows/ --protocol protocol.json --out audit/ --on ray --workers 2
    """
    if protocol is not None:
        refuse_declared(context, "--protocol", DECLARED_BY_PROTOCOL)
    plan_folder(out_dir)
    cluster = _workers(on, workers)
    from fragility.certificates import PART_ROWS

    form = csv_format(separator, encoding, decimal, data, train)
    started = time.perf_counter()
    loaded = fg.load_model(model, trust=trust, classes=parse_classes(classes))
    check_many(data, form, id_column=id_column, rows=rows)
    if protocol is not None:
        declared = load_protocol(protocol)
    else:
        decision = parse_decision(threshold, positive, loaded.classes)
        declared = _fit_protocol(
            loaded, train, target, id_column, form, groups, baseline, baseline_units, depth, reading, space, decision
        )
    _note_unlabelled(many_rows(data, declared, target=target, id_column=id_column, rows=rows, form=form), data)
    certs = fg.audit_files(
        loaded,
        data,
        declared,
        out_dir,
        id_column=id_column,
        target=target,
        rows=None if rows is None else row_range(rows),
        resume=resume,
        claims=cast("Extent", claims),  # the library checks the word and names the choices
        engine=engine,
        part_rows=PART_ROWS if part_rows is None else part_rows,
        csv=fg.CsvFormat(form.separator, form.encoding, form.decimal),
        workers=cluster,
    )
    _print_summary(certs, out_dir, time.perf_counter() - started)


def _workers(on: str | None, count: int | None) -> Workers | None:
    if on is None:
        if count is not None:
            raise ClusterError("--workers says how many workers --on has; name the cluster with --on ray or --on spark")
        return None
    if on == "ray":
        from fragility.scale.ray import RayWorkers, check_installed

        check_installed()
        return RayWorkers(count)
    if on == "spark":
        from fragility.scale.spark import SparkWorkers, check_ready

        check_ready()
        return SparkWorkers(count)
    raise ClusterError(f"--on must be ray or spark, got {on!r}")


def _note_unlabelled(source: RowSource, data: str) -> None:
    """Rows need no labels, but whoever mistyped --target should see that it had no effect."""
    if source.target is not None and source.target not in source.column_names:
        note(f"{data} has no column {source.target!r}, so --target has no effect on it")


def _fit_protocol(
    model: fg.Model, train: Path | None, target: str | None, id_column: str | None, form: CsvFormat,
    groups: str, baseline: str, baseline_units: str, depth: int | None, reading: str, space: str | None,
    decision: Any,
) -> fg.Protocol:  # fmt: skip
    if train is None:
        raise ProtocolError(
            "a protocol is fitted on training rows: name them with --train, or a finished protocol with --protocol"
        )
    return fg.Protocol.fit(
        model,
        read_training(train, target=target, id_column=id_column, form=form),
        groups=groups,
        baseline=name_or_json(baseline, "--baseline"),
        baseline_units=cast("fitting.Units", baseline_units),
        depth=depth,
        reading=cast("scores.Reading", reading),  # the protocol checks the word and names the choices
        space=cast("fitting.Space | None", space),
        decision=decision,
    )


def _print_summary(certs: fg.StoredAudit, folder: Path, seconds: float) -> None:
    summary = certs.summary()
    turning = round(summary.confident * summary.confident_flips_within_two) if summary.confident else 0
    console = out()
    console.print(f"{summary.rows} certificates in {folder} ({seconds:.1f} s, engine {certs.engine})")
    console.print(
        f"{summary.confident} predictions are at least {summary.min_confidence:.0%} confident; {turning} of them turn "
        "when one or two groups of evidence are lost"
    )
    note(f"next: fragility top {folder}")


def verify(
    directory: DirArgument,
    model: ModelOption,
    data: ManyDataOption,
    target: Target = None,
    id_column: Id = None,
    rows: RowRange = None,
    sample: Sample = None,
    separator: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    classes: Classes = None,
    trust: Trust = False,
) -> None:
    """Check certificates against the model and the rows they speak of.

    The checks, in this order: format, digests, protocol and model fingerprint, input digest, recomputation.
    Exit code 0: every claim holds. 1: a claim does not hold, and which. 2: it could not be checked.

    [bold]Examples[/bold]

      fragility verify audit/ --model model.skops --data test.parquet --target class

      fragility verify audit/ --model model.skops --data test.parquet --target class --sample 100
    """
    from fragility.certificates import read_manifest, read_protocol

    read_manifest(directory)  # a folder that is no audit cannot be checked, which is not the same as a false claim
    form = csv_format(separator, encoding, decimal, data)
    loaded = fg.load_model(model, trust=trust, classes=parse_classes(classes))
    check_many(data, form, id_column=id_column, rows=rows)
    try:
        protocol = read_protocol(directory)
    except FragilityError:  # for verify to say so
        protocol = None
    source = many_rows(data, protocol, target=target, id_column=id_column, rows=rows, form=form)
    _note_unlabelled(source, data)
    verification = fg.verify(directory, loaded, source, sample=sample)
    out().print(escape(in_options(str(verification))))
    if not verification:
        raise typer.Exit(EXIT_CLAIM_FAILED)
