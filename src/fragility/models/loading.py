"""Model files. A file that can run code on loading requires the user's explicit trust.

skops files, boosters in their libraries' own formats, ONNX graphs and safetensors contain data and need no trust (skops
reports unknown types). Pickles and joblib files run any code they contain, so they load with ``trust=True`` only. So do
PyTorch files, which contain pickles: whole modules (``.pth``), and programs exported by ``torch.export`` (``.pt2``).
The folder of an MLflow model is loaded like the file in it.

A Treelite checkpoint contains trees of any library in one format, evaluated by Treelite's own library (GTIL). It
declares how sums become probabilities (its postprocessor), but neither classes nor columns. Its raw scores are used and
the link is applied in float64, since checkpoints made from XGBoost give float32 probabilities.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import Advice, FragilityError, ModelError, name_error
from fragility.base.files import MODEL, replacing, stored_size
from fragility.base.libraries import family_of, say_lacking
from fragility.models.adapter import Model
from fragility.models.mlflow_models import (
    ADDRESSES,
    MLMODEL,
    PYFUNC,
    ModelSignature,
    fetch_model,
    find_artefact,
    load_pyfunc,
)
from fragility.models.onnx_classifier import OnnxClassifier
from fragility.models.onnx_graphs import GraphError
from fragility.models.outputs import ClassLabel, OutputKind, type_name
from fragility.models.soundness import DAMAGED, REFUSED, TRIALS


@dataclass(frozen=True, eq=False)
class ExportedProgram:
    """A traced graph of operations, without modes and without layers that an engine could read."""

    program: Any = field(repr=False)
    digest: str

    def __call__(self, rows: Any) -> Floats:
        import torch

        like = next(iter(self.program.parameters()), torch.zeros(0, dtype=torch.float32))
        with torch.inference_mode():
            cells = torch.tensor(np.asarray(rows, dtype=np.float64)).to(device=like.device, dtype=like.dtype)
            return np.asarray(self.program(cells).double().cpu().numpy())

    def fingerprint(self) -> str:
        """Return the digest of the file, which contains the graph and its weights."""
        return self.digest


def load_torch(path: Path, kind: str) -> Any:
    """Return the module or program of a file, on the CPU."""
    if (lacking := say_lacking("a PyTorch model", "torch")) is not None:
        raise ModelError(lacking)
    import torch

    if kind == ".pt2":
        return ExportedProgram(torch.export.load(path).module(), hashlib.sha256(path.read_bytes()).hexdigest())
    return torch.load(path, map_location="cpu", weights_only=False)


# --- Treelite -------------------------------------------------------------------------------------------------

LINKED = ("sigmoid", "softmax")
AVERAGED = "identity_multiclass"  # of a forest, whose leaves contain probabilities


FIELDS = ("num_feature", "num_target", "num_class", "class_id", "average_tree_output", "sigmoid_alpha", "base_scores")


class TreeliteClassifier:
    """A checkpoint as a classifier with the classes 0, 1, ..."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        settings = self.settings
        post, n_outputs = settings["postprocessor"], settings["num_class"]
        averaged = post == AVERAGED and bool(settings["average_tree_output"][0])
        if settings["num_target"][0] != 1 or len(n_outputs) != 1:
            raise ModelError("the Treelite checkpoint has several targets, and a certificate is about one")
        if not (averaged or post in LINKED) or (n_outputs[0] == 1 and post != "sigmoid"):
            raise ModelError(
                f"the Treelite checkpoint has the postprocessor {post!r:.40}, which gives no class probabilities; "
                f"supported are {', '.join(LINKED)}, and {AVERAGED} of averaged trees"
            )
        self.linked = post in LINKED
        self.n_features_in_ = int(settings["num_feature"][0])
        self.classes_: Integers = np.arange(max(int(n_outputs[0]), 2))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("model", "settings")}

    @cached_property
    def model(self) -> Any:
        """The model as Treelite loads it."""
        import treelite

        return treelite.Model.deserialize_bytes(self.data)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The postprocessor and further fields, by their names in Treelite's format."""
        header = self.model.get_header_accessor()
        return {"postprocessor": header.get_field("postprocessor")} | {name: header.get_field(name) for name in FIELDS}

    def raw_scores(self, rows: Any) -> Floats:
        """Return raw scores (n,) or (n, C); the sigmoid's factor is applied."""
        from treelite import gtil

        cells = np.ascontiguousarray(np.asarray(rows, dtype=np.float64).astype(self.model.input_type))
        scores = np.asarray(gtil.predict(self.model, cells, pred_margin=True), dtype=np.float64)[:, 0]
        if scores.shape[1] == 1:
            return np.asarray(scores[:, 0] * float(self.settings["sigmoid_alpha"][0]))
        return scores

    def predict_proba(self, rows: Any) -> Floats:
        """Return probabilities (n, C) as GTIL gives them."""
        from treelite import gtil

        cells = np.ascontiguousarray(np.asarray(rows, dtype=np.float64).astype(self.model.input_type))
        p = np.asarray(gtil.predict(self.model, cells), dtype=np.float64)[:, 0]
        return np.column_stack([1.0 - p[:, 0], p[:, 0]]) if p.shape[1] == 1 else p

    def fingerprint(self) -> str:
        """Return the digest of the checkpoint."""
        return hashlib.sha256(self.data).hexdigest()


