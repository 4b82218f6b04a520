"""The demo: from bundled credit data to a written audit with its report.

The German Credit data are split once; a model is trained on 700 applications and audited on the other 300. Everything
that a second person needs to recompute the certificates is written beside them: the model, the rows, the protocol.

The audit uses the black-box engine: 300 rows do not justify compiling a native engine, and no extra is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fragility.auditing.pipeline import audit
from fragility.audits import AuditSummary, Certificate, Certificates
from fragility.audits.folder import check_writable_folder
from fragility.base.canonical import digest_bytes
from fragility.base.errors import CertificateError
from fragility.base.files import MODEL, parse_json, write_bytes, write_text
from fragility.base.libraries import load_credit_g
from fragility.blocks.modes import MOST_CONFIDENT
from fragility.models.loading import skops_bytes
from fragility.protocol import Protocol
from fragility.questions.reliability.failure import assess_reliability
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.report import REPORT_FILE, Report, is_report, verify_command

SEED = 0
TARGET = "class"
SHOWN = 8
RATE = 0.05  # how often each field is missing; the demo says that this is an assumption
DRAWS = 1024  # a quarter of the default saves a second, and gives the same order of the first five fields
ENGINE = "blackbox"
PAGE = REPORT_FILE
FILES = ("model.skops", "train.parquet", "test.parquet", PAGE)
MARKER = "demo.json"  # lists the files of a demo, which the next demo may replace
MARKER_FORMAT = "fragility-demo/1"


@dataclass(frozen=True)
class Demo:
    """The results of the demo."""

    folder: Path
    certs: Certificates
    summary: AuditSummary
    most_fragile: list[Certificate]
    reliability: FailureProbability  # if each field is missing at RATE
    report: Report

    @property
    def page(self) -> Path:
        return self.folder / PAGE

    @property
    def sources(self) -> tuple[str, ...]:
        """The options with which other commands read the model and the rows."""
        return _sources(self.folder)


def credit_pipeline() -> Pipeline:
    """Return an untuned credit model: one-hot categories, scaled numbers, boosted trees.

    In cross-validation on the training rows half the trees have a lower log loss (0.522 against 0.562); such a model is
    less confident and flips less.
    """
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
    """Train, audit and explain; write `folder` only at the end, after every step that can fail."""
    check_demo_folder(folder)
    X, y = load_credit_g()
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=300, stratify=y, random_state=SEED)
    model = credit_pipeline().fit(X_train, y_train)
    protocol = Protocol.fit(model, X_train)
    labels = y_test.to_dict()
    certs = audit(model, X_test, protocol, engine=ENGINE, lattice=True, modes=MOST_CONFIDENT, baselines=True)
    reliability = assess_reliability(model, X_test, protocol, RATE, draws=DRAWS, engine=ENGINE)
    report = Report.of(
        certs,
        name=str(folder),
        labels=labels,
        verify=verify_command(folder, *_sources(folder)),
        rows=X_test,
        model=model,
        reliability=reliability,
    )
    made = Demo(folder, certs, certs.summary(labels=labels), list(certs.most_fragile(SHOWN)), reliability, report)
    contents = {
        "model.skops": skops_bytes(model),
        "train.parquet": X_train.assign(**{TARGET: y_train}).to_parquet(),
        "test.parquet": X_test.assign(**{TARGET: y_test}).to_parquet(),
        PAGE: report.to_html().encode("utf-8"),
    }
    # Everything is ready before anything is written, so that an interrupted demo leaves nothing behind.
    certs.save(folder)
    _write_beside(folder, contents)
    return made


def _sources(folder: Path) -> tuple[str, ...]:
    model, rows = str(folder / "model.skops"), str(folder / "test.parquet")
    return "--model", model, "--trust", "--data", rows, "--target", TARGET


# --- files beside the audit ---------------------------------------------------------------------------------


def check_demo_folder(folder: Path) -> None:
    """Refuse, before any work, a folder with other files under the names that the demo uses."""
    target = check_writable_folder(folder)
    digests = _read_demo_digests(target)
    for name in FILES:
        path = target / name
        # `fragility report` may have replaced the report since.
        of_demo = path.is_file() and (digest_bytes(path.read_bytes()) in digests or (name == PAGE and is_report(path)))
        if os.path.lexists(path) and not of_demo:
            raise CertificateError(f"{folder / name} exists and was not written by a demo; choose another --out")


def _read_demo_digests(target: Path) -> set[str]:
    """Return the digests of the files that demos wrote in this folder."""
    try:
        document = parse_json((target / MARKER).read_text(encoding="utf-8"))
        return {str(digest) for digest in document["files"]} if document["format"] == MARKER_FORMAT else set()
    except (OSError, ValueError, TypeError, LookupError):
        return set()


def _write_beside(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files beside an audit.

    The marker lists old and new content before any file changes, so that the next demo recognises the files even if
    this one is killed in between.
    """
    new = [digest_bytes(data) for data in contents.values()]
    _write_marker(folder, [*_read_demo_digests(folder), *new])
    for name, data in contents.items():
        write_bytes(folder / name, data, own=MODEL)
    _write_marker(folder, new)


def _write_marker(folder: Path, digests: list[str]) -> None:
    document = {"format": MARKER_FORMAT, "files": sorted(set(digests))}
    write_text(folder / MARKER, json.dumps(document, indent=2) + "\n")
