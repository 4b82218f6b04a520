"""MLflow models: folders, which are read without MLflow, and models that only MLflow can fetch or load.

A folder's ``MLmodel`` file is YAML. It names flavours: for each library that can load the model, the file to load and
its format. The library's own flavour is preferred, since this package's loaders can read its file; a model with only
``python_function`` is a function of MLflow's. Nothing in the file is trusted that could lead out of the folder or run
code: paths must stay inside, types that the file declares harmless are checked, and modules that it names are imported
with trust only.

The file may contain the signature of the model: the columns of the rows that it was logged with, by name and type.
MLflow refuses rows that do not match it, so an audit refuses them too.

MLflow itself is imported for addresses in a tracking store or registry, and for functions. Its telemetry is off unless
the user has set ``MLFLOW_DISABLE_TELEMETRY``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from fragility.base.arrays import Floats
from fragility.base.errors import ModelError, first_line
from fragility.base.files import NESTING
from fragility.base.libraries import say_lacking
from fragility.models.outputs import ClassLabel, to_python

# MLflow's scalar types, and the content of such columns in words.
# --- signatures -----------------------------------------------------------------------------------------------

TYPES = {
    "boolean": "true or false",
    "integer": "whole numbers",
    "long": "whole numbers",
    "float": "numbers",
    "double": "numbers",
    "string": "text",
    "datetime": "dates",
    "binary": "bytes",
}


@dataclass(frozen=True, slots=True)
class SignatureColumn:
    """One column of a signature; ``name`` is None if columns are matched by position."""

    name: str | None
    type: str  # one of TYPES
    required: bool = True


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """The columns of a model's input, in the order in which the model takes them."""

    columns: tuple[SignatureColumn, ...]

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of all columns, or None if columns are matched by position."""
        names = tuple(column.name for column in self.columns if column.name is not None)
        return names if len(names) == len(self.columns) else None

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that rows must have."""
        return tuple(column.name for column in self.columns if column.required and column.name is not None)

    def fit_to(self, columns: Sequence[str] | None) -> ModelSignature:
        """Return the signature in the order of the model's own columns; ModelError if the two contradict each other.

        LightGBM replaces blanks in names, and numbers the columns of an array; such columns are matched by position.
        """
        names = self.names
        if columns is None or names is None:
            if columns is not None and len(columns) != len(self.columns):
                raise ModelError(
                    f"the model's MLflow signature has {len(self.columns)} columns, and the model was fitted on "
                    f"{len(columns)}; log the model again with the signature of its own training rows"
                )
            return self
        by_position = [re.sub(r"\s", "_", name) for name in names], [f"Column_{i}" for i in range(len(names))]
        if list(columns) in by_position:
            return self
        unknown = [name for name in names if name not in columns] or [name for name in columns if name not in names]
        if unknown:
            relation = "lists {!r}, which is not" if unknown[0] in names else "lacks {!r}, which is"
            raise ModelError(
                f"the model's MLflow signature {relation.format(unknown[0])} a column that the model was fitted on; "
                "log the model again with the signature of its own training rows"
            )
        by_name = {column.name: column for column in self.columns}
        return replace(self, columns=tuple(by_name[name] for name in columns))


def read_signature(inputs: Any) -> ModelSignature:
    """Return the signature from the JSON text under ``inputs`` in an ``MLmodel`` file."""
    try:
        document = json.loads(inputs)
        columns = tuple(column for entry in document for column in _read_entry(entry, len(document)))
    except ModelError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(
            "its MLmodel file has a signature that cannot be read: its inputs are not a list of columns in JSON"
        ) from error
    names = [column.name for column in columns]
    if not columns or (None in names and len({*names}) > 1) or (None not in names and len({*names}) < len(names)):
        raise ModelError("its MLmodel file has a signature without columns, or with names that are not distinct")
    return ModelSignature(columns)


