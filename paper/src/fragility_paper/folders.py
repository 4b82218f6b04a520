"""What lies in a run's folder.

    OUT/study.json                the profile this folder belongs to
    OUT/units/<unit>/             config.json, results.parquet, rows.parquet, labelled.parquet, certificates/,
                                  timing.json, DONE; only a study of rankings keeps rows and certificates
    OUT/failed/<unit>.txt         what went wrong, for a unit that could not be finished
    OUT/models/<unit>.joblib      trained models, where they are kept

A unit is worked on in a folder of another name, which takes its own name when everything in it is complete, so a
folder under ``units`` is whole.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import joblib

from fragility.base.errors import DataError
from fragility_paper.library import replacing, write_text
from fragility_paper.plan import FORMAT, Profile, Unit, unit_config, units_of

STUDY, CONFIG, RESULTS, ROWS, LABELLED, TIMING, DONE = (
    "study.json",
    "config.json",
    "results.parquet",
    "rows.parquet",
    "labelled.parquet",
    "timing.json",
    "DONE",
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


def write_json(path: Path, document: dict[str, Any]) -> None:
    write_text(path, json.dumps(document, indent=2, sort_keys=True) + "\n")


def claim_folder(folder: Path, profile: Profile) -> None:
    """Write the profile into a new folder; refuse a folder that holds another one."""
    path = folder / STUDY
    settings = {key: value for key, value in asdict(profile).items() if key != "device"}  # units may run anywhere
    ours = json.loads(json.dumps({"format": FORMAT, "profile": settings}))
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, ours)
    elif json.loads(path.read_text()) != ours:
        raise DataError(f"{folder} holds a run of another profile or other settings; choose another --out")


def saved_profile(folder: str | Path) -> Profile:
    """The profile a run folder was started with."""
    path = Path(folder) / STUDY
    if not path.is_file():
        raise DataError(f"{path} not found; expected a folder that `fragility study run` wrote")
    fields: dict[str, Any] = json.loads(path.read_text())["profile"]
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return Profile(**plain)


def is_done(unit: Unit, profile: Profile, folder: Path) -> bool:
    """Whether the unit's folder is complete and was made by this very configuration."""
    place = folder / unit.folder
    if not (place / DONE).is_file():
        return False
    found = json.loads((place / CONFIG).read_text())
    if found != json.loads(json.dumps(unit_config(unit, profile))):
        raise DataError(f"{place} was made by another configuration; remove it or choose another --out")
    return True


def failure_note(unit: Unit, folder: Path) -> Path:
    return folder / "failed" / f"{unit.label}.txt"


def study_status(profile: Profile, folder: str | Path) -> Status:
    """Which units are done, failed or waiting."""
    place, planned = Path(folder), units_of(profile)
    done = tuple(unit for unit in planned if is_done(unit, profile, place))
    failed = tuple(unit for unit in planned if unit not in done and failure_note(unit, place).is_file())
    return Status(planned, done, failed)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder that appears under its name only when everything was written."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    if (target / DONE).is_file():  # another run on this folder was faster; its numbers are the same
        shutil.rmtree(partial)
        return
    partial.rename(target)


def model_path(unit: Unit, profile: Profile, folder: Path) -> Path:
    """The place of a trained model; its name holds what decides it: data, split, cap and settings."""
    config = unit_config(unit, profile)
    parts = {name: config[name] for name in ("dataset", "model", "seed", "data_content_sha256", "split", "train_cap")}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return folder / "models" / f"{unit.label}.{key}.joblib"


def stored_model(path: Path) -> Any:
    """The model that an earlier run kept, or None."""
    return joblib.load(path) if path.is_file() else None


def store_model(path: Path, pipeline: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        joblib.dump(pipeline, partial)
