"""Options that several commands share, so that one name means one thing everywhere, and groups of them.

A command takes a group as one parameter, such as `csv: CsvOptions`; `expand_groups` makes its options of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

import fragility as fg
from fragility.cli.tables import AuditRows, Columns, csv_format, field_names, note_unlabelled, read_rows
from fragility.errors import DataError, ProtocolError
from fragility.files import read_json

if TYPE_CHECKING:
    from fragility.formats import CsvFormat

KEYWORD = inspect.Parameter.KEYWORD_ONLY

MODEL_HELP = (
    "A model file (.skops, XGBoost .json/.ubj, LightGBM .txt, CatBoost .cbm, .joblib or .pkl with --trust) "
    "or package.module:attribute."
)

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
ModelOption = Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP, show_default=False)]
MANY_ROWS = (
    "The rows: a Parquet, CSV or Arrow file, a folder of them, a pattern, or an address such as s3://bucket/rows/."
)
DataArgument = Annotated[str, typer.Argument(metavar="DATA", help=MANY_ROWS, show_default=False)]
DataOption = Annotated[
    Path, typer.Option("--data", metavar="DATA", help="The rows: a Parquet, CSV or Arrow file.", show_default=False)
]
DirArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder that `fragility audit` wrote.", show_default=False)
]
Target = Annotated[
    str | None, typer.Option("--target", metavar="COL", help="The label column, kept away from the model.")
]
Id = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="COL", help="The column with row ids. (default: the index that pandas stored, else row numbers)"
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="COL", help="A column to leave out of the tables; the option may be repeated."),
]
IgnoreExtra = Annotated[
    bool, typer.Option("--ignore-extra", help="Leave out all columns that the model does not know, and say which.")
]
RowRange = Annotated[
    str | None, typer.Option("--rows", metavar="N|A:B", help="Only the first N rows, or rows A to B-1, counted from 0.")
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Load files that can run code when opened (.joblib, .pkl, unknown types in .skops)."),
]
Classes = Annotated[
    str | None,
    typer.Option(
        "--classes", metavar="A,B", help="Class labels in the model's own order, for files that do not hold them."
    ),
]
MinConfidence = Annotated[
    float, typer.Option("--min-confidence", min=0.0, max=1.0, help="Where a prediction counts as confident.")
]
Groups = Annotated[
    str,
    typer.Option(
        "--groups", metavar="FILE", help="Evidence groups: raw-origin, merged, or a JSON file {field: block}."
    ),
]
Baseline = Annotated[
    str,
    typer.Option(
        "--baseline", metavar="KIND", help="typical, mean, median, zero, missing, or a JSON file {field: value}."
    ),
]
BaselineUnits = Annotated[
    str,
    typer.Option(
        "--baseline-units", metavar="NAME", help="What the values of a --baseline file are in: raw or transformed."
    ),
]
Depth = Annotated[
    int | None, typer.Option("--depth", min=1, help="How many groups to remove, one after another. (default 10)")
]
Reading = Annotated[
    str, typer.Option("--reading", metavar="NAME", help="Which margin: support, current or support_unbounded.")
]
Smoothing = Annotated[
    float | None,
    typer.Option(
        "--smoothing",
        metavar="A",
        help="Added to every probability before margins are computed. (default 1/T for a forest of T trees or bagging, "
        "else 0)",
    ),
]
Space = Annotated[
    str | None,
    typer.Option(
        "--space", metavar="NAME", help="Replace evidence in the model's transformed columns or in the raw fields."
    ),
]
Engine = Annotated[str, typer.Option("--engine", metavar="NAME", help="auto, or the engine to insist on (blackbox).")]
Separator = Annotated[
    str | None,
    typer.Option("--separator", metavar="CHAR", help="What separates the fields of CSV files: ';', tab. (default ,)"),
]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", metavar="NAME", help="Encoding of CSV files: latin-1, utf-16. (default utf-8)"),
]
Decimal = Annotated[
    str | None, typer.Option("--decimal", metavar="CHAR", help="The decimal mark in CSV files: ','. (default .)")
]


Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold", metavar="T", help="A class is predicted where its probability is at least T, not at one half."
    ),
]
Positive = Annotated[
    str | None,
    typer.Option("--positive", metavar="CLASS", help="The class that --threshold speaks of; the second if absent."),
]
Row = Annotated[str, typer.Option("--row", metavar="ID", help="The id of the row.", show_default=False)]
RankedBy = Annotated[
    str,
    typer.Option("--by", metavar="SCORE", help="What to rank by: exposure, the paper's fds, failure_probability ..."),
]
ByColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="COL",
        help="Shares by a column: its values, bands of it (age:25,40,60) or so many bands (age:q5). May be repeated.",
    ),
]
AuditedRows = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="The audited rows, for --by and for the values of cases: a file, a folder, a pattern or an address.",
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option("--labels", metavar="FILE", help="A table with the true classes (see --target), for accuracy."),
]
ProtocolArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PROTOCOL", help="A protocol file, or the folder that `fragility audit` wrote.", show_default=False
    ),
]
LabelColumn = Annotated[str, typer.Option("--target", metavar="COL", help="The label column.", show_default=False)]
JsonOut = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")]


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the user typed the option, be it with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_declared(context: typer.Context, by: str, names: Iterable[str]) -> None:
    """Refuse options that say what `by` already declares; silently ignoring one would be worse."""
    for name in names:
        if is_given(context, name):
            words, option = name.replace("_", " "), f"--{name.replace('_', '-')}"
            raise ProtocolError(f"{by} already declares the {words}; leave out {option} or leave out {by}")


# --- groups of options --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvOptions:
    """How CSV files are written."""

    separator: Separator = None
    encoding: Encoding = None
    decimal: Decimal = None

    def form(self, *tables: str | Path | None) -> CsvFormat:
        """Return the format of a command's tables; refuse these options if none of them is a CSV file."""
        return csv_format(self.separator, self.encoding, self.decimal, *tables)


