"""`fragility calibrate`: lower the confidence of fragile predictions, as far as validation data support it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.cli.options import load_protocol
from fragility.cli.outputs import draw, plan_files
from fragility.cli.tables import AuditRows, Columns, field_names, read_rows
from fragility.cli.terminal import note, say
from fragility.errors import DataError
from fragility.files import replacing

if TYPE_CHECKING:
    import pandas as pd

    from fragility.arrays import Floats
    from fragility.formats import CsvFormat


def calibrate(
    *,
    model: opt.ModelArgument,
    validation: Annotated[
        Path,
        typer.Argument(
            metavar="VALIDATION",
            help="Labelled rows the model was not trained on: Parquet, CSV or Arrow.",
            show_default=False,
        ),
    ],
    protocol: Annotated[
        Path, typer.Option("--protocol", metavar="FILE", help="A protocol file or an audit folder.", show_default=False)
    ],
    target: opt.LabelColumn,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE", help="Write the fitted correction to this JSON file.", show_default=False
        ),
    ],
    columns: opt.ColumnOptions,
    test: Annotated[
        Path | None, typer.Option("--test", metavar="FILE", help="Labelled rows to report calibration on.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw reliability on the --test rows (.png, .svg).")
    ] = None,
    apply: Annotated[
        Path | None, typer.Option("--apply", metavar="FILE", help="Rows to correct the probabilities of.")
    ] = None,
    probabilities: Annotated[
        Path | None,
        typer.Option("--probabilities", metavar="FILE", help="Where to write those of the --apply rows (CSV)."),
    ] = None,
    engine: opt.Engine = "auto",
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Fit brittleness-aware temperature scaling on VALIDATION rows; no predicted label ever changes.

    [bold]Examples[/bold]

      fragility calibrate model.skops validation.parquet --protocol audit/ --target class --out correction.json

      fragility calibrate model.skops validation.csv --protocol protocol.json --target y --out correction.json
      --test test.csv --picture reliability.png --apply new.csv --probabilities corrected.csv
    """
    import pandas as pd

    from fragility.calibration import calibration_report, corrections

    if picture is not None and test is None:
        raise DataError("--picture draws the --test rows; name them with --test")
    if (apply is None) != (probabilities is None):
        raise DataError("--apply names the rows and --probabilities the file to write; give both or neither")
    plan_files(
        {"--out": out, "--picture": picture, "--probabilities": probabilities},
        {"MODEL": model, "VALIDATION": validation, "--protocol": protocol, "--test": test, "--apply": apply},
    )
    form = csv.form(validation, test, apply)
    loaded, declared = loading.load(model), load_protocol(protocol)
    known = columns.declare(field_names(loaded, declared), target)
    given, labels = _read_labelled(validation, "VALIDATION", known, form)
    tested = None if test is None else _read_labelled(test, "--test", known, form)
    # A label of the rows to correct, if there is one, is set aside.
    new = None if apply is None else read_rows(apply, known, form=form)
    known.check_dropped()

    def ask(rows: AuditRows) -> tuple[Floats, Floats]:
        """Return the probabilities and the FDS of rows."""
        ids = range(len(rows.X)) if rows.ids is None else rows.ids
        certificates = fg.audit(loaded, rows.X, declared, ids=ids, engine=engine, lattice=False)
        order = [str(name) for name in (loaded.columns or [field.name for field in declared.fields])]
        return loaded.probabilities(rows.X[order]), certificates.claims.fds

    p, fds = ask(given)
    fitted = fg.FragilityTemperature(classes=loaded.classes).fit(p, labels, fds)
    fitted.save(out)
    plain, best = fitted.validation_nll_[0.0], fitted.validation_nll_[fitted.eta_]
    say(f"T0 = {fitted.temperature_:.4g}, eta = {fitted.eta_:g}, written to {out}")
    say(f"validation NLL: {fitted.raw_validation_nll_:.4f} raw, {plain:.4f} temperature, {best:.4f} brittleness-aware")
    if fitted.eta_ == 0:
        say("eta = 0: on these rows fragility adds nothing to plain temperature scaling")
    if tested is not None:
        p, fds = ask(tested[0])
        say(str(calibration_report(fitted, p, tested[1], fds)))
        if picture is not None:
            methods, kind = corrections(fitted, p, fds), fg.FragileCalibrationDisplay
            draw(kind.from_predictions(tested[1], methods, fds, classes=loaded.classes), picture)
    if new is not None and probabilities is not None:
        p, fds = ask(new)
        frame = pd.DataFrame(fitted.transform(p, fds), columns=[f"probability_{label}" for label in loaded.classes])
        frame.insert(0, "id", new.ids)
        frame["fds"] = fds
        with replacing(probabilities) as temporary:
            frame.to_csv(temporary, index=False)
        note(f"{len(frame)} rows written to {probabilities}")


def _read_labelled(path: Path, role: str, columns: Columns, form: CsvFormat) -> tuple[AuditRows, pd.Series]:
    rows = read_rows(path, columns, form=form, ids=False)
    if rows.labels is None:
        raise DataError(
            f"{role} {path} must hold the label column {columns.target!r}; it has {list(rows.X.columns)[:8]}"
        )
    return rows, rows.labels
