"""Run the units of a profile: one folder a unit, resumable, several at once.

    OUT/study.json                the profile this folder belongs to
    OUT/units/<unit>/             config.json, results.parquet, rows.parquet, certificates/, timing.json, DONE
    OUT/failed/<unit>.txt         what went wrong, for a unit that could not be finished
    OUT/models/<unit>.joblib      trained models, where they are kept

A unit is worked on in a folder of another name, which takes its own name when everything in it is complete, so a
folder under ``units`` is whole. A unit that is there with the same configuration is skipped.

Every unit runs in a worker process with one thread, whatever ``jobs`` is: that is what makes one job and two jobs give
the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import joblib
import pandas as pd

from fragility.errors import DataError
from fragility.study.datasets import DATASETS, Dataset, load
from fragility.study.plan import FORMAT, Profile, Unit, unit_config, units_of
from fragility.study.unit import fit_unit, measure

DONE = "DONE"
RESULTS = "results.parquet"
_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
)
_LIBRARIES = (
    "fragility",
    "numpy",
    "scipy",
    "pandas",
    "scikit-learn",
    "xgboost-cpu",
    "xgboost",
    "lightgbm",
    "catboost",
    "torch",
    "shap",
    "numba",
)


@dataclass(frozen=True, slots=True)
class Status:
    """How far a run is."""

    planned: tuple[Unit, ...]
    done: tuple[Unit, ...]
    failed: tuple[Unit, ...]

    @property
    def waiting(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.planned if unit not in set(self.done) | set(self.failed))


@dataclass(frozen=True, slots=True)
class Event:
    """One unit has ended; ``left`` is the estimated number of seconds until the last one has."""

    unit: Unit
    ok: bool
    seconds: float
    finished: int
    planned: int
    left: float


Listener = Callable[[Event], None]


# ------------------------------------------------------------------ one unit


def run_unit(unit: Unit, profile: Profile, out: Path, data: str | None, keep_models: bool, engine: str) -> float:
    """Measure one unit and write its folder; returns the seconds it took."""
    start = time.perf_counter()
    dataset = _dataset(unit.dataset, data)
    pipeline = _stored_model(unit, profile, out)
    if pipeline is None and keep_models:
        pipeline = fit_unit(unit, dataset, profile).pipeline
        _store_model(unit, profile, out, pipeline)
    result = measure(unit, dataset, profile, pipeline=pipeline, engine=engine)
    with _whole_folder(out / unit.folder) as folder:
        _write_json(folder / "config.json", unit_config(unit, profile))
        result.table.to_parquet(folder / RESULTS, index=False)
        result.rows.to_parquet(folder / "rows.parquet", index=False)
        result.certificates.save(folder / "certificates")
        ran = {"seconds": dict(result.seconds), "versions": versions(), "device": profile.device}
        _write_json(folder / "timing.json", ran)
        digest = hashlib.sha256((folder / RESULTS).read_bytes()).hexdigest()
        (folder / DONE).write_text(f"{digest}\n")
    return time.perf_counter() - start


def train_only(unit: Unit, profile: Profile, out: Path, data: str | None) -> float:
    """Train and store one unit's model, for a later run to audit."""
    start = time.perf_counter()
    if _stored_model(unit, profile, out) is None:
        _store_model(unit, profile, out, fit_unit(unit, _dataset(unit.dataset, data), profile).pipeline)
    return time.perf_counter() - start


@lru_cache(maxsize=len(DATASETS))
def _dataset(name: str, data: str | None) -> Dataset:
    return load(name, data=data)


