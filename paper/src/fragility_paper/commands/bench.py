"""fragility bench: what a certificate costs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fragility.base.errors import DataError
from fragility.cli.terminal import note
from fragility_paper.bench import MODELS
from fragility_paper.bench.goals import Sizes, run_goals
from fragility_paper.bench.report import markdown, report, save_report
from fragility_paper.bench.runs import Growth, run_memory, run_models, run_scaling

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
def bench(
    dataset: Annotated[list[str] | None, typer.Option(help="Data sets to audit; default adult and covertype.")] = None,
    model: Annotated[list[str] | None, typer.Option(help=f"Models: {', '.join(MODELS)}. Default: all.")] = None,
    rows: Annotated[int | None, typer.Option(help="Rows to audit; default 10000.", min=1)] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Alternating repeats, medians of which are reported; default 7.", min=1)
    ] = None,
    goals: Annotated[
        bool, typer.Option("--goals", help="Measure the goals instead, each in two rounds, on sizes of their own.")
    ] = False,
    scaling: Annotated[
        bool, typer.Option(help="Also measure growth with rows, groups, classes, trees and depth, and peak memory.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; default FRAGILITY_DATA.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write everything measured to this JSON file.")] = None,
) -> None:
    """Time full certificates against one native prediction pass, the black box and TreeExplainer, in one run.

    Example: fragility bench --dataset adult --model LogisticRegression
    """
    if goals:
        if dataset or model or rows:
            raise DataError("--goals has data, models and rows of its own; leave out --dataset, --model and --rows")
        often = repeats or 3
        found: dict[str, Any] = {"goals": run_goals(Sizes(repeats=often, data=data), note)}
    else:
        often = repeats or 7
        chosen = dataset or ["adult", "covertype"], model or list(MODELS)
        found = {"models": run_models(*chosen, rows or 10_000, often, data, note)}
    if scaling:
        found |= {"scaling": run_scaling(data, Growth(), note), "memory": run_memory(data, (1_000_000,), note)}
    document = report(often, **found)
    if out is not None:
        save_report(document, out)
    typer.echo(markdown(document))
