"""Results of finished units: read from a run's folder or from the committed files, written as Parquet.

Nothing here trains or audits. The results are one tidy table (:mod:`fragility_paper.tidy`); timings and versions of
libraries lie beside it, because they never repeat.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fragility.errors import DataError
from fragility_paper.folders import CONFIG, DONE, RESULTS, STUDY, TIMING

TIMINGS_FILE, VERSIONS_FILE, REPEATED_FILE = "timings.parquet", "versions.parquet", "repeated.parquet"
UNIT = ["dataset", "model", "seed"]

Values = pd.Series  # one value a unit, indexed by data set, model and seed


@dataclass(frozen=True, eq=False)
class StudyResults:
    """Tidy results, timings and library versions of the finished units."""

    table: pd.DataFrame
    timings: pd.DataFrame
    versions: pd.DataFrame
    repeated: pd.DataFrame | None = None  # tidy results of units that were run again on another machine

    @property
    def units(self) -> pd.DataFrame:
        return self.table[UNIT].drop_duplicates().reset_index(drop=True)

    @cached_property
    def _analyses(self) -> dict[str, pd.DataFrame]:
        """The table by analysis: tables ask thousands of times, and comparing half a million words takes long."""
        return {str(name): rows for name, rows in self.table.groupby("analysis", sort=False)}

    def pick(self, analysis: str, **where: Any) -> pd.DataFrame:
        """Rows of one analysis with the given settings."""
        found = self._analyses.get(analysis, self.table.iloc[:0])
        keep = np.ones(len(found), dtype=bool)
        for name, value in where.items():
            wanted = list(value) if isinstance(value, (tuple, list)) else [value]
            keep &= found[name].isin(wanted).to_numpy()
        return found[keep]

    def per_unit(self, analysis: str, **where: Any) -> Values:
        """One value a unit, indexed by unit; refuses settings that leave several."""
        series = self.pick(analysis, **where).set_index(UNIT)["value"]
        if series.index.has_duplicates:
            raise DataError(f"{analysis} with {where} leaves several values a unit; name more settings")
        return series

    def present(self, column: str, order: tuple[str, ...]) -> list[str]:
        """The names of ``order`` that some unit has."""
        there = set(self.table[column].unique())
        return [name for name in order if name in there]


def read_study(folder: str | Path) -> StudyResults:
    """Results of a run folder, or those committed beside the code."""
    place = Path(folder)
    if not (place / STUDY).is_file():
        return load_results(place)
    again = place / "repeated"
    found = collect(place)
    return StudyResults(found.table, found.timings, found.versions, collect(again).table if again.is_dir() else None)


def collect(folder: str | Path) -> StudyResults:
    """Everything that the finished units of a run folder hold, in a fixed order."""
    places = sorted(path.parent for path in Path(folder).glob(f"units/*/{DONE}"))
    if not places:
        raise DataError(f"no finished units under {Path(folder) / 'units'}")
    return StudyResults(
        pd.concat([pd.read_parquet(place / RESULTS) for place in places], ignore_index=True),
        pd.DataFrame([line for place in places for line in _timing_lines(place, "seconds", "stage")]),
        pd.DataFrame([line for place in places for line in _timing_lines(place, "versions", "library")]),
    )


def _timing_lines(place: Path, part: str, name: str) -> Iterator[dict[str, Any]]:
    """One line an entry of one part of timing.json, with the unit it belongs to."""
    config, timing = (json.loads((place / file).read_text()) for file in (CONFIG, TIMING))
    unit = {"dataset": config["dataset"], "model": config["model"]["name"], "seed": config["seed"]}
    for key, value in timing[part].items():
        yield {**unit, name: key, part: round(value, 3) if isinstance(value, float) else value}


def save_results(results: StudyResults, folder: str | Path) -> None:
    """Write the tables that :func:`load_results` reads."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    tables = {RESULTS: results.table, TIMINGS_FILE: results.timings, VERSIONS_FILE: results.versions}
    if results.repeated is not None:
        tables[REPEATED_FILE] = results.repeated
    for name, table in tables.items():
        table.to_parquet(place / name, index=False, compression="zstd")


def load_results(folder: str | Path) -> StudyResults:
    """Results that :func:`save_results` wrote."""
    place = Path(folder)
    if not (place / RESULTS).is_file():
        raise DataError(f"{place / RESULTS} not found; make it with `fragility study tables RUN --results {place}`")
    table, timings, versions = (pd.read_parquet(place / name) for name in (RESULTS, TIMINGS_FILE, VERSIONS_FILE))
    again = place / REPEATED_FILE
    return StudyResults(table, timings, versions, pd.read_parquet(again) if again.is_file() else None)
