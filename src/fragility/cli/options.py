"""Every option that more than one command takes, declared once, so that one name means one thing everywhere.

An option without a panel is shown by `--help`; the others, by panel, by `--help-all`.
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
from fragility.cli.tables import AuditRows, Columns, field_names, is_csv, note_unlabelled, read_rows, read_table

if TYPE_CHECKING:
    from fragility.tables.formats import CsvFormat

KEYWORD = inspect.Parameter.KEYWORD_ONLY

# The panels of `--help-all`.
TABLES = "Tables"
LOADING = "Loading the model"
PROTOCOL = "Declaring a protocol"
CERTIFICATES = "Further content of certificates"
RUNNING = "Running it"
SERVING = "Answering requests"
ADDED = "Further content"
STATED = "Statements"
STRESSING = "The stress"
PROOFS = "Proofs and signatures"
COPIES = "Degraded copies"
REPLAYING = "Replaying a table"


def option(
    declared: str, help: str, min: float | None = None, max: float | None = None, panel: str | None = None
) -> Any:
    """Return an option, declared as help shows it: its flags, then the name of its value."""
    flags = [word for word in declared.split() if word.startswith("-")]
    value = " ".join(word for word in declared.split() if not word.startswith("-"))
    return typer.Option(*flags, metavar=value or None, help=help, min=min, max=max, rich_help_panel=panel)


def argument(value: str, help: str) -> Any:
    """Return an argument, named as help shows it."""
    return typer.Argument(metavar=value, help=help)


MODEL_HELP = (
    "A model: .skops, .onnx, XGBoost, LightGBM, CatBoost, Treelite or ResMLPClassifier file, .joblib or .pkl with "
    "--trust, an MLflow folder or address, or package.module:attribute."
)
DATA_HELP = "The rows: a Parquet, CSV or Arrow file, a folder or pattern of them, or an address such as s3://bucket/."
PROTOCOL_HELP = "A protocol file, or the folder that `fragility audit` wrote."
RATES_HELP = (
    "How often evidence fails: a number, a JSON file {field: rate} or {field: {lost: rate, wrong: rate}}, or a log "
    "of outages."
)

# --- inputs and outputs -------------------------------------------------------------------------------------

MODEL = option("--model MODEL", MODEL_HELP)
DATA = option("--data DATA", DATA_HELP)
TRAIN = option("--train TRAIN", "The rows that the model was trained on.")
PROTOCOL_FILE = option("--protocol PROTOCOL", PROTOCOL_HELP)
TARGET = option("--target COL", "The label column, which the model does not see.")
ROW = option("--row ID", "The id of a row.")
RATES = option("--rates FILE|R", RATES_HELP)
OUT_FOLDER = option("--out DIR", "The folder to write.")

ModelArgument = Annotated[str, argument("MODEL", MODEL_HELP)]
DataArgument = Annotated[str, argument("DATA", DATA_HELP)]
DirArgument = Annotated[Path, argument("DIR", "The folder that `fragility audit` wrote.")]
DirsArgument = Annotated[list[Path], argument("DIR...", "Folders that `fragility audit` wrote.")]
ProtocolArgument = Annotated[Path, argument("PROTOCOL", PROTOCOL_HELP)]
SomeModel = Annotated[str | None, MODEL]
SomeData = Annotated[str | None, DATA]
SomeTrain = Annotated[Path | None, TRAIN]
SomeProtocol = Annotated[Path | None, PROTOCOL_FILE]
SomeRow = Annotated[str | None, ROW]
SomeRates = Annotated[str | None, RATES]
Target = Annotated[str | None, TARGET]
Id = Annotated[
    str | None, option("--id COL", "The column with row ids. (default: an index stored by pandas, else row numbers)")
]
RowRange = Annotated[
    str | None, option("--rows N|A:B", "Only the first N rows, or rows A to B-1, counted from 0.", panel=TABLES)
]
Trust = Annotated[
    bool, option("--trust", "Load files that can run code when opened (.joblib, .pkl, unknown types in .skops).")
]

# --- further inputs -----------------------------------------------------------------------------------------

Labels = Annotated[Path | None, option("--labels FILE", "A table with the true classes, in the column --target.")]
STRESS = option("--stress FILE", "Held-out labels, as `fragility evaluate labels` writes them.")
Stress = Annotated[Path | None, STRESS]
Policy = Annotated[Path | None, option("--policy FILE", "A review policy, as `fragility policy` writes it.")]
RULES = option("--rules FILE", "The rules of a gate (TOML), as `fragility gate init` writes them.")
AGAINST = option("--against DIR", "An earlier audit, for rules with an allowance.")
Parities = Annotated[
    list[Path] | None,
    option("--parity FILE", "A comparison, as `fragility parity` writes it (JSON). May be repeated.", panel=ADDED),
]
Reliability = Annotated[
    Path | None,
    option("--reliability FILE", "The result of `fragility reliability` on the audited rows (JSON).", panel=ADDED),
]
Values = Annotated[
    bool,
    option("--values", "Keep the values of rows in a comparison's examples, not only field names.", panel=ADDED),
]
Outages = Annotated[
    Path | None,
    option("--outages FILE", "A log of outages: a table of event and field, or booleans, or rows for --markers."),
]
Markers = Annotated[
    str | None,
    option(
        "--markers A,B",
        "Values in the rows of a log of outages that mean 'unavailable' (null: missing), or a JSON file "
        "{field: \\[values]}.",
        panel=TABLES,
    ),
]
KEY = option("--key KEY", "A private key, as `fragility sign keys` writes it.")
PublicKey = Annotated[Path | None, option("--public-key PUB", "The public key of the signer.")]

# --- settings -----------------------------------------------------------------------------------------------------

Engine = Annotated[str, option("--engine NAME", "auto, or the name of an engine, such as blackbox.", panel=RUNNING)]
MinConfidence = Annotated[
    float | None,
    option(
        "--min-confidence C",
        "Confidence from which a prediction counts as confident. (default: the protocol's; 0.9 in a new one)",
        min=0.0,
        max=1.0,
    ),
]
ByColumns = Annotated[
    list[str] | None,
    option("--by COL", "Shares by a column: its values, bands (age:25,40,60) or quantiles (age:q5). May be repeated."),
]
Score = Annotated[
    str,
    option(
        "--score NAME",
        "The score to rank by: exposure, the paper's fds, failure_probability, rehearsal of the declared stress, or a "
        "failure mode such as wrong.",
    ),
]
FAILURE_MODES = option("--failure-modes A,B", "Failure modes of the protocol: lost, wrong, noisy, or several of them.")
Risk = Annotated[
    float,
    option("--risk R", "The largest rate of brittle predictions among those left unreviewed.", min=0.0, max=1.0),
]
Top = Annotated[int, option("--top -n N", "How many entries of a list to show.", min=1)]
DRAWS = option(
    "--draws N",
    "Random draws for each row; more are more exact. (default: 16 under stress, 1024 of missing values, 4096 of "
    "failures)",
    min=1,
    panel=RUNNING,
)
Draws = Annotated[int | None, DRAWS]
Seed = Annotated[int, option("--seed N", "The seed of everything random.", min=0, panel=RUNNING)]
Allowance = Annotated[
    float | None,
    option("--allowance SHARE", "How far a share may move from an earlier audit or the reference.", min=0.0, max=1.0),
]
Port = Annotated[
    int | None,
    option(
        "--port N",
        "The port to listen on, 0 for any free one. (default: 8808 for review, 8809 for serve)",
        min=0,
        max=65535,
    ),
]
Author = Annotated[str | None, option("--author NAME", "The author to state.", panel=STATED)]
Purpose = Annotated[str | None, option("--purpose TEXT", "The purpose to state.", panel=STATED)]
Date = Annotated[
    str | None, option("--date DATE", "The date to state. (default none, so that bytes repeat)", panel=STATED)
]


def results(*suffixes: str) -> Any:
    """Return the option --out of a command, with the forms that it can write."""
    forms = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}" if len(suffixes) > 1 else suffixes[0]
    return option("--out FILE", f"Write the result in the format of the suffix: {forms}. May be repeated.")


PICTURES = (".png", ".svg", ".pdf")


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether the user typed the option, even with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _list_given(context: typer.Context, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return (name, flag) of the options that the user typed."""
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    return [(name, flags[name]) for name in names if is_given(context, name)]


