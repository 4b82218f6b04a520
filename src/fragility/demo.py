"""The demo: from bundled credit data to a written audit with pictures, as a new user would do it.

The German Credit data are split once; a model is trained on 700 applications and audited on the other 300. Everything
that a second person needs to recompute the certificates is written beside them: the model, the rows, the protocol.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fragility._audit import audit
from fragility.bundled import load_credit_g
from fragility.certificate import Certificate, Certificates
from fragility.display import CollapseDisplay, FragilityMapDisplay, drawing_style
from fragility.protocol import Protocol
from fragility.summary import CONFIDENT, AuditSummary, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEED = 0
TARGET = "class"
SHOWN = 10
ALIKE = 0.01  # two confidences this close are called equal
MAP_PICTURE = "fragility-map.png"
COLLAPSE_PICTURE = "collapse.png"


@dataclass(frozen=True)
class Demo:
    """What the demo made, for whoever prints it."""

    folder: Path
    certs: Certificates
    summary: AuditSummary
    most_fragile: list[Certificate]

    @property
    def page(self) -> Path:
        return self.folder / "index.html"


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
    """Train, audit and explain; write `folder`."""
    X, y = load_credit_g()
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=300, stratify=y, random_state=SEED)
    model = credit_pipeline().fit(X_train, y_train)
    protocol = Protocol.fit(model, X_train, baseline="mode")
    certs = audit(model, X_test, protocol, engine="blackbox")  # 300 rows are not worth compiling a native engine for
    summary = summarise(certs, labels=y_test.to_dict())
    made = Demo(folder, certs, summary, list(certs.most_fragile(SHOWN, min_confidence=CONFIDENT)))
    pictures = _draw(certs)
    inputs = _inputs(model, X_train.assign(**{TARGET: y_train}), X_test.assign(**{TARGET: y_test}))
    page = {made.page.name: _page(made, pictures).encode("utf-8")}
    # Everything is ready before anything is written, so that an interrupted demo leaves nothing behind.
    certs.save(folder)
    for name, content in {**inputs, **pictures, **page}.items():
        (folder / name).write_bytes(content)
    return made


def _inputs(model: Pipeline, train: pd.DataFrame, test: pd.DataFrame) -> dict[str, bytes]:
    """File name -> content of the model and the rows."""
    import skops.io  # slow to import: it loads torch where torch is installed

    return {
        "model.skops": skops.io.dumps(model),
        "train.parquet": _parquet(train),
        "test.parquet": _parquet(test),
    }


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = BytesIO()
    table.to_parquet(buffer)
    return buffer.getvalue()


def _draw(certs: Certificates) -> dict[str, bytes]:
    """Draw without pyplot, so that no window system is needed and nothing global changes; file name -> PNG."""
    from matplotlib.figure import Figure

    drawings: dict[str, Callable[[Axes], object]] = {
        MAP_PICTURE: lambda ax: FragilityMapDisplay.from_certificates(certs, ax=ax),
        COLLAPSE_PICTURE: lambda ax: CollapseDisplay.from_certificates(certs, _contrast(certs), ax=ax),
    }
    drawn = {}
    for name, draw in drawings.items():
        buffer = BytesIO()
        with drawing_style():
            figure = Figure(figsize=(9.6, 4.6), layout="constrained")
            draw(figure.add_subplot())
            figure.savefig(buffer, dpi=110, metadata={"Software": None})
        drawn[name] = buffer.getvalue()
    return drawn


def _contrast(certs: Certificates) -> list[int]:
    """Positions of the most fragile confident prediction, and of the least fragile one that is as confident."""
    table = certs.to_pandas()
    confidence, fds = table["confidence"].to_numpy(), table["fds"].to_numpy()
    most = int(np.argmax(np.where(confidence >= CONFIDENT, fds, -np.inf)))
    alike = np.abs(confidence - confidence[most]) <= ALIKE
    return [most, int(np.argmin(np.where(alike, fds, np.inf)))]


# --- the page ---------------------------------------------------------------------------------------------


def _page(demo: Demo, pictures: dict[str, bytes]) -> str:
    """One file that opens offline: the numbers, both pictures, the table, and how to check it."""
    summary = demo.summary
    template = Template(files("fragility").joinpath("data", "demo.html").read_text(encoding="utf-8"))
    return template.substitute(
        trained=demo.certs.protocol.training_rows,
        rows=summary.rows,
        accuracy=f"{summary.accuracy:.0%}",
        confident=summary.confident,
        threshold=f"{summary.min_confidence:.0%}",
        after_one=f"{summary.confident_flips_after_one:.0%}",
        within_two=f"{summary.confident_flips_within_two:.0%}",
        map_picture=_inline(pictures[MAP_PICTURE]),
        collapse_picture=_inline(pictures[COLLAPSE_PICTURE]),
        table="\n".join(_table_row(cert) for cert in demo.most_fragile),
        folder=html.escape(str(demo.folder)),
    )


def _table_row(cert: Certificate) -> str:
    identifier, sentence = html.escape(str(cert.id)), html.escape(cert.sentence())
    return f'<tr><td class="n">{identifier}</td><td class="n">{cert.fds:.3f}</td><td>{sentence}</td></tr>'


def _inline(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode("ascii")