# --- files by their kind --------------------------------------------------------------------------------------

KINDS = (
    ".skops, XGBoost .json or .ubj, LightGBM .txt, CatBoost .cbm, Treelite .tl, .onnx, .safetensors, .joblib or .pkl "
    "(with trust), an MLflow folder, runs:/ or models:/ address, or package.module:attribute"
)

PICKLES = (".joblib", ".pkl", ".pickle")
KNOWN_SUFFIXES = (".skops", *PICKLES, *TRIALS, ".safetensors")
OTHER_KINDS = {
    ".pt": "a PyTorch",
    ".pth": "a PyTorch",
    ".ckpt": "a PyTorch",
    ".pmml": "a PMML",
    ".h5": "a Keras",
    ".keras": "a Keras",
}
TRUST = Advice("trust=True", "--trust")
IN_PYTHON = "load it in Python, wrap it with Model.wrap and name the result as package.module:attribute"
# The first keys of JSON files that other boosters write.
CATBOOST_KEYS = ("ctr_data", "features_info", "model_info", "oblivious_trees", "scale_and_bias", "trees")
LIGHTGBM_KEYS = ("name", "tree_info")

# A booster or ONNX file is first loaded in a child process, within these bounds.
TRIAL_SECONDS = 60.0
TRIAL_BYTES_PER_SECOND = 2**20
TRIAL_MEMORY = 2 * 2**30  # more than twice the memory of the largest library alone
TRIAL_MEMORY_PER_BYTE = 100  # of the file
MOST_INFLATED = 200  # the content of a .skops file may take this many times the file's size,
FREE_INFLATED = 256 * 2**20  # and always this many bytes

# File formats of a single kind of estimator.
OWN_FORMATS = {".cbm": "catboost.CatBoostClassifier", ".safetensors": "fragility.ResMLPClassifier"}

# skops does not trust dtypes, although they are plain data; every pipeline with a SimpleImputer contains one.
HARMLESS = frozenset({"numpy.dtype"})


