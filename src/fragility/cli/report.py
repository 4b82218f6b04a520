"""`fragility report`: one file that a validator hands over, about one audit or several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fragility as fg
from fragility.cli.group import READ
from fragility.cli.options import Decimal, Encoding, Id, MinConfidence, Separator, Target
from fragility.cli.outputs import plan_files
from fragility.cli.reading import read_labels, refuse_without_labels
from fragility.cli.tables import csv_format, read_stress_labels
from fragility.cli.terminal import note
from fragility.errors import DataError
from fragility.saving import checked_suffix

if TYPE_CHECKING:
    from fragility.report import Audit

Directories = Annotated[
    list[Path],
    typer.Argument(metavar="DIR...", help="Folders that `fragility audit` wrote; several are put side by side."),
]
Labels = Annotated[
    Path | None,
    typer.Option("--labels", metavar="FILE", help="A table with the true classes (see --target), for accuracy."),
]
StressLabels = Annotated[
    Path | None,
    typer.Option("--stress", metavar="FILE", help="Held-out labels, as `fragility stress --out` writes them."),
]
Risk = Annotated[
    float, typer.Option("--risk", min=0.0, max=1.0, help="The rate the review policy keeps to among unreviewed rows.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="What to write: .html, .md or .json. (default DIR/report.html)"),
]


def register(app: typer.Typer) -> None:
    app.command("report", rich_help_panel=READ)(report)


def report(
    context: typer.Context,
    directories: Directories,
    labels: Labels = None,
    target: Target = None,
    id_column: Id = None,
    stress: StressLabels = None,
    min_confidence: MinConfidence = 0.9,
    risk: Risk = 0.02,
    out_file: Out = None,
    separator: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
) -> None:
    """Write a report about one audit or several: what predictions rest on, who is exposed, which cases to look at.

    One file that opens offline. The same audits give the same bytes, and its size does not grow with their rows.

    [bold]Examples[/bold]

      fragility report audit/

      fragility report audit/ --labels test.parquet --target class --out report.html

      fragility report audit-logistic/ audit-boosting/ --out models.md
    """
    from fragility.report import REPORT_FILE, SUFFIXES, Report, is_report

    if labels is None:
        refuse_without_labels(context)
    audits = {str(directory): fg.open_audit(directory) for directory in directories}
    if len(audits) < len(directories):
        raise DataError("an audit is named twice; name each folder once")
    target_file = out_file if out_file is not None else _default_out(directories, REPORT_FILE)
    checked_suffix(target_file, SUFFIXES)
    plan_files({"--out": target_file}, {"--labels": labels, "--stress": stress})
    if out_file is None and target_file.exists() and not is_report(target_file):
        raise DataError(f"{target_file} exists and is not a report of fragility's; choose another name with --out")
    form = csv_format(separator, encoding, decimal, labels, stress)
    truth = read_labels(labels, target, id_column, form)
    brittle = None if stress is None else read_stress_labels(stress, "--stress", form)
    made = Report.of(audits, labels=truth, brittle=brittle, min_confidence=min_confidence, risk=risk)
    made.save(target_file)
    note(f"written to {target_file}")


def _default_out(directories: list[Path], name: str) -> Path:
    if len(directories) > 1:
        raise DataError("a report about several audits belongs to none of their folders; name its file with --out")
    return directories[0] / name


def save_after_audit(certs: Audit, folder: Path, labels: Mapping[Any, Any] | None, words: list[str]) -> None:
    """Write DIR/report.html after an audit; `words` say how to verify it. A file of somebody else's stays."""
    from fragility.report import REPORT_FILE, Report, save_beside, verify_command

    made = Report.of(certs, name=str(folder), labels=labels, verify=verify_command(folder, *words))
    if save_beside(made, folder) is None:
        note(
            f"{folder / REPORT_FILE} is not a report of fragility's and was left alone; write one with fragility report"
        )
