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
from fragility.cli.options import (
    find_log,
    list_options,
    load_protocol,
    option,
    read_rates,
    refuse_declared,
    refuse_without,
)
from fragility.cli.outputs import list_sources, plan_folder
from fragility.cli.reading import tabulate_segments
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
    describe_early,
    describe_few_confident,
    join_names,
    write_count,
)

if TYPE_CHECKING:
    from fragility.analysis.segments import SegmentShares
    from fragility.auditing.parts import Workers
    from fragility.audits import AuditSummary, StoredAudit
    from fragility.blocks.claims import Extent
    from fragility.questions.reliability.outcomes import FailureProbability
    from fragility.report import Report, ShownRows
    from fragility.tables.sources import RowSource

RANKED_ROWS = 50_000  # the report of an audit with rates says up to this size what to make reliable first
DECLARED_BY_PROTOCOL = ("train", *list_options(opt.EvidenceOptions, opt.MarginOptions))


def audit(
    *,
    context: typer.Context,
    model: opt.ModelArgument,
    data: opt.DataArgument,
    out_dir: Annotated[Path, opt.OUT_FOLDER],
    train: opt.SomeTrain = None,
    protocol: opt.SomeProtocol = None,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    loading: opt.LoadingOptions,
    evidence: opt.EvidenceOptions,
    margin: opt.MarginOptions,
    by: opt.ByColumns = None,
    protocol_signature: Annotated[
        Path | None,
        option(
            "--protocol-signature FILE",
            "The signature of the --protocol file. (default: FILE.dsse.json beside it, if any)",
            panel=opt.PROTOCOL,
        ),
    ] = None,
    rates: opt.SomeRates = None,
    lattice: Annotated[
        str | None,
        option(
            "--lattice all|none",
            "Find the smallest set of groups whose loss flips each prediction. (default: for the 1,000 most exposed "
            "confident predictions, if the model is a tree ensemble or linear)",
            panel=opt.CERTIFICATES,
        ),
    ] = None,
    modes: Annotated[
        str | None,
        option(
            "--modes all|none",
            "Assess the failure modes of the protocol: evidence that is lost, wrong or noisy. (default: for at most "
            "2,000 confident predictions, sampled by their content)",
            panel=opt.CERTIFICATES,
        ),
    ] = None,
    intervals: Annotated[
        str | None,
        option(
            "--intervals all|none|N",
            "Compute how far each value may move before the decision flips: for all predictions, or for at most N "
            "confident ones, the most exposed first. (default none)",
            panel=opt.CERTIFICATES,
        ),
    ] = None,
    any_value: Annotated[
        str | None,
        option(
            "--any-value all|none|N",
            "Compute how many groups must change, to any values, before the decision flips: for all predictions, or "
            "for at most N confident ones, the most exposed first. (default 1000, if the model can be read)",
            panel=opt.CERTIFICATES,
        ),
    ] = None,
    other_baselines: Annotated[
        str,
        option(
            "--other-baselines all|none",
            "Compute the finding also under all other baselines that the model admits, on at most 500 confident rows.",
            panel=opt.CERTIFICATES,
        ),
    ] = "all",
    claims: Annotated[
        str,
        option(
            "--claims EXTENT",
            "full, or summary: scores without lists per step and group.",
            panel=opt.CERTIFICATES,
        ),
    ] = "full",
    resume: Annotated[bool, option("--resume", "Continue an interrupted audit in DIR.")] = False,
    overwrite: Annotated[
        bool,
        option("--overwrite", "Replace the audit in DIR even if decisions of a review refer to it.", panel=opt.RUNNING),
    ] = False,
    part_rows: Annotated[
        int | None,
        option(
            "--part-rows N",
            "Rows in memory at a time, and in one file. (default 50000)",
            min=1,
            panel=opt.RUNNING,
        ),
    ] = None,
    on: Annotated[
        str | None,
        option("--on NAME", "Run on the workers of a cluster: ray or spark.", panel=opt.RUNNING),
    ] = None,
    workers: Annotated[
        int | None,
        option("--workers N", "How many workers --on uses. (default: one per core)", min=1, panel=opt.RUNNING),
    ] = None,
    engine: opt.Engine = "auto",
    rows: opt.RowRange = None,
    csv: opt.CsvOptions,
) -> None:
    """Audit a model's predictions: one certificate for each row.

    A protocol is fitted on --train, unless --protocol names one. DATA may be larger than memory. If the audit is
    interrupted, finished parts are kept, and --resume continues from there. With --rates certificates also say how
    likely each decision is lost.

    [bold]Examples[/bold]

      fragility audit model.skops test.parquet --train train.parquet --target class --out audit/

      fragility audit credit.scoring:pipeline new.parquet --protocol protocol.json --id loan_id --out audit/

      fragility audit model.skops 'rows/2026-*.parquet' --protocol audit/ --out audit-2026/ --resume
    """
    all_sets, assessed, compared = (
        read_extent(text, flag)
        for text, flag in ((lattice, "--lattice"), (modes, "--modes"), (other_baselines, "--other-baselines"))
    )
    if rates is not None and all_sets is False:
        raise DataError("--rates needs the search that --lattice none leaves out; leave out one of the two")
    interval_rows, any_value_rows = _read_rows(intervals, "--intervals"), _read_rows(any_value, "--any-value")
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
    table_columns = columns.declare(field_names(loaded, declared), target)
    if declared is None:
        if train is None:
            raise ProtocolError(
                "a protocol is fitted on training rows: name them with --train, or a finished protocol with --protocol"
            )
        settings = evidence.settings() | margin.settings(loaded.classes)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* had no missing value in training")  # the summary says it
            declared = fg.Protocol.fit(loaded, read_training(train, table_columns, form), **settings)
    left_out = table_columns.to_leave_out(source.column_names, data)
    table_columns.check_dropped()
    note_unlabelled(target in source.column_names, target, data)
    read_by(by or (), source.column_names)
    source = replace(source, fields=declared.fields, drop=tuple(left_out))
    mode_rows = _choose_modes(assessed, declared)
    _announce_questions(
        loaded, source, declared, engine, other_baselines=bool(compared), modes=mode_rows, intervals=interval_rows
    )
    any_value_rows = _choose_any_value(any_value, any_value_rows, loaded, source, declared, engine)
    certs = fg.audit_files(
        loaded,
        source,
        declared,
        out_dir,
        resume=resume,
        claims=cast("Extent", claims),  # the library checks the word and names the choices
        engine=engine,
        part_rows=PART_ROWS if part_rows is None else part_rows,
        lattice=all_sets,
        rates=failing,
        baselines=None if compared else False,
        modes=mode_rows,
        intervals=interval_rows,
        any_value=any_value_rows,
        protocol_signature=signature,
        workers=cluster,
    )
    words = list_sources(model, data, target, columns.id_column, csv, loading, rows)
    shown_rows = None
    if by or not must_be_read_whole(source):
        shown_rows = ShownRows(source, loaded, just_audited=True)
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
    report = save_after_audit(certs, out_dir, labels, words, shown_rows, by or (), reliability)
    _print_summary(certs, out_dir, time.perf_counter() - started, report.summary.audits[0].segments)


