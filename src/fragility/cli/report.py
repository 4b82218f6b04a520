"""`fragility report`: one file that a validator hands over, about one audit or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError, VerificationError
from fragility.cli.options import MODEL_HELP, argument, option, refuse_without
from fragility.cli.outputs import list_sources, plan_files
from fragility.cli.reading import open_rows, read_labels
from fragility.cli.tables import read_own_labels, read_stress_labels
from fragility.cli.terminal import note
from fragility.pages.results import checked_suffix


def report(
    *,
    context: typer.Context,
    directories: Annotated[
        list[Path], argument("DIR...", "Folders that `fragility audit` wrote; several are put side by side.")
    ],
    data: opt.AuditedRows = None,
    by: opt.ByColumns = None,
    labels: opt.Labels = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    stress: Annotated[
        Path | None, option("--stress FILE", "Held-out labels, as `fragility stress --out` writes them.")
    ] = None,
    parity: Annotated[
        list[Path] | None,
        option("--parity FILE", "A comparison that `fragility parity` wrote as JSON. May be repeated."),
    ] = None,
    values: Annotated[
        bool, option("--values", "Keep the values of rows in the examples of --parity; else they name fields alone.")
    ] = False,
    reliability: Annotated[
        Path | None,
        option(
            "--reliability FILE",
            "What to make reliable first: the JSON file that `fragility reliability` wrote about the audited rows.",
        ),
    ] = None,
    min_confidence: opt.MinConfidence = None,
    risk: Annotated[
        float, option("--risk", "The rate the review policy keeps to among unreviewed rows.", min=0.0, max=1.0)
    ] = 0.02,
    model: Annotated[
        str | None, option("--model MODEL", f"The audited model, to tell what replaces a value. {MODEL_HELP}")
    ] = None,
    author: Annotated[str | None, option("--author NAME", "Who makes the report.")] = None,
    purpose: Annotated[str | None, option("--purpose TEXT", "What the report is made for.")] = None,
    date: Annotated[str | None, option("--date DATE", "The date to state; none is looked up, so bytes repeat.")] = None,
    public_key: Annotated[
        Path | None, option("--public-key PUB", "Verify the signature of each audit with this key, and state it.")
    ] = None,
    out_file: Annotated[
        Path | None, option("--out FILE", "What to write: .html, .md, .txt or .json. (default DIR/report.html)")
    ] = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Write a report about one audit or several: what predictions rest on, who is exposed, which cases to look at.

    One file that opens offline. The same audits give the same bytes, and its size does not grow with their rows.

    [bold]Examples[/bold]

      fragility report audit/

      fragility report audit/ --labels test.parquet --target class --out report.html

      fragility report audit/ --data test.parquet --by age:25,40,60 --by sex --model model.skops

      fragility report audit/ --reliability lost.json

      fragility report audit/ --author "M. Okafor" --purpose "annual review" --date 2026-11-16 --public-key audit.pub

      fragility report audit-logistic/ audit-boosting/ --out models.md
    """
    from fragility.parity import ModelParity
    from fragility.questions.reliability.outcomes import FailureProbability
    from fragility.report import REPORT_FILE, Report, is_report, verify_command

    if data is None:
        refuse_without("--data", context, "model")
    if data is None and labels is None:
        refuse_without("--labels or --data", context, "target", "id_column")
    if model is None:
        refuse_without("--model", context, "classes", "trust", "returns")
    if not parity:
        refuse_without("--parity", context, "values")
    audits = {str(directory): fg.open_audit(directory) for directory in directories}
    if len(audits) < len(directories):
        raise DataError("an audit is named twice; name each folder once")
    if out_file is None and len(directories) > 1:
        raise DataError("a report about several audits belongs to none of their folders; name its file with --out")
    target_file = directories[0] / REPORT_FILE if out_file is None else out_file
    checked_suffix(target_file, Report.SUFFIXES)
    inputs = {"--labels": labels, "--stress": stress, "--data": data, "--model": model, "--public-key": public_key}
    inputs |= {"--reliability": reliability}
    plan_files({"--out": target_file}, inputs | {f"--parity {path}": path for path in parity or ()})
    if out_file is None and target_file.exists() and not is_report(target_file):
        raise DataError(f"{target_file} exists and is not a report of fragility's; choose another name with --out")
    form = csv.form(labels, stress, data)
    rows = open_rows(data, by, next(iter(audits.values())).protocol, id_column, form)
    truth = read_labels(labels, target, id_column, form)
    if rows is not None and labels is None and target is not None:
        if target not in rows.column_names:
            raise DataError(f"--target names the column {target!r}, which the rows of --data do not have")
        truth = read_own_labels(rows, target)
    made = Report.of(
        audits,
        verify=None
        if model is None or data is None
        else [
            verify_command(folder, *list_sources(model, data, target, id_column, csv, loading))
            for folder in directories
        ],
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
    made.save(target_file)
    note(f"written to {target_file}")


def _find_signer(folder: Path, public_key: Path) -> str:
    """Return the key that signed an audit; an audit that it did not sign is refused."""
    from fragility.trust.signing import load_public_key

    outcome = fg.verify_signature(folder, public_key)
    if not outcome:
        failed = next(check for check in outcome.checks if not check.passed)
        raise VerificationError(f"the signature of {folder} does not hold ({failed.name}: {failed.detail})")
    return str(load_public_key(public_key).keyid[:16])
