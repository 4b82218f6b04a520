"""Progress bars: shown on a terminal for work that takes more than two seconds, silent elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

SHOW_AFTER_SECONDS = 2.0
Report = Callable[[int, int], None]


@contextmanager
def progress_bar(task: str, wanted: bool | Report | None = None) -> Iterator[Report | None]:
    """Yield a function (rows done, rows in all or 0 if unknown), or None if no progress is to be shown.

    wanted: None for a bar if standard error is a terminal, True or False to insist, or a function to call instead.
    """
    if callable(wanted):
        yield wanted
        return
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield None
        return
    bar = _LateBar(task)
    try:
        yield bar.report
    finally:
        bar.close()


class _LateBar:
    """A bar that appears once the work has taken SHOW_AFTER_SECONDS."""

    def __init__(self, task: str) -> None:
        self._name = task
        self._start = time.monotonic()
        self._bar: Progress | None = None

    def report(self, done: int, total: int) -> None:
        seconds = time.monotonic() - self._start
        if self._bar is None and seconds >= SHOW_AFTER_SECONDS:
            # Only a bar that appears needs rich.
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            rest = (TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
            self._bar = Progress(*shown, *rest, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._name, total=total or None, speed="")
        if self._bar is not None:
            speed = f"{done / seconds:,.0f} rows/s" if seconds > 0 else ""
            self._bar.update(self._task, completed=done, total=total or None, speed=speed)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