def _find_signature(protocol: Path, option: Path | None, declared: fg.Protocol) -> Path | None:
    """Return the file with a protocol's signature: that of the option, else one beside the protocol or in its audit."""
    from fragility.audits.folder import read_manifest, read_protocol_signature

    if protocol.is_dir():
        files = [protocol / name for name in read_manifest(protocol).files_of("protocol-signature")]
    else:
        beside = protocol.with_name(protocol.name + ".dsse.json")
        files = [beside] if beside.is_file() else []
    signature = option or next(iter(files), None)
    if signature is not None:
        read_protocol_signature(signature, declared.digest)  # fail before the audit, not after it
    return signature


def save_after_audit(
    certs: StoredAudit, folder: Path, labels: Mapping[Any, Any] | None, words: list[str], rows: ShownRows | None,
    by: Sequence[str], reliability: FailureProbability | None = None,
) -> Report:  # fmt: skip
    """Write DIR/report.html after an audit, unless another file has this name; `words`: options for `verify`."""
    from fragility.report import REPORT_FILE, Report, save_beside, verify_command

    verify = verify_command(folder, *words)
    report = Report.of(certs, name=str(folder), labels=labels, verify=verify, rows=rows, by=by, reliability=reliability)
    if save_beside(report, folder) is None:
        note(f"{folder / REPORT_FILE} is not a report of fragility's and was kept; write one with fragility report")
    return report


