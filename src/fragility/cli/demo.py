"""`fragility demo`: train, audit and explain on the bundled data, in one command."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from rich.table import Column, Table

from fragility.cli.audit import dependence_lines
from fragility.cli.options import OUT_FOLDER
from fragility.cli.outputs import plan_folder
from fragility.cli.review import say_lacking_workbench
from fragility.cli.terminal import note, note_command, out
from fragility.pages.terms import MINIMUM
from fragility.pages.wording import join_names

if TYPE_CHECKING:
    from fragility.cli.demo_audit import Demo


def demo(out_dir: Annotated[Path, OUT_FOLDER] = Path("demo-audit")) -> None:
    """Audit a credit model on bundled data, and explain the finding.

    It trains the model, audits it, says what to make reliable first, and writes demo-audit/ with a report.

    [bold]Examples[/bold]

      fragility demo

      fragility demo --out credit/
    """
    from fragility.cli.demo_audit import run_demo
    from fragility.report.sentences import write_headline

    plan_folder(out_dir)
    made = run_demo(out_dir)
    summary = made.summary
    _print_lines(
        f"A gradient boosting model, right on {summary['accuracy'].value:.0%} of {summary.rows} held-out loan "
        "applications. "
        f"{summary['confident'].count} predictions are at least {summary.min_confidence:.0%} confident.",
        *write_headline(made.report.summary.audits[0]),
        "",
        "A lost field takes a typical value. Does the finding depend on that choice? Under other baselines:",
        *dependence_lines(made.certs),
    )
    _print_failing_sets(made)
    _print_lines(
        "",
        "Which field to make reliable first? These data do not record how often fields are missing. The table assumes "
        "that all fields are missing equally often and independently:",
        *made.reliability.group_lines(),
        "",
        f"Written: {out_dir}/ with certificates, protocol, model and rows; open {made.page}",
    )
    note("data: Statlog (German Credit Data), Hans Hofmann, UCI Machine Learning Repository, CC BY 4.0")
    note("next: one prediction's story; recompute every claim; shares by age; decide case by case")
    rows = ("--data", out_dir / "test.parquet", "--target", "class")
    note_command("fragility", "show", out_dir, "--row", made.most_fragile[0].id)
    note_command("fragility", "verify", out_dir, *made.sources)
    note_command("fragility", "report", out_dir, *rows, "--by", "age:25,40,60", "--out", out_dir / "by-age.html")
    note_command("fragility", "review", out_dir, *made.sources)
    if lacking := say_lacking_workbench():
        note(f"  {lacking}")


def _print_failing_sets(made: Demo) -> None:
    """Print the smallest failing sets of the most fragile confident predictions, and how often each size occurs."""
    sure = made.certs.take(made.certs.claims.confidence >= made.summary.min_confidence)
    summary, sizes = sure.summary(), Counter(cert.smallest_size for cert in sure if cert.smallest_state == MINIMUM)
    more = sum(sizes.values()) - sizes[1] - sizes[2]
    loan, confidence, count = (Column(name, justify="right") for name in ("loan", "confidence", "sets of that size"))
    table = Table(loan, "decision", confidence, "flips when lost", count)
    for cert in made.most_fragile:
        # Of several smallest sets the one on the path, as in `show` and the report.
        fields = join_names((cert.fewer_suffice and cert.smallest_set) or cert.failing_groups)
        table.add_row(str(cert.id), str(cert.predicted), f"{cert.confidence:.0%}", fields, str(cert.smallest_count))
    _print_lines("", "The most exposed confident predictions, and the fewest fields whose loss flips each:")
    out().print(table)
    _print_lines(
        f"Of the {len(sure)} confident predictions {sizes[1]} flip when one field is lost, {sizes[2]} only when two "
        f"are, {more} only when three or more are. {summary['proved'].count} hold whatever is lost; "
        f"{summary['unsettled'].count} are not settled."
    )


def _print_lines(*lines: str) -> None:
    for line in lines:
        out().print(escape(line))
