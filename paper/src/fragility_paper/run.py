"""Run the units of a profile: one folder a unit, resumable, several at once.

Every unit runs in a worker process with one thread, whatever ``jobs`` is: that is what makes one job and two jobs give
the same numbers. A unit that is there with the same configuration is skipped.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from fragility.base.errors import DataError
from fragility_paper.data import DATASETS, Dataset, load
from fragility_paper.folders import (
    CONFIG,
    DONE,
    LABELLED,
    RESULTS,
    ROWS,
    TIMING,
    Status,
    claim_folder,
    failure_note,
    is_done,
    model_path,
    store_model,
    stored_model,
    study_status,
    whole_folder,
    write_json,
)
from fragility_paper.models import model_spec
from fragility_paper.plan import Profile, Study, Unit, unit_config, units_of
from fragility_paper.unit import (
    UnitResult,
    fit_unit,
    measure,
    measure_baselines,
    measure_hardening,
    measure_mode_hardening,
    measure_modes,
)

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


# Studies that measure a unit in one go and keep its table alone.
_MEASURES: Mapping[Study, Callable[[Unit, Dataset, Profile], UnitResult]] = {
    "baselines": measure_baselines,
    "hardening": measure_hardening,
    "modes": measure_modes,
    "mode-hardening": measure_mode_hardening,
}


@dataclass(frozen=True, slots=True)
class Job:
    """How each unit of a call is worked on; sent to the worker processes."""

    profile: Profile
    folder: Path
    data: str | None = None
    keep_models: bool = False
    models_only: bool = False
    engine: str = "auto"

    def is_done(self, unit: Unit) -> bool:
        return not self.models_only and is_done(unit, self.profile, self.folder)


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


# ------------------------------------------------------------------ one unit, in a worker


def work_on(unit: Unit, job: Job) -> float:
    """Train or measure one unit and write what is kept; returns the seconds it took."""
    start = time.perf_counter()
    dataset = _dataset(unit.dataset, job.data)
    if job.profile.study != "ranking":
        _write_unit(unit, job, _MEASURES[job.profile.study](unit, dataset, job.profile))
        return time.perf_counter() - start
    place = model_path(unit, job.profile, job.folder)
    pipeline = stored_model(place)
    if pipeline is None and (job.keep_models or job.models_only):
        pipeline = fit_unit(unit, dataset, job.profile).pipeline
        store_model(place, pipeline)
    if not job.models_only:
        _write_unit(unit, job, measure(unit, dataset, job.profile, pipeline=pipeline, engine=job.engine))
    return time.perf_counter() - start


@lru_cache(maxsize=len(DATASETS))
def _dataset(name: str, data: str | None) -> Dataset:
    return load(name, data=data)


def _write_unit(unit: Unit, job: Job, result: UnitResult) -> None:
    with whole_folder(job.folder / unit.folder) as folder:
        write_json(folder / CONFIG, unit_config(unit, job.profile))
        result.table.to_parquet(folder / RESULTS, index=False)
        for name, table in ((ROWS, result.rows), (LABELLED, result.labelled)):
            if table is not None:
                table.to_parquet(folder / name, index=False)
        if result.certificates is not None:
            result.certificates.save(folder / "certificates")
        ran = {"seconds": dict(result.seconds), "versions": {**versions(), **trained_on(unit, job.profile)}}
        write_json(folder / TIMING, ran)
        digest = hashlib.sha256((folder / RESULTS).read_bytes()).hexdigest()
        (folder / DONE).write_text(f"{digest}\n")


def trained_on(unit: Unit, profile: Profile) -> dict[str, str]:
    """The device of a unit's network, which decides its weights; nothing for models that know no other device."""
    if model_spec(unit.model).library != "torch":
        return {}
    import torch

    on_gpu = profile.device == "cuda" or (profile.device == "auto" and torch.cuda.is_available())
    return {"device": torch.cuda.get_device_name() if on_gpu else "cpu"}