# An option is never ignored silently: if it has no effect, it is refused.
def refuse_declared(context: typer.Context, by: str, names: Iterable[str]) -> None:
    """Refuse options that declare what `by` already declares."""
    for name, flag in _list_given(context, names):
        raise ProtocolError(f"{by} already declares the {name.replace('_', ' ')}; leave out {flag} or leave out {by}")


def refuse_beside(context: typer.Context, reason: str, names: Iterable[str]) -> None:
    """Refuse options that do not go together with other options."""
    for _, flag in _list_given(context, names):
        raise DataError(f"{flag} {reason}; leave it out")


def refuse_without(needed: str, context: typer.Context, *names: str) -> None:
    """Refuse options that have no effect because the option `needed` is not given."""
    for _, flag in _list_given(context, names):
        raise DataError(f"{flag} has no effect without {needed}; give {needed} too, or leave out {flag}")


# --- groups of options --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvOptions:
    """How CSV files are written."""

    separator: Annotated[
        str | None,
        option("--separator CHAR", "What separates the fields of CSV files: ';', tab. (default ,)", panel=TABLES),
    ] = None
    encoding: Annotated[
        str | None, option("--encoding NAME", "Encoding of CSV files: latin-1, utf-16. (default utf-8)", panel=TABLES)
    ] = None
    decimal: Annotated[
        str | None, option("--decimal CHAR", "The decimal mark in CSV files: ','. (default .)", panel=TABLES)
    ] = None

    def form(self, *tables: str | Path | None) -> CsvFormat:
        """Return the format of a command's tables; refuse these options if none of them is a CSV file."""
        from fragility.tables.formats import CsvFormat

        flags = [f"--{entry.name}" for entry in fields(self) if getattr(self, entry.name) is not None]
        if flags and not any(table is not None and is_csv(table) for table in tables):
            raise DataError(f"{flags[0]} is for CSV files, but none was given; leave it out")
        separator = "\t" if self.separator in ("tab", "\\t") else self.separator  # a tab is hard to type in a shell
        for flag, value in (("--separator", separator), ("--decimal", self.decimal)):
            if value is not None and len(value) != 1:
                raise DataError(f"{flag} must be one character, such as ';' or ',', got {value!r}")
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError as error:
            common = "utf-8, latin-1, cp1252 and utf-16 are common ones"
            raise DataError(f"--encoding {self.encoding} is not known; {common}") from error
        return CsvFormat(separator, self.encoding, self.decimal)


