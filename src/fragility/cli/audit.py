"""`fragility audit`: make certificates."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import ClusterError, DataError, ProtocolError
from fragility.cli.options import list_options, load_protocol, option, refuse_declared, refuse_without
from fragility.cli.outputs import list_sources, plan_folder
from fragility.cli.reading import tabulate_segments
from fragility.cli.reliability import find_log, read_rates
from fragility.cli.tables import (
    field_names,
    labels_of,
    must_be_read_whole,
    note_unlabelled,
    open_data,
    read_training,
)
from fragility.cli.terminal import note, out
from fragility.pages.wording import (
    describe_artificial,
    describe_counting,
    describe_few_confident,
    join_names,
    write_count,
    write_early,
)

if TYPE_CHECKING:
    from fragility.analysis.segments import SegmentShares
    from fragility.auditing.parts import Workers
    from fragility.audits import AuditSummary, StoredAudit
    from fragility.blocks.claims import Extent
    from fragility.questions.reliability.outcomes import FailureProbability
    from fragility.report import Report, ShownRows
    from fragility.tables.sources import RowSource

Train = Annotated[Path | None, option("--train TRAIN", "The training rows; groups and baseline are fitted on them.")]
Out = Annotated[Path, option("--out DIR", "The folder to write.")]
ProtocolFile = Annotated[
    Path | None, option("--protocol FILE", "Use this protocol file instead of fitting one on --train.")
]


RANKED_ROWS = 50_000  # of an audit with rates, up to which its report says what to make reliable first
DECLARED_BY_PROTOCOL = ("train", *list_options(opt.EvidenceOptions, opt.MarginOptions))


def audit(
    *,
    context: typer.Context,
    model: opt.ModelArgument,
    data: opt.DataArgument,
    out_dir: Out,
    train: Train = None,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    evidence: opt.EvidenceOptions,
    margin: opt.MarginOptions,
    protocol: ProtocolFile = None,
    protocol_signature: Annotated[
        Path | None,
        option(
            "--protocol-signature FILE",
            "The signature of the --protocol file; FILE.dsse.json beside it is found by itself.",
        ),
    ] = None,
    lattice: Annotated[
        bool | None,
        option(
            "--lattice/--no-lattice",
            "Find the smallest set of groups whose loss flips each prediction, or none of these sets. Without "
            "either, those of the 1,000 most exposed confident predictions of tree ensembles and linear models.",
        ),
    ] = None,
    rates: Annotated[
        str | None,
        option(
            "--rates FILE|R",
            "Also say how likely each decision is lost, given how often evidence fails: one number, a JSON file "
            "{field: rate}, or a log of outages. Implies --lattice.",
        ),
    ] = None,
    other_baselines: Annotated[
        str,
        option(
            "--other-baselines all|none",
            "Compute the finding again under all other baselines that the model admits, on at most 500 confident "
            "rows, or under none.",
        ),
    ] = "all",
    modes: Annotated[
        bool | None,
        option(
            "--modes/--no-modes",
            "Say what the failure modes of the protocol cost every prediction (evidence that is lost, wrong, noisy), "
            "or none. Without either, at most 2,000 confident predictions, drawn by their content.",
        ),
    ] = None,
    intervals: Annotated[
        str | None,
        option(
            "--intervals all|N",
            "Say how far each value of a prediction may move before the decision flips: of all predictions, or of at "
            "most N confident ones, the most exposed first.",
        ),
    ] = None,
    by: opt.ByColumns = None,
    engine: opt.Engine = "auto",
    rows: opt.RowRange = None,
    claims: Annotated[
        str, option("--claims EXTENT", "full, or summary: scores without the lists of every step and group.")
    ] = "full",
    part_rows: Annotated[
        int | None, option("--part-rows N", "Rows held at a time and written to one file. (default 50000)", min=1)
    ] = None,
    overwrite: Annotated[
        bool, option("--overwrite", "Replace the audit in DIR even if the decisions of a review speak of it.")
    ] = False,
    resume: Annotated[bool, option("--resume", "Go on with an audit into DIR that was interrupted.")] = False,
    on: Annotated[
        str | None, option("--on NAME", "Let the workers of a cluster, ray or spark, make the parts.")
    ] = None,
    workers: Annotated[
        int | None, option("--workers N", "How many workers of --on; one per core if absent.", min=1)
    ] = None,
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
    if rates is not None and lattice is False:
        raise DataError("--rates needs the search that --no-lattice leaves out; leave out one of the two")
    if other_baselines not in ("all", "none"):
        raise DataError(f"--other-baselines must be all or none, got {other_baselines!r}")
    sought = _read_intervals(intervals)
    if on is None:
        refuse_without("--on", context, "workers")
    if protocol is None:
        refuse_without("--protocol", context, "protocol_signature")
    else:
        refuse_declared(context, "--protocol", DECLARED_BY_PROTOCOL)
    plan_folder(out_dir, consent=overwrite, option="--overwrite")
    cluster = _choose_workers(on, workers)
    from fragility.analysis.segments import read_by
    from fragility.audits.parts import PART_ROWS
    from fragility.report import ShownRows

    log = None if rates is None else find_log(rates)
    form = csv.form(data, train, log)
    failing = None if rates is None else read_rates(rates, log, None, None, form)
    declared = signature = None
    if protocol is not None:
        declared = load_protocol(protocol)
        signature = _find_signature(protocol, protocol_signature, declared)
    started = time.perf_counter()
    loaded = loading.load(model)
    source = open_data(data, form, target=target, id_column=columns.id_column, rows=rows)
    own = columns.declare(field_names(loaded, declared), target)
    if declared is None:
        if train is None:
            raise ProtocolError(
                "a protocol is fitted on training rows: name them with --train, or a finished protocol with --protocol"
            )
        settings = evidence.settings() | margin.settings(loaded.classes)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* had no missing value in training")  # the summary says it
            declared = fg.Protocol.fit(loaded, read_training(train, own, form), **settings)
    left_out = own.to_leave_out(source.column_names, data)
    own.check_dropped()
    note_unlabelled(target in source.column_names, target, data)
    read_by(by or (), source.column_names)
    source = replace(source, fields=declared.fields, drop=tuple(left_out))
    wanted = _choose_modes(modes, declared)
    _announce_questions(
        loaded, source, declared, engine, other_baselines=other_baselines == "all", modes=wanted, intervals=sought
    )
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
        modes=wanted,
        intervals=sought,
        protocol_signature=signature,
        workers=cluster,
    )
    words = list_sources(model, data, target, columns.id_column, csv, loading, rows)
    shown = None
    if by or not must_be_read_whole(source):
        shown = ShownRows(source, loaded, just_audited=True)
    else:
        note("the report was written without the values of its cases; fragility report --data adds them")
    labels = labels_of(source, len(certs), certs.classes)
    reliability = None
    if failing is not None and len(certs) <= RANKED_ROWS:
        part = source.head(len(certs))
        reliability = fg.assess_reliability(loaded, part.frame, declared, failing, ids=part.ids, engine=engine)
    elif failing is not None:
        note(
            f"the report does not say what to make reliable first, since there are more than {RANKED_ROWS:,} rows; "
            "fragility reliability does"
        )
    report = save_after_audit(certs, out_dir, labels, words, shown, by or (), reliability)
    _print_summary(certs, out_dir, time.perf_counter() - started, report.summary.audits[0].segments)


def _find_signature(protocol: Path, named: Path | None, declared: fg.Protocol) -> Path | None:
    """Return the file with a protocol's signature: the one that is named, or the one beside it, if there is one."""
    from fragility.audits.folder import read_protocol_signature

    beside = protocol.with_name(protocol.name + ".dsse.json")
    signature = named or (beside if beside.is_file() else None)
    if signature is not None:
        read_protocol_signature(signature, declared.digest)  # refused before the audit, not after it
    return signature


