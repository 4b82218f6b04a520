"""Run: how work on rows is done. It travels as one value; no certificate depends on it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from fragility.base.arrays import DEFAULT_BYTE_BUDGET
from fragility.base.progress import Report, progress_bar


@dataclass(frozen=True, slots=True)
class Run:
    """Which engine is asked, how many bytes of stressed rows are held at a time, and how progress is shown."""

    engine: str = "auto"
    byte_budget: int = DEFAULT_BYTE_BUDGET
    progress: bool | Report | None = None  # as ``progress_bar`` takes it

    def show(self, task: str) -> AbstractContextManager[Report | None]:
        """Return the context of a task, which yields the function that its progress is reported to, or None."""
        return progress_bar(task, self.progress)
