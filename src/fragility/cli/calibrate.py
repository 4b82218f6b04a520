"""`fragility calibrate`: lower the confidence of fragile predictions, as far as validation data support it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.base.files import replacing
from fragility.cli.options import argument, load_protocol, option
from fragility.cli.outputs import draw, plan_files
from fragility.cli.tables import AuditRows, field_names, read_rows, require_labels
from fragility.cli.terminal import note, say

if TYPE_CHECKING:
    from fragility.base.arrays import Floats


def calibrate(
    *,
    model: opt.ModelArgument,
    validation: Annotated[
        Path, argument("VALIDATION", "Labelled rows the model was not trained on: Parquet, CSV or Arrow.")
    ],
    protocol: Annotated[Path, option("--protocol FILE", "A protocol file or an audit folder.")],
    target: opt.LabelColumn,
    out: Annotated[Path, option("--out FILE", "Write the fitted correction to this JSON file.")],
    columns: opt.ColumnOptions,
    test: Annotated[Path | None, option("--test FILE", "Labelled rows to report calibration on.")] = None,
    picture: Annotated[
        Path | None, option("--picture FILE", "Draw reliability on the --test rows (.png, .svg).")
    ] = None,
    apply: Annotated[Path | None, option("--apply FILE", "Rows to correct the probabilities of.")] = None,
    probabilities: Annotated[
        Path | None, option("--probabilities FILE", "Where to write those of the --apply rows (CSV).")
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
    import numpy as np
    import pandas as pd

    from fragility.analysis.calibration import FragilityTemperature, calibration_report, corrections
    from fragility.analysis.displays import FragileCalibrationDisplay

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
    given = read_rows(validation, known, form=form, ids=False)
    labels = require_labels(given, target, validation)
    tested = None
    if test is not None:
        tested = read_rows(test, known, form=form, ids=False)
        require_labels(tested, target, test)
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
    fitted = FragilityTemperature(classes=loaded.classes).fit(p, labels, fds)
    fitted.save(out)
    plain, best = fitted.validation_nll_[0.0], fitted.validation_nll_[fitted.eta_]
    say(f"T0 = {fitted.temperature_:.4g}, eta = {fitted.eta_:g}, written to {out}")
    say(f"validation NLL: {fitted.raw_validation_nll_:.4f} raw, {plain:.4f} temperature, {best:.4f} brittleness-aware")
    if fitted.eta_ == 0:
        say("eta = 0: on these rows fragility adds nothing to plain temperature scaling")
    if tested is not None:
        p, fds = ask(tested)
        truth = np.asarray(tested.labels)
        say(str(calibration_report(fitted, p, truth, fds)))
        if picture is not None:
            methods, kind = corrections(fitted, p, fds), FragileCalibrationDisplay
            draw(kind.from_predictions(truth, methods, fds, classes=loaded.classes), picture)
    if new is not None and probabilities is not None:
        p, fds = ask(new)
        frame = pd.DataFrame(fitted.transform(p, fds), columns=[f"probability_{label}" for label in loaded.classes])
        frame.insert(0, "id", new.ids)
        frame["fds"] = fds
        with replacing(probabilities) as temporary:
            frame.to_csv(temporary, index=False)
        note(f"{len(frame)} rows written to {probabilities}")