def save_after_audit(
    certs: StoredAudit, folder: Path, labels: Mapping[Any, Any] | None, words: list[str], given: ShownRows | None,
    by: Sequence[str], reliability: FailureProbability | None = None,
) -> Report:  # fmt: skip
    """Write DIR/report.html after an audit; `words` say how to verify it. A file of somebody else's stays."""
    from fragility.report import REPORT_FILE, Report, save_beside, verify_command

    verify = verify_command(folder, *words)
    made = Report.of(certs, name=str(folder), labels=labels, verify=verify, rows=given, by=by, reliability=reliability)
    if save_beside(made, folder) is None:
        note(
            f"{folder / REPORT_FILE} is not a report of fragility's and was left alone; write one with fragility report"
        )
    return made


def _choose_modes(wanted: bool | None, protocol: fg.Protocol) -> bool | int:
    """Return what `audit_files` takes: every row, none, or some confident rows if the protocol declares modes."""
    from fragility.blocks.modes import MOST_CONFIDENT, units_by_mode

    if wanted is not None:
        return wanted
    return MOST_CONFIDENT if units_by_mode(protocol) else False


def _read_intervals(given: str | None) -> bool | int | None:
    """Return what `audit_files` takes: True for every row, so many confident rows, or None."""
    if given is None or given == "all":
        return None if given is None else True
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise DataError(f"--intervals must be all, or how many confident rows to search at most, got {given!r}")
    return int(given)


