"""`fragility reliability`: how many decisions outages are expected to cost, and which field to make reliable first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import fragility as fg
from fragility.cli.evaluate import ProtocolArgument, parse_markers
from fragility.cli.group import JUDGE
from fragility.cli.options import (
    Classes,
    DataOption,
    Decimal,
    Drop,
    Encoding,
    Engine,
    Id,
    IgnoreExtra,
    ModelOption,
    RowRange,
    Separator,
    Target,
    Trust,
    is_given,
    load_protocol,
    name_or_json,
    parse_classes,
)
from fragility.cli.outputs import plan_files
from fragility.cli.tables import Columns, CsvFormat, csv_format, field_names, note_unlabelled, read_rows, read_table
from fragility.cli.terminal import note, say
from fragility.errors import DataError
from fragility.files import replacing
from fragility.saving import checked_suffix

Rates = Annotated[
    str,
    typer.Option(
        "--rates",
        metavar="FILE|R",
        help="How often evidence fails: one number, a JSON file {field: rate}, or a log of outages.",
        show_default=False,
    ),
]
Observations = Annotated[
    int | None,
    typer.Option(
        "--observations",
        metavar="N",
        min=1,
        help="Take fields to fail independently, as often as the log says of N observations.",
    ),
]
Markers = Annotated[
    str | None,
    typer.Option(
        "--markers",
        metavar="A,B",
        help="Values in the rows of the --rates log that mean 'unavailable' (null: missing), or a JSON file "
        "{field: \\[values]}.",
    ),
]
Draws = Annotated[
    int, typer.Option("--draws", min=16, help="Quasi-random subsets a row, where the probability is not exact.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the quasi-random subsets.")]
Top = Annotated[int, typer.Option("--top", metavar="N", min=1, help="How many fields and rows to show.")]
JsonOut = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")]
CsvOut = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write one row a prediction as CSV.")]
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", help="Draw the fields against the decisions kept (.png, .svg, .pdf)."),
]


def register(app: typer.Typer) -> None:
    app.command("reliability", rich_help_panel=JUDGE)(reliability)


def reliability(
    context: typer.Context,
    protocol: ProtocolArgument,
    model: ModelOption,
    data: DataOption,
    rates: Rates,
    observations: Observations = None,
    markers: Markers = None,
    draws: Draws = 4096,
    seed: Seed = 0,
    top: Top = 10,
    json_file: JsonOut = None,
    csv_file: CsvOut = None,
    picture: Picture = None,
    target: Target = None,
    id_column: Id = None,
    drop: Drop = None,
    ignore_extra: IgnoreExtra = False,
    rows: RowRange = None,
    engine: Engine = "auto",
    separator: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    classes: Classes = None,
    trust: Trust = False,
) -> None:
    """How many decisions will outages cost, and which field should be made reliable first?

    Exact for tree ensembles and linear models, and for every model with a log of outages.

    [bold]Examples[/bold]

      fragility reliability audit/ --model model.skops --data test.parquet --target class --rates 0.05

      fragility reliability audit/ --model model.skops --data test.parquet --rates rates.json --picture fields.png

      fragility reliability audit/ --model model.skops --data test.parquet --rates outages.csv --json lost.json
    """
    for path, allowed in ((json_file, (".json",)), (csv_file, (".csv",)), (picture, (".png", ".svg", ".pdf"))):
        if path is not None:
            checked_suffix(path, allowed)
    log = log_of(rates)
    if log is None and (is_given(context, "markers") or is_given(context, "observations")):
        raise DataError("--markers and --observations are about a log of outages; name one with --rates")
    plan_files(
        {"--json": json_file, "--csv": csv_file, "--picture": picture},
        {"--model": model, "--data": data, "--rates": log},
    )
    form = csv_format(separator, encoding, decimal, data, log)
    declared = declared_rates(rates, log, markers, observations, form)
    loaded = fg.load_model(model, trust=trust, classes=parse_classes(classes))
    pi = load_protocol(protocol)
    columns = Columns.declare(field_names(loaded, pi), target, id_column, drop, ignore_extra)
    given = read_rows(data, "DATA", columns, rows=rows, form=form)
    columns.check_dropped()
    note_unlabelled(given, target, data)
    found = fg.failure_probability(loaded, given.X, pi, declared, ids=given.ids, engine=engine, draws=draws, seed=seed)
    say(found.to_text(top))
    _write(found, json_file, csv_file, picture)


def log_of(rates: str) -> Path | None:
    """The log of outages that --rates names, None where it is a number or a JSON file."""
    path = Path(rates)
    if _is_number(rates) or path.suffix.lower() == ".json":
        return None
    if not path.exists():
        raise DataError(f"--rates must be a number, a JSON file or a log of outages; there is no file {rates}")
    return path


def declared_rates(rates: str, log: Path | None, markers: str | None, observations: int | None, form: CsvFormat) -> Any:
    """Return what --rates declares, as the library takes it."""
    return _number_or_mapping(rates) if log is None else _from_log(log, markers, observations, form)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number_or_mapping(rates: str) -> Any:
    return float(rates) if _is_number(rates) else name_or_json(rates, "--rates")


def _from_log(log: Path, markers: str | None, observations: int | None, form: CsvFormat) -> Any:
    from fragility.stress import Outages, outage_events

    events = outage_events(read_table(log, "--rates", form), markers=parse_markers(markers))
    outages = Outages.from_events(events)
    return outages if observations is None else outages.rates(observations)


def _write(found: fg.FailureProbability, json_file: Path | None, csv_file: Path | None, picture: Path | None) -> None:
    for path in (json_file, csv_file):
        if path is not None:
            found.save(path)
            note(f"written to {path}")
    if picture is not None:
        with replacing(picture) as temporary:
            found.plot().figure_.savefig(temporary, dpi=150)
        note(f"drawn to {picture}")
