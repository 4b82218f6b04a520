"""`fragility study`: run the paper's study, see how far it is, and make its tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from fragility.base.errors import DataError
from fragility.cli.terminal import err, out
from fragility_paper.baseline_page import baseline_document
from fragility_paper.figures import write_figures
from fragility_paper.folders import Status, saved_profile, study_status
from fragility_paper.hardening_page import hardening_document
from fragility_paper.library import Device, write_text
from fragility_paper.mode_hardening_page import mode_hardening_document
from fragility_paper.modes_page import modes_document
from fragility_paper.plan import PROFILES, Study, profile_named
from fragility_paper.reproduction import reproduction_document
from fragility_paper.results import TIMINGS_FILE, StudyResults, read_study, save_results
from fragility_paper.run import Event, run_study
from fragility_paper.tables import tables_of

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Reproduce the paper's study: run, status, tables, figures.",
)

PAGES: dict[Study, Callable[[StudyResults], str]] = {
    "ranking": reproduction_document,
    "baselines": baseline_document,
    "hardening": hardening_document,
    "modes": modes_document,
    "mode-hardening": mode_hardening_document,
}
COMMITTED = Path("paper/results")
TIMINGS = COMMITTED / TIMINGS_FILE
RunFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run folder, or a folder with committed results.", show_default=False)
]


@app.command()
def run(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help=f"One of {', '.join(PROFILES)}.")] = "quick",
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the unit folders go.")] = Path("study"),
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Folder with the data sets. (default $FRAGILITY_DATA)"),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Units at a time; each takes one thread.")] = 1,
    full: Annotated[bool, typer.Option("--full", help="Lift the declared caps on training rows.")] = False,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Keep trained models, so that a re-run only audits.")
    ] = False,
    models_only: Annotated[
        bool, typer.Option("--models-only", help="Train and keep the models; audit them in a later run.")
    ] = False,
    dataset: Annotated[
        list[str] | None, typer.Option("--dataset", metavar="NAME", help="Only units of this data set; repeatable.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="Only units of this model; repeatable.")
    ] = None,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME", help="Audit engine; changes no result.")] = "auto",
    timings: Annotated[
        Path | None,
        typer.Option(
            "--timings", metavar="FILE", help=f"Seconds of an earlier run, for the order. (default {TIMINGS})"
        ),
    ] = None,
    device: Annotated[
        Device, typer.Option("--device", metavar="NAME", help="Where ResMLP runs: cpu, cuda, or auto. (default cpu)")
    ] = "cpu",
) -> None:
    """Run every unit of a profile that is not finished yet; with several jobs the longest first.

    [dim]fragility study run smoke --out study-smoke[/dim]
    """
    status = run_study(
        profile_named(profile, full=full, device=device),
        folder,
        data=data,
        jobs=jobs,
        keep_models=keep_models,
        models_only=models_only,
        engine=engine,
        datasets=dataset or (),
        models=model or (),
        timings=_known_timings(timings, jobs),
        listener=_announce,
    )
    if models_only:
        return
    _print_status(status, folder)
    if status.failed:
        raise typer.Exit(1)


def _known_timings(path: Path | None, jobs: int) -> pd.DataFrame | None:
    """Timings that order the units: those asked for, or for several jobs the committed ones, where they are."""
    if path is not None and not path.is_file():
        raise DataError(f"{path} not found; expected the timings.parquet that `fragility study tables --results` wrote")
    if path is None and (jobs == 1 or not TIMINGS.is_file()):
        return None
    return pd.read_parquet(path or TIMINGS)


def _announce(event: Event) -> None:
    left = int(event.left)
    state = "done" if event.ok else "[red]failed[/red]"
    err().print(
        f"[{event.finished}/{event.planned}] {event.unit} {state} in {event.seconds:.0f} s; "
        f"about {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left",
        markup=True,
    )


@app.command()
def status(folder: RunFolder) -> None:
    """Say how many units are done, failed and waiting.

    [dim]fragility study status study-smoke[/dim]
    """
    _print_status(study_status(saved_profile(folder), folder), folder)


def _print_status(found: Status, folder: Path) -> None:
    out().print(
        f"{len(found.done)} of {len(found.planned)} units done, {len(found.failed)} failed, "
        f"{len(found.waiting)} waiting"
    )
    for unit in found.failed:
        out().print(f"  failed: {unit}; see {folder / 'failed'}")


@app.command()
def tables(
    folder: RunFolder = COMMITTED,
    results: Annotated[
        Path | None, typer.Option("--results", metavar="DIR", help="Also write the tidy results of a run here.")
    ] = None,
    name: Annotated[str | None, typer.Option("--table", metavar="NAME", help="Only this table.")] = None,
    write_docs: Annotated[
        Path | None, typer.Option("--write-docs", metavar="FILE", help="Write the whole page of these results here.")
    ] = None,
) -> None:
    """Print the paper's tables from finished units, each beside the paper's value.

    [dim]fragility study tables paper/results --table scores[/dim]
    """
    found = read_study(folder)
    known = tables_of(found)
    if name is not None and name not in known:
        raise DataError(f"unknown table {name!r}; expected one of {', '.join(known)}")
    if results is not None:
        save_results(found, results)
    if write_docs is not None:
        write_text(write_docs, _page(found))
    if name is None and (results is not None or write_docs is not None):
        return
    for key in known if name is None else [name]:
        typer.echo(known[key](found).to_markdown())


def _page(found: StudyResults) -> str:
    return PAGES[found.study](found)


@app.command()
def figures(
    folder: RunFolder = COMMITTED,
    target: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the PNG files go.")] = Path("figures"),
) -> None:
    """Draw the paper's figures from finished units.

    [dim]fragility study figures paper/results --out paper/pages/images/reproduction[/dim]
    """
    for path in write_figures(read_study(folder), target):
        typer.echo(str(path))
