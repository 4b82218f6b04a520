"""`fragility audit`: make certificates."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.cli.options import load_protocol, parse_decision, read_name_or_json, refuse_declared
from fragility.cli.outputs import plan_folder
from fragility.cli.reading import tabulate_segments
from fragility.cli.reliability import find_log, read_rates
from fragility.cli.report import save_after_audit
from fragility.cli.tables import (
    field_names,
    labels_of,
    must_be_read_whole,
    note_unlabelled,
    open_data,
    read_training,
)
from fragility.cli.terminal import note, out
from fragility.errors import ClusterError, DataError, ProtocolError
from fragility.wording import describe_artificial, join_names

if TYPE_CHECKING:
    from fragility import fitting, scores
    from fragility.auditing.parts import Workers
    from fragility.certificates import AuditSummary
    from fragility.certificates.claims import Extent
    from fragility.tables import RowSource

Train = Annotated[
    Path | None,
    typer.Option("--train", metavar="TRAIN", help="The training rows; groups and baseline are fitted on them."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.", show_default=False)]
ProtocolFile = Annotated[
    Path | None,
    typer.Option("--protocol", metavar="FILE", help="Use this protocol file instead of fitting one on --train."),
]
ProtocolSignature = Annotated[
    Path | None,
    typer.Option(
        "--protocol-signature",
        metavar="FILE",
        help="The signature of the --protocol file; FILE.dsse.json beside it is found by itself.",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the audit in DIR even if the decisions of a review speak of it.")
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
Lattice = Annotated[
    bool | None,
    typer.Option(
        "--lattice/--no-lattice",
        help="Find the smallest set of groups whose loss flips each prediction, or none of these sets. Without either, "
        "those of the 1,000 most exposed confident predictions of tree ensembles and linear models.",
        show_default=False,
    ),
]
FailureRates = Annotated[
    str | None,
    typer.Option(
        "--rates",
        metavar="FILE|R",
        help="Also say how likely each decision is lost, given how often evidence fails: one number, a JSON file "
        "{field: rate}, or a log of outages. Implies --lattice.",
    ),
]

OtherBaselines = Annotated[
    str,
    typer.Option(
        "--other-baselines",
        metavar="all|none",
        help="Compute the finding again under all other baselines that the model admits, on at most 500 confident "
        "rows, or under none.",
    ),
]

DECLARED_BY_PROTOCOL = (
    "train", "groups", "baseline", "baseline_units", "depth", "reading", "smoothing", "space", "threshold",
    "positive",
)  # fmt: skip


def audit(
    *,
    context: typer.Context,
    model: opt.ModelArgument,
    data: opt.DataArgument,
    out_dir: Out,
    train: Train = None,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    groups: opt.Groups = "raw-origin",
    protocol: ProtocolFile = None,
    protocol_signature: ProtocolSignature = None,
    baseline: opt.Baseline = "typical",
    baseline_units: opt.BaselineUnits = "raw",
    depth: opt.Depth = None,
    reading: opt.Reading = "support",
    smoothing: opt.Smoothing = None,
    space: opt.Space = None,
    threshold: opt.Threshold = None,
    positive: opt.Positive = None,
    lattice: Lattice = None,
    rates: FailureRates = None,
    other_baselines: OtherBaselines = "all",
    by: opt.ByColumns = None,
    engine: opt.Engine = "auto",
    rows: opt.RowRange = None,
    claims: ClaimsExtent = "full",
    part_rows: PartRows = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    on: On = None,
    workers: WorkerCount = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Audit a model's predictions on DATA and write one certificate for each row.

    DATA may be larger than memory: it is read, audited and written part by part. What is finished is kept when the
    audit is interrupted, and [bold]--resume[/bold] goes on from there.

    [bold]Examples[/bold]

      fragility audit model.skops test.parquet --train train.parquet --target class --out audit/

      fragility audit model.joblib test.csv --train train.csv --trust --baseline median --out audit/

      fragility audit credit.scoring:pipeline new.parquet --protocol protocol.json --id loan_id --out audit/

      fragility audit model.skops test.parquet --train train.parquet --target class --rates 0.05 --out audit/

      fragility audit model.skops test.parquet --train train.parquet --target class --by age:25,40,60 --out audit/

      fragility audit model.skops 'rows/2026-*.parquet' --protocol protocol.json --out audit/ --resume

      fragility audit model.skops rows/ --protocol protocol.json --out audit/ --on ray --workers 2
    """
    if protocol is not None:
        refuse_declared(context, "--protocol", DECLARED_BY_PROTOCOL)
    if rates is not None and lattice is False:
        raise DataError("--rates needs the search that --no-lattice leaves out; leave out one of the two")
    if other_baselines not in ("all", "none"):
        raise DataError(f"--other-baselines must be all or none, got {other_baselines!r}")
    if protocol is None and protocol_signature is not None:
        raise ProtocolError("--protocol-signature is the signature of a --protocol file; name that file too")
    plan_folder(out_dir, consent=overwrite, option="--overwrite")
    cluster = _choose_workers(on, workers)
    from fragility.certificates.folder import read_protocol_signature
    from fragility.certificates.parts import PART_ROWS
    from fragility.report import GivenRows
    from fragility.segments import read_by

    log = None if rates is None else find_log(rates)
    form = csv.form(data, train, log)
    failing = None if rates is None else read_rates(rates, log, None, None, form)
    declared = None if protocol is None else load_protocol(protocol)
    signature = protocol_signature
    if protocol is not None and declared is not None:
        beside = protocol.with_name(protocol.name + ".dsse.json")
        signature = signature or (beside if beside.is_file() else None)
        if signature is not None:
            read_protocol_signature(signature, declared.digest)  # refused before the audit, not after it
    started = time.perf_counter()
    loaded = loading.load(model)
    source = open_data(data, form, target=target, id_column=columns.id_column, rows=rows)
    own = columns.declare(field_names(loaded, declared), target)
    if declared is None:
        if train is None:
            raise ProtocolError(
                "a protocol is fitted on training rows: name them with --train, or a finished protocol with --protocol"
            )
        decision = parse_decision(threshold, positive, loaded.classes)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* had no missing value in training")  # the summary says it
            declared = fg.Protocol.fit(
                loaded,
                read_training(train, own, form),
                groups=groups,
                baseline=read_name_or_json(baseline, "--baseline"),
                baseline_units=cast("fitting.Units", baseline_units),
                depth=depth,
                reading=cast("scores.Reading", reading),  # the protocol checks the word and names the choices
                smoothing=smoothing,
                space=cast("fitting.Space | None", space),
                decision=decision,
            )
    left_out = own.to_leave_out(source.column_names, data)
    own.check_dropped()
    note_unlabelled(target in source.column_names, target, data)
    read_by(by or (), source.column_names)
    source = replace(source, fields=declared.fields, drop=tuple(left_out))
    if other_baselines == "all":
        _announce_other_baselines(loaded, source, declared, engine)
    certs = fg.audit_files(
        loaded,
        source,
        declared,
        out_dir,
        resume=resume,
        claims=cast("Extent", claims),  # the library checks the word and names the choices
        engine=engine,
        part_rows=PART_ROWS if part_rows is None else part_rows,
        lattice=lattice,
        rates=failing,
        other_baselines=other_baselines == "all",
        protocol_signature=signature,
        workers=cluster,
    )
    given = {
        "--model": model, "--data": data, "--target": target, "--id": columns.id_column, "--rows": rows,
        "--separator": csv.separator, "--encoding": csv.encoding, "--decimal": csv.decimal,
        "--classes": loading.classes,
    }  # fmt: skip
    words = [word for option, value in given.items() if value is not None for word in (option, value)]
    labels = labels_of(source, len(certs), certs.classes)
    shown = None
    if by or not must_be_read_whole(source):
        shown = GivenRows(source, loaded, just_audited=True)
    else:
        note("the report was written without the values of its cases; fragility report --data adds them")
    report = save_after_audit(certs, out_dir, labels, [*words, *["--trust"] * loading.trust], shown, by or ())
    _print_summary(certs, out_dir, time.perf_counter() - started, report.summary.audits[0].segments)


