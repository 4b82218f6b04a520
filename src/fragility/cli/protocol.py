"""`fragility protocol write|show`: declare what an audit will do, before any row is audited."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import ProtocolError
from fragility.cli.group import Command
from fragility.cli.options import (
    argument,
    is_given,
    load_protocol,
    option,
    parse_numbers,
    refuse_declared,
)
from fragility.cli.outputs import plan_files
from fragility.cli.tables import read_training
from fragility.cli.terminal import out
from fragility.pages.wording import write_count

if TYPE_CHECKING:
    from fragility.evidence.modes import FailureModes

FileArgument = Annotated[Path, argument("FILE", "The protocol file (JSON).")]


DECLARED_BY_PAPER = (
    *("reading", "baseline", "baseline_units", "depth"),
    *("operators", "severities", "weights", "smoothing"),
)


def write(
    *,
    context: typer.Context,
    file: FileArgument,
    model: Annotated[str, opt.MODEL],
    train: Annotated[Path, opt.TRAIN],
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    loading: opt.LoadingOptions,
    evidence: opt.EvidenceOptions,
    margin: opt.MarginOptions,
    operators: Annotated[
        str | None,
        option("--operators A,B", "Attenuation operators. (default attenuate_all,attenuate_top1)", panel=opt.PROTOCOL),
    ] = None,
    severities: Annotated[
        str | None, option("--severities A,B", "The severity grid. (default 0.1,0.2,...,1.0)", panel=opt.PROTOCOL)
    ] = None,
    weights: Annotated[
        str | None,
        option("--weights A,B,C", "FDS weights of collapse, flip and degradation. (default equal)", panel=opt.PROTOCOL),
    ] = None,
    resolution: Annotated[
        float | None,
        option(
            "--resolution R",
            "Margins this close count as equal, so that rounding cannot decide. (default: the model's precision)",
            min=0.0,
            panel=opt.PROTOCOL,
        ),
    ] = None,
    merge_threshold: Annotated[
        float,
        option(
            "--merge-threshold A",
            "Fields whose association reaches A are joined by --groups merged.",
            min=0.0,
            max=1.0,
            panel=opt.PROTOCOL,
        ),
    ] = 0.8,
    paper: Annotated[
        bool, option("--paper", "The paper's protocol: current reading, mean baseline, depth 10, no smoothing.")
    ] = False,
    csv: opt.CsvOptions,
) -> None:
    """Fit a protocol on training rows and write it as JSON.

    [bold]Examples[/bold]

      fragility protocol write protocol.json --model model.skops --train train.parquet --target class

      fragility protocol write protocol.json --model model.skops --train train.parquet --target class --baseline mean

      fragility protocol write paper.json --model model.skops --train train.parquet --target class --paper
    """
    if paper:
        refuse_declared(context, "--paper", DECLARED_BY_PAPER)
    if evidence.groups != "merged" and is_given(context, "merge_threshold"):
        raise ProtocolError(
            "--merge-threshold decides which fields --groups merged joins; add --groups merged or leave it out"
        )
    plan_files({"FILE": file}, {"--model": model, "--train": train})
    form = csv.form(train)
    settings = evidence.settings() | {
        "operators": None if operators is None else tuple(operators.split(",")),
        "severities": parse_numbers(severities, "--severities"),
        "weights": parse_numbers(weights, "--weights"),
        "resolution": resolution,
        "merge_threshold": merge_threshold,
    }
    loaded = loading.load(model)
    table_columns = columns.declare(loaded.columns, target)
    X_train = read_training(train, table_columns, form)
    table_columns.check_dropped()
    settings |= margin.settings(loaded.classes)
    undeclared = DECLARED_BY_PAPER if paper else ()
    arguments = {name: value for name, value in settings.items() if value is not None and name not in undeclared}
    protocol = (fg.Protocol.paper if paper else fg.Protocol.fit)(loaded, X_train, **arguments)
    protocol.save(file)
    out().print(f"{file}: {len(protocol.groups)} evidence groups, depth {protocol.depth}, {protocol.digest}")


def show(file: opt.ProtocolArgument) -> None:
    """Print a protocol: the groups, their columns, the baseline and the settings.

    [bold]Examples[/bold]

      fragility protocol show protocol.json

      fragility protocol show audit/
    """
    protocol = load_protocol(file)
    console = out()
    for name, value in (
        ("evidence space", protocol.space),
        ("grouping", str(protocol.grouping)),
        ("baseline", str(protocol.baseline)),
        ("artificial", ", ".join(protocol.artificial) or "none"),
        ("alternatives", ", ".join(protocol.alternatives) or "none"),
        ("refused", ", ".join(protocol.refused) or "none"),
        ("depth", str(protocol.depth)),
        ("reading", protocol.reading),
        ("decision", "the largest probability" if protocol.decision is None else str(protocol.decision)),
        ("operators", ", ".join(protocol.operators)),
        ("severities", ", ".join(f"{s:g}" for s in protocol.severities)),
        ("weights", ", ".join(f"{w:.4g}" for w in protocol.weights)),
        ("resolution", f"{protocol.resolution:g}"),
        ("smoothing", f"{protocol.smoothing:g}"),
        ("failure modes", ", ".join(protocol.modes.declared) or "none"),
        *_list_mode_facts(protocol.modes),
        ("training data", str(protocol.training_digest)),
        ("digest", protocol.digest),
    ):
        console.print(f"[bold]{name:<16}[/bold]{escape(value)}", soft_wrap=True)
    columns = {column.name: column for column in protocol.columns}
    table = Table("evidence group", "column", "kind", "baseline")
    for group in protocol.groups:
        for i, name in enumerate(group.columns):
            column = columns[name]
            baseline = "missing" if column.baseline is None else column.baseline
            value = f"{baseline:.6g}" if isinstance(baseline, float) else str(baseline)
            table.add_row(escape(group.name) if i == 0 else "", escape(name), column.kind, escape(value))
    console.print(table)
    if protocol.space == "transformed" and protocol.inputs:
        console.print(
            "Baselines are in the units of the model's transformed columns (for example scaled or encoded). A report "
            "with --data and --model shows the raw values and their replacements.",
            soft_wrap=True,
        )
    else:
        console.print("Baselines are raw values.")


def _list_mode_facts(modes: FailureModes) -> list[tuple[str, str]]:
    """Return the values that evidence takes in the declared failure modes, in words."""
    values = sum(len(entry.values) for entry in modes.catalogue)
    facts = {
        "wrong": ("catalogue", f"{values:,} values of {write_count(len(modes.catalogue), 'group')}"),
        "noisy": ("noise", f"{modes.noise:g} training standard deviations"),
        "sentinel": (
            "sentinels",
            "; ".join(f"{entry.field}: {', '.join(map(str, entry.values))}" for entry in modes.sentinels),
        ),
        "outage": ("outages", write_count(sum(event.count for event in modes.outages), "recorded event")),
    }
    return [fact for mode, fact in facts.items() if mode in modes.declared]


group = typer.Typer(
    name="protocol",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Write or show the protocol of an audit, before any row is audited.",
)
for command in (write, show):
    group.command(command.__name__, cls=Command)(opt.expand_groups(command))
