"""`fragility stress` and `fragility evaluate`: held-out brittle labels, and what a ranking is worth against them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import pyarrow.csv
import pyarrow.parquet
import typer

from fragility.certificates import Certificates, read_protocol
from fragility.cli.options import (
    Classes,
    DataOption,
    DirArgument,
    Id,
    ModelOption,
    RowRange,
    Target,
    Trust,
    name_or_json,
    parse_classes,
)
from fragility.cli.tables import read_rows, read_table
from fragility.cli.terminal import err, note
from fragility.errors import DataError
from fragility.evaluate import evaluate as evaluate_ranking
from fragility.loading import load_model
from fragility.ranking import DEFINED, label_noise_ceiling
from fragility.stress import BrittleLabels, Dropout, Mask, Noise, Outages, Stress, brittle_labels, outage_events

ProtocolArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PROTOCOL", help="A protocol file, or the folder that `fragility audit` wrote.", show_default=False
    ),
]
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
        help="Values of the --outages rows that mean 'unavailable' (null: missing), or a JSON file {field: [values]}.",
    ),
]
LabelsOut = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the labels, one row a prediction (.parquet, .csv).")
]
Validation = Annotated[
    Path | None,
    typer.Option("--validation", metavar="FILE", help="Rows on which each baseline's direction is chosen."),
]
ShapRows = Annotated[
    int, typer.Option("--shap", metavar="N", min=0, help="Explain N rows for the group-SHAP baseline; 0 leaves it out.")
]
RandomOrders = Annotated[
    int, typer.Option("--random-orders", metavar="N", min=0, help="Random group orders to average; 0 leaves them out.")
]
JsonOut = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")]
CsvOut = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the table of scores as CSV.")]


def register(app: typer.Typer) -> None:
    app.command("stress")(stress)
    app.command("evaluate")(evaluate)


def stress(
    protocol: ProtocolArgument,
    model: ModelOption,
    data: DataOption,
    out_file: LabelsOut = None,
    outages: OutageLog = None,
    markers: Markers = None,
    severity: Severity = 0.3,
    draws: Draws = 16,
    rule: Rule = "expected",
    tau_confidence: TauConfidence = 0.90,
    tau_collapse: TauCollapse = 0.50,
    seed: Seed = 0,
    target: Target = None,
    id_column: Id = None,
    rows: RowRange = None,
    classes: Classes = None,
    trust: Trust = False,
) -> None:
    """Find which confident predictions break under random loss of evidence, or under your own recorded outages.

    These labels are held out: no certificate and no score uses them.

    [bold]Examples[/bold]

      fragility stress audit/ --model model.skops --data test.parquet --target class --out labels.parquet

      fragility stress audit/ --model model.skops --data test.parquet --outages outages.csv

      fragility stress audit/ --model model.skops --data test.parquet --outages train.parquet --markers '?,unknown'
    """
    _check_labels_file(out_file)
    declared = _stress(outages, markers, severity, draws, rule, tau_confidence, tau_collapse, seed)
    loaded = load_model(model, trust=trust, classes=parse_classes(classes))
    given = read_rows(data, "DATA", target=target, id_column=id_column, rows=rows)
    pi = read_protocol(protocol)
    with _working("stressing"):
        labels = brittle_labels(loaded, given.X, pi, declared, ids=given.ids)
        independent = brittle_labels(loaded, given.X, pi, declared.independent(), ids=given.ids)
    for name, count in labels.counts().items():
        typer.echo(f"{count:8d}  {name}")
    ceiling = label_noise_ceiling(labels, independent)
    shown = f"{ceiling.auroc:.3f}" if ceiling.state == DEFINED else ceiling.state
    typer.echo(f"Label-noise ceiling (AUROC of independent draws): {shown}")
    if out_file is not None:
        _write_labels(labels, out_file)
        note(f"labels written to {out_file}")


def evaluate(
    directory: DirArgument,
    model: ModelOption,
    data: DataOption,
    validation: Validation = None,
    target: Target = None,
    id_column: Id = None,
    shap: ShapRows = 0,
    random_orders: RandomOrders = 5,
    json_file: JsonOut = None,
    csv_file: CsvOut = None,
    outages: OutageLog = None,
    markers: Markers = None,
    severity: Severity = 0.3,
    draws: Draws = 16,
    rule: Rule = "expected",
    tau_confidence: TauConfidence = 0.90,
    tau_collapse: TauCollapse = 0.50,
    seed: Seed = 0,
    classes: Classes = None,
    trust: Trust = False,
) -> None:
    """Does FDS find the brittle cases of this model better than its confidence does?

    The audited rows are stressed at random, which no certificate has seen, and every score is judged by how well it
    finds the confident predictions that break.

    [bold]Examples[/bold]

      fragility evaluate audit/ --model model.skops --data test.parquet --target class

      fragility evaluate audit/ --model model.skops --data test.parquet --target class --validation valid.parquet

      fragility evaluate audit/ --model model.skops --data test.parquet --outages outages.csv --json evaluation.json
    """
    declared = _stress(outages, markers, severity, draws, rule, tau_confidence, tau_collapse, seed)
    certs = Certificates.load(directory)
    loaded = load_model(model, trust=trust, classes=parse_classes(classes))
    given = read_rows(data, "DATA", target=target, id_column=id_column)
    held = None
    if validation is not None:
        held = read_rows(validation, "--validation", target=target, id_column=id_column)
    with _working("evaluating"):
        found = evaluate_ranking(
            certs,
            loaded,
            given.X,
            ids=given.ids,
            stress=declared,
            y=given.labels,
            validation=None if held is None else held.X,
            y_validation=None if held is None else held.labels,
            random_orders=random_orders,
            shap_rows=shap,
            seed=seed,
        )
    typer.echo(found.to_text())
    _write(json_file, found.save_json)
    _write(csv_file, found.save_csv)


def _working(what: str) -> AbstractContextManager[Any]:
    console = err()
    return console.status(what) if console.is_terminal else nullcontext()


def _write(path: Path | None, save: Callable[[Path], None]) -> None:
    if path is not None:
        save(path)
        note(f"written to {path}")


def _stress(
    outages: Path | None,
    markers: str | None,
    severity: float,
    draws: int,
    rule: str,
    tau_confidence: float,
    tau_collapse: float,
    seed: int,
) -> Stress:
    if outages is None:
        if markers is not None:
            raise DataError("--markers says which values of a table mean 'unavailable'; name the table with --outages")
        return Stress(
            (Mask(severity), Dropout(severity), Noise(severity)), draws, rule, tau_confidence, tau_collapse, seed
        )
    events = outage_events(read_table(outages, "--outages"), markers=_parse_markers(markers))
    return Stress((Outages.from_events(events),), draws, rule, tau_confidence, tau_collapse, seed)


def _parse_markers(text: str | None) -> Any:
    """`?,unknown,-9` or a JSON file; a word that is a number stands for both, since a file does not tell."""
    if text is None:
        return None
    document = name_or_json(text, "--markers")
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


_WRITERS: dict[str, Callable[[BrittleLabels, Path], None]] = {
    ".parquet": lambda labels, path: pyarrow.parquet.write_table(labels.to_arrow(), path),
    ".csv": lambda labels, path: pyarrow.csv.write_csv(labels.to_arrow(), path),
}


def _check_labels_file(path: Path | None) -> None:
    if path is not None and path.suffix.lower() not in _WRITERS:
        raise DataError(f"--out {path} must end in {' or '.join(_WRITERS)}")


def _write_labels(labels: BrittleLabels, path: Path) -> None:
    _WRITERS[path.suffix.lower()](labels, path)