def load_model(
    source: str | os.PathLike[str],
    *,
    trust: bool = False,
    classes: Sequence[ClassLabel] | None = None,
    output: OutputKind | None = None,
) -> Model:
    """Return the model of a file, of an MLflow folder or address, or of ``package.module:attribute``.

    Parameters
    ----------
    source : path or str
        A ``.skops`` file, XGBoost ``.json`` or ``.ubj``, LightGBM ``.txt``, CatBoost ``.cbm``, Treelite ``.tl``,
        ``.onnx``, ``.safetensors`` of a :class:`ResMLPClassifier`, ``.joblib`` or ``.pkl`` (with ``trust``), the
        folder of an MLflow model, an address ``runs:/RUN_ID/path`` or ``models:/NAME/VERSION`` of one, or
        ``package.module:attribute``.
    trust : bool, default=False
        Whether to load files that can run code.
    classes : sequence of class labels, optional
        Names for a booster's classes 0, 1, ..., or the classes of a file that does not store them.
    output : str, optional
        What a torch module or function returns, as in :meth:`Model.wrap`.

    Returns
    -------
    Model
        Ready for :meth:`Protocol.fit` and :func:`audit`.

    Raises
    ------
    ModelError
        The file cannot be read, or does not contain a classifier.

    See Also
    --------
    Model.wrap : For a model that is in memory.
    """
    text = os.fspath(source)
    path = Path(text)
    declared = _Declared(trust, classes, output)
    if text.startswith(ADDRESSES):
        with fetch_model(text) as folder:
            return _load_package(folder, text, declared)
    if not path.exists() and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text):
        return Model.wrap(_import_model(text), classes=classes, output=output)
    if path.is_dir() and os.path.lexists(path / MLMODEL):
        return _load_package(path, text, declared)
    suffix = path.suffix.lower()
    if path.is_dir() or (path.is_file() and suffix not in KNOWN_SUFFIXES):
        raise ModelError(f"{text!r} ", *_describe_unknown(path))
    if not path.is_file():
        raise ModelError(f"there is no model file {text!r}; a model is one of: {KINDS}")
    return _load_kind(path, suffix, text, declared, path.parent)


@dataclass(frozen=True, slots=True)
class _Declared:
    """Settings that the user declares for a model file."""

    trust: bool
    classes: Sequence[ClassLabel] | None
    output: OutputKind | None


def _load_package(folder: Path, text: str, declared: _Declared) -> Model:
    """Load the folder of an MLflow model by the loader of the file in it."""
    try:
        if not folder.is_dir():
            raise ModelError("there is no folder of an MLflow model")
        model_file = find_artefact(folder)
    except ModelError as error:
        raise ModelError(f"cannot load the MLflow model {text!r}: ", error) from error
    modules = folder if model_file.code is None else model_file.code
    model = _load_kind(model_file.path, model_file.kind, text, declared, modules, model_file.outputs)
    return model if model_file.signature is None else model.with_signature(model_file.signature)


def _load_kind(
    path: Path, kind: str, text: str, declared: _Declared, modules: Path, outputs: ModelSignature | None = None
) -> Model:
    """Load a file by the suffix of its kind; ``modules``: a folder from which a trusted file may import classes."""
    if kind == ".json":
        _check_is_xgboost(path)
    if kind == ".onnx" and (lacking := say_lacking("an .onnx model", "onnx", "onnxruntime")):
        raise ModelError(lacking)
    if kind == ".tl" and (lacking := say_lacking("a Treelite checkpoint", "treelite")):
        raise ModelError(lacking)
    if kind in TRIALS:
        _try_in_a_process(path, kind)
    classes = declared.classes
    try:
        with _importable(modules if declared.trust else None):
            if kind == PYFUNC:
                _require_trust(path, "is a function that MLflow loads", declared.trust)
                loaded, classes = load_pyfunc(path, outputs, classes)
            else:
                loaded = _load_file(path, kind, declared.trust)
        model = Model.wrap(loaded, classes=classes, output=declared.output)
        if kind in TRIALS:
            model.fingerprint  # noqa: B018  (a booster may load and then fail to export its trees)
    except FragilityError:
        raise
    except Exception as error:  # each library raises its own types
        raise ModelError(f"cannot load the model {text!r}: {_explain(error)}") from error
    return model


def _describe_unknown(path: Path) -> tuple[str | Advice, ...]:
    """Describe a folder or a file of unknown kind, and what to give instead."""
    if (path / "manifest.json").is_file():
        return ("is the folder of an audit; give the model that was audited",)
    if path.is_file() and path.suffix.lower() in OTHER_KINDS:
        kind = OTHER_KINDS[path.suffix.lower()]
        return (f"is {kind} file, which declares neither its classes nor its output; {IN_PYTHON}",)
    return (f"is {'a folder' if path.is_dir() else 'a file of an unknown kind'}; a model is one of: {KINDS}",)


