"""`fragility show` and `fragility report`: print certificates and write reports on audits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError, VerificationError
from fragility.base.text import escape_controls
from fragility.cli.options import refuse_beside, refuse_declared, refuse_without
from fragility.cli.outputs import list_sources, plan_results, save_result
from fragility.cli.tables import open_rows, read_labels, read_own_labels, read_stress_labels
from fragility.cli.terminal import note, out, say
from fragility.pages.results import TABLE_SUFFIXES, Result
from fragility.pages.wording import name_score

if TYPE_CHECKING:
    import pyarrow as pa

    from fragility.analysis.segments import SegmentShares
    from fragility.audits import Certificate, StoredAudit


def show(
    *,
    context: typer.Context,
    directory: opt.DirArgument,
    row: opt.SomeRow = None,
    top: opt.Top = 10,
    min_confidence: opt.MinConfidence = None,
    score: opt.Score = "exposure",
    policy: opt.Policy = None,
    stress: opt.Stress = None,
) -> None:
    """List the most fragile predictions, or explain one row.

    Lists the most exposed confident predictions, or with --policy those that the policy sends to review. --score
    rehearsal, and a policy by it, need the labels of these rows (--stress), which have the rehearsal of their stress.

    [bold]Examples[/bold]

      fragility show audit/ -n 20 --min-confidence 0.95

      fragility show audit/ --row L0703

      fragility show audit/ --policy policy.json
    """
    labels = None if stress is None else read_stress_labels(stress)
    certs = fg.open_audit(directory)
    if row is not None:
        refuse_beside(
            context, "is about many rows, and --row names one", ("top", "min_confidence", "score", "policy", "stress")
        )
        out().print(escape(certs.by_id(row).story()))
    elif policy is not None:
        refuse_declared(context, "--policy", ("score", "min_confidence"))
        _show_selected(certs, fg.ReviewPolicy.load(policy), top, labels)
    else:
        if score != "rehearsal":
            refuse_without("--score rehearsal", context, "stress")
        _show_most_fragile(certs, top, certs.confident_from(min_confidence), score, labels)


def _show_selected(certs: StoredAudit, rule: fg.ReviewPolicy, top: int, labels: pa.Table | None) -> None:
    count, unscored, best = select_first(certs, rule, top, labels)
    if count:
        out().print(tabulate_certificates(list(best), mode_of(certs, rule.by)))
    lacking = f"; {unscored} of them have no {name_score(rule.by)}" if unscored else ""
    out().print(f"{count} of {len(certs)} predictions are to be reviewed, {len(best)} shown{lacking}")
    note(rule.sentence())


def _show_most_fragile(
    certs: StoredAudit, top: int, min_confidence: float, score: str, labels: pa.Table | None
) -> None:
    certificates = list(certs.most_fragile(top, min_confidence=min_confidence, by=score, labels=labels))
    mode = mode_of(certs, score)
    if certificates:
        out().print(tabulate_certificates(certificates, mode))
        return
    lacks = "" if mode is None else " with assessed failure modes"
    batches = certs.batches(["confidence"])
    surest = max((max(batch.column("confidence").to_pylist(), default=1) for batch in batches), default=1)
    lower = f"; the largest is {surest:.1%}; lower --min-confidence to list less confident ones"
    least = f"none of the {len(certs)} predictions reaches a confidence of {min_confidence:.0%}{lacks}"
    out().print(f"{least}{lower if surest < min_confidence else ''}")


def mode_of(certs: StoredAudit, by: str) -> str | None:
    """Return the failure mode whose exposure is the score; None for another score."""
    from fragility.blocks.modes import ModesDeclaration

    declared = certs.manifest.find_block(ModesDeclaration)
    return by if declared is not None and by in declared.units else None


def select_first(
    certs: StoredAudit, policy: fg.ReviewPolicy, number: int, labels: pa.Table | None = None
) -> tuple[int, int, fg.Certificates]:
    """Return how many predictions a policy sends to review, how many of them lack its score, and the first of them."""
    import numpy as np
    import pyarrow as pa

    count, unscored, best = 0, 0, certs.take([])
    for table in certs.batches():
        selected = policy.select(fg.Certificates(table, certs.protocol, certs.manifest), labels=labels)
        count += len(selected)
        unscored += int(np.isnan(selected.score(policy.by, partial=True, labels=labels)).sum())
        candidates = fg.Certificates(
            pa.concat_tables([best.table, selected[:number].table]), certs.protocol, best.manifest
        )
        scores = candidates.score(policy.by, partial=True, labels=labels)
        best = candidates.take(np.argsort(-scores, kind="stable")[:number])
    return count, unscored, best


def tabulate_certificates(certificates: list[Certificate], mode: str | None = None) -> Table:
    """Return a table with one line per prediction: its scores and a sentence.

    mode: the failure mode that the predictions are ranked by; some predictions may not have been assessed for it.
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


