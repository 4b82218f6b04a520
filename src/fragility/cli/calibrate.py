"""`fragility calibrate`: lower the confidence of fragile predictions, as far as validation data support it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from fragility.arrays import Floats
from fragility.audit import audit
from fragility.calibration import (
    BrittlenessAwareTemperature,
    FragileCalibrationDisplay,
    calibration_report,
    corrections,
)
from fragility.certificate import PROTOCOL_FILE
from fragility.cli.options import Classes, Id, ModelArgument, Trust, parse_classes
from fragility.cli.tables import AuditRows, read_rows
from fragility.cli.terminal import note
from fragility.errors import DataError
from fragility.files import replacing
from fragility.loading import load_model
from fragility.models import Model
from fragility.protocol import Protocol

ValidationArgument = Annotated[
    Path,
    typer.Argument(
        metavar="VALIDATION",
        help="Labelled rows the model was not trained on: Parquet, CSV or Arrow.",
        show_default=False,
    ),
]
ProtocolOption = Annotated[
    Path,
    typer.Option("--protocol", metavar="FILE", help="A protocol file or an audit folder.", show_default=False),
]
TargetOption = Annotated[str, typer.Option("--target", metavar="COL", help="The label column.", show_default=False)]
Out = Annotated[
    Path,
    typer.Option("--out", metavar="FILE", help="Write the fitted correction to this JSON file.", show_default=False),
]
Test = Annotated[Path | None, typer.Option("--test", metavar="FILE", help="Labelled rows to report calibration on.")]
Picture = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE", help="Draw reliability on the --test rows (.png, .svg).")
]
Apply = Annotated[Path | None, typer.Option("--apply", metavar="FILE", help="Rows to correct the probabilities of.")]
Probabilities = Annotated[
    Path | None, typer.Option("--probabilities", metavar="FILE", help="Where to write those of the --apply rows (CSV).")
]


def register(app: typer.Typer) -> None:
    app.command("calibrate")(calibrate)


def calibrate(
    model: ModelArgument,
    validation: ValidationArgument,
    protocol: ProtocolOption,
    target: TargetOption,
    out: Out,
    id_column: Id = None,
    test: Test = None,
    picture: Picture = None,
    apply: Apply = None,
    probabilities: Probabilities = None,
    classes: Classes = None,
    trust: Trust = False,
) -> None:
    """Fit brittleness-aware temperature scaling on VALIDATION rows; no predicted label ever changes.

    [bold]Examples[/bold]

      fragility calibrate model.skops validation.parquet --protocol audit/ --target class --out correction.json

      fragility calibrate model.skops validation.csv --protocol protocol.json --target y --out correction.json
      --test test.csv --picture reliability.png --apply new.csv --probabilities corrected.csv
    """
    _check_pairs(test, picture, apply, probabilities)
    loaded = load_model(model, trust=trust, classes=parse_classes(classes))
    declared = Protocol.load(protocol / PROTOCOL_FILE if protocol.is_dir() else protocol)
    given, labels = _labelled(validation, "VALIDATION", target, id_column)
    p, fds = _probabilities_and_fds(loaded, declared, given)
    fitted = BrittlenessAwareTemperature(classes=loaded.classes).fit(p, labels, fds)
    fitted.save(out)
    _print_fit(fitted, out)
    if test is not None:
        _report(fitted, loaded, declared, _labelled(test, "--test", target, id_column), picture)
    if apply is not None and probabilities is not None:
        _apply(fitted, loaded, declared, apply, target, id_column, probabilities)


def _check_pairs(test: Path | None, picture: Path | None, apply: Path | None, probabilities: Path | None) -> None:
    if picture is not None and test is None:
        raise DataError("--picture draws the --test rows; name them with --test")
    if (apply is None) != (probabilities is None):
        raise DataError("--apply names the rows and --probabilities the file to write; give both or neither")


def _probabilities_and_fds(model: Model, protocol: Protocol, rows: AuditRows) -> tuple[Floats, Floats]:
    certificates = audit(model, rows.X, protocol, ids=rows.ids)
    order = [str(name) for name in (model.columns or [field.name for field in protocol.fields])]
    return model.probabilities(rows.X[order]), certificates.claims.fds


def _labelled(path: Path, role: str, target: str, id_column: str | None) -> tuple[AuditRows, pd.Series]:
    rows = read_rows(path, role, target=target, id_column=id_column)
    if rows.labels is None:
        raise DataError(f"{role} {path} must hold the label column {target!r}; it has {list(rows.X.columns)[:8]}")
    return rows, rows.labels


def _print_fit(fitted: BrittlenessAwareTemperature, out: Path) -> None:
    plain, best = fitted.validation_nll_[0.0], fitted.validation_nll_[fitted.eta_]
    typer.echo(f"T0 = {fitted.temperature_:.4g}, eta = {fitted.eta_:g}, written to {out}")
    typer.echo(
        f"validation NLL: {fitted.raw_validation_nll_:.4f} raw, {plain:.4f} temperature, {best:.4f} brittleness-aware"
    )
    if fitted.eta_ == 0:
        typer.echo("eta = 0: on these rows fragility adds nothing to plain temperature scaling")


def _report(
    fitted: BrittlenessAwareTemperature,
    model: Model,
    protocol: Protocol,
    labelled: tuple[AuditRows, pd.Series],
    picture: Path | None,
) -> None:
    rows, labels = labelled
    p, fds = _probabilities_and_fds(model, protocol, rows)
    typer.echo(str(calibration_report(fitted, p, labels, fds)))
    if picture is not None:
        display = FragileCalibrationDisplay.compute(labels, corrections(fitted, p, fds), fds, classes=model.classes)
        with replacing(picture) as temporary:
            display.plot().figure_.savefig(temporary, dpi=150)
        note(f"drawn to {picture}")


def _apply(
    fitted: BrittlenessAwareTemperature,
    model: Model,
    protocol: Protocol,
    apply: Path,
    target: str,
    id_column: str | None,
    path: Path,
) -> None:
    rows = read_rows(apply, "--apply", target=target, id_column=id_column)  # a label, if there is one, is set aside
    p, fds = _probabilities_and_fds(model, protocol, rows)
    corrected = fitted.transform(p, fds)
    frame = pd.DataFrame(corrected, columns=[f"probability_{label}" for label in model.classes])
    frame.insert(0, "id", rows.ids if rows.ids is not None else range(len(frame)))
    frame["fds"] = fds
    with replacing(path) as temporary:
        frame.to_csv(temporary, index=False)
    note(f"{len(frame)} rows written to {path}")