def _check_is_xgboost(path: Path) -> None:
    """Refuse the JSON files of other boosters by name; XGBoost's parser would only report a syntax error."""
    with path.open("rb") as stream:
        match = re.match(rb'\s*\{\s*"(\w+)"', stream.read(1000))
    first = match[1].decode() if match else ""
    if first in CATBOOST_KEYS:
        raise ModelError(f"{path.name} is a CatBoost model in JSON; save it as .cbm, with save_model('model.cbm')")
    if first in LIGHTGBM_KEYS:
        raise ModelError(
            f"{path.name} is a dump of a LightGBM model, which LightGBM itself cannot load; save it as .txt, with "
            "booster_.save_model('model.txt')"
        )


def _try_in_a_process(path: Path, kind: str) -> None:
    """Load and use a booster or ONNX file in a child process first; its library may crash or hang on it."""
    if not sys.executable:
        return  # an interpreter inside another program cannot be started again
    words = [sys.executable, "-P", str(Path(__file__).with_name("soundness.py")), kind, str(path)]
    places = os.pathsep.join(place for place in sys.path if place)
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    limit = TRIAL_SECONDS + stored_size(path) / TRIAL_BYTES_PER_SECOND
    try:
        done = subprocess.run(
            words, capture_output=True, env=environment, timeout=limit, check=False, preexec_fn=_memory_limit(path)
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"the model {str(path)!r} is damaged: its library did not load it in {limit:.0f} s") from error
    except OSError as error:
        raise ModelError(f"cannot test the model {str(path)!r} in a child process: {error}") from error
    code = done.returncode
    reason = (done.stdout.decode(errors="replace").strip().splitlines() or [""])[-1]
    if code == REFUSED:
        raise ModelError(f"cannot load the model {str(path)!r}: {reason:.400}")
    if code and code != DAMAGED:
        ending = f"exit code {code}" if code > 0 else f"signal {-code}"
        with suppress(ValueError):
            ending = signal.Signals(-code).name
        reason = f"its library crashed on it ({ending})"
    if code:
        raise ModelError(f"the model {str(path)!r} is damaged: {reason:.400}")


