"""Storing a trained model in the format its file's name asks for; what it reads, `loading` gives back."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fragility.errors import ModelError
from fragility.files import MODEL, replacing
from fragility.libraries import family_of
from fragility.models.links import type_name

OWN_FORMATS = {".cbm": "catboost.CatBoostClassifier", ".safetensors": "fragility.ResMLPClassifier"}


def check_storable(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Refuse, before a model is trained, a name by which it could not be stored."""
    suffix = Path(path).suffix.lower()
    if suffix not in _WRITERS:
        raise ModelError(f"{path} must end in {', '.join(_WRITERS)}")
    if suffix in OWN_FORMATS and family_of(estimator) != OWN_FORMATS[suffix]:
        holds = OWN_FORMATS[suffix].split(".")[1]
        raise ModelError(f"a {suffix} file holds a {holds} alone, this is a {type_name(estimator)}; choose .skops")


def save_model(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator or pipeline, whole or not at all."""
    check_storable(estimator, path)
    with replacing(path, own=MODEL) as temporary:
        _WRITERS[Path(path).suffix.lower()](estimator, temporary)


def skops_bytes(estimator: Any) -> bytes:
    """Return a fitted estimator as a compressed .skops file: its JSON shrinks to a fiftieth."""
    from skops import io  # slow to import: it loads torch where torch is installed

    return bytes(io.dumps(estimator, compression=zipfile.ZIP_DEFLATED))


def _write_skops(estimator: Any, path: Path) -> None:
    path.write_bytes(skops_bytes(estimator))


def _write_joblib(estimator: Any, path: Path) -> None:
    import joblib

    joblib.dump(estimator, path)


def _write_catboost(estimator: Any, path: Path) -> None:
    estimator.save_model(str(path), format="cbm")


def _write_resmlp(estimator: Any, path: Path) -> None:
    estimator.save(path)


_WRITERS: dict[str, Callable[[Any, Path], None]] = {
    ".skops": _write_skops,
    ".joblib": _write_joblib,
    ".pkl": _write_joblib,
    ".pickle": _write_joblib,
    ".cbm": _write_catboost,
    ".safetensors": _write_resmlp,
}
