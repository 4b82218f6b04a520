"""`fragility demo`: the whole way, on the bundled data, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fragility.cli.group import START
from fragility.cli.outputs import plan_folder
from fragility.cli.reading import fragile_table
from fragility.cli.terminal import note, out

if TYPE_CHECKING:
    from fragility.demo import Demo

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.")]


def register(app: typer.Typer) -> None:
    app.command("demo", rich_help_panel=START)(demo)


def demo(out_dir: Out = Path("demo-audit")) -> None:
    """Train a credit model on the bundled data, audit it, explain what it rests on, and write demo-audit/.

    [bold]Examples[/bold]

      fragility demo

      fragility demo --out credit/
    """
    from fragility.demo import run_demo

    plan_folder(out_dir)
    _print(run_demo(out_dir))


def _print(made: Demo) -> None:
    console, summary = out(), made.summary
    console.print(
        f"A gradient boosting model, right on {summary.accuracy:.0%} of {summary.rows} held-out loan applications. "
        f"{summary.confident} predictions are at least {summary.min_confidence:.0%} confident, "
        f"and {summary.confident_flips_within_two:.0%} of those flip when one or two fields are lost.\n"
    )
    console.print("The confident predictions that rest on least:")
    console.print(fragile_table(made.most_fragile))
    console.print(_mended(made))
    folder, first = made.folder, made.most_fragile[0].id
    source = f"--model {folder}/model.skops --trust --data {folder}/test.parquet --target class"
    console.print(f"\nWritten: {folder}/ with certificates, protocol, model and rows; open {made.page}")
    note("data: Statlog (German Credit Data), Hans Hofmann, UCI Machine Learning Repository, CC BY 4.0")
    note("next:")
    note(f"  fragility show {folder} --row {first}")
    note(f"  fragility verify {folder} {source}")
    note(f"  fragility review {folder} {source}")
    rows = f"{folder}/test.parquet --trust --protocol {folder} --target class"
    note(f"  fragility audit {made.hardened} {rows} --out {folder}-hardened")
    note(f"  fragility compare {folder} {folder}-hardened")


def _mended(made: Demo) -> str:
    """Return what hardening did to the model, cost included."""
    before, after = made.mending.before, made.mending.after
    assert before.quality is not None and after.quality is not None
    one, two = (before.flip_after_one, after.flip_after_one), (before.flip_within_two, after.flip_within_two)
    return (
        "\nMended: the same model, trained also on copies of its rows in which fields are lost. Of its confident "
        f"predictions {one[1]:.1%} flip when one field is lost, before {one[0]:.1%}; {two[1]:.1%} when one or two are, "
        f"before {two[0]:.1%}; {after.brittle_share:.1%} break under random losses, before {before.brittle_share:.1%}. "
        f"The price: AUROC {after.quality.auroc:.3f}, before {before.quality.auroc:.3f}; accuracy "
        f"{after.quality.accuracy:.1%}, before {before.quality.accuracy:.1%}."
    )