def _choose_modes(assessed: bool | None, protocol: fg.Protocol) -> bool | int:
    """Return the argument of `audit_files`: all rows, none, or some confident rows if the protocol declares modes."""
    from fragility.blocks.modes import MOST_CONFIDENT, units_by_mode

    if assessed is not None:
        return assessed
    return MOST_CONFIDENT if units_by_mode(protocol) else False


def read_extent(text: str | None, flag: str) -> bool | None:
    """Return True for `all` rows, False for `none`, and None if the library is to choose."""
    if text not in ("all", "none", None):
        raise DataError(f"{flag} must be all or none, got {text!r}")
    return None if text is None else text == "all"


def _read_rows(text: str | None, flag: str) -> bool | int | None:
    """Return the argument of `audit_files`: True for all rows, a number of confident rows, or None."""
    if text in (None, "all", "none"):
        return True if text == "all" else None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise DataError(f"{flag} must be all, none, or how many confident rows to search at most, got {text!r}")
    return int(text)


def _choose_any_value(
    option: str | None,
    rows_to_search: bool | int | None,
    model: fg.Model,
    source: RowSource,
    protocol: fg.Protocol,
    engine: str,
) -> bool | int | None:
    """Return the argument of `audit_files`: by default some rows if the model can be read, else none; note the cost."""
    from fragility.blocks.any_value import MOST_EXPOSED
    from fragility.engines.choice import find_engine
    from fragility.protocol import bind
    from fragility.questions.any_value.deciding import DEFAULT_ASKED

    few = source.head(1)
    bound = bind(model, few.frame, protocol, few.ids)
    varied = any(not domain.fixed for domain in protocol.domains) and bound.source.frame is not None
    if find_engine(bound, engine) is not None:
        return rows_to_search if option is not None or not varied else MOST_EXPOSED  # the summary says so
    if rows_to_search:
        rows = "every row" if rows_to_search is True else f"each of at most {rows_to_search:,} confident rows"
        note(f"values of all groups are tried: up to {DEFAULT_ASKED:,} model evaluations for {rows}")
    return rows_to_search


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
    """Note, before the audit, the further evaluations of a model that no native engine reads."""
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
        names = [*units_by_mode(protocol)]
        per_row = sum(count_values(protocol, mode) for mode in names)
        cost = f"{per_row:,} model evaluations for every row"
        if modes is not True:
            cost = f"at most {modes:,} confident rows: up to {modes * per_row:,} model evaluations"
        note(f"the failure modes {join_names(names)} are assessed, {cost}; --modes none leaves them out")
    if intervals:
        per_row = sum(len(entry.values) * len(entry.fields) for entry in protocol.modes.catalogue)
        per_row += 2 * len(protocol.modes.ranges)
        rows = "every row" if intervals is True else f"each of at most {intervals:,} confident rows"
        note(f"stability intervals are tried at the values of the catalogue: up to {per_row:,} evaluations for {rows}")


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
    console.print(f"{write_count(summary.rows, 'certificate')} in {folder} ({seconds:.1f} s, engine {certs.engine})")
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
    note(f"next: fragility show {folder}, or open {folder / 'report.html'}")


