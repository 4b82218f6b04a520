"""Options that several commands share, so that one name means one thing everywhere, and groups of them.

A command takes a group as one parameter, such as `csv: CsvOptions`; `expand_groups` makes its options of it.
"""

from __future__ import annotations

import codecs
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

import fragility as fg
from fragility.base.errors import DataError, ProtocolError
from fragility.base.files import read_json
from fragility.cli.tables import AuditRows, Columns, field_names, is_csv, note_unlabelled, read_rows

if TYPE_CHECKING:
    from fragility.tables.formats import CsvFormat

KEYWORD = inspect.Parameter.KEYWORD_ONLY


def option(declared: str, help: str, min: float | None = None, max: float | None = None) -> Any:
    """Return an option, declared as help shows it: its flags, then what stands for its value."""
    flags = [word for word in declared.split() if word.startswith("-")]
    value = " ".join(word for word in declared.split() if not word.startswith("-"))
    return typer.Option(*flags, metavar=value or None, help=help, min=min, max=max)


def argument(value: str, help: str) -> Any:
    """Return an argument, named as help shows it."""
    return typer.Argument(metavar=value, help=help)


MODEL_HELP = (
    "A model file (.skops, XGBoost .json/.ubj, LightGBM .txt, CatBoost .cbm, ONNX .onnx, Treelite .tl, "
    "ResMLPClassifier .safetensors, .joblib or .pkl with --trust), an MLflow folder, runs:/ or models:/ address, or "
    "package.module:attribute."
)

ModelArgument = Annotated[str, argument("MODEL", MODEL_HELP)]
ModelOption = Annotated[str, option("--model MODEL", MODEL_HELP)]
MANY_ROWS = (
    "The rows: a Parquet, CSV or Arrow file, a folder of them, a pattern, or an address such as s3://bucket/rows/."
)
DataArgument = Annotated[str, argument("DATA", MANY_ROWS)]
DataOption = Annotated[Path, option("--data DATA", "The rows: a Parquet, CSV or Arrow file.")]
DirArgument = Annotated[Path, argument("DIR", "The folder that `fragility audit` wrote.")]
Target = Annotated[str | None, option("--target COL", "The label column, kept away from the model.")]
Id = Annotated[
    str | None, option("--id COL", "The column with row ids. (default: the index that pandas stored, else row numbers)")
]
RowRange = Annotated[str | None, option("--rows N|A:B", "Only the first N rows, or rows A to B-1, counted from 0.")]
Trust = Annotated[
    bool, option("--trust", "Load files that can run code when opened (.joblib, .pkl, unknown types in .skops).")
]
MinConfidence = Annotated[
    float | None,
    option("--min-confidence C", "Where a prediction counts as confident. (default: as audited)", min=0.0, max=1.0),
]
Engine = Annotated[str, option("--engine NAME", "auto, or the engine to insist on (blackbox).")]
Encoding = Annotated[str | None, option("--encoding NAME", "Encoding of CSV files: latin-1, utf-16. (default utf-8)")]


