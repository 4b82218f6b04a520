"""`fragility show`, `top` and `compare`: read certificates that were written before."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.base.files import replacing
from fragility.base.text import escape_controls
from fragility.cli.options import argument, option, refuse_declared, refuse_without
from fragility.cli.outputs import plan_files
from fragility.cli.tables import Columns, field_names, open_data, read_rows, require_labels
from fragility.cli.terminal import note, out
from fragility.pages.results import checked_suffix
from fragility.pages.wording import name_score

if TYPE_CHECKING:
    from fragility.analysis.segments import SegmentShares
    from fragility.audits import AuditSummary, Certificate, StoredAudit
    from fragility.audits.comparison import AuditChanges
    from fragility.protocol import Protocol
    from fragility.report.summary import PairedAudits
    from fragility.tables.formats import CsvFormat
    from fragility.tables.sources import RowSource


def show(directory: opt.DirArgument, row: opt.Row) -> None:
    """Show one certificate: the removal path, the margin at each step, and where the prediction flips.

    [bold]Examples[/bold]

      fragility show audit/ --row 17

      fragility show audit/ --row L0703
    """
    out().print(escape(fg.open_audit(directory).by_id(row).story()))


def top(
    context: typer.Context,
    directory: opt.DirArgument,
    number: Annotated[int, option("-n --number N", "How many to show.", min=1)] = 20,
    min_confidence: opt.MinConfidence = None,
    by: opt.RankedBy = "exposure",
    policy: Annotated[Path | None, option("--policy FILE", "List what this review policy sends to review.")] = None,
) -> None:
    """List the confident predictions that rest on least, the most fragile first.

    [bold]Examples[/bold]

      fragility top audit/ -n 20

      fragility top audit/ -n 5 --min-confidence 0.95

      fragility top audit/ --by failure_probability

      fragility top audit/ --by wrong

      fragility top audit/ --policy policy.json
    """
    certs = fg.open_audit(directory)
    if policy is not None:
        refuse_declared(context, "--policy", ("by", "min_confidence"))
        rule = fg.ReviewPolicy.load(policy)
        count, unscored, best = select_first(certs, rule, number)
        if count:
            out().print(tabulate_certificates(list(best), mode_of(certs, rule.by)))
        lacking = f"; {unscored} of them have no figure for {name_score(rule.by)}" if unscored else ""
        out().print(f"{count} of {len(certs)} predictions are to be reviewed, {len(best)} shown{lacking}")
        note(rule.sentence())
        return
    min_confidence = certs.confident_from(min_confidence)
    chosen = list(certs.most_fragile(number, min_confidence=min_confidence, by=by))
    mode = mode_of(certs, by)
    if not chosen:
        lacks = "" if mode is None else " and has its failure modes assessed"
        least = f"none of the {len(certs)} predictions reaches a confidence of {min_confidence:.0%}{lacks}"
        batches = certs.batches(["confidence"])
        surest = max((max(batch.column("confidence").to_pylist(), default=1) for batch in batches), default=1)
        lower = (
            f"; the surest has {surest:.1%}, and --min-confidence takes less sure ones"
            if surest < min_confidence
            else ""
        )
        out().print(f"{least}{lower}")
        return
    out().print(tabulate_certificates(chosen, mode))


def mode_of(certs: StoredAudit, by: str) -> str | None:
    """Return the failure mode that a score is the exposure to; None if it is another score."""
    declared = certs.modes_declaration
    return by if declared is not None and by in declared.units else None


def select_first(certs: StoredAudit, policy: fg.ReviewPolicy, number: int) -> tuple[int, int, fg.Certificates]:
    """Return how many predictions a policy sends to review, how many of them lack its score, and the first of them."""
    import numpy as np
    import pyarrow as pa

    count, unscored, best = 0, 0, certs.take([])
    for table in certs.batches():
        chosen = policy.select(fg.Certificates(table, certs.protocol, certs.manifest))
        count += len(chosen)
        unscored += int(np.isnan(chosen.score(policy.by, partial=True)).sum())
        both = fg.Certificates(pa.concat_tables([best.table, chosen[:number].table]), certs.protocol, certs.manifest)
        best = both.take(np.argsort(-both.score(policy.by, partial=True), kind="stable")[:number])
    return count, unscored, best


def tabulate_certificates(certificates: list[Certificate], mode: str | None = None) -> Table:
    """Return a table with one line per prediction: its numbers, and a sentence for whoever must decide on it.

    mode: the failure mode that the predictions were ranked by; a prediction may not have been assessed for it.
    """
    with_chance = any(cert.failure_probability is not None for cert in certificates)
    table = Table()
    for name in (
        "row",
        *([] if mode is None else [f"if {mode}"]),
        "exposure",
        "FDS",
        *(["lost"] if with_chance else []),
        "k*",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what it rests on", overflow="fold")
    for cert in certificates:
        p = cert.failure_probability
        chance = "-" if p is None else "<0.01%" if 0.0 < p < 1e-4 else f"{p:.2%}"
        ranked = [] if mode is None else ["-" if cert.modes is None else f"{cert.modes[mode].exposure:.3f}"]
        scores = [*ranked, f"{cert.exposure:.3f}", f"{cert.fds:.3f}", *([chance] if with_chance else [])]
        budget = str(cert.flip_budget) if cert.flipped else "none"
        table.add_row(escape(escape_controls(cert.id)), *scores, budget, escape(escape_controls(cert.sentence())))
    return table


def take_given(audit: StoredAudit, ids: Sequence[Any] | None) -> fg.Certificates:
    """Return the certificates of the rows at hand; an audit may have many more."""
    if ids is None:
        return audit.take(range(len(audit)))
    certs = audit.of_rows(ids)
    if not len(certs):
        from fragility.base.ids import IdSpan, say_other_rows

        audited, first = IdSpan.of_tables(audit.batches(["id"])), audit.take([0]).claims.ids[0]
        raise DataError(*say_other_rows(len(audit), len(audit), first, audited, IdSpan(ids)))
    if len(certs) < len(audit):
        note(f"{len(certs)} of the {len(audit)} audited rows are among those given, and they alone are used")
    return certs


def compare(
    *,
    context: typer.Context,
    directories: Annotated[list[Path], argument("DIR...", "Two or more folders that `fragility audit` wrote.")],
    min_confidence: opt.MinConfidence = None,
    labels: opt.Labels = None,
    changes: Annotated[
        Path | None, option("--changes FILE", "Write each row before and after, against the first audit (.csv).")
    ] = None,
    data: opt.AuditedRows = None,
    by: opt.ByColumns = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    csv: opt.CsvOptions,
) -> None:
    """Put audits side by side: confidence, k*, RCMA, FDS, exposure, and how many confident predictions flip.

    Of each audit after the first it also says which predictions no longer flip early, which now do, and which labels
    changed. Where the protocols differ it names the settings, and says which counts then do not compare the models.

    [bold]Examples[/bold]

      fragility compare audit-logistic/ audit-boosting/

      fragility compare audit/ audit-hardened/ --changes changes.csv

      fragility compare audit-logistic/ audit-boosting/ --labels test.parquet --target class

      fragility compare audit-logistic/ audit-boosting/ --data test.parquet --by age:25,40,60
    """
    import pandas as pd

    from fragility.analysis.segments import read_by, segment_rows
    from fragility.audits.comparison import compare_audits
    from fragility.report.gathering import pair_audits

    if changes is not None:
        checked_suffix(changes, (".csv",))
    if len(directories) < 2:
        raise DataError(f"compare needs two folders or more, got {len(directories)}")
    if not by:
        refuse_without("--by", context, "data")
    if labels is None:
        refuse_without("--labels", context, "target", *(["id_column"] if data is None else []))
    form = csv.form(labels, data)
    plan_files({"--changes": changes}, {"--labels": labels})
    audits = [fg.open_audit(directory) for directory in directories]
    empty = next((name for name, audit in zip(directories, audits, strict=True) if not len(audit)), None)
    if empty is not None:
        raise DataError(f"the audit {empty} holds no certificates; there is nothing to compare")
    truth = read_labels(labels, target, id_column, form)
    min_confidence = audits[0].confident_from(min_confidence)
    summaries = [certs.summary(min_confidence=min_confidence, labels=truth) for certs in audits]
    found = [compare_audits(audits[0], certs, min_confidence) for certs in audits[1:]]
    for directory, change in zip(directories[1:], found, strict=True):
        _print_protocols(directories[0], directory, change)
    out().print(_tabulate_audits(directories, audits, summaries))
    _note_differences(audits)
    for directory, change in zip(directories[1:], found, strict=True):
        out().print(escape(f"\n{directory} against {directories[0]}: {change.to_text(truth)}"))
    rows = open_rows(data, by, audits[0].protocol, id_column, form)
    if rows is not None:
        coded = segment_rows(rows, read_by(by or [], rows.column_names), audits)
        named = [(str(directory), certs) for directory, certs in zip(directories, audits, strict=True)]
        for pair in pair_audits(named, min_confidence, coded):
            _print_pair(pair)
    if changes is not None:
        tables = [change.table.assign(audit=str(d)) for d, change in zip(directories[1:], found, strict=True)]
        with replacing(changes) as temporary:
            pd.concat(tables).to_csv(temporary, index=False)
        note(f"written to {changes}")


def read_labels(
    path: Path | None, target: str | None, id_column: str | None, form: CsvFormat
) -> Mapping[Any, Any] | None:
    """Return the true classes by row id; None where no table is named."""
    if path is None:
        return None
    if target is None:
        raise DataError("--labels needs --target, the column with the true class")
    given = read_rows(path, Columns(target, id_column), form=form)
    assert given.ids is not None
    return dict(zip(given.ids, require_labels(given, target, path).tolist(), strict=True))


LABELS = {
    "accuracy": "accuracy",
    "confident_accuracy": "  of confident predictions",
    "rows": "rows",
    "mean_confidence": "mean confidence",
    "mean_margin": "mean margin m(x)",
    "mean_flip_budget": "mean flip budget k*",
    "never_flips": "never flips on the path",
    "mean_fds": "mean FDS",
    "mean_exposure": "mean exposure",
    "mean_rcma": "  targeted (RCMA)",
    "median_independent_loss": "  independent loss, median",
    "mean_independent_loss": "  independent loss, mean",
    "mean_common_loss": "  common loss",
    "confident": "confident predictions",
    "flips_after_one": "  flip after one group",
    "flips_early": "  flip within two groups",
    "holds": "  hold whatever groups are lost",
    "confident_mean_fds": "  mean FDS",
    "confident_mean_exposure": "  mean exposure",
    "stability": "  under other baselines",
    "fewer_suffice": "a smaller failing set than the path found",
    "path_missed": "the path found none, a failing set exists",
    "proved": "no loss of groups flips it",
    "unsettled": "smallest set not settled",
    "mean_smallest_size": "mean smallest set",
    "lost": "decisions expected to be lost",
}
COUNTED = ("fewer_suffice", "path_missed", "proved", "unsettled")  # whose shares are of few rows


def _write_measure(audit: StoredAudit, summary: AuditSummary, name: str) -> str:
    """Return a measure of an audit; a mark says that a share is not known of all predictions."""
    from fragility.blocks.baselines.comparison import name_stability

    if name in ("rows", "stability"):
        return f"{summary.rows}" if name == "rows" else name_stability(audit.baselines)
    if name not in summary:
        return "-"
    found = summary[name]
    if name in COUNTED:
        return f"{found.count}"
    if name == "lost":
        return f"{found.total:.1f}"
    if not found.rows:
        return "-" if name == "mean_smallest_size" else "none confident"
    if not hasattr(found, "count"):
        return f"{found.value:.3f}"
    share = f"{'' if found.exact else '>= '}{found.value:.1%}"
    return f"{found.count} ({share})" if name == "confident" else share


def _tabulate_audits(directories: list[Path], audits: list[StoredAudit], summaries: list[AuditSummary]) -> Table:
    table = Table("")
    for directory in directories:
        table.add_column(escape(str(directory)), overflow="fold")
    table.add_row("model", *(escape(audit.manifest.model.kind) for audit in audits))
    fading = [name for name in summaries[0].measures if name.startswith("no_flip_under_")]
    for name, label in {**LABELS, **{name: name.replace("_", " ", 3) for name in fading}}.items():
        if name in ("rows", "stability", "mean_common_loss") or any(name in summary for summary in summaries):
            cells = [_write_measure(audit, own, name) for audit, own in zip(audits, summaries, strict=True)]
            table.add_row(label, *cells)
    return table


def _print_protocols(first: Path, second: Path, change: AuditChanges) -> None:
    """Say above the table which settings of two protocols differ, and what cannot be compared because of it."""
    from fragility.audits.comparison import list_differences

    if not change.differences:
        return
    told = f"{second} has another protocol than {first}: {list_differences(change.differences)}"
    if not change.comparable:
        out().print(escape(f"NOT COMPARABLE: {told}. What differs below may be the protocol's doing, not the model's."))
    elif any(difference.scales_scores for difference in change.differences):
        note(f"{told}; RCMA, FDS and exposure are not on the same scale")
    else:
        note(told)


def _note_differences(audits: list[StoredAudit]) -> None:
    """Numbers under different conditions or on different rows do not compare; say so rather than refuse."""
    from fragility.base.ids import id_keys

    conditions = {
        declared.condition(certs.protocol)
        for certs in audits
        if (declared := certs.lattice_declaration) is not None and declared.has_failures
    }
    if len(conditions) > 1:
        note(f"decisions are expected to be lost under different conditions: {'; '.join(sorted(conditions))}")
    digests = set()
    for certs in audits:
        digest = hashlib.sha256()
        for batch in certs.batches(["id"]):
            digest.update(id_keys(batch.column("id").to_pylist()).tobytes())
        digests.add(digest.digest())
    if len(digests) > 1:
        note("the audits cover different rows")


# --- by segments --------------------------------------------------------------------------------------------


def open_rows(
    data: str | None, by: Sequence[str] | None, protocol: Protocol, id_column: str | None, form: CsvFormat
) -> RowSource | None:
    """Return the rows that `--data` names, after a look at the columns that `--by` names; None without `--data`."""
    from fragility.analysis.segments import read_by

    if data is None:
        if by:
            raise DataError("--by cuts rows by a column of theirs; name the audited rows with --data")
        return None
    Columns(None, id_column, fields=field_names(None, protocol))  # refuses a field of the model
    source = replace(open_data(data, form, id_column=id_column), fields=protocol.fields)
    read_by(by or (), source.column_names)
    return source


def tabulate_segments(shares: SegmentShares) -> Table:
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
        early = own.flips_early
        share = f"{early.count:,} ({early.value:.1%})", f"{early.lower:.1%} to {early.upper:.1%}"
        table.add_row(escape(one.name), *counts, *share, median, f"{own.mean_exposure:.3f}")
    return table


def _print_pair(pair: PairedAudits) -> None:
    """Print two audits side by side, segment by segment, in one table per column."""
    rows = f"{pair.both_confident} rows confident in both" if pair.shared else "their own rows, none in common"
    out().print(escape(f"\n{pair.second} against {pair.first}: confident predictions that flip early, on {rows}"))
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
        out().print(table)
