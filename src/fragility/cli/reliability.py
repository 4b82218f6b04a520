"""`fragility reliability`: how many decisions outages are expected to cost, and which field to make reliable first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.cli.evaluate import read_outages
from fragility.cli.options import load_inputs, option, read_name_or_json, refuse_without
from fragility.cli.outputs import draw, plan_files, save_result
from fragility.cli.terminal import say
from fragility.pages.results import checked_suffix

if TYPE_CHECKING:
    from fragility.tables.formats import CsvFormat


def reliability(
    *,
    context: typer.Context,
    protocol: opt.ProtocolArgument,
    model: opt.ModelOption,
    data: opt.DataOption,
    rates: Annotated[
        str,
        option(
            "--rates FILE|R",
            "How often evidence fails: one number, a JSON file {field: rate} or {field: {lost: rate, wrong: rate}}, "
            "or a log of outages.",
        ),
    ],
    observations: Annotated[
        int | None,
        option(
            "--observations N", "Take fields to fail independently, as often as the log says of N observations.", min=1
        ),
    ] = None,
    markers: Annotated[
        str | None,
        option(
            "--markers A,B",
            "Values in the rows of the --rates log that mean 'unavailable' (null: missing), or a JSON file "
            "{field: \\[values]}.",
        ),
    ] = None,
    draws: Annotated[
        int, option("--draws", "Quasi-random subsets per row, where the probability is not exact.", min=16)
    ] = 4096,
    seed: Annotated[int, option("--seed", "Seed of the quasi-random subsets.", min=0)] = 0,
    top: Annotated[int, option("--top N", "How many fields and rows to show.", min=1)] = 10,
    json_file: opt.JsonOut = None,
    csv_file: Annotated[Path | None, option("--csv FILE", "Write one row per prediction as CSV.")] = None,
    picture: Annotated[
        Path | None, option("--picture FILE", "Draw the fields against the decisions kept (.png, .svg, .pdf).")
    ] = None,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    rows: opt.RowRange = None,
    engine: opt.Engine = "auto",
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
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
    log = find_log(rates)
    if log is None:
        refuse_without("a log of outages in --rates", context, "markers", "observations")
    plan_files(
        {"--json": json_file, "--csv": csv_file, "--picture": picture},
        {"--model": model, "--data": data, "--rates": log},
    )
    form = csv.form(data, log)
    declared = read_rates(rates, log, markers, observations, form)
    loaded, pi, given = load_inputs(model, protocol, data, form, target, columns, loading, rows)
    found = fg.assess_reliability(loaded, given.X, pi, declared, ids=given.ids, engine=engine, draws=draws, seed=seed)
    say(found.to_text(top))
    save_result(found, json_file, csv_file)
    if picture is not None:
        draw(found.plot(), picture)


def find_log(rates: str) -> Path | None:
    """The log of outages that --rates names, None where it is a number or a JSON file."""
    path = Path(rates)
    if _is_number(rates) or path.suffix.lower() == ".json":
        return None
    if not path.exists():
        raise DataError(f"--rates must be a number, a JSON file or a log of outages; there is no file {rates}")
    return path


def read_rates(rates: str, log: Path | None, markers: str | None, observations: int | None, form: CsvFormat) -> Any:
    """Return what --rates declares, as the library takes it."""
    if log is None:
        return float(rates) if _is_number(rates) else read_name_or_json(rates, "--rates")
    outages = read_outages(log, markers, form)
    return outages if observations is None else outages.rates(observations)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
