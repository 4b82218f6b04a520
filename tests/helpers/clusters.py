"""What the tests of Ray and Spark share: a small model on real rows, a larger one, and the audit of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from lightgbm import LGBMClassifier
from pipelines import fitted, read_table
from traces import covertype_groups

import fragility as fg

PART = 60  # rows of a part of the small audits


def content(folder: Path) -> dict[str, bytes]:
    """Every file of an audit; the command writes its report beside them."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "report.html"}


class Small:
    """credit-g with ids, in a file and audited by this process."""

    def __init__(self, folder: Path) -> None:
        case = fitted("credit_g", "logistic", "transformed")
        self.model = case.model
        self.protocol = fg.Protocol.fit(case.model, case.X_train, depth=4)
        self.rows = case.X_test.assign(loan=[f"l{i:04d}" for i in range(len(case.X_test))])
        self.rows["risk"] = 1
        self.file = folder / "rows.parquet"
        self.rows.to_parquet(self.file, row_group_size=37, index=False)
        self.folder = folder / "one"
        fg.audit_files(self.model, self.file, self.protocol, self.folder, **self.options)

    @property
    def options(self) -> dict[str, Any]:
        return {"id_column": "loan", "target": "risk", "part_rows": PART}

    @property
    def digests(self) -> list[str]:
        return sorted(
            d for batch in fg.open_audit(self.folder).batches(["digest"]) for d in batch["digest"].to_pylist()
        )


class Covertype:
    """A booster on Covertype whose audit takes some seconds, in many parts."""

    def __init__(self, folder: Path, rows: int = 24_000) -> None:
        table = read_table("covertype").sample(rows + 4000, random_state=5).reset_index(drop=True)
        X, y = table.drop(columns="Cover_Type"), table["Cover_Type"]
        self.model = LGBMClassifier(n_estimators=30, num_leaves=31, n_jobs=1, verbose=-1).fit(X[:4000], y[:4000])
        self.protocol = fg.Protocol.fit(self.model, X[:4000], groups=covertype_groups(X.columns))
        self.file = folder / "covertype.parquet"
        X[4000:].assign(id=range(rows)).to_parquet(self.file, row_group_size=5000, index=False)
        self.folder = folder / "one"
        fg.audit_files(self.model, self.file, self.protocol, self.folder, **self.options)

    @property
    def options(self) -> dict[str, Any]:
        return {"id_column": "id", "part_rows": 1000}


def command_of(process: psutil.Process) -> list[str]:
    """The words a process was started with; none for one that has ended since."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


class Killer:
    """A progress function that kills one of the workers it finds after some of its calls."""

    def __init__(self, find: Callable[[], list[psutil.Process]], after: tuple[int, ...] = (1, 6)) -> None:
        self.find, self.after = find, after
        self.calls = 0
        self.killed: list[int] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls += 1
        if self.calls in self.after:
            victim = self.find()[0]
            victim.kill()
            self.killed.append(victim.pid)


def shuffled(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sample(frac=1, random_state=0)


class Stopped(BaseException):
    pass


def stop_after(parts: int) -> Callable[[int, int], None]:
    """Return a progress function that ends an audit as Ctrl-C would."""
    calls = iter(range(parts))

    def progress(done: int, total: int) -> None:
        if next(calls, None) is None:
            raise Stopped

    return progress