@dataclass(frozen=True)
class ColumnOptions:
    """Columns of a table that are not fields of the model, besides the label."""

    id_column: Id = None
    drop: Annotated[
        list[str] | None,
        option("--drop COL", "A column to leave out of the tables. May be repeated.", panel=TABLES),
    ] = None
    ignore_extra: Annotated[
        bool,
        option("--ignore-extra", "Leave out all columns that the model does not know, and say which.", panel=TABLES),
    ] = False

    def declare(self, fields: tuple[str, ...] | None, target: str | None) -> Columns:
        return Columns(target, self.id_column, tuple(self.drop or ()), fields, self.ignore_extra)


@dataclass(frozen=True)
class LoadingOptions:
    """How a model file is loaded."""

    classes: Annotated[
        str | None,
        option("--classes A,B", "Class labels in the model's own order, for files without them.", panel=LOADING),
    ] = None
    trust: Trust = False
    returns: Annotated[
        str | None,
        option(
            "--returns KIND",
            "What a PyTorch model or a function returns: probabilities, logits, binary_logit or log_probabilities.",
            panel=LOADING,
        ),
    ] = None

    def load(self, model: str) -> fg.Model:
        """Load a model; the labels `0,1` are read as integers, as models with such classes store them."""
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
    """The evidence groups of a protocol, and the values that replace lost evidence."""

    groups: Annotated[
        str,
        option("--groups FILE", "Evidence groups: raw-origin, merged, or a JSON file {field: block}.", panel=PROTOCOL),
    ] = "raw-origin"
    baseline: Annotated[
        str, option("--baseline KIND", "typical, mean, median, zero, missing, or a JSON file {field: value}.")
    ] = "typical"
    baseline_units: Annotated[
        str,
        option(
            "--baseline-units NAME", "Units of the values in a --baseline file: raw or transformed.", panel=PROTOCOL
        ),
    ] = "raw"
    space: Annotated[
        str | None,
        option(
            "--space NAME",
            "Replace evidence in transformed columns or in raw fields: transformed, raw.",
            panel=PROTOCOL,
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `Protocol.fit`, which checks them."""
        return asdict(self) | {"baseline": read_name_or_json(self.baseline, "--baseline")}


@dataclass(frozen=True)
class MarginOptions:
    """The depth, margin and decision of a protocol."""

    depth: Annotated[
        int | None,
        option("--depth N", "How many groups to remove, one after another. (default 10)", min=1, panel=PROTOCOL),
    ] = None
    reading: Annotated[
        str, option("--reading NAME", "Which margin: support, current or support_unbounded.", panel=PROTOCOL)
    ] = "support"
    smoothing: Annotated[
        float | None,
        option(
            "--smoothing A",
            "A constant added to every probability before margins are computed. (default 1/T for a forest of T trees "
            "or bagging, else 0)",
            panel=PROTOCOL,
        ),
    ] = None
    min_confidence: MinConfidence = None
    threshold: Annotated[
        float | None,
        option(
            "--threshold T",
            "Predict a class if its probability is at least T instead of one half.",
            panel=PROTOCOL,
        ),
    ] = None
    positive: Annotated[
        str | None,
        option("--positive CLASS", "The class of --threshold. (default: the second)", panel=PROTOCOL),
    ] = None

    def settings(self, classes: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of `Protocol.fit` for a model with these classes."""
        decision: Any = self.threshold
        if self.positive is not None:
            if self.threshold is None:
                raise DataError(
                    "--positive names the class of a decision threshold; give the threshold with --threshold"
                )
            label = next((label for label in classes if str(label) == self.positive), self.positive)
            decision = {"class": label, "threshold": self.threshold}
        settings = {"depth": self.depth, "reading": self.reading, "smoothing": self.smoothing, "decision": decision}
        return settings if self.min_confidence is None else settings | {"min_confidence": self.min_confidence}


def list_options(*groups: Any) -> tuple[str, ...]:
    """Return the names of the options in groups."""
    return tuple(entry.name for group in groups for entry in fields(group))


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with one parameter per option, in which each group is replaced by its options."""
    hints, parameters = get_type_hints(command, include_extras=True), []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            types = get_type_hints(kind, include_extras=True)
            options = [inspect.Parameter(entry.name, KEYWORD, default=entry.default, annotation=types[entry.name])
                       for entry in fields(kind)]  # fmt: skip
            groups[parameter.name] = kind, [option.name for option in options]
            parameters += options
        else:
            parameters.append(parameter.replace(kind=KEYWORD, annotation=kind))
    if any(_has_panel(parameter.annotation) for parameter in parameters):
        parameters.append(inspect.Parameter("help_all", KEYWORD, default=False, annotation=HelpAll))

    @functools.wraps(command)
    def run(*, help_all: bool = False, **values: Any) -> None:
        for name, (kind, names) in groups.items():
            values[name] = kind(**{option: values.pop(option) for option in names})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _has_panel(annotation: Any) -> bool:
    return any(getattr(info, "rich_help_panel", None) for info in getattr(annotation, "__metadata__", ()))


def _print_all_help(context: typer.Context, requested: bool) -> None:
    if requested:
        context.meta[ALL_HELP] = True
        typer.echo(context.get_help())
        raise typer.Exit()


ALL_HELP = "fragility.all_help"  # a key in a context's meta: show every panel of the help
HelpAll = Annotated[
    bool,
    typer.Option("--help-all", help="Show all options, by panel.", is_eager=True, callback=_print_all_help),
]

# --- reading what options name ------------------------------------------------------------------------------


def load_inputs(
    model: str, protocol: Path, data: str, form: CsvFormat, target: str | None, columns: ColumnOptions,
    loading: LoadingOptions, rows: str | None = None,
) -> tuple[fg.Model, fg.Protocol, AuditRows]:  # fmt: skip
    """Load a model, a protocol and the rows that a command works on."""
    loaded, declared = loading.load(model), load_protocol(protocol)
    table_columns = columns.declare(field_names(loaded, declared), target)
    table = read_rows(data, table_columns, rows=rows, form=form)
    table_columns.check_dropped()
    note_unlabelled(table.labels is not None, target, data)
    return loaded, declared, table


def read_outages(path: Path, markers: str | None, form: CsvFormat) -> fg.Outages:
    """Read a log of outages."""
    from fragility.questions.stress.declaration import outage_events

    return fg.Outages.from_events(outage_events(read_table(path, form), markers=parse_markers(markers)))


def parse_markers(text: str | None) -> Any:
    """Parse `?,unknown,-9` or read a JSON file; a number is also matched as text, since files may store either."""
    if text is None:
        return None
    document = read_name_or_json(text, "--markers")
    if not isinstance(document, str):
        return document
    markers: list[object] = []
    for word in document.split(","):
        markers.append(None if word == "null" else word)
        try:
            markers.append(float(word))
        except ValueError:
            continue
    return markers


def find_log(rates: str) -> Path | None:
    """Return the log of outages that --rates names; None if it is a number or a JSON file."""
    path = Path(rates)
    if _is_number(rates) or path.suffix.lower() == ".json":
        return None
    if not path.exists():
        raise DataError(f"--rates must be a number, a JSON file or a log of outages; there is no file {rates}")
    return path


def read_rates(rates: str, log: Path | None, markers: str | None, observations: int | None, form: CsvFormat) -> Any:
    """Return the rates that --rates declares, in the form of the library."""
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


def split_names(text: str) -> list[str]:
    """Split `wrong, noisy` into names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def load_protocol(path: Path) -> fg.Protocol:
    """Read a protocol file, or the protocol of an audit folder."""
    from fragility.audits.folder import read_protocol

    return read_protocol(path)


def parse_numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Parse `0.5,1` as numbers."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise DataError(f"{option} must be numbers with commas between, got {text!r}") from error


def read_name_or_json(text: str, option: str) -> Any:
    """Return the object in a JSON file if the text names one, else the text."""
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
        raise DataError(f"{option} {path} must contain a JSON object, got {type(document).__name__}")
    return document