def _announce_other_baselines(model: fg.Model, source: RowSource, protocol: fg.Protocol, engine: str) -> None:
    """Say what a model that can only be asked will be asked for, before it is."""
    from fragility.certificates.dependence import COMPARED_ROWS
    from fragility.engines.choice import native_for
    from fragility.protocol import bind

    few = source.head(1)
    if not protocol.alternatives or native_for(bind(model, few.frame, protocol, few.ids), engine) is not None:
        return
    most = COMPARED_ROWS * protocol.states_per_row * len(protocol.alternatives)
    note(
        f"the finding is also computed under {join_names(protocol.alternatives)}, on at most {COMPARED_ROWS} confident "
        f"rows: up to {most:,} model evaluations; --other-baselines none leaves them out"
    )


def _choose_workers(on: str | None, count: int | None) -> Workers | None:
    if on is None:
        if count is not None:
            raise ClusterError("--workers says how many workers --on has; name the cluster with --on ray or --on spark")
        return None
    if on == "ray":
        from fragility.auditing.ray import RayWorkers, check_installed

        check_installed()
        return RayWorkers(count)
    if on == "spark":
        from fragility.auditing.spark import SparkWorkers, check_ready

        check_ready()
        return SparkWorkers(count)
    raise ClusterError(f"--on must be ray or spark, got {on!r}")


