"""fragility bench: what a certificate costs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fragility.bench import MODELS, markdown, report, run_models, run_scaling, save_report
from fragility.cli.terminal import note


def bench(
    dataset: Annotated[list[str] | None, typer.Option(help="Data sets to audit; default adult and covertype.")] = None,
    model: Annotated[list[str] | None, typer.Option(help=f"Models: {', '.join(MODELS)}. Default: all.")] = None,
    rows: Annotated[int, typer.Option(help="Rows to audit.", min=1)] = 10_000,
    repeats: Annotated[int, typer.Option(help="Alternating repeats; medians are reported.", min=1)] = 7,
    scaling: Annotated[bool, typer.Option(help="Also measure growth with rows, groups, trees and depth.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; default FRAGILITY_DATA.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write everything measured to this JSON file.")] = None,
) -> None:
    """Time full certificates against one native prediction pass, the black box and TreeExplainer, in one run.

    Example: fragility bench --dataset adult --model LogisticRegression
    """
    costs = run_models(dataset or ["adult", "covertype"], model or list(MODELS), rows, repeats, data, note)
    grown = run_scaling(data, (10_000, 100_000, 581_012), note) if scaling else []
    document = report(costs, grown, repeats)
    if out is not None:
        save_report(document, out)
    typer.echo(markdown(document))


app = typer.Typer(add_completion=False)
app.command()(bench)