@dataclass(frozen=True)
class ColumnOptions:
    """Which columns are no fields of the model, beside the label."""

    id_column: Id = None
    drop: Drop = None
    ignore_extra: IgnoreExtra = False

    def declare(self, fields: tuple[str, ...] | None, target: str | None) -> Columns:
        return Columns.declare(fields, target, self.id_column, self.drop, self.ignore_extra)


@dataclass(frozen=True)
class LoadingOptions:
    """How a model file is loaded."""

    classes: Classes = None
    trust: Trust = False

    def load(self, model: str) -> fg.Model:
        return fg.load_model(model, trust=self.trust, classes=parse_classes(self.classes))


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with one parameter per option: those of a group stand where the group stood."""
    hints, parameters = get_type_hints(command, include_extras=True), []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            own = get_type_hints(kind, include_extras=True)
            options = [inspect.Parameter(each.name, KEYWORD, default=each.default, annotation=own[each.name])
                       for each in fields(kind)]  # fmt: skip
            groups[parameter.name] = kind, [option.name for option in options]
            parameters += options
        else:
            parameters.append(parameter.replace(kind=KEYWORD, annotation=kind))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, (kind, names) in groups.items():
            given[name] = kind(**{option: given.pop(option) for option in names})
        command(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


# --- what options name --------------------------------------------------------------------------------------


def load_inputs(
    model: str, protocol: Path, data: Path, form: CsvFormat, target: str | None, columns: ColumnOptions,
    loading: LoadingOptions, rows: str | None = None,
) -> tuple[fg.Model, fg.Protocol, AuditRows]:  # fmt: skip
    """Load a model, a protocol and the rows that a command works on."""
    loaded, declared = loading.load(model), load_protocol(protocol)
    known = columns.declare(field_names(loaded, declared), target)
    given = read_rows(data, known, rows=rows, form=form)
    known.check_dropped()
    note_unlabelled(given.labels is not None, target, data)
    return loaded, declared, given


def load_protocol(path: Path) -> fg.Protocol:
    """Read a protocol file, or the protocol of an audit folder."""
    from fragility.certificates.folder import read_protocol

    return read_protocol(path)


def parse_decision(
    threshold: float | None, positive: str | None, classes: Sequence[Any]
) -> float | dict[str, Any] | None:
    """What `--threshold` and `--positive` declare, as `Protocol.fit` takes it."""
    if positive is None:
        return threshold
    if threshold is None:
        raise DataError("--positive names the class of a decision threshold; give the threshold with --threshold")
    label = next((label for label in classes if str(label) == positive), positive)
    return {"class": label, "threshold": threshold}


def parse_classes(text: str | None) -> list[Any] | None:
    """`good,bad` gives strings; `0,1` gives integers, because that is what a model with such classes holds."""
    if text is None:
        return None
    labels = [part.strip() for part in text.split(",")]
    if len(labels) < 2 or "" in labels:
        raise DataError(f"--classes must name at least two labels with commas between, such as good,bad; got {text!r}")
    try:
        return [int(label) for label in labels]
    except ValueError:
        return list(labels)


def parse_numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """`0.5,1` as numbers."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise DataError(f"{option} must be numbers with commas between, got {text!r}") from error


def read_name_or_json(text: str, option: str) -> Any:
    """A word stays a word; the name of a JSON file becomes its object."""
    path = Path(text)
    if path.suffix.lower() != ".json" and not path.is_file():
        return text
    if not path.is_file():
        raise DataError(f"{option} names the file {path}, which does not exist")
    try:
        document = read_json(path)
    except ValueError as error:
        raise DataError(f"{option} {path} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise DataError(f"{option} {path} must hold a JSON object, got {type(document).__name__}")
    return document
