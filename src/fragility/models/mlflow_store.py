"""MLflow: models by their address in a tracking store or registry, and functions that MLflow alone can load.

A local folder of a known library needs nothing of this module (``models.mlmodel`` reads it). MLflow is imported when it
is asked for, with its telemetry off unless the user has set ``MLFLOW_DISABLE_TELEMETRY``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from fragility.base.arrays import Floats
from fragility.base.errors import ModelError, first_line
from fragility.base.libraries import say_lacking
from fragility.models.decision import ClassLabel, to_python
from fragility.models.signature import Signature

ADDRESSES = ("runs:/", "models:/")
# They change when the same model is registered, and say nothing about its predictions.
RECORDS = ("MLmodel", "registered_model_meta", "conda.yaml", "python_env.yaml", "requirements.txt")


@contextmanager
def fetch_model(address: str) -> Iterator[Path]:
    """Yield a temporary copy of the model folder that a ``runs:/`` or ``models:/`` address names."""
    mlflow = import_mlflow(f"the address {address!r:.200}")
    home = tempfile.mkdtemp(prefix="fragility-mlflow-")
    try:
        try:
            found = mlflow.artifacts.download_artifacts(artifact_uri=address, dst_path=home)
        except Exception as error:  # of the client, of the store, of the network
            raise ModelError(f"MLflow does not find the model {address!r}: {first_line(error)}") from error
        yield Path(found)
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

    runs_code_of_others: ClassVar[bool] = True  # which may read what is not in the folder

    predict: Any = field(repr=False)
    digest: str
    classes: tuple[ClassLabel, ...] | None

    def __call__(self, rows: Any) -> Floats:
        return read_answers(self.predict(rows), self.classes)

    def fingerprint(self) -> str:
        """Return the digest of the folder's files, which decide what the function answers."""
        return self.digest


def load_pyfunc(
    folder: Path, outputs: Signature | None, classes: Sequence[ClassLabel] | None
) -> tuple[PyfuncModel, tuple[ClassLabel, ...] | None]:
    """Load a folder's function, which runs its code; return it with its classes, None where nothing names them."""
    labels = name_answers(outputs, classes)
    mlflow = import_mlflow("a model that only MLflow can load")
    # Its function may open its files at any call, and a fetched folder is removed after loading.
    home = tempfile.mkdtemp(prefix="fragility-mlflow-")
    try:
        own = Path(shutil.copytree(folder, Path(home) / "model"))
        loaded = mlflow.pyfunc.load_model(str(own), suppress_warnings=True)
        model = PyfuncModel(loaded.predict, digest_files(own), labels)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    weakref.finalize(model, shutil.rmtree, home, ignore_errors=True)
    return model, labels


def name_answers(outputs: Signature | None, classes: Sequence[ClassLabel] | None) -> tuple[ClassLabel, ...] | None:
    """Return the classes of a function's columns, declared by the user or by its signature; None if nothing does."""
    if outputs is not None and len(outputs.columns) == 1:
        raise ModelError(f"it declares one output of type {outputs.columns[0].type}: {LABELS}")
    if classes is not None:
        return tuple(map(to_python, classes))
    return None if outputs is None else outputs.names


def digest_files(folder: Path) -> str:
    """Return a digest over the names and contents of a folder's files, records of MLflow's aside."""
    hasher = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
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
    """Return a function's answers (n, C) as numbers; the columns of a table are put in the order of the classes."""
    if isinstance(answers, pd.DataFrame) and classes is not None:
        names, wanted = [str(name) for name in answers.columns], [str(label) for label in classes]
        if names != wanted and sorted(names) == sorted(wanted):
            answers = answers.iloc[:, [names.index(name) for name in wanted]]
    values = np.asarray(answers)
    if values.ndim < 2 or values.shape[1] == 1:
        example = next(iter(values.reshape(-1).tolist()), None)
        raise ModelError(f"the function of the MLflow model returns {example!r:.80} for a row: {LABELS}")
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"the function of the MLflow model returns no numbers: {first_line(error)}") from error
