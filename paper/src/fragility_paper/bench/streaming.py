"""An audit of files larger than memory: rows a second, peak memory and busy cores, in a process of its own.

The rows are drawn from Covertype with fresh ids and audited under LightGBM.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import fragility as fg
from fragility_paper.bench.models import lightgbm
from fragility_paper.data import load_table

TRAINING_ROWS = 20_000
WRITTEN_AT_ONCE = 100_000
TARGET, ID = "Cover_Type", "observation"


def prepare(home: Path, data: Path | None = None, trees: int = 100) -> pd.DataFrame:
    """Fit the model and its protocol; return the rows that were not trained on."""
    table = load_table("covertype", data=data)  # 54 columns, each a group of its own, and 7 classes
    X, y = table.drop(columns=TARGET), table[TARGET]
    order = np.random.default_rng(0).permutation(len(X))
    train = order[:TRAINING_ROWS]
    model = lightgbm(trees).fit(X.iloc[train], y.iloc[train])
    joblib.dump(model, home / "model.joblib")
    fg.Protocol.fit(model, X.iloc[train]).save(home / "protocol.json")
    return X.iloc[order[TRAINING_ROWS:]].reset_index(drop=True)


def resample(X: pd.DataFrame, rows: int, path: Path) -> None:
    """Write so many rows drawn from X, each with an id of its own, never all of them at once."""
    generator, writer = np.random.default_rng(1), None
    for start in range(0, rows, WRITTEN_AT_ONCE):
        count = min(WRITTEN_AT_ONCE, rows - start)
        drawn = X.iloc[generator.integers(0, len(X), count)].assign(**{ID: np.arange(start, start + count)})
        table = pa.Table.from_pandas(drawn, preserve_index=False)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def measured(home: Path, X: pd.DataFrame, rows: int) -> dict[str, Any]:
    """Return what the audit of so many rows takes, measured in a new process."""
    resample(X, rows, home / f"{rows}.parquet")
    command = [sys.executable, "-m", __spec__.name, str(home), str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def audited(home: Path, rows: int) -> dict[str, Any]:
    """Audit one file in this process, from the first import of the model to the finished folder."""
    model, protocol = joblib.load(home / "model.joblib"), fg.Protocol.load(home / "protocol.json")
    start, cpu = time.perf_counter(), time.process_time()
    stored = fg.audit_files(model, home / f"{rows}.parquet", protocol, home / f"audit{rows}", id_column=ID)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    written = sum(path.stat().st_size for path in stored.folder.iterdir())
    return {
        "rows": rows,
        "engine": stored.engine,
        "seconds": round(wall, 1),
        "rows_per_second": round(rows / wall),
        "peak_mib": peak_mebibytes(),
        "cpu_over_wall": round(cpu / wall, 2),
        "bytes_per_row": round(written / rows),
        "parts": len(stored.part_names),
        "cores": os.cpu_count(),
    }


def peak_mebibytes() -> int:
    """The most memory this process has had; Linux counts that of the process it was started by among getrusage's."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.is_file() else None
    return (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) // 1024


if __name__ == "__main__":
    print(json.dumps(audited(Path(sys.argv[1]), int(sys.argv[2]))))