def _announce_questions(
    model: fg.Model,
    source: RowSource,
    protocol: fg.Protocol,
    engine: str,
    *,
    other_baselines: bool,
    modes: bool | int,
    intervals: bool | int | None,
) -> None:
    """Say what a model that can only be asked will be asked for beside the audit, before it is."""
    from fragility.blocks.baselines.comparison import COMPARED_ROWS
    from fragility.blocks.modes import units_by_mode
    from fragility.engines.choice import find_engine
    from fragility.protocol import bind
    from fragility.questions.modes.losses import count_values

    few = source.head(1)
    if find_engine(bind(model, few.frame, protocol, few.ids), engine) is not None:
        return
    if other_baselines and protocol.alternatives:
        most = COMPARED_ROWS * protocol.states_per_row * len(protocol.alternatives)
        note(
            f"the finding is also computed under {join_names(protocol.alternatives)}, on at most {COMPARED_ROWS} "
            f"confident rows: up to {most:,} model evaluations; --other-baselines none leaves them out"
        )
    if modes:
        each, names = sum(count_values(protocol, mode) for mode in units_by_mode(protocol)), [*units_by_mode(protocol)]
        cost = f"{each:,} model evaluations for every row"
        if modes is not True:
            cost = f"at most {modes:,} confident rows: up to {modes * each:,} model evaluations"
        note(f"the failure modes {join_names(names)} are assessed, {cost}; --no-modes leaves them out")
    if intervals:
        each = sum(len(entry.values) * len(entry.fields) for entry in protocol.modes.catalogue)
        each += 2 * len(protocol.modes.ranges)
        rows = "every row" if intervals is True else f"each of at most {intervals:,} confident rows"
        note(f"stability intervals are tried at the values of the catalogue: up to {each:,} evaluations for {rows}")


def _choose_workers(on: str | None, count: int | None) -> Workers | None:
    if on is None:
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


def _print_summary(certs: StoredAudit, folder: Path, seconds: float, segments: Sequence[SegmentShares]) -> None:
    summary = certs.summary()
    console = out()
    console.print(f"{summary.rows} certificates in {folder} ({seconds:.1f} s, engine {certs.engine})")
    console.print(describe_early_flips(summary))
    few = describe_few_confident(summary["confident"].count, summary.rows, summary.min_confidence)
    if few is not None:
        console.print(f"{few[0].upper()}{few[1:]}")
    if certs.protocol.artificial:
        remedy = "; --baseline typical takes one that exists" if certs.protocol.baseline in ("mean", "zero") else ""
        console.print(escape(describe_artificial(certs.protocol.baseline, certs.protocol.artificial) + remedy))
    for line in [*lattice_lines(certs, summary), *block_lines(certs), *dependence_lines(certs)]:
        console.print(escape(line))
    for shares in segments:
        console.print(tabulate_segments(shares))
    note(f"next: fragility top {folder}, or open {folder / 'report.html'}")


def describe_early_flips(summary: AuditSummary) -> str:
    """How many confident predictions flip early, and how they were counted."""
    early, count = summary["flips_early"], summary["confident"].count
    sure = f"{count} predictions are at least {summary.min_confidence:.0%} confident"
    if not early.rows:
        return sure
    flips = f"{write_early(early, 'confident predictions')}: one or two groups of evidence are lost"
    return f"{sure}. {flips}. {describe_counting(early, summary['early_on_path'].count)}"


def block_lines(certs: fg.Certificates | StoredAudit) -> list[str]:
    """Which predictions have their failure modes assessed, and which have stability intervals, in words."""
    found = []
    if (modes := certs.modes_declaration) is not None:
        which = name_predictions(certs, certs.modes_ids if modes.is_partial else None, "--modes assesses every one")
        found.append(f"failure modes {join_names(modes.modes)} of {which}")
    if (own := certs.intervals_declaration) is not None:
        some = certs.intervals_ids if own.is_partial else None
        which = name_predictions(certs, some, "--intervals all finds every one")
        found.append(f"stability intervals of {write_count(len(own.fields), 'field')} of {which}")
    return found


def name_predictions(certs: fg.Certificates | StoredAudit, some: Sequence[Any] | None, advice: str) -> str:
    """Return which predictions a block speaks of: some of the confident ones, or all."""
    if some is None:
        return f"all {len(certs):,} predictions"
    return f"{write_count(len(some), 'confident prediction')}; {advice}"


def dependence_lines(certs: fg.Certificates | StoredAudit) -> list[str]:
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


def lattice_lines(certs: fg.Certificates | StoredAudit, summary: AuditSummary) -> list[str]:
    """What the lattice block adds to a summary, in words."""
    declared = certs.lattice_declaration
    if declared is None:
        return []
    searched, fewer, missed, proved, unsettled = (
        summary[name].count for name in ("searched", "fewer_suffice", "path_missed", "proved", "unsettled")
    )
    which = f"{searched} most exposed confident predictions" if declared.is_partial else "predictions"
    counts = (
        f"for {fewer} a smaller failing set exists than the path found",
        f"for {missed} the path found none, but a failing set exists" if missed else "",
        f"{proved} hold whatever groups are lost",
        f"{unsettled} are not settled" if unsettled else "",
    )
    lines = [f"smallest failing sets of the {which}: {'; '.join(filter(None, counts))}"] if searched else []
    if "lost" in summary:
        lost, condition = summary["lost"], declared.condition(certs.protocol)
        lines.append(f"{lost.total:.1f} decisions ({lost.value:.1%}) are expected to be lost {condition}")
    return lines