def _read_entry(entry: Any, n_entries: int) -> list[SignatureColumn]:
    name, kind = entry.get("name") if isinstance(entry, dict) else None, entry["type"]
    if kind == "tensor" and name is None and n_entries == 1:
        dtype, shape = entry["tensor-spec"]["dtype"], entry["tensor-spec"]["shape"]
        if len(shape) == 2 and isinstance(shape[1], int) and 0 < shape[1] <= MOST_COLUMNS:
            # The dtype of a tensor does not matter, unless it is text.
            return [SignatureColumn(None, "string" if dtype in ("object", "str") else "double")] * shape[1]
    if not isinstance(kind, str) or kind not in TYPES or not isinstance(name, str | None):
        raise ModelError(
            f"its signature has {'an input' if name is None else f'the input {name!r}'} of type {kind!r}; rows of a "
            f"table have columns of the types {', '.join(TYPES)}"
        )
    # Older versions of MLflow wrote "optional" instead of "required".
    return [SignatureColumn(name, kind, entry.get("required", not entry.get("optional", False)) is not False)]


MOST_COLUMNS = 1_000_000


# --- the folder -----------------------------------------------------------------------------------------------

MLMODEL = "MLmodel"
MOST_BYTES = 2**20  # a signature of ten thousand columns takes 600 KiB
PYFUNC = "python_function"
NATIVE = ("sklearn", "lightgbm", "xgboost", "catboost", "onnx", "pytorch")
SERIALISED = {"pickle": ".pkl", "cloudpickle": ".pkl", "skops": ".skops"}
NONE = ("", "null", "~")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The file to load from a folder, and which of this package's loaders reads it."""

    path: Path  # a file, or the folder itself for a function of MLflow's
    kind: str  # the suffix of such files; PYFUNC for a function of MLflow's
    code: Path | None  # a folder of modules that the model may import, if it is trusted
    signature: ModelSignature | None
    outputs: ModelSignature | None  # what a function of MLflow's declares to return


def find_artefact(folder: Path) -> ModelFile:
    """Return what to load from an MLflow model's folder."""
    document = _read_document(folder)
    flavours = document.get("flavors")
    if not isinstance(flavours, dict) or not all(isinstance(flavour, dict) for flavour in flavours.values()):
        raise ModelError("its MLmodel file lists no flavours, which say what to load")
    native = [name for name in NATIVE if name in flavours]
    if len(native) > 1:
        raise ModelError(
            f"it has the flavours {' and '.join(native)}, and does not say which of them is in use; give the model "
            "file inside the folder, or save the model with one flavour"
        )
    signature, outputs = _read_signatures(document)
    if native:
        settings = flavours[native[0]]
        path, kind = _find_file(folder, native[0], settings)
        return ModelFile(path, kind, _find_code(folder, settings), signature, outputs)
    if PYFUNC not in flavours:
        flavour = ", ".join(map(str, flavours)) or "none"
        raise ModelError(f"it has the flavour {flavour:.100}; supported are {', '.join((*NATIVE, PYFUNC))}")
    return ModelFile(folder, PYFUNC, _find_code(folder, flavours[PYFUNC]), signature, outputs)


