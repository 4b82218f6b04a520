"""Results of finished units: read from a run's folder or from the committed files, written as Parquet.

Nothing here trains or audits. The results are one tidy table (:mod:`fragility_paper.tidy`); timings and versions of
libraries lie beside it, because they never repeat.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fragility.base.errors import DataError
from fragility_paper.folders import CONFIG, DONE, LABELLED, RESULTS, STUDY, TIMING
from fragility_paper.plan import Study

TIMINGS_FILE, VERSIONS_FILE, REPEATED_FILE = "timings.parquet", "versions.parquet", "repeated.parquet"
EARLIER = "earlier"
UNIT = ["dataset", "model", "seed"]

Values = pd.Series  # one value a unit, indexed by data set, model and seed


@dataclass(frozen=True, eq=False)
class StudyResults:
    """Tidy results, timings and library versions of the finished units."""

    table: pd.DataFrame
    timings: pd.DataFrame
    versions: pd.DataFrame
    repeated: pd.DataFrame | None = None  # tidy results of units that were run again on another machine
    labelled: pd.DataFrame | None = None  # scores and labels of confident rows, for review policies
    earlier: StudyResults | None = None  # the same study under an earlier definition, to compare with

    @property
    def units(self) -> pd.DataFrame:
        return self.table[UNIT].drop_duplicates().reset_index(drop=True)

    @property
    def study(self) -> Study:
        marks: dict[str, Study] = {
            "crossed": "baselines",
            "hardening": "hardening",
            "modes": "modes",
            "mode_hardening": "mode-hardening",
        }
        return next((study for analysis, study in marks.items() if analysis in self._analyses), "ranking")

    @cached_property
    def _analyses(self) -> dict[str, pd.DataFrame]:
        """The table by analysis: tables ask thousands of times, and comparing half a million words takes long."""
        return {str(name): rows for name, rows in self.table.groupby("analysis", sort=False)}

    def pick(self, analysis: str, **where: Any) -> pd.DataFrame:
        """Rows of one analysis with the given settings; none for an analysis that these results do not have."""
        found = self._analyses.get(analysis, self.table.iloc[:0])
        if found.empty:
            return found
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

    def scores(self, order: Sequence[str]) -> list[str]:
        """The scores of ``order`` that the ranking of these results has."""
        there = set(self._analyses["ranking"]["score"].unique()) if "ranking" in self._analyses else set()
        return [name for name in order if name in there]


def read_study(folder: str | Path) -> StudyResults:
    """Results of a run folder, or those committed beside the code."""
    place = Path(folder)
    if not (place / STUDY).is_file():
        return load_results(place)
    again = place / "repeated"
    found = collect(place)
    return replace(found, repeated=collect(again).table) if again.is_dir() else found


def collect(folder: str | Path) -> StudyResults:
    """Everything that the finished units of a run folder hold, in a fixed order."""
    places = sorted(path.parent for path in Path(folder).glob(f"units/*/{DONE}"))
    if not places:
        raise DataError(f"no finished units under {Path(folder) / 'units'}")
    return StudyResults(
        pd.concat([pd.read_parquet(place / RESULTS) for place in places], ignore_index=True),
        pd.DataFrame([line for place in places for line in _timing_lines(place, "seconds", "stage")]),
        pd.DataFrame([line for place in places for line in _timing_lines(place, "versions", "library")]),
        labelled=_stacked([_labelled(place) for place in places]),
    )


def _stacked(parts: list[pd.DataFrame]) -> pd.DataFrame | None:
    """One table; units without confident rows have none to add."""
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else None


def _labelled(place: Path) -> pd.DataFrame:
    """The labelled rows of one unit, with the unit they belong to; none where the study keeps none."""
    if not (place / LABELLED).is_file():
        return pd.DataFrame()
    rows = pd.read_parquet(place / LABELLED)
    for position, (name, value) in enumerate(_unit_of(place).items()):
        rows.insert(position, name, value)
    return rows


def _unit_of(place: Path) -> dict[str, Any]:
    config = json.loads((place / CONFIG).read_text())
    return {"dataset": config["dataset"], "model": config["model"]["name"], "seed": config["seed"]}


def _timing_lines(place: Path, part: str, name: str) -> Iterator[dict[str, Any]]:
    """One line an entry of one part of timing.json, with the unit it belongs to."""
    unit, timing = _unit_of(place), json.loads((place / TIMING).read_text())
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
    if results.labelled is not None:
        _save_labelled(results.labelled, place / LABELLED)


def _save_labelled(rows: pd.DataFrame, path: Path) -> None:
    """Numbers split by byte, which compresses digits of floats; unit names in dictionaries."""
    numbers = ["confidence", "exposure", "fds"]
    rows.to_parquet(
        path,
        index=False,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in rows.columns if name not in numbers],
        use_byte_stream_split=numbers,
    )


def load_results(folder: str | Path) -> StudyResults:
    """Results that :func:`save_results` wrote."""
    place = Path(folder)
    if not (place / RESULTS).is_file():
        raise DataError(f"{place / RESULTS} not found; make it with `fragility study tables RUN --results {place}`")
    table, timings, versions = (pd.read_parquet(place / name) for name in (RESULTS, TIMINGS_FILE, VERSIONS_FILE))
    repeated, labelled = (
        pd.read_parquet(place / name) if (place / name).is_file() else None for name in (REPEATED_FILE, LABELLED)
    )
    earlier = load_results(place / EARLIER) if (place / EARLIER).is_dir() else None
    return StudyResults(table, timings, versions, repeated, labelled, earlier)