@contextmanager
def _whole_folder(target: Path) -> Iterator[Path]:
    """A folder that appears under its name only when everything was written."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    if (target / DONE).is_file():  # another run on this folder was faster; its numbers are the same
        shutil.rmtree(partial)
        return
    partial.rename(target)


def _model_key(unit: Unit, profile: Profile) -> str:
    """What decides a trained model: data, split, cap and settings."""
    config = unit_config(unit, profile)
    parts = {name: config[name] for name in ("dataset", "model", "seed", "data_content_sha256", "split", "train_cap")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _model_path(unit: Unit, profile: Profile, out: Path) -> Path:
    return out / "models" / f"{unit.dataset}.{unit.model}.{unit.seed}.{_model_key(unit, profile)}.joblib"


def _stored_model(unit: Unit, profile: Profile, out: Path) -> Any:
    path = _model_path(unit, profile, out)
    return joblib.load(path) if path.is_file() else None


def _store_model(unit: Unit, profile: Profile, out: Path, pipeline: Any) -> None:
    path = _model_path(unit, profile, out)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    joblib.dump(pipeline, partial)
    partial.replace(path)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


# ------------------------------------------------------------------ all units


def run_study(
    profile: Profile,
    out: str | Path,
    *,
    data: str | Path | None = None,
    jobs: int = 1,
    keep_models: bool = False,
    models_only: bool = False,
    engine: str = "auto",
    datasets: Sequence[str] = (),
    models: Sequence[str] = (),
    listener: Listener | None = None,
) -> Status:
    """Run every unit of the profile that is not finished yet; failures are recorded and do not stop the rest.

    ``datasets`` and ``models`` restrict this call to some units of the profile; two calls on different units may
    work on one folder at the same time.
    """
    if jobs < 1:
        raise DataError(f"jobs must be at least 1, got {jobs}")
    folder = Path(out)
    _claim_folder(folder, profile)
    wanted = [unit for unit in units_of(profile) if _asked_for(unit, datasets, models)]
    waiting = [unit for unit in wanted if models_only or not is_done(unit, profile, folder)]
    place = None if data is None else str(data)
    try:
        with _one_thread_each(), ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            _work_through(pool, waiting, profile, folder, place, jobs, keep_models, models_only, engine, listener)
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process was ended from outside (out of memory?); finished units are kept, run again to resume"
        ) from error
    return study_status(profile, folder)


def _asked_for(unit: Unit, datasets: Sequence[str], models: Sequence[str]) -> bool:
    return (not datasets or unit.dataset in datasets) and (not models or unit.model in models)


def _work_through(
    pool: ProcessPoolExecutor,
    waiting: Sequence[Unit],
    profile: Profile,
    folder: Path,
    data: str | None,
    jobs: int,
    keep_models: bool,
    models_only: bool,
    engine: str,
    listener: Listener | None,
) -> None:
    planned, finished, spent, start = len(waiting), 0, 0.0, time.perf_counter()
    queue = list(waiting)
    running: dict[Future[float], Unit] = {}
    while queue or running:
        # A worker is handed a unit only when it is free, so an interrupted run loses at most `jobs` units.
        while queue and len(running) < jobs:
            unit = queue.pop(0)
            if not models_only and is_done(unit, profile, folder):  # by another run on this folder
                planned -= 1
                continue
            future: Future[float] = (
                pool.submit(train_only, unit, profile, folder, data)
                if models_only
                else pool.submit(run_unit, unit, profile, folder, data, keep_models, engine)
            )
            running[future] = unit
        if not running:
            break
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in ended:
            unit = running.pop(future)
            seconds = _seconds_or_failure(future, unit, folder)
            finished, spent = finished + 1, time.perf_counter() - start
            left = spent / finished * (planned - finished)
            if listener is not None:
                listener(Event(unit, seconds is not None, seconds or 0.0, finished, planned, left))


def _seconds_or_failure(future: Future[float], unit: Unit, folder: Path) -> float | None:
    note = folder / "failed" / f"{unit.dataset}.{unit.model}.{unit.seed}.txt"
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        raise error
    if error is None:
        note.unlink(missing_ok=True)
        return future.result()
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text("".join(traceback.format_exception(error)))
    return None


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Workers inherit one thread for every numerical library; the caller's settings come back afterwards."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _claim_folder(folder: Path, profile: Profile) -> None:
    """Write the profile into a new folder; refuse a folder that holds another one."""
    path = folder / "study.json"
    settings = {key: value for key, value in asdict(profile).items() if key != "device"}  # units may run anywhere
    ours = json.loads(json.dumps({"format": FORMAT, "profile": settings}))
    if path.is_file():
        if json.loads(path.read_text()) != ours:
            raise DataError(f"{folder} holds a run of another profile or other settings; choose another --out")
        return
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(path, ours)


def is_done(unit: Unit, profile: Profile, folder: Path) -> bool:
    """Whether the unit's folder is complete and was made by this very configuration."""
    place = folder / unit.folder
    if not (place / DONE).is_file():
        return False
    found = json.loads((place / "config.json").read_text())
    wanted = json.loads(json.dumps(unit_config(unit, profile)))
    if found != wanted:
        raise DataError(f"{place} was made by another configuration; remove it or choose another --out")
    return True


def study_status(profile: Profile, folder: str | Path) -> Status:
    """Which units are done, failed or waiting."""
    place, planned = Path(folder), units_of(profile)
    done = tuple(unit for unit in planned if is_done(unit, profile, place))
    notes = place / "failed"
    failed = tuple(
        unit
        for unit in planned
        if unit not in done and (notes / f"{unit.dataset}.{unit.model}.{unit.seed}.txt").is_file()
    )
    return Status(planned, done, failed)


def saved_profile(folder: str | Path) -> Profile:
    """The profile a run folder was started with."""
    path = Path(folder) / "study.json"
    if not path.is_file():
        raise DataError(f"{path} not found; expected a folder that `fragility study run` wrote")
    fields: dict[str, Any] = json.loads(path.read_text())["profile"]
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return Profile(**plain)


# ------------------------------------------------------------------ collecting


def collect(folder: str | Path) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The tidy results, the timings and the library versions of every finished unit, in a fixed order."""
    places = sorted(path.parent for path in Path(folder).glob(f"units/*/{DONE}"))
    if not places:
        raise DataError(f"no finished units under {Path(folder) / 'units'}")
    results = pd.concat([pd.read_parquet(place / RESULTS) for place in places], ignore_index=True)
    timings = [line for place in places for line in _timing_lines(place, "seconds", "stage")]
    environments = [line for place in places for line in _timing_lines(place, "versions", "library")]
    return results, pd.DataFrame(timings), pd.DataFrame(environments)


def _timing_lines(place: Path, part: str, name: str) -> Iterator[dict[str, Any]]:
    """One line an entry of one part of timing.json, with the unit it belongs to."""
    config, timing = (json.loads((place / file).read_text()) for file in ("config.json", "timing.json"))
    unit = {"dataset": config["dataset"], "model": config["model"]["name"], "seed": config["seed"]}
    for key, value in timing[part].items():
        yield {**unit, name: key, part: round(value, 3) if isinstance(value, float) else value}