def tabulate_segments(shares: SegmentShares) -> Table:
    """Return one line per segment."""
    table = Table(escape(shares.column), title_justify="left")
    for name in ("rows", "confident", "flip early", "95% interval", "median k*", "mean exposure"):
        table.add_column(name, justify="right", no_wrap=True)
    for segment in shares.segments:
        confident = segment.confident
        counts = (f"{segment.everything.rows:,}", f"{confident.rows:,}")
        if not confident.rows:
            table.add_row(escape(segment.name), *counts, "-", "-", "-", "-")
            continue
        median = "no flip" if confident.median_flip_budget is None else str(confident.median_flip_budget)
        early = confident.flips_early
        share = f"{early.count:,} ({early.value:.1%})", f"{early.lower:.1%} to {early.upper:.1%}"
        table.add_row(escape(segment.name), *counts, *share, median, f"{confident.mean_exposure:.3f}")
    return table


# --- the report ---------------------------------------------------------------------------------------------


def report(
    *,
    context: typer.Context,
    directories: opt.DirsArgument,
    out_files: Annotated[list[Path] | None, opt.results(*Result.SUFFIXES, *TABLE_SUFFIXES)] = None,
    labels: opt.Labels = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    data: opt.SomeData = None,
    by: opt.ByColumns = None,
    model: opt.SomeModel = None,
    min_confidence: opt.MinConfidence = None,
    stress: Annotated[Path | None, opt.STRESS] = None,
    risk: opt.Risk = 0.02,
    reliability: opt.Reliability = None,
    parity: opt.Parities = None,
    values: opt.Values = False,
    author: opt.Author = None,
    purpose: opt.Purpose = None,
    date: opt.Date = None,
    public_key: opt.PublicKey = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Report on one audit, or compare several.

    The report shows what predictions rest on, which segments are exposed, and which cases to look at. Without --out,
    DIR/report.html is written; for several audits, a comparison is printed. Files open offline, and the same audits
    give the same bytes. Tables (.csv, .parquet) list each row in the first audit and in the others.

    [bold]Examples[/bold]

      fragility report audit/ --labels test.parquet --target class --out report.html

      fragility report audit/ --data test.parquet --by age:25,40,60 --by sex

      fragility report audit-logistic/ audit-boosting/ --out models.html --out changes.csv
    """
    from fragility.parity import ModelParity
    from fragility.questions.reliability.outcomes import FailureProbability
    from fragility.report import REPORT_FILE, Report, is_report, verify_command

    if data is None:
        refuse_without("--data", context, "model")
        if labels is None:
            refuse_without("--labels or --data", context, "target", "id_column")
    if model is None:
        refuse_without("--model", context, "classes", "trust", "returns")
    if not parity:
        refuse_without("--parity", context, "values")
    audits = {str(directory): fg.open_audit(directory) for directory in directories}
    if len(audits) < len(directories):
        raise DataError("an audit is named twice; name each folder once")
    several, beside = len(audits) > 1, directories[0] / REPORT_FILE
    files = out_files or ([] if several else [beside])
    inputs = {"--labels": labels, "--stress": stress, "--data": data, "--model": model, "--public-key": public_key}
    inputs |= {"--reliability": reliability, **{f"--parity {path}": path for path in parity or ()}}
    plan_results(files, Report.SUFFIXES if several else Result.SUFFIXES, inputs)
    if not out_files and not several and beside.exists() and not is_report(beside):
        raise DataError(f"{beside} exists and is not a report of fragility's; choose another name with --out")
    form = csv.form(labels, stress, data)
    rows = open_rows(data, by, next(iter(audits.values())).protocol, id_column, form)
    truth = read_labels(labels, target, id_column, form)
    if rows is not None and labels is None and target is not None:
        if target not in rows.column_names:
            raise DataError(f"--target names the column {target!r}, which the rows of --data do not have")
        truth = read_own_labels(rows, target)
    verify = None
    if model is not None and data is not None:
        sources = list_sources(model, data, target, id_column, csv, loading)
        verify = [verify_command(folder, *sources) for folder in directories]
    result = Report.of(
        audits,
        verify=verify,
        labels=truth,
        brittle=None if stress is None else read_stress_labels(stress, form),
        min_confidence=min_confidence,
        risk=risk,
        rows=rows,
        by=by or (),
        model=None if model is None else loading.load(model),
        author=author,
        purpose=purpose,
        date=date,
        parity=[ModelParity.load(path) for path in parity or ()],
        values=values,
        reliability=None if reliability is None else FailureProbability.load(reliability),
        signed_by=None if public_key is None else [_find_signer(folder, public_key) for folder in directories],
    )
    if not files:
        say(result.to_text())
    save_result(result, files)


def _find_signer(folder: Path, public_key: Path) -> str:
    """Return the id of the key that signed an audit; refuse an audit that it did not sign."""
    from fragility.trust.signing import load_public_key

    outcome = fg.verify_signature(folder, public_key)
    if not outcome:
        failed = next(check for check in outcome.checks if not check.passed)
        raise VerificationError(f"the signature of {folder} is not valid ({failed.name}: {failed.detail})")
    return str(load_public_key(public_key).keyid[:16])
