"""The temporary folder of a workbench: it holds fields of the audited rows, so it must not stay behind.

It is removed when the workbench ends, also by a signal. A process that is killed cannot do that, so each workbench
removes at its start what killed ones left: folders of the same user whose lock nobody holds. The system takes a lock
from a process that ends, however it ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: a file in use cannot be removed there, and a killed process leaves its folder
    fcntl = None  # type: ignore[assignment]

PREFIX = "fragility-review-"
LOCK = "lock"


class Scratch:
    """A folder that only its user can read, locked while it is in use."""

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)  # of mode 0700
        self.path = Path(self._folder.name)
        # Locked before it has the name that others look for: they never see it without the lock.
        self._lock: IO[bytes] = (self.path / "unlocked").open("wb")
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            (self.path / "unlocked").rename(self.path / LOCK)

    def remove(self) -> None:
        self._lock.close()
        self._folder.cleanup()


def remove_abandoned(folder: Path) -> None:
    """Remove what workbenches of this user left in a folder when they were killed."""
    if fcntl is None:
        return
    for scratch in folder.glob(f"{PREFIX}*"):
        try:
            if scratch.is_symlink() or not scratch.is_dir() or scratch.stat().st_uid != os.geteuid():
                continue
            with (scratch / LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(scratch, ignore_errors=True)
        except OSError:  # in use, or without a lock
            continue
