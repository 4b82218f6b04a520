"""A small audit whose every digit is the same on any machine: a linear model with declared weights on whole numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.linear_model import LogisticRegression

import fragility as fg
from fragility.audits import BaselineComparison, Manifest
from fragility.blocks.block import AuditBlock

FIELDS = ("income", "debt", "age", "tenure", "visits", "region")
WEIGHTS = {
    2: [[0.5, -0.75, 0.25, 0.125, 0.0625, 0.0]],
    3: [[0.5, -0.5, 0.0, 0.25, 0.0, 0.125], [-0.25, 0.75, 0.25, 0.0, 0.125, 0.0], [0.0, -0.25, 0.5, -0.125, 0.25, 0.0]],
}
CLASSES = {2: ("repaid", "defaulted"), 3: ("low", "middle", "high")}


def declared_model(classes: int = 2, labels: Sequence[str] | None = None) -> LogisticRegression:
    """A logistic regression whose weights are declared, not fitted."""
    model = LogisticRegression()
    model.classes_ = np.array(sorted(labels or CLASSES[classes]), dtype=object)
    model.coef_ = np.array(WEIGHTS[classes])
    model.intercept_ = np.zeros(len(model.coef_))
    model.n_features_in_ = len(FIELDS)
    return model


def whole_numbers(rows: int, seed: int, fields: Sequence[str] = FIELDS) -> pd.DataFrame:
    """Rows of whole numbers from -5 to 5."""
    values = np.random.default_rng(seed).integers(-5, 6, (rows, len(fields)))
    return pd.DataFrame(values.astype(float), columns=list(fields))


def small_audit(
    rows: int = 120, classes: int = 2, *, seed: int = 1, modes: bool | int = False, **declared: object
) -> fg.Certificates:
    """Certificates of the declared model."""
    model = declared_model(classes)
    protocol = fg.Protocol.fit(model, whole_numbers(50, 0).to_numpy(), **declared)
    given = whole_numbers(rows, seed).to_numpy()
    return fg.audit(model, given, protocol, progress=False, lattice=False, modes=modes)


def small_labels(certs: fg.Certificates, every: int = 7) -> dict[object, str]:
    """The predicted classes as truth, except for each seventh row, which is wrong."""
    classes = [str(label) for label in certs.classes]
    predicted = certs.table.column("predicted").to_pylist()
    other = {label: classes[(index + 1) % len(classes)] for index, label in enumerate(classes)}
    ids = certs.table.column("id").to_pylist()
    return {
        own: other[str(label)] if place % every == 0 else str(label)
        for place, (own, label) in enumerate(zip(ids, predicted, strict=True))
    }


@dataclass(frozen=True)
class InParts:
    """The same audit, handed out a few rows at a time, perhaps without the steps of each path."""

    certs: fg.Certificates
    rows: int = 7
    manifest_changes: tuple[tuple[str, str], ...] = ()

    @property
    def manifest(self) -> Manifest:
        return replace(self.certs.manifest, **dict(self.manifest_changes))

    @property
    def extent(self) -> str:
        return self.manifest.claims

    @property
    def blocks(self) -> dict[str, AuditBlock]:
        return self.certs.blocks

    @property
    def protocol(self) -> fg.Protocol:
        return self.certs.protocol

    def confident_from(self, min_confidence: float | None = None) -> float:
        return self.certs.confident_from(min_confidence)

    @property
    def classes(self) -> tuple[object, ...]:
        return self.certs.classes

    @property
    def baselines(self) -> BaselineComparison | None:
        return self.certs.baselines

    def __len__(self) -> int:
        return len(self.certs)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        table = self.certs.table if columns is None else self.certs.table.select(list(columns))
        for start in range(0, len(table), self.rows):
            yield table.slice(start, self.rows)
