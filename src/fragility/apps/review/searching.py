"""Searches about single rows with the audited model, each in a thread of its own that nobody has to wait for."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillSearching
from typing import Generic, TypeVar

KEPT = 64  # rows searched lately

Found = TypeVar("Found")


class RowSearch(ABC, Generic[Found]):
    """Finds something about rows, once for each of those asked for lately."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, Future[Found]] = OrderedDict()
        self._lock = threading.Lock()

    @abstractmethod
    def search(self, place: int) -> Found:
        """Return what is asked about the row at ``place``."""

    def find(self, place: int, patience: float) -> Found | None:
        """Return what was found about the row at ``place``; None if it is not found within so many seconds."""
        with self._lock:
            future = self._found.get(place)
            if future is None or (future.done() and future.exception() is not None):  # tried again
                future = self._found[place] = Future()
                # A daemon: the first search of a machine compiles, and the end of the workbench does not wait for it.
                threading.Thread(target=self._run, args=(place, future), daemon=True).start()
            self._found.move_to_end(place)
            while len(self._found) > KEPT:
                self._found.popitem(last=False)
        try:
            return future.result(timeout=patience)
        except StillSearching:
            if future.done():
                raise
            return None

    def _run(self, place: int, future: Future[Found]) -> None:
        try:
            future.set_result(self.search(place))
        except BaseException as error:  # whoever waits is told
            future.set_exception(error)
