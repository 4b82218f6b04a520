"""Decision: the rule that turns a model's probabilities into the class it predicts.

Without a declared rule the class with the largest probability is predicted. A two-class model may have a threshold t
instead: its class c is predicted where p_c >= t. That is the largest entry of z~ once c carries an offset,

    z~_c - log(t / (1 - t))  >=  z~_other      exactly where      p_c >= t,

so every margin under a threshold is the plain one shifted by a constant, and a flip is where the decision itself flips.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import ProtocolError
from fragility.base.schemas import Must, check_fields, named, write_document

ClassLabel: TypeAlias = str | int | bool | float
SMALLEST_THRESHOLD = 1e-9  # probabilities are clipped at 1e-12: nearer to 0 or 1 no decision would ever flip

THRESHOLD = (
    f"a number between 0 and 1 (at least {SMALLEST_THRESHOLD:g} from either; otherwise one class is predicted whatever "
    "the evidence)"
)


@dataclass(frozen=True, slots=True)
class Decision:
    """A threshold of a two-class model: ``label`` is predicted where its probability is at least ``threshold``."""

    label: ClassLabel = field(metadata=named("class"))
    threshold: Annotated[float, Must(THRESHOLD, lambda t: SMALLEST_THRESHOLD <= t <= 1.0 - SMALLEST_THRESHOLD)]

    def __post_init__(self) -> None:
        check_fields(self, "a decision", ProtocolError)

    def __str__(self) -> str:
        return f"{self.label!r} where its probability is at least {self.threshold:g}"

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = write_document(self)
        return document

    @classmethod
    def read(cls, declared: Any, classes: Sequence[ClassLabel] | None = None) -> Decision | None:
        """Return a decision declared as an object, ``{"class": label, "threshold": t}``, or t for the second class."""
        if declared is None or isinstance(declared, Decision):
            return declared
        if isinstance(declared, Mapping):
            if set(declared) != {"class", "threshold"}:
                raise ProtocolError(
                    f"a decision has the entries 'class' and 'threshold', got {sorted(map(str, declared))}"
                )
            return cls(to_python(declared["class"]), _number(declared["threshold"]))
        if classes is None:
            raise ProtocolError(f"a decision must be an object with 'class' and 'threshold', got {declared!r}")
        check_two_classes(classes)
        return cls(classes[1], _number(declared))

    def offset(self, classes: Sequence[ClassLabel]) -> Floats:
        """Return what is added to the log-probabilities of ``classes``: -log(t / (1 - t)) for the threshold's class."""
        out = np.zeros(2)
        out[self.index(classes)] = math.log1p(-self.threshold) - math.log(self.threshold)
        return out

    def index(self, classes: Sequence[ClassLabel]) -> int:
        """Return the position of the threshold's class; True is not the class 1."""
        check_two_classes(classes)
        same = [c == self.label and isinstance(c, bool) == isinstance(self.label, bool) for c in classes]
        if not any(same):
            raise ProtocolError(f"the decision names the class {self.label!r}, the model knows {list(classes)!r}")
        return same.index(True)


def check_two_classes(classes: Sequence[ClassLabel]) -> None:
    if len(classes) != 2:
        raise ProtocolError(
            f"a decision threshold needs a model of two classes, this one has {len(classes)}; leave the decision out"
        )


def to_python(value: Any) -> Any:
    """Return a numpy scalar as the Python value that it holds; any other value stays."""
    return value.item() if isinstance(value, np.generic) else value


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, (np.integer, np.floating)) else value


def label_indices(labels: Any, classes: Sequence[Any], n: int) -> Integers | None:
    """Return (n,) positions of predicted labels among ``classes``; None where these are not one class label per row.

    Libraries answer in other shapes and types than their classes (CatBoost gives a column, and booleans as texts).
    """
    values = np.asarray(labels)
    if values.shape not in ((n,), (n, 1)):
        return None
    codes, distinct = pd.factorize(values.reshape(n))
    by_value = {to_python(c): i for i, c in enumerate(classes)}
    by_text = {str(c): i for c, i in by_value.items()}
    found = [by_value.get(value, by_text.get(str(value))) for value in map(to_python, distinct)]
    if None in found or (len(codes) and codes.min() < 0):
        return None
    return np.array(found, dtype=np.int64)[codes]
