"""`fragility parity`: is the deployed model the one that was audited?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.base.files import replacing
from fragility.cli.options import MODEL_HELP, argument, load_protocol, option
from fragility.cli.outputs import plan_files, save_result
from fragility.cli.tables import field_names, note_unlabelled, read_rows
from fragility.cli.terminal import EXIT_CLAIM_FAILED, note, say
from fragility.pages.results import checked_suffix


def parity(
    *,
    model_a: Annotated[str, argument("MODEL_A", f"The reference, such as the audited model. {MODEL_HELP}")],
    model_b: Annotated[str, argument("MODEL_B", "The artefact that is to answer as it does; the same kinds of files.")],
    data: opt.DataOption,
    protocol: Annotated[
        Path | None,
        option("--protocol FILE", "A protocol file, or the folder of an audit. (default: fitted on the rows)"),
    ] = None,
    tolerance: Annotated[
        float, option("--tolerance T", "How far probabilities may differ.", min=0.0, max=0.999999)
    ] = 1e-5,
    sample: Annotated[
        int, option("--sample N", "Compare at most N rows, those whose content has the smallest digests.", min=1)
    ] = 1000,
    top: Annotated[int, option("--top N", "How many fields and values to show.", min=1)] = 10,
    json_file: opt.JsonOut = None,
    values: Annotated[
        bool, option("--values", "Keep the values of rows in the examples of --json; else they name fields alone.")
    ] = False,
    csv_file: Annotated[
        Path | None, option("--csv FILE", "Write the fields and values that reveal a difference as CSV.")
    ] = None,
    example: Annotated[
        Path | None, option("--example FILE", "Write the smallest example as a CSV file of one row.")
    ] = None,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    rows: opt.RowRange = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Do two artefacts of one model answer alike, also where evidence is lost, missing, wrong or noisy?

    Exit code 0 if they do, 1 if answers differ or only one of them answers.

    [bold]Examples[/bold]

      fragility parity model.skops model.onnx --data test.parquet --target class

      fragility parity model.joblib booster.txt --data test.parquet --protocol audit/ --trust

      fragility parity model.skops service:predict --data test.parquet --json parity.json --example row.csv
    """
    from fragility.parity.pairing import given_names

    outputs = (("--json", json_file, ".json"), ("--csv", csv_file, ".csv"), ("--example", example, ".csv"))
    for _, path, suffix in outputs:
        if path is not None:
            checked_suffix(path, (suffix,))
    if model_a == model_b:
        raise DataError(f"MODEL_A and MODEL_B are both {model_a}; name the artefact that it is compared with")
    inputs: dict[str, str | Path | None] = {"MODEL_A": model_a, "MODEL_B": model_b, "--data": data}
    plan_files({flag: path for flag, path, _ in outputs}, inputs | {"--protocol": protocol})
    form = csv.form(data)
    a, b = loading.load(model_a), loading.load(model_b)
    declared = None if protocol is None else load_protocol(protocol)
    names = field_names(None, declared) or given_names(a.columns) or given_names(b.columns)
    known = columns.declare(names, target)
    given = read_rows(data, known, rows=rows, form=form)
    known.check_dropped()
    note_unlabelled(given.labels is not None, target, data)
    found = fg.check_parity(
        a, b, given.X, declared, tolerance=tolerance, most_rows=sample, names=(model_a, model_b), ids=given.ids
    )
    say(found.to_text(top))
    save_result(found if values else found.without_values(), json_file)
    if csv_file is not None:
        with replacing(csv_file) as temporary:
            found.to_pandas().to_csv(temporary, index=False)
        note(f"written to {csv_file}")
    if example is not None:
        if found.smallest is None:
            note(f"the artefacts agree, so there is no example to write to {example}")
        else:
            with replacing(example) as temporary:
                Path(temporary).write_text(found.smallest.to_csv(), encoding="utf-8")
            note(f"written to {example}")
    if not found:
        raise typer.Exit(EXIT_CLAIM_FAILED)