def describe_early_flips(summary: AuditSummary) -> str:
    """Return how many confident predictions flip early, and how they were counted."""
    early, count = summary["flips_early"], summary["confident"].count
    verb = "is" if count == 1 else "are"
    sure = f"{write_count(count, 'prediction')} {verb} at least {summary.min_confidence:.0%} confident"
    if not early.rows:
        return sure
    return f"{sure}. {describe_early(early, 'confident prediction', summary['early_on_path'].count)}"


def block_lines(certs: fg.Certificates | StoredAudit) -> list[str]:
    """Return which predictions have failure modes, stability intervals and any-value budgets, in words."""
    from fragility.blocks.any_value import AnyValueDeclaration
    from fragility.blocks.intervals.values import IntervalsDeclaration
    from fragility.blocks.modes import ModesDeclaration

    lines = []
    if (modes := certs.manifest.find_block(ModesDeclaration)) is not None:
        which = name_predictions(
            certs, certs.ids_of_block("modes") if modes.is_partial else None, "--modes all assesses every one"
        )
        lines.append(f"failure modes {join_names(modes.modes)} of {which}")
    if (intervals := certs.manifest.find_block(IntervalsDeclaration)) is not None:
        ids = certs.ids_of_block("intervals") if intervals.is_partial else None
        which = name_predictions(certs, ids, "--intervals all finds every one")
        lines.append(f"stability intervals of {write_count(len(intervals.fields), 'field')} of {which}")
    if (searched := certs.manifest.find_block(AnyValueDeclaration)) is not None:
        ids = certs.ids_of_block("any_value") if searched.is_partial else None
        which = name_predictions(certs, ids, "--any-value all searches every one")
        lines.append(f"how many groups must change, to any values, of {which}")
    return lines


def name_predictions(certs: fg.Certificates | StoredAudit, ids: Sequence[Any] | None, advice: str) -> str:
    """Return which predictions a block covers: some of the confident ones, or all."""
    if ids is None:
        return f"all {len(certs):,} predictions" if len(certs) != 1 else "the one prediction"
    return f"{write_count(len(ids), 'confident prediction')}; {advice}"


def dependence_lines(certs: fg.Certificates | StoredAudit) -> list[str]:
    """Return how much the finding depends on the baseline, as a table and in words."""
    comparison = certs.baselines
    if comparison is None:
        return []
    artificial = [
        describe_artificial(name, other)
        for name in comparison.disagreeing
        if (other := certs.protocol.with_baseline(name).artificial)
    ]
    return [*str(comparison).splitlines(), *artificial]


def lattice_lines(certs: fg.Certificates | StoredAudit, summary: AuditSummary) -> list[str]:
    """Return the part of a summary that comes from the lattice block, in words."""
    from fragility.blocks.lattice.values import LatticeDeclaration

    declared = certs.manifest.find_block(LatticeDeclaration)
    if declared is None:
        return []
    searched, fewer, missed, proved, unsettled = (
        summary[name].count for name in ("searched", "fewer_suffice", "path_missed", "proved", "unsettled")
    )
    which = f"{searched} most exposed confident predictions" if declared.is_partial else "predictions"
    counts = (
        f"for {fewer} a smaller failing set exists than the path found",
        f"for {missed} the path does not flip the prediction, but a failing set exists" if missed else "",
        f"{proved} hold whatever groups are lost",
        f"{unsettled} are not settled" if unsettled else "",
    )
    lines = [f"smallest failing sets of the {which}: {'; '.join(filter(None, counts))}"] if searched else []
    if "lost" in summary:
        lost, condition = summary["lost"], declared.condition(certs.protocol)
        lines.append(f"{lost.total:.1f} decisions ({lost.value:.1%}) are expected to be lost {condition}")
    return lines
