"""Engine: a native engine knows a kind of model and answers about stressed rows without asking it.

An engine is a class. What can be said of a model before it is read, the class says; an object has read one model for
rows of one form (all of them but their cells: baseline, groups, how cells are handed over). What it makes of the model
is made once. Libraries that an engine needs are imported when an object is made, not when its class is.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, MEBIBYTE, Booleans, Floats, Integers, rows_within
from fragility.base.errors import Advice, EngineError
from fragility.base.libraries import family_of, is_torch_module, say_lacking
from fragility.base.progress import Report, progress_bar
from fragility.engines.trace import Progress, Trace, Tracer
from fragility.evidence import EvidenceRows, States
from fragility.protocol import Protocol


@dataclass(frozen=True, slots=True)
class Run:
    """How work on rows is done; it travels as one value, and no certificate depends on it."""

    engine: str = "auto"  # which is asked
    byte_budget: int = DEFAULT_BYTE_BUDGET  # of stressed rows held at a time
    progress: bool | Report | None = None  # as ``progress_bar`` takes it

    def show(self, task: str) -> AbstractContextManager[Report | None]:
        """Return the context of a task, which yields the function that its progress is reported to, or None."""
        return progress_bar(task, self.progress)


class Values(NamedTuple):
    """Cells that some units of rows take, each unit by itself."""

    cells: Floats  # (m, d), or (d,) if they are the same for every row
    unit: Integers  # (d,) the unit of each column, -1 for none
    asked: Integers  # (k,) the units


class Engine(ABC):
    """A native engine that has read a model, for rows of one form; several threads may use it at once."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()  # importable libraries without which it is not available
    tolerance: ClassVar[float] = 1e-6  # largest difference of margins from the black box that is rounding
    rounding: ClassVar[float] = 0.0  # by which margins of the model itself differ from batch to batch
    bounded: ClassVar[bool] = False  # its doubts bound the rounding of every state of a row
    families: ClassVar[tuple[str, ...]] = ()  # the only models that it may read; empty: it must look at the model
    torch_modules: ClassVar[bool] = False  # it also reads any torch.nn.Module
    answers: ClassVar[bool] = True  # it answers states and other values; if not, it only traces
    predicts: ClassVar[bool] = True  # it predicts stressed rows faster than the model itself

    def __init__(self, rows: EvidenceRows) -> None:
        self.form = rows
        self._prepared: tuple[Protocol, Tracer] | None = None

    # --- which models ---------------------------------------------------------------------------------------

    @classmethod
    def knows(cls, rows: EvidenceRows) -> bool:
        """Return whether this engine may read such a model, judged by its class: no library is imported."""
        head = rows.model.head
        return not cls.families or family_of(head) in cls.families or (cls.torch_modules and is_torch_module(head))

    @classmethod
    def lacking(cls) -> str | None:
        """Return the sentence that names the extra without which this engine is not available; None if it is."""
        return say_lacking(f"the {cls.name} engine", *cls.needs)

    @classmethod
    @abstractmethod
    def never_reads(cls, rows: EvidenceRows) -> str | None:
        """Return why the engine can audit no rows of this model and protocol, on any machine; None if it may."""

    @classmethod
    @abstractmethod
    def refusal(cls, rows: EvidenceRows) -> str | None:
        """Return why the engine cannot audit these rows, or None if it can; its libraries are assumed to be there."""

    # --- what it answers ------------------------------------------------------------------------------------

    @abstractmethod
    def doubts(self, cells: Floats) -> Booleans:
        """Return (m,) which rows (m, d) the engine may read otherwise than the model, as far as it knows itself."""

    @abstractmethod
    def tracer(self, protocol: Protocol) -> Tracer:
        """Return the function that traces rows of the form, prepared once."""

    def predict(self, matrix: Floats) -> Floats:
        """Return (m, C) probabilities of stressed rows (m, d); only if it ``predicts``."""
        raise NotImplementedError(f"the {self.name} engine predicts no rows")

    def answer_states(self, x: Floats, states: States) -> Floats | None:
        """Return (q, C) probabilities of states of rows x (m, d), whose cells are not built; None if it cannot."""
        return None

    def answer_values(self, x: Floats, asked: Sequence[Values]) -> Iterable[Floats] | None:
        """Return the (k, m, C) probabilities of rows x (m, d) in which one unit has taken other cells.

        None if it cannot.
        """
        return None

    def trace(self, rows: EvidenceRows, protocol: Protocol, progress: Progress | None = None) -> Trace:
        """Return the trace of rows of the form."""
        prepared = self._prepared
        if prepared is None or prepared[0] is not protocol:
            prepared = self._prepared = protocol, self.tracer(protocol)
        return prepared[1](rows, progress)

    def find_doubtful(self, rows: EvidenceRows) -> Booleans:
        """Return (n,) which rows the engine may read otherwise than the model, some at a time."""
        step = rows_within(MEBIBYTE, rows.width, least=64)  # so that what is made of the cells stays in cache
        return np.concatenate([self.doubts(rows.dense(i, i + step)) for i in range(0, max(len(rows), 1), step)])

    # --- whether it is used ---------------------------------------------------------------------------------

    @classmethod
    def accept(cls, difference: str | None, required: bool) -> bool:
        """Return whether this engine may be used, though it differs from the model in this way (None: it does not)."""
        if difference is None:
            return True
        message = f"the {cls.name} engine {difference}"
        if required:
            raise EngineError(f"{message}; use ", Advice.argument("engine", "auto"))
        warnings.warn(f"{message}; the black-box engine is used instead", stacklevel=5)
        return False
