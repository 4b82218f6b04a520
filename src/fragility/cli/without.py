"""`fragility without`: would decisions have been different with the fields that they were made without?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.base.files import read_json
from fragility.cli.evaluate import read_outages
from fragility.cli.options import load_protocol, option, refuse_without
from fragility.cli.outputs import draw, plan_files, save_result
from fragility.cli.tables import field_names, note_unlabelled, read_rows
from fragility.cli.terminal import say
from fragility.pages.results import checked_suffix

if TYPE_CHECKING:
    from fragility.tables.formats import CsvFormat


def without(
    *,
    context: typer.Context,
    model: opt.ModelArgument,
    data: Annotated[Path, opt.argument("DATA", "Rows that were not used in training: a Parquet, CSV or Arrow file.")],
    protocol: Annotated[
        Path | None,
        option("--protocol FILE", "A protocol file, or the folder of an audit. (default: fitted on --train)"),
    ] = None,
    train: Annotated[
        Path | None, option("--train TRAIN", "Training rows, for --conditional, and for a protocol if none is named.")
    ] = None,
    sets: Annotated[
        Path | None,
        option(
            "--sets FILE",
            "Which fields to hide together: a JSON list of lists of fields, or a log of outages. (default: each field)",
        ),
    ] = None,
    markers: Annotated[
        str | None,
        option(
            "--markers A,B",
            "Values in the rows of the --sets log that mean 'unavailable' (null: missing), or a JSON file "
            "{field: \\[values]}.",
        ),
    ] = None,
    together: Annotated[
        int, option("--together N", "Also hide up to N fields at once, where no --sets are named.", min=1, max=5)
    ] = 1,
    most_sets: Annotated[int, option("--most-sets N", "The most sets of two, of three, ... fields.", min=1)] = 20,
    conditional: Annotated[
        bool, option("--conditional", "Take values from the nearest rows of --train, not from the catalogue.")
    ] = False,
    draws: Annotated[
        int, option("--draws", "The most values of several fields that are tried; a power of two.", min=16)
    ] = 1024,
    top: Annotated[int, option("--top N", "How many sets to show.", min=1)] = 10,
    json_file: opt.JsonOut = None,
    csv_file: Annotated[Path | None, option("--csv FILE", "Write one row per set of hidden fields as CSV.")] = None,
    picture: Annotated[
        Path | None, option("--picture FILE", "Draw expected against observed changes (.png, .svg, .pdf).")
    ] = None,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    rows: opt.RowRange = None,
    engine: opt.Engine = "auto",
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Can p_change be relied on? Hides each field in turn, decides, and compares with the decision on the full row.

    Says how many decisions change, how many were expected to, and how well p_change tells which.

    [bold]Examples[/bold]

      fragility without model.skops test.parquet --protocol audit/ --target class

      fragility without model.skops test.parquet --train train.parquet --conditional --together 3 --picture without.png

      fragility without model.skops test.parquet --protocol audit/ --sets outages.csv --json without.json
    """
    for path, allowed in ((json_file, (".json",)), (csv_file, (".csv",)), (picture, (".png", ".svg", ".pdf"))):
        if path is not None:
            checked_suffix(path, allowed)
    if protocol is None and train is None:
        raise DataError(
            "decisions without fields need a protocol; name one with --protocol, or training rows by --train"
        )
    if train is not None and protocol is not None and not conditional:
        raise DataError("--train has no effect with --protocol unless --conditional is given; leave out --train")
    if conditional and train is None:
        raise DataError("--conditional takes values from training rows; name them with --train")
    if sets is not None and opt.is_given(context, "together"):
        raise DataError("--sets says which fields to hide together; leave out --together or leave out --sets")
    if sets is None:
        refuse_without("a log of outages in --sets", context, "markers")
    inputs: dict[str, str | Path | None] = {"MODEL": model, "DATA": data, "--protocol": protocol, "--train": train}
    plan_files({"--json": json_file, "--csv": csv_file, "--picture": picture}, inputs | {"--sets": sets})
    form = csv.form(data, train, sets)
    loaded = loading.load(model)
    declared = None if protocol is None else load_protocol(protocol)
    known = columns.declare(field_names(loaded, declared), target)
    given = read_rows(data, known, rows=rows, form=form)
    training = None if train is None else read_rows(train, known, form=form, ids=False).X
    known.check_dropped()
    note_unlabelled(given.labels is not None, target, data)
    found = fg.evaluate_missing(
        loaded,
        given.X,
        declared or fg.Protocol.fit(loaded, training),
        sets=None if sets is None else read_sets(sets, markers, form),
        together=together,
        most_sets=most_sets,
        training=training if conditional else None,
        conditional=conditional,
        draws=draws,
        ids=given.ids,
        engine=engine,
    )
    say(found.to_text(top))
    save_result(found, json_file, csv_file)
    if picture is not None:
        draw(found.plot(), picture)


def read_sets(path: Path, markers: str | None, form: CsvFormat) -> Any:
    """Return the sets of fields that --sets names: a JSON list of lists, or a log of outages."""
    if path.suffix.lower() != ".json":
        return read_outages(path, markers, form)
    if not path.is_file():
        raise DataError(f"--sets names the file {path}, which does not exist")
    try:
        document = read_json(path)
    except ValueError as error:
        raise DataError(f"--sets {path} is not valid JSON: {error}") from error
    lists = isinstance(document, list) and all(
        isinstance(each, list) and all(isinstance(name, str) for name in each) for each in document
    )
    if not lists:
        raise DataError(f'--sets {path} must hold a list of lists of fields, such as [["age"], ["age", "income"]]')
    return document