def _print_summary(certs: fg.StoredAudit, folder: Path, seconds: float, segments: Sequence[fg.SegmentShares]) -> None:
    summary = certs.summary()
    flipping = round(summary.confident * summary.confident_flips_within_two) if summary.confident else 0
    console = out()
    console.print(f"{summary.rows} certificates in {folder} ({seconds:.1f} s, engine {certs.engine})")
    console.print(
        f"{summary.confident} predictions are at least {summary.min_confidence:.0%} confident; {flipping} of them flip "
        "when one or two groups of evidence are lost"
    )
    if certs.protocol.artificial:
        console.print(escape(artificial_line(certs.protocol)))
    for line in [*lattice_lines(certs, summary), *dependence_lines(certs)]:
        console.print(escape(line))
    for shares in segments:
        console.print(tabulate_segments(shares))
    note(f"next: fragility top {folder}, or open {folder / 'report.html'}")


def artificial_line(protocol: fg.Protocol) -> str:
    """Say for which fields the baseline is a value that no training row has, and what to do about it."""
    remedy = "; --baseline typical takes one that exists" if protocol.baseline in ("mean", "zero") else ""
    return describe_artificial(protocol.baseline, protocol.artificial) + remedy


def dependence_lines(certs: fg.Certificates | fg.StoredAudit) -> list[str]:
    """How much the finding depends on the baseline, as a table and in words."""
    found = certs.baselines
    if found is None:
        return []
    artificial = [
        describe_artificial(name, other)
        for name in found.disagreeing
        if (other := certs.protocol.with_baseline(name).artificial)
    ]
    return [*str(found).splitlines(), *artificial]


def lattice_lines(certs: fg.Certificates | fg.StoredAudit, summary: AuditSummary) -> list[str]:
    """What the lattice block adds to a summary, in words."""
    declared = certs.lattice_declaration
    if declared is None:
        return []
    which = f"{summary.searched} most exposed confident predictions" if declared.is_partial else "predictions"
    counts = (
        f"for {summary.fewer_suffice} a smaller failing set exists than the path found",
        f"for {summary.path_missed} the path found none, but a failing set exists" if summary.path_missed else "",
        f"{summary.never_fails} hold whatever groups are lost",
        f"{summary.unsettled} are not settled" if summary.unsettled else "",
    )
    lines = [f"smallest failing sets of the {which}: {'; '.join(filter(None, counts))}"] if summary.searched else []
    if summary.decisions_lost is not None:
        share = summary.decisions_lost / max(summary.rows, 1)
        condition = declared.condition(certs.protocol)
        lines.append(f"{summary.decisions_lost:.1f} decisions ({share:.1%}) are expected to be lost {condition}")
    return lines