def versions() -> dict[str, str]:
    """Versions of Python and of every library that decides a number, where it is installed."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


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
    timings: pd.DataFrame | None = None,
    listener: Listener | None = None,
) -> Status:
    """Run every unit of the profile that is not finished yet; failures are recorded and do not stop the rest.

    ``datasets`` and ``models`` restrict this call to some units of the profile; two calls on different units may
    work on one folder at the same time. ``timings`` of an earlier run put the longest units first, so that the workers
    end together; without them seeds and cheap models come first.
    """
    if jobs < 1:
        raise DataError(f"jobs must be at least 1, got {jobs}")
    if profile.study != "ranking" and (keep_models or models_only or engine != "auto"):
        raise DataError(
            f"a study of {profile.study} keeps no models and takes the fastest engine; leave those options out"
        )
    job = Job(profile, Path(out), None if data is None else str(data), keep_models, models_only, engine)
    claim_folder(job.folder, profile)
    expected = expected_seconds(units_of(profile), timings)
    wanted = [unit for unit in in_order(units_of(profile), expected) if _asked_for(unit, datasets, models)]
    try:
        with _one_thread_each(), ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            _work_through(pool, jobs, [unit for unit in wanted if not job.is_done(unit)], job, expected, listener)
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process was ended from outside (out of memory?); finished units are kept, run again to resume"
        ) from error
    return study_status(profile, job.folder)


def _asked_for(unit: Unit, datasets: Sequence[str], models: Sequence[str]) -> bool:
    return (not datasets or unit.dataset in datasets) and (not models or unit.model in models)


def expected_seconds(units: Sequence[Unit], timings: pd.DataFrame | None) -> dict[Unit, float]:
    """Seconds that each unit took in an earlier run, training and all; one for each where nothing is known."""
    if timings is None or timings.empty:
        return dict.fromkeys(units, 1.0)
    took = timings.groupby(["dataset", "model", "seed"])["seconds"].sum()
    usual = float(took.median())
    return {unit: float(took.get((unit.dataset, unit.model, unit.seed), usual)) for unit in units}


def in_order(units: Sequence[Unit], expected: Mapping[Unit, float]) -> list[Unit]:
    """Longest first; units that take equally long stay in their order."""
    return sorted(units, key=lambda unit: -expected[unit])


def _work_through(
    pool: ProcessPoolExecutor,
    jobs: int,
    waiting: list[Unit],
    job: Job,
    expected: Mapping[Unit, float],
    listener: Listener | None,
) -> None:
    """Hand a worker a unit only when it is free, so that an interrupted run loses at most ``jobs`` units."""
    start, finished, worked = time.perf_counter(), 0, 0.0
    running: dict[Future[float], Unit] = {}
    while waiting or running:
        _fill(pool, jobs, waiting, running, job)
        for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
            unit = running.pop(future)
            seconds = _seconds_or_failure(future, unit, job.folder)
            finished += 1
            worked += expected[unit]
            planned = finished + len(running) + len(waiting)
            to_do = sum(expected[other] for other in (*running.values(), *waiting))
            left = (time.perf_counter() - start) / worked * to_do if worked else 0.0
            if listener is not None:
                listener(Event(unit, seconds is not None, seconds or 0.0, finished, planned, left))


def _fill(
    pool: ProcessPoolExecutor, jobs: int, waiting: list[Unit], running: dict[Future[float], Unit], job: Job
) -> None:
    """Give every free worker the next unit that no other run on this folder has finished meanwhile."""
    while waiting and len(running) < jobs:
        unit = waiting.pop(0)
        if not job.is_done(unit):
            running[pool.submit(work_on, unit, job)] = unit


def _seconds_or_failure(future: Future[float], unit: Unit, folder: Path) -> float | None:
    note, error = failure_note(unit, folder), future.exception()
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
