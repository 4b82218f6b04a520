"""Options that several commands share, so that one name means one thing everywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fragility.errors import DataError

MODEL_HELP = (
    "A model file (.skops, XGBoost .json/.ubj, LightGBM .txt, CatBoost .cbm, .joblib or .pkl with --trust) "
    "or package.module:attribute."
)

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
ModelOption = Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP, show_default=False)]
DataArgument = Annotated[
    Path, typer.Argument(metavar="DATA", help="The rows: a Parquet, CSV or Arrow file.", show_default=False)
]
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
    str | None, typer.Option("--id", metavar="COL", help="The column with row ids; the row number if absent.")
]
RowRange = Annotated[
    str | None,
    typer.Option("--rows", metavar="N|A:B", help="Only the first N rows, or rows A to B-1, counted from 0."),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Load files that can run code when opened (.joblib, .pkl, unknown types in .skops)."
    ),
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
        "--baseline", metavar="KIND", help="mean, median, zero, mode, missing, or a JSON file {column: value}."
    ),
]
Depth = Annotated[
    int | None, typer.Option("--depth", min=1, help="How many groups to remove, one after another. (default 10)")
]
Reading = Annotated[
    str, typer.Option("--reading", metavar="NAME", help="Which margin: support, current or support_unbounded.")
]
Space = Annotated[
    str | None,
    typer.Option(
        "--space", metavar="NAME", help="Replace evidence in the model's transformed columns or in the raw fields."
    ),
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
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise DataError(f"{option} must be numbers with commas between, got {text!r}") from error


def name_or_json(text: str, option: str) -> Any:
    """A word stays a word; the name of a JSON file becomes its object."""
    path = Path(text)
    if path.suffix.lower() != ".json" and not path.is_file():
        return text
    if not path.is_file():
        raise DataError(f"{option} names the file {path}, which does not exist")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{option} {path} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise DataError(f"{option} {path} must hold a JSON object, got {type(document).__name__}")
    return document