def _memory_limit(path: Path) -> Callable[[], None] | None:
    """Return a function that bounds the memory of the child process; a damaged file may request any amount."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    bound = TRIAL_MEMORY + TRIAL_MEMORY_PER_BYTE * stored_size(path)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def _importable(folder: Path | None) -> Iterator[None]:
    """Make modules beside the file importable, as for a script in that folder."""
    if folder is None:
        yield
        return
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()  # the module may be newer than the cached listing of its folder
    try:
        yield
    finally:
        sys.path.remove(entry)


def _explain(error: Exception) -> str:
    """Return why a file cannot be loaded, in one sentence; for a class that cannot be found, what to do about it."""
    if isinstance(error, GraphError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name == "_loss":
        return "it was saved by another version of scikit-learn, which this one cannot load; use that version"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return (
            f"it needs the module {error.name!r}, which cannot be found; install its package, or put {error.name}.py "
            "beside the model file"
        )
    if isinstance(error, (EOFError, IndexError, pickle.UnpicklingError)):
        return "it is truncated, or not a model file of its kind"
    missing = re.search(r"Can't get attribute '([^']+)' on <module '([^']+)'", str(error))
    if isinstance(error, AttributeError) and missing is not None:
        name, module = missing.groups()
        if module.endswith("__main__"):
            return (
                f"it needs {name!r}, which was defined in the script or notebook that saved it; move it into a module, "
                "put that module beside the model file and save the model again"
            )
        return f"it needs {name!r} of the module {module!r}, which does not have it; use the version it was saved with"
    return name_error(error)


def _import_model(spec: str) -> Any:
    module_name, _, attribute = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: the user's own module beside the data
    try:
        value: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise ModelError(f"cannot import the model {spec!r}: {error}") from error
    return value


def _load_skops(path: Path, trust: bool) -> Any:
    from skops import io

    with zipfile.ZipFile(path) as archive:  # before it is unpacked into memory
        declared, size = sum(entry.file_size for entry in archive.infolist()), path.stat().st_size
    if declared > max(FREE_INFLATED, MOST_INFLATED * size):
        raise ModelError(
            f"{path.name} declares {declared // 2**20} MiB of content in a file of {size // 2**10} KiB, far more than "
            "a model usually does; if it is one, save it again uncompressed"
        )
    unknown = io.get_untrusted_types(file=path)
    untrusted = sorted(set(unknown) - HARMLESS)
    if untrusted and not trust:
        raise ModelError(
            f"{path.name} contains types that skops does not know to be safe: {', '.join(untrusted)}; "
            "if you know where the file comes from, load it with ",
            TRUST,
        )
    return io.load(path, trusted=unknown)


def _require_trust(path: Path, what: str, trust: bool) -> None:
    if not trust:
        raise ModelError(
            f"{path.name} {what}, and loading it runs any code it contains; if you know where it comes from, load it "
            "with ",
            TRUST,
        )


def _load_pickle(path: Path, trust: bool) -> Any:
    _require_trust(path, "is a pickle", trust)
    import joblib

    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a pickle imports its classes; the user's own are often here
    return joblib.load(path)


def _load_file(path: Path, kind: str, trust: bool) -> Any:
    if kind == ".skops":
        return _load_skops(path, trust)
    if kind in PICKLES:
        return _load_pickle(path, trust)
    if kind in (".pth", ".pt2"):
        _require_trust(path, "is a PyTorch file, which contains pickles", trust)
        return load_torch(path, kind)
    if kind == ".txt":
        import lightgbm

        return lightgbm.Booster(model_file=str(path))
    if kind == ".cbm":
        import catboost

        return catboost.CatBoostClassifier().load_model(str(path))
    if kind == ".tl":
        return TreeliteClassifier(path.read_bytes())
    if kind == ".onnx":
        return OnnxClassifier(path.read_bytes())
    if kind == ".safetensors":
        # Defined in a package above this one, so it is imported by name.
        return importlib.import_module("fragility").ResMLPClassifier.load(path)
    import xgboost

    booster = xgboost.Booster()
    # XGBoost infers the format from the file name, so a file with another suffix is passed as bytes.
    booster.load_model(str(path) if path.suffix.lower() == kind else bytearray(path.read_bytes()))
    return booster


# --- storing ----------------------------------------------------------------------------------------------------


def check_storable(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Refuse, before a model is trained, a file name with which it cannot be stored."""
    suffix = Path(path).suffix.lower()
    allowed = (".skops", *PICKLES, *OWN_FORMATS)
    if suffix not in allowed:
        raise ModelError(f"{path} must end in {', '.join(allowed)}")
    if suffix in OWN_FORMATS and family_of(estimator) != OWN_FORMATS[suffix]:
        stored = OWN_FORMATS[suffix].split(".")[1]
        raise ModelError(f"a {suffix} file can store only a {stored}, this is a {type_name(estimator)}; choose .skops")


def save_model(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator or pipeline atomically, in the format of the file's suffix."""
    check_storable(estimator, path)
    suffix = Path(path).suffix.lower()
    with replacing(path, own=MODEL) as temporary:
        if suffix == ".skops":
            temporary.write_bytes(skops_bytes(estimator))
        elif suffix == ".cbm":
            estimator.save_model(str(temporary), format="cbm")
        elif suffix == ".safetensors":
            estimator.save(temporary)
        else:
            import joblib

            joblib.dump(estimator, temporary)


def skops_bytes(estimator: Any) -> bytes:
    """Return a fitted estimator as a compressed .skops file; compression shrinks its JSON to a fiftieth."""
    from skops import io  # slow to import: it loads torch where torch is installed

    return bytes(io.dumps(estimator, compression=zipfile.ZIP_DEFLATED))
