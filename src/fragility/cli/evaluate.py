"""`fragility stress` and `fragility evaluate`: held-out brittle labels, and what a ranking is worth against them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.cli.options import is_given, load_inputs, load_model, read_name_or_json
from fragility.cli.outputs import plan_files, save_result
from fragility.cli.reading import take_given
from fragility.cli.tables import Columns, csv_format, field_names, note_unlabelled, read_rows, read_table
from fragility.cli.terminal import err, note, say
from fragility.errors import DataError
from fragility.saving import TABLE_SUFFIXES, checked_suffix

if TYPE_CHECKING:
    from fragility.formats import CsvFormat

Severity = Annotated[
    float, typer.Option("--severity", min=0.0, max=1.0, help="Rate of mask and dropout, extent of noise.")
]
Draws = Annotated[int, typer.Option("--draws", min=1, help="Random draws for each row and stressor.")]
Rule = Annotated[
    str, typer.Option("--rule", metavar="NAME", help="expected (mean margin over draws) or any (a single draw).")
]
TauConfidence = Annotated[
    float, typer.Option("--tau-confidence", min=0.0, max=1.0, help="Where a prediction counts as high-confidence.")
]
TauCollapse = Annotated[
    float, typer.Option("--tau-collapse", min=0.0, help="Share of its margin a prediction must lose to be brittle.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the random draws.")]
OutageLog = Annotated[
    Path | None,
    typer.Option(
        "--outages",
        metavar="FILE",
        help="Stress with recorded outages instead: a table of event and field, of booleans, or rows for --markers.",
    ),
]
Markers = Annotated[
    str | None,
    typer.Option(
        "--markers",
        metavar="A,B",
        help="Values of the --outages rows that mean 'unavailable' (null: missing), or a JSON file "
        "{field: \\[values]}.",
    ),
]
LabelsOut = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the labels, one row a prediction (.parquet, .csv).")
]
Validation = Annotated[
    Path | None, typer.Option("--validation", metavar="FILE", help="Rows on which each baseline's direction is chosen.")
]
ShapRows = Annotated[
    int, typer.Option("--shap", metavar="N", min=0, help="Explain N rows for the group-SHAP baseline; 0 leaves it out.")
]
By = Annotated[str, typer.Option("--by", metavar="SCORE", help="The ranking to judge: exposure, or the paper's fds.")]
RandomOrders = Annotated[
    int, typer.Option("--random-orders", metavar="N", min=0, help="Random group orders to average; 0 leaves them out.")
]
CsvOut = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the table of scores as CSV.")]


def stress(
    context: typer.Context,
    protocol: opt.ProtocolArgument,
    model: opt.ModelOption,
    data: opt.DataOption,
    out_file: LabelsOut = None,
    outages: OutageLog = None,
    markers: Markers = None,
    severity: Severity = 0.3,
    draws: Draws = 16,
    rule: Rule = "expected",
    tau_confidence: TauConfidence = 0.90,
    tau_collapse: TauCollapse = 0.50,
    seed: Seed = 0,
    target: opt.Target = None,
    id_column: opt.Id = None,
    drop: opt.Drop = None,
    ignore_extra: opt.IgnoreExtra = False,
    rows: opt.RowRange = None,
    separator: opt.Separator = None,
    encoding: opt.Encoding = None,
    decimal: opt.Decimal = None,
    classes: opt.Classes = None,
    trust: opt.Trust = False,
) -> None:
    """Find which confident predictions break under random loss of evidence, or under your own recorded outages.

    These labels are held out: no certificate and no score uses them.

    [bold]Examples[/bold]

      fragility stress audit/ --model model.skops --data test.parquet --target class --out labels.parquet

      fragility stress audit/ --model model.skops --data test.parquet --outages outages.csv

      fragility stress audit/ --model model.skops --data test.parquet --outages train.parquet --markers '?,unknown'
    """
    from fragility.ranking.comparison import label_noise_ceiling
    from fragility.ranking.metrics import DEFINED

    _check_stress_options(context)
    if out_file is not None:
        checked_suffix(out_file, TABLE_SUFFIXES)
    plan_files({"--out": out_file}, {"--model": model, "--data": data, "--outages": outages})
    form = csv_format(separator, encoding, decimal, data, outages)
    declared = _declare_stress(outages, markers, form, severity, draws, rule, tau_confidence, tau_collapse, seed)
    loaded, pi, given = load_inputs(
        model, protocol, data, form, target=target, id_column=id_column, drop=drop, ignore_extra=ignore_extra,
        rows=rows, classes=classes, trust=trust,
    )  # fmt: skip
    with _working("stressing"):
        labels = fg.label_brittle(loaded, given.X, pi, declared, ids=given.ids)
        independent = fg.label_brittle(loaded, given.X, pi, declared.independent(), ids=given.ids)
    for name, count in labels.counts().items():
        say(f"{count:8d}  {name}")
    ceiling = label_noise_ceiling(labels, independent)
    shown = f"{ceiling.auroc:.3f}" if ceiling.state == DEFINED else ceiling.state
    say(f"Label-noise ceiling (AUROC of independent draws): {shown}")
    if out_file is not None:
        labels.save(out_file)
        note(f"labels written to {out_file}")


def evaluate(
    context: typer.Context,
    directory: opt.DirArgument,
    model: opt.ModelOption,
    data: opt.DataOption,
    validation: Validation = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    drop: opt.Drop = None,
    ignore_extra: opt.IgnoreExtra = False,
    shap: ShapRows = 0,
    by: By = "exposure",
    random_orders: RandomOrders = 5,
    json_file: opt.JsonOut = None,
    csv_file: CsvOut = None,
    outages: OutageLog = None,
    markers: Markers = None,
    severity: Severity = 0.3,
    draws: Draws = 16,
    rule: Rule = "expected",
    tau_confidence: TauConfidence = 0.90,
    tau_collapse: TauCollapse = 0.50,
    seed: Seed = 0,
    engine: opt.Engine = "auto",
    separator: opt.Separator = None,
    encoding: opt.Encoding = None,
    decimal: opt.Decimal = None,
    classes: opt.Classes = None,
    trust: opt.Trust = False,
) -> None:
    """Does exposure find the predictions that break under stress better than the model's confidence does?

    The audited rows are put under held-out stress, which no certificate has seen. Every score is judged by how well it
    finds the confident predictions that break; --by fds judges the paper's score instead of exposure.

    [bold]Examples[/bold]

      fragility evaluate audit/ --model model.skops --data test.parquet --target class

      fragility evaluate audit/ --model model.skops --data test.parquet --target class --validation valid.parquet

      fragility evaluate audit/ --model model.skops --data test.parquet --outages outages.csv --json evaluation.json
    """
    _check_stress_options(context)
    if is_given(context, "engine") and validation is None:
        raise DataError("--engine audits the --validation rows; name them with --validation or leave out --engine")
    plan_files(
        {"--json": json_file, "--csv": csv_file},
        {"--model": model, "--data": data, "--validation": validation, "--outages": outages},
    )
    form = csv_format(separator, encoding, decimal, data, validation, outages)
    declared = _declare_stress(outages, markers, form, severity, draws, rule, tau_confidence, tau_collapse, seed)
    audit = fg.open_audit(directory)
    loaded = load_model(model, classes, trust)
    columns = Columns.declare(field_names(loaded, audit.protocol), target, id_column, drop, ignore_extra)
    given = read_rows(data, columns, form=form)
    certs = take_given(audit, given.ids)
    held = None
    if validation is not None:
        found = read_rows(validation, columns, form=form, ids=False)
        held = found.X, found.labels
    columns.check_dropped()
    note_unlabelled(given.labels is not None, target, data)
    with _working("evaluating"):
        judged = fg.evaluate(
            certs,
            loaded,
            given.X,
            given.labels,
            validation=held,
            stress=declared,
            baselines=fg.Baselines(random_orders, shap),
            by=by,
            ids=given.ids,
            engine=engine,
            seed=seed,
        )
    say(judged.to_text())
    save_result(judged, json_file, csv_file)


def _working(what: str) -> AbstractContextManager[Any]:
    console = err()
    return console.status(what) if console.is_terminal else nullcontext()


def _check_stress_options(context: typer.Context) -> None:
    """Options that would have no effect beside others are refused."""
    if is_given(context, "markers") and not is_given(context, "outages"):
        raise DataError("--markers says which values of a table mean 'unavailable'; name the table with --outages")
    if is_given(context, "severity") and is_given(context, "outages"):
        raise DataError("--severity is the extent of random stress, which --outages replaces; leave out one of the two")


def _declare_stress(
    outages: Path | None, markers: str | None, form: CsvFormat, severity: float, draws: int, rule: str,
    tau_confidence: float, tau_collapse: float, seed: int,
) -> fg.Stress:  # fmt: skip
    from fragility.stress.stressors import Dropout, Mask, Noise

    if outages is None:
        stressors: tuple[Any, ...] = (Mask(severity), Dropout(severity), Noise(severity))
    else:
        stressors = (read_outages(outages, markers, form),)
    return fg.Stress(stressors, draws, rule, tau_confidence, tau_collapse, seed)


def read_outages(path: Path, markers: str | None, form: CsvFormat) -> fg.Outages:
    """Read a log of outages."""
    from fragility.stress.declaration import outage_events

    return fg.Outages.from_events(outage_events(read_table(path, form), markers=parse_markers(markers)))


def parse_markers(text: str | None) -> Any:
    """`?,unknown,-9` or a JSON file; a word that is a number stands for both, since a file does not tell."""
    if text is None:
        return None
    document = read_name_or_json(text, "--markers")
    if not isinstance(document, str):
        return document
    found: list[object] = []
    for word in document.split(","):
        found.append(None if word == "null" else word)
        try:
            found.append(float(word))
        except ValueError:
            continue
    return found