def _read_document(folder: Path) -> dict[str, Any]:
    lacking = say_lacking("the folder of an MLflow model", "yaml")
    if lacking is not None:
        raise ModelError(lacking)
    import yaml

    path = inside(folder, MLMODEL)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ModelError(f"its MLmodel file has {size} bytes; at most {MOST_BYTES} are read")
    data = path.read_bytes()
    # The base loader builds only texts, lists and mappings, and ignores tags and merge keys.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        depth = 0
        for event in yaml.parse(data, Loader=loader):  # unlike the loader, this does not recurse in C
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > NESTING:
                raise yaml.YAMLError
        document = yaml.load(data, Loader=loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ModelError("its MLmodel file is not valid YAML") from error
    if not isinstance(document, dict):
        raise ModelError("its MLmodel file contains no settings")
    return document


def _read_signatures(document: Mapping[str, Any]) -> tuple[ModelSignature | None, ModelSignature | None]:
    declared = document.get("signature")
    if not isinstance(declared, dict):
        return None, None
    inputs, outputs = declared.get("inputs", ""), declared.get("outputs", "")
    try:
        returned = None if outputs in NONE else read_signature(outputs)
    except ModelError:
        returned = None  # outputs may have any shape; only functions of MLflow's need them
    return None if inputs in NONE else read_signature(inputs), returned


def _find_code(folder: Path, settings: Mapping[str, Any]) -> Path | None:
    name = settings.get("code", "")
    return None if name in NONE else inside(folder, name, is_folder=True)


def _find_file(folder: Path, flavour: str, settings: Mapping[str, Any]) -> tuple[Path, str]:
    """Return the file of a library's flavour, and the suffix by which this package knows its format."""
    if flavour == "pytorch":
        data = inside(folder, settings.get("model_data"), is_folder=True)
        kind = ".pt2" if (data / "model.pt2").exists() else ".pth"
        return inside(folder, f"{data.relative_to(folder.resolve()).as_posix()}/model{kind}"), kind
    path = inside(folder, settings.get("pickled_model" if flavour == "sklearn" else "data"))
    suffix = path.suffix.lower()
    if flavour == "onnx":
        return path, ".onnx"
    if flavour == "catboost":
        if settings.get("save_format", "cbm") != "cbm":
            raise ModelError(f"its CatBoost file has the format {settings['save_format']!r:.50}; save it as cbm")
        return path, ".cbm"
    if flavour == "xgboost":
        return path, ".json" if _starts_as_json(path) else ".ubj"
    if flavour == "lightgbm" and suffix not in (".pkl", ".skops"):
        return path, ".txt"
    how = settings.get("serialization_format", "pickle" if suffix != ".skops" else "skops")
    if how not in SERIALISED:
        raise ModelError(f"its {flavour} file has the format {how!r:.50}; supported are {', '.join(SERIALISED)}")
    return path, SERIALISED[how]


def _starts_as_json(path: Path) -> bool:
    """Return whether an XGBoost file is JSON, which starts with a brace and a quote (UBJSON: a brace and a letter)."""
    with path.open("rb") as stream:
        start = stream.read(64)
    return start[:1] == b"{" and start[1:].lstrip()[:1] == b'"'


def inside(folder: Path, name: Any, *, is_folder: bool = False) -> Path:
    """Return a regular file, or a folder, that ``MLmodel`` names; ModelError if it is absent or outside the folder."""
    if not isinstance(name, str) or name in NONE:
        raise ModelError("its MLmodel file does not say which file holds the model")
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or "\0" in name or Path(name).is_absolute():
        raise ModelError(f"its MLmodel file names {name!r:.200}, which lies outside the folder")
    root = Path(os.path.realpath(folder))
    path = Path(os.path.realpath(root / parts))
    if not path.is_relative_to(root):
        raise ModelError(f"{name!r:.200} is a link that leads out of the folder")
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ModelError(f"the folder lacks {name!r:.200}, which its MLmodel file names") from error
    if not (stat.S_ISDIR(mode) if is_folder else stat.S_ISREG(mode)):
        raise ModelError(f"{name!r:.200} is not a {'folder' if is_folder else 'regular file'}")
    return path


# --- MLflow itself --------------------------------------------------------------------------------------------

ADDRESSES = ("runs:/", "models:/")
# Files that change when a model is registered, and do not affect its predictions.
RECORDS = ("MLmodel", "registered_model_meta", "conda.yaml", "python_env.yaml", "requirements.txt")


@contextmanager
def fetch_model(address: str) -> Iterator[Path]:
    """Yield a temporary copy of the model folder that a ``runs:/`` or ``models:/`` address names."""
    mlflow = import_mlflow(f"the address {address!r:.200}")
    home = tempfile.mkdtemp(prefix="fragility-mlflow-")
    try:
        try:
            folder = mlflow.artifacts.download_artifacts(artifact_uri=address, dst_path=home)
        except Exception as error:  # of the client, of the store, of the network
            raise ModelError(f"MLflow does not find the model {address!r}: {first_line(error)}") from error
        yield Path(folder)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def import_mlflow(purpose: str) -> Any:
    """Return MLflow, with its telemetry off unless the user has set it; ModelError says how to install it."""
    lacking = say_lacking(purpose, "mlflow")
    if lacking is not None:
        raise ModelError(lacking)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    import mlflow
    import mlflow.artifacts
    import mlflow.pyfunc

    return mlflow


# --- functions that MLflow loads --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PyfuncModel:
    """A model that MLflow loads as a function from tables to probabilities, one column per class."""

    runs_code_of_others: ClassVar[bool] = True  # it may read files outside the folder

    predict: Any = field(repr=False)
    digest: str
    classes: tuple[ClassLabel, ...] | None

    def __call__(self, rows: Any) -> Floats:
        return read_answers(self.predict(rows), self.classes)

    def fingerprint(self) -> str:
        """Return the digest of the folder's files."""
        return self.digest


def load_pyfunc(
    folder: Path, outputs: ModelSignature | None, classes: Sequence[ClassLabel] | None
) -> tuple[PyfuncModel, tuple[ClassLabel, ...] | None]:
    """Load a folder's function, which runs its code; return it with its classes, or None if they are unknown."""
    labels = name_answers(outputs, classes)
    mlflow = import_mlflow("a model that only MLflow can load")
    # The function may read its files in any call, but a fetched folder is removed after loading.
    home = tempfile.mkdtemp(prefix="fragility-mlflow-")
    try:
        copy = Path(shutil.copytree(folder, Path(home) / "model"))
        loaded = mlflow.pyfunc.load_model(str(copy), suppress_warnings=True)
        model = PyfuncModel(loaded.predict, digest_files(copy), labels)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    weakref.finalize(model, shutil.rmtree, home, ignore_errors=True)
    return model, labels


def name_answers(outputs: ModelSignature | None, classes: Sequence[ClassLabel] | None) -> tuple[ClassLabel, ...] | None:
    """Return the classes of a function's columns, declared by the user or by its signature; None if unknown."""
    if outputs is not None and len(outputs.columns) == 1:
        raise ModelError(f"it declares one output of type {outputs.columns[0].type}: {LABELS}")
    if classes is not None:
        return tuple(map(to_python, classes))
    return None if outputs is None else outputs.names


def digest_files(folder: Path) -> str:
    """Return a digest over the names and contents of a folder's files, except MLflow's records."""
    hasher = hashlib.sha256()
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        name = path.relative_to(folder).as_posix()
        if name not in RECORDS and "__pycache__" not in path.parts:
            content = hashlib.sha256(path.read_bytes()).digest()
            hasher.update(f"{len(name.encode())}:{name}:".encode() + content)
    return hasher.hexdigest()


LABELS = (
    "one value per row, such as a label, and a certificate needs a probability for each class; log a model whose "
    "predict returns those (scikit-learn models: pyfunc_predict_fn='predict_proba')"
)


def read_answers(answers: Any, classes: Sequence[ClassLabel] | None) -> Floats:
    """Return a function's answers (n, C) as numbers, with the columns of a table in the order of the classes."""
    if isinstance(answers, pd.DataFrame) and classes is not None:
        names, expected = [str(name) for name in answers.columns], [str(label) for label in classes]
        if names != expected and sorted(names) == sorted(expected):
            answers = answers.iloc[:, [names.index(name) for name in expected]]
    values = np.asarray(answers)
    if values.ndim < 2 or values.shape[1] == 1:
        example = next(iter(values.reshape(-1).tolist()), None)
        raise ModelError(f"the function of the MLflow model returns {example!r:.80} for a row: {LABELS}")
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"the function of the MLflow model must return numbers: {first_line(error)}") from error
