"""MLmodel: what the folder of an MLflow model holds, read without MLflow and without running anything in it.

The folder's ``MLmodel`` file is YAML. It names flavours: for each library that can load the model, the file to load and
how it was written. The library's own flavour is taken, since its file can be read by this package's loaders; a model
with ``python_function`` alone is a function of MLflow's.

Nothing in the file is believed that could lead out of the folder or run code: paths must stay inside, types that it
declares harmless are not taken for harmless, and modules that it names are imported with trust only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fragility.base.errors import ModelError
from fragility.base.files import NESTING
from fragility.base.libraries import say_lacking
from fragility.models.signature import Signature, read_signature

MLMODEL = "MLmodel"
MOST_BYTES = 2**20  # a signature of ten thousand columns takes 600 KiB
PYFUNC = "python_function"
NATIVE = ("sklearn", "lightgbm", "xgboost", "catboost", "onnx", "pytorch")
SERIALISED = {"pickle": ".pkl", "cloudpickle": ".pkl", "skops": ".skops"}
NONE = ("", "null", "~")


@dataclass(frozen=True, slots=True)
class Artefact:
    """What to load of a folder, and by which of this package's loaders."""

    path: Path  # a file, or the folder itself for a function of MLflow's
    kind: str  # the suffix of such files; PYFUNC for a function of MLflow's
    code: Path | None  # a folder of modules that the model may import, if it is trusted
    signature: Signature | None
    outputs: Signature | None  # what a function of MLflow's declares to return


def find_artefact(folder: Path) -> Artefact:
    """Return what is to be loaded of an MLflow model's folder."""
    document = _read_document(folder)
    flavours = document.get("flavors")
    if not isinstance(flavours, dict) or not all(isinstance(each, dict) for each in flavours.values()):
        raise ModelError("its MLmodel file lists no flavours, which say what to load")
    native = [name for name in NATIVE if name in flavours]
    if len(native) > 1:
        raise ModelError(
            f"it holds the flavours {' and '.join(native)}, and which of them is in use is not said; give the model "
            "file inside the folder, or save the model with one flavour"
        )
    signature, outputs = _read_signatures(document)
    if native:
        settings = flavours[native[0]]
        path, kind = _find_file(folder, native[0], settings)
        return Artefact(path, kind, _find_code(folder, settings), signature, outputs)
    if PYFUNC not in flavours:
        known = ", ".join((*NATIVE, PYFUNC))
        raise ModelError(f"it has the flavour {', '.join(map(str, flavours)) or 'none'!s:.100}; known ones are {known}")
    return Artefact(folder, PYFUNC, _find_code(folder, flavours[PYFUNC]), signature, outputs)


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
    # The base loader makes texts, lists and mappings only: no tag builds an object, and no merge key multiplies.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        depth = 0
        for event in yaml.parse(data, Loader=loader):  # the loader recurses, in C, and this does not
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > NESTING:
                raise yaml.YAMLError
        document = yaml.load(data, Loader=loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ModelError("its MLmodel file is not valid YAML") from error
    if not isinstance(document, dict):
        raise ModelError("its MLmodel file holds no settings")
    return document


def _read_signatures(document: Mapping[str, Any]) -> tuple[Signature | None, Signature | None]:
    declared = document.get("signature")
    if not isinstance(declared, dict):
        return None, None
    inputs, outputs = declared.get("inputs", ""), declared.get("outputs", "")
    try:
        returned = None if outputs in NONE else read_signature(outputs)
    except ModelError:
        returned = None  # outputs may have any shape; only a function of MLflow's is judged by them
    return None if inputs in NONE else read_signature(inputs), returned


def _find_code(folder: Path, settings: Mapping[str, Any]) -> Path | None:
    named = settings.get("code", "")
    return None if named in NONE else inside(folder, named, is_folder=True)


def _find_file(folder: Path, flavour: str, settings: Mapping[str, Any]) -> tuple[Path, str]:
    """Return the file of a library's flavour, and the suffix by which this package knows its format."""
    if flavour == "pytorch":
        data = inside(folder, settings.get("model_data"), is_folder=True)
        kind = ".pt2" if (data / "model.pt2").exists() else ".pth"
        return inside(folder, f"{data.relative_to(folder.resolve()).as_posix()}/model{kind}"), kind
    path = inside(folder, settings.get("pickled_model" if flavour == "sklearn" else "data"))
    own = path.suffix.lower()
    if flavour == "onnx":
        return path, ".onnx"
    if flavour == "catboost":
        if settings.get("save_format", "cbm") != "cbm":
            raise ModelError(f"its CatBoost file has the format {settings['save_format']!r:.50}; save it as cbm")
        return path, ".cbm"
    if flavour == "xgboost":
        return path, ".json" if _starts_as_json(path) else ".ubj"
    if flavour == "lightgbm" and own not in (".pkl", ".skops"):
        return path, ".txt"
    how = settings.get("serialization_format", "pickle" if own != ".skops" else "skops")
    if how not in SERIALISED:
        raise ModelError(f"its {flavour} file has the format {how!r:.50}; known ones are {', '.join(SERIALISED)}")
    return path, SERIALISED[how]


def _starts_as_json(path: Path) -> bool:
    """XGBoost's text files start with a brace and a quote; its binary ones with a brace and a letter."""
    with path.open("rb") as stream:
        start = stream.read(64)
    return start[:1] == b"{" and start[1:].lstrip()[:1] == b'"'


def inside(folder: Path, name: Any, *, is_folder: bool = False) -> Path:
    """Return a regular file, or a folder, that ``MLmodel`` names; ModelError if it is absent or lies elsewhere."""
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
