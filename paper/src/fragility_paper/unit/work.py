"""What every analysis of a unit shares: the fitted unit, the profile, the recorder, the clock and the label seed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

import fragility as fg
from fragility_paper.arrays import Array
from fragility_paper.plan import Profile
from fragility_paper.tidy import Recorder
from fragility_paper.unit.fitted import FittedUnit


@dataclass(slots=True)
class Clock:
    """Seconds by stage; kept apart from results, because they never repeat."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One unit being measured."""

    fitted: FittedUnit
    profile: Profile
    record: Recorder
    clock: Clock
    label_seed: int

    @property
    def with_extras(self) -> bool:
        return self.fitted.unit.seed in self.profile.extra_seeds


@dataclass(frozen=True, slots=True, eq=False)
class UnitResult:
    """What is kept of a unit; a study of hardening keeps the table alone."""

    table: pd.DataFrame
    seconds: Mapping[str, float]
    certificates: fg.Certificates | None = None
    rows: pd.DataFrame | None = None  # the confident test rows with truth, labels and every score
    labelled: pd.DataFrame | None = None  # confident test and validation rows: scores and labels for review policies


def mean_of(values: Array) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def median_of(values: Array) -> float:
    return float(np.median(values)) if len(values) else math.nan
