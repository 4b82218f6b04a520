"""`fragility calibrate`: lower the confidence of fragile predictions, as far as validation data support it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fragility as fg
from fragility.cli.group import JUDGE
from fragility.cli.options import (
    Classes,
    Decimal,
    Drop,
    Encoding,
    Engine,
    Id,
    IgnoreExtra,
    ModelArgument,
    Separator,
    Trust,
    load_protocol,
    parse_classes,
)
from fragility.cli.outputs import plan_files
from fragility.cli.tables import AuditRows, Columns, CsvFormat, csv_format, field_names, read_rows
from fragility.cli.terminal import note, say
from fragility.errors import DataError
from fragility.files import replacing

if TYPE_CHECKING:
    import pandas as pd

    from fragility.arrays import Floats

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
    app.command("calibrate", rich_help_panel=JUDGE)(calibrate)


def calibrate(
    model: ModelArgument,
    validation: ValidationArgument,
    protocol: ProtocolOption,
    target: TargetOption,
    out: Out,
    id_column: Id = None,
    drop: Drop = None,
    ignore_extra: IgnoreExtra = False,
    test: Test = None,
    picture: Picture = None,
    apply: Apply = None,
    probabilities: Probabilities = None,
    engine: Engine = "auto",
    separator: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
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
    plan_files(
        {"--out": out, "--picture": picture, "--probabilities": probabilities},
        {"MODEL": model, "VALIDATION": validation, "--protocol": protocol, "--test": test, "--apply": apply},
    )
    form = csv_format(separator, encoding, decimal, validation, test, apply)
    loaded = fg.load_model(model, trust=trust, classes=parse_classes(classes))
    known = _Known(loaded, load_protocol(protocol), engine)
    columns = Columns.declare(field_names(loaded, known.protocol), target, id_column, drop, ignore_extra)
    given, labels = _labelled(validation, "VALIDATION", columns, form)
    tested = None if test is None else _labelled(test, "--test", columns, form)
    # A label of the rows to correct, if there is one, is set aside.
    new = None if apply is None else read_rows(apply, "--apply", columns, form=form)
    columns.check_dropped()
    p, fds = known.probabilities_and_fds(given)
    fitted = fg.FragilityTemperature(classes=loaded.classes).fit(p, labels, fds)
    fitted.save(out)
    _print_fit(fitted, out)
    if tested is not None:
        _report(fitted, known, tested, picture)
    if new is not None and probabilities is not None:
        _apply(fitted, known, new, probabilities)


def _check_pairs(test: Path | None, picture: Path | None, apply: Path | None, probabilities: Path | None) -> None:
    if picture is not None and test is None:
        raise DataError("--picture draws the --test rows; name them with --test")
    if (apply is None) != (probabilities is None):
        raise DataError("--apply names the rows and --probabilities the file to write; give both or neither")


@dataclass(frozen=True)
class _Known:
    """What all rows of one command are audited with."""

    model: fg.Model
    protocol: fg.Protocol
    engine: str

    def probabilities_and_fds(self, rows: AuditRows) -> tuple[Floats, Floats]:
        ids = range(len(rows.X)) if rows.ids is None else rows.ids
        certificates = fg.audit(self.model, rows.X, self.protocol, ids=ids, engine=self.engine, lattice=False)
        order = [str(name) for name in (self.model.columns or [field.name for field in self.protocol.fields])]
        return self.model.probabilities(rows.X[order]), certificates.claims.fds


def _labelled(path: Path, role: str, columns: Columns, form: CsvFormat) -> tuple[AuditRows, pd.Series]:
    rows = read_rows(path, role, columns, form=form, ids=False)
    if rows.labels is None:
        raise DataError(
            f"{role} {path} must hold the label column {columns.target!r}; it has {list(rows.X.columns)[:8]}"
        )
    return rows, rows.labels


def _print_fit(fitted: fg.FragilityTemperature, out: Path) -> None:
    plain, best = fitted.validation_nll_[0.0], fitted.validation_nll_[fitted.eta_]
    say(f"T0 = {fitted.temperature_:.4g}, eta = {fitted.eta_:g}, written to {out}")
    say(f"validation NLL: {fitted.raw_validation_nll_:.4f} raw, {plain:.4f} temperature, {best:.4f} brittleness-aware")
    if fitted.eta_ == 0:
        say("eta = 0: on these rows fragility adds nothing to plain temperature scaling")


def _report(
    fitted: fg.FragilityTemperature,
    known: _Known,
    labelled: tuple[AuditRows, pd.Series],
    picture: Path | None,
) -> None:
    from fragility.calibration import calibration_report, corrections

    rows, labels = labelled
    p, fds = known.probabilities_and_fds(rows)
    say(str(calibration_report(fitted, p, labels, fds)))
    if picture is not None:
        methods, classes = corrections(fitted, p, fds), known.model.classes
        display = fg.FragileCalibrationDisplay.from_predictions(labels, methods, fds, classes=classes)
        with replacing(picture) as temporary:
            display.figure_.savefig(temporary, dpi=150)
        note(f"drawn to {picture}")


def _apply(fitted: fg.FragilityTemperature, known: _Known, rows: AuditRows, path: Path) -> None:
    import pandas as pd

    p, fds = known.probabilities_and_fds(rows)
    corrected = fitted.transform(p, fds)
    frame = pd.DataFrame(corrected, columns=[f"probability_{label}" for label in known.model.classes])
    frame.insert(0, "id", rows.ids)
    frame["fds"] = fds
    with replacing(path) as temporary:
        frame.to_csv(temporary, index=False)
    note(f"{len(frame)} rows written to {path}")