Row = Annotated[str, option("--row ID", "The id of the row.")]
RankedBy = Annotated[
    str,
    option(
        "--by SCORE",
        "What to rank by: exposure, the paper's fds, failure_probability, a failure mode such as wrong ...",
    ),
]
ByColumns = Annotated[
    list[str] | None,
    option(
        "--by COL",
        "Shares by a column: its values, bands of it (age:25,40,60) or so many bands (age:q5). May be repeated.",
    ),
]
AuditedRows = Annotated[
    str | None,
    option(
        "--data DATA",
        "The audited rows, for --by and for the values of cases: a file, a folder, a pattern or an address.",
    ),
]
Labels = Annotated[Path | None, option("--labels FILE", "A table with the true classes (see --target), for accuracy.")]
ProtocolArgument = Annotated[Path, argument("PROTOCOL", "A protocol file, or the folder that `fragility audit` wrote.")]
LabelColumn = Annotated[str, option("--target COL", "The label column.")]
JsonOut = Annotated[Path | None, option("--json FILE", "Write everything as JSON.")]


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the user typed the option, be it with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _list_given(context: typer.Context, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return (name, flag) of those options that the user typed."""
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    return [(name, flags[name]) for name in names if is_given(context, name)]


# Silently ignoring an option would be worse than refusing it.
def refuse_declared(context: typer.Context, by: str, names: Iterable[str]) -> None:
    """Refuse options that say what `by` already declares."""
    for name, flag in _list_given(context, names):
        raise ProtocolError(f"{by} already declares the {name.replace('_', ' ')}; leave out {flag} or leave out {by}")


def refuse_without(needed: str, context: typer.Context, *names: str) -> None:
    """Refuse options that have no effect because the option `needed` is not given."""
    for _, flag in _list_given(context, names):
        raise DataError(f"{flag} has no effect without {needed}; give {needed} too, or leave out {flag}")


# --- groups of options --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvOptions:
    """How CSV files are written."""

    separator: Annotated[
        str | None, option("--separator CHAR", "What separates the fields of CSV files: ';', tab. (default ,)")
    ] = None
    encoding: Encoding = None
    decimal: Annotated[str | None, option("--decimal CHAR", "The decimal mark in CSV files: ','. (default .)")] = None

    def form(self, *tables: str | Path | None) -> CsvFormat:
        """Return the format of a command's tables; refuse these options if none of them is a CSV file."""
        from fragility.tables.formats import CsvFormat

        given = [f"--{each.name}" for each in fields(self) if getattr(self, each.name) is not None]
        if given and not any(table is not None and is_csv(table) for table in tables):
            raise DataError(f"{given[0]} is for CSV files, and none was given; leave it out")
        separator = "\t" if self.separator in ("tab", "\\t") else self.separator  # a tab is hard to type in a shell
        for flag, value in (("--separator", separator), ("--decimal", self.decimal)):
            if value is not None and len(value) != 1:
                raise DataError(f"{flag} must be one character, such as ';' or ',', got {value!r}")
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError as error:
            known = "utf-8, latin-1, cp1252 and utf-16 are common ones"
            raise DataError(f"--encoding {self.encoding} is not known; {known}") from error
        return CsvFormat(separator, self.encoding, self.decimal)


@dataclass(frozen=True)
class ColumnOptions:
    """Which columns are no fields of the model, beside the label."""

    id_column: Id = None
    drop: Annotated[
        list[str] | None, option("--drop COL", "A column to leave out of the tables; the option may be repeated.")
    ] = None
    ignore_extra: Annotated[
        bool, option("--ignore-extra", "Leave out all columns that the model does not know, and say which.")
    ] = False

    def declare(self, fields: tuple[str, ...] | None, target: str | None) -> Columns:
        return Columns(target, self.id_column, tuple(self.drop or ()), fields, self.ignore_extra)


@dataclass(frozen=True)
class LoadingOptions:
    """How a model file is loaded."""

    classes: Annotated[
        str | None, option("--classes A,B", "Class labels in the model's own order, for files that do not hold them.")
    ] = None
    trust: Trust = False
    returns: Annotated[
        str | None,
        option(
            "--returns KIND",
            "What a PyTorch model or a function returns: probabilities, logits, binary_logit or log_probabilities.",
        ),
    ] = None

    def load(self, model: str) -> fg.Model:
        """Load a model; `0,1` are classes of integers, because that is what a model with such classes holds."""
        output: Any = self.returns
        if self.classes is None:
            return fg.load_model(model, trust=self.trust, output=output)
        labels: list[Any] = [part.strip() for part in self.classes.split(",")]
        if len(labels) < 2 or "" in labels:
            raise DataError(
                f"--classes must name at least two labels with commas between, such as good,bad; got {self.classes!r}"
            )
        with suppress(ValueError):
            labels = [int(label) for label in labels]
        return fg.load_model(model, trust=self.trust, classes=labels, output=output)


@dataclass(frozen=True)
class EvidenceOptions:
    """What a protocol takes for evidence, and what replaces it."""

    groups: Annotated[
        str, option("--groups FILE", "Evidence groups: raw-origin, merged, or a JSON file {field: block}.")
    ] = "raw-origin"
    baseline: Annotated[
        str, option("--baseline KIND", "typical, mean, median, zero, missing, or a JSON file {field: value}.")
    ] = "typical"
    baseline_units: Annotated[
        str, option("--baseline-units NAME", "What the values of a --baseline file are in: raw or transformed.")
    ] = "raw"
    space: Annotated[
        str | None, option("--space NAME", "Replace evidence in the model's transformed columns or in the raw fields.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return what `Protocol.fit` takes; it checks the words and names the choices."""
        return asdict(self) | {"baseline": read_name_or_json(self.baseline, "--baseline")}


@dataclass(frozen=True)
class MarginOptions:
    """How far a protocol removes evidence, and which margin and decision it looks at."""

    depth: Annotated[
        int | None, option("--depth", "How many groups to remove, one after another. (default 10)", min=1)
    ] = None
    reading: Annotated[str, option("--reading NAME", "Which margin: support, current or support_unbounded.")] = (
        "support"
    )
    smoothing: Annotated[
        float | None,
        option(
            "--smoothing A",
            "Added to every probability before margins are computed. (default 1/T for a forest of T trees or "
            "bagging, else 0)",
        ),
    ] = None
    min_confidence: Annotated[
        float | None,
        option("--min-confidence C", "Where a prediction counts as confident. (default 0.9)", min=0.0, max=1.0),
    ] = None
    threshold: Annotated[
        float | None,
        option("--threshold T", "A class is predicted where its probability is at least T, not at one half."),
    ] = None
    positive: Annotated[
        str | None, option("--positive CLASS", "The class that --threshold speaks of; the second if absent.")
    ] = None

    def settings(self, classes: Sequence[Any]) -> dict[str, Any]:
        """Return what `Protocol.fit` takes for a model with these classes."""
        decision: Any = self.threshold
        if self.positive is not None:
            if self.threshold is None:
                raise DataError(
                    "--positive names the class of a decision threshold; give the threshold with --threshold"
                )
            label = next((label for label in classes if str(label) == self.positive), self.positive)
            decision = {"class": label, "threshold": self.threshold}
        given = {"depth": self.depth, "reading": self.reading, "smoothing": self.smoothing, "decision": decision}
        return given if self.min_confidence is None else given | {"min_confidence": self.min_confidence}


def list_options(*groups: Any) -> tuple[str, ...]:
    """Return the names of the options in groups."""
    return tuple(each.name for group in groups for each in fields(group))


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
    from fragility.audits.folder import read_protocol

    return read_protocol(path)


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
