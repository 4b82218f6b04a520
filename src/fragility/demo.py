"""The demo: from bundled credit data to a written audit with its report, as a new user would do it.

The German Credit data are split once; a model is trained on 700 applications and audited on the other 300. Everything
that a second person needs to recompute the certificates is written beside them: the model, the rows, the protocol.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fragility._audit import audit
from fragility.bundled import load_credit_g
from fragility.canonical import digest_bytes
from fragility.certificates import (
    CONFIDENT,
    AuditSummary,
    Certificate,
    Certificates,
    check_writable_folder,
)
from fragility.errors import CertificateError
from fragility.files import MODEL, parse_json, write_bytes, write_text
from fragility.hardening import Mending, harden, standing
from fragility.protocol import Protocol
from fragility.report import REPORT_FILE, Report, is_report, verify_command

SEED = 0
TARGET = "class"
SHOWN = 10
PAGE = REPORT_FILE
HARDENED = "model-hardened.skops"
COPIES = 4  # one copy of 700 rows leaves much to chance; by cross-validation within them four do better
FILES = ("model.skops", HARDENED, "train.parquet", "test.parquet", PAGE)
MARKER = "demo.json"  # by it the next demo knows which files in the folder are its own
MARKER_FORMAT = "fragility-demo/1"


@dataclass(frozen=True)
class Demo:
    """What the demo made, for whoever prints it."""

    folder: Path
    certs: Certificates
    summary: AuditSummary
    most_fragile: list[Certificate]
    mending: Mending  # the model before and after hardening, on the same rows

    @property
    def page(self) -> Path:
        return self.folder / PAGE

    @property
    def hardened(self) -> Path:
        return self.folder / HARDENED


def credit_pipeline() -> Pipeline:
    """An ordinary credit model: categories one-hot, numbers scaled, boosted trees."""
    return make_pipeline(
        ColumnTransformer(
            [
                ("nominal", OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
                ("numeric", StandardScaler(), make_column_selector(dtype_include="number")),
            ],
            sparse_threshold=0.0,
        ),
        GradientBoostingClassifier(n_estimators=200, subsample=0.6, max_features=0.5, random_state=SEED),
    )


def run_demo(folder: Path) -> Demo:
    """Train, audit and explain; write `folder` at the end, when everything that can fail has been done."""
    check_demo_folder(folder)
    X, y = load_credit_g()
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=300, stratify=y, random_state=SEED)
    model = credit_pipeline().fit(X_train, y_train)
    protocol = Protocol.fit(model, X_train)
    certs = audit(model, X_test, protocol, engine="blackbox")  # 300 rows are not worth compiling a native engine for
    summary = certs.summary(labels=y_test.to_dict())
    hardened = harden(model, X_train, y_train, protocol=protocol, copies=COPIES, seed=SEED)
    mending = Mending(*(standing(m, X_test, protocol, y_test, engine="blackbox") for m in (model, hardened)))
    made = Demo(folder, certs, summary, list(certs.most_fragile(SHOWN, min_confidence=CONFIDENT)), mending)
    contents = {
        "model.skops": _skops_bytes(model),
        HARDENED: _skops_bytes(hardened),
        "train.parquet": _parquet_bytes(X_train.assign(**{TARGET: y_train})),
        "test.parquet": _parquet_bytes(X_test.assign(**{TARGET: y_test})),
        made.page.name: _report(made, model, X_test, y_test.to_dict()).html.encode("utf-8"),
    }
    # Everything is ready before anything is written, so that an interrupted demo leaves nothing behind.
    certs.save(folder)
    _write_beside(folder, contents)
    return made


def _report(made: Demo, model: Pipeline, rows: pd.DataFrame, labels: Mapping[object, object]) -> Report:
    folder = made.folder
    words = ("--model", folder / "model.skops", "--trust", "--data", folder / "test.parquet", "--target", TARGET)
    verify = verify_command(folder, *words)
    return Report.of(made.certs, name=str(folder), labels=labels, verify=verify, rows=rows, model=model)


def _skops_bytes(model: Pipeline) -> bytes:
    import skops.io  # slow to import: it loads torch where torch is installed

    return bytes(skops.io.dumps(model))


def _parquet_bytes(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer)
    return buffer.getvalue()


# --- files beside the audit ---------------------------------------------------------------------------------


def check_demo_folder(folder: Path) -> None:
    """Refuse, before any work, a folder that is not the demo's to write in."""
    target = check_writable_folder(folder)
    own = _own_digests(target)
    for name in FILES:
        path = target / name
        if os.path.lexists(path) and not (path.is_file() and _is_own(path, own)):
            raise CertificateError(f"{folder / name} exists and is not what a demo wrote; choose another --out")


def _is_own(path: Path, own: set[str]) -> bool:
    """Whether a demo wrote this file, or an audit or a report that was made here since then."""
    return digest_bytes(path.read_bytes()) in own or (path.name == PAGE and is_report(path))


def _own_digests(target: Path) -> set[str]:
    """Return the digests of what demos wrote in this folder."""
    try:
        document = parse_json((target / MARKER).read_text(encoding="utf-8"))
        return {str(digest) for digest in document["files"]} if document["format"] == MARKER_FORMAT else set()
    except (OSError, ValueError, TypeError, LookupError):
        return set()


def _write_beside(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files beside an audit. The marker names old and new content before any file changes: a demo killed at any
    moment has written nothing that the next one would not know as its own."""
    new = [digest_bytes(data) for data in contents.values()]
    _write_marker(folder, [*_own_digests(folder), *new])
    for name, data in contents.items():
        write_bytes(folder / name, data, own=MODEL)
    _write_marker(folder, new)


def _write_marker(folder: Path, digests: list[str]) -> None:
    document = {"format": MARKER_FORMAT, "files": sorted(set(digests))}
    write_text(folder / MARKER, json.dumps(document, indent=2) + "\n")
