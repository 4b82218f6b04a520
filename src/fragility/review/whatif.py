"""What if: the model's answer when chosen evidence of one row fails, in whole or in part.

The state is the one of the protocol: each column of group g moves by s_g * (baseline - x), through the same rule
(`evidence.blend`), the same predictor and the same readings of margin and class as the engines use. With the groups of
the path at severity 1 it therefore gives the path's own numbers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fragility.certificates import Manifest
from fragility.errors import DataError, ModelError
from fragility.evidence import EvidenceRows, RowStates
from fragility.evidence.agreement import original_class
from fragility.models import Model
from fragility.protocol import Protocol, bind
from fragility.review.rows import GivenRows
from fragility.scores import reading_margin, state_prediction

KEPT = 64  # rows bound lately; binding asks the model a few times


@dataclass(frozen=True)
class Answer:
    """One state of one row."""

    predicted: str
    confidence: float  # of the class predicted in this state
    original: str
    support: float  # probability of the class predicted on the full record
    margin: float
    margin_before: float
    flipped: bool
    probabilities: Mapping[str, float]


class WhatIf:
    """The audited model, ready to be asked about any row of the audit."""

    def __init__(self, model: Model, protocol: Protocol, rows: GivenRows) -> None:
        self.model, self.protocol, self.rows = model, protocol, rows
        self._bound: OrderedDict[int, EvidenceRows] = OrderedDict()
        self._lock = threading.Lock()  # models are not promised to answer two threads at once

    @classmethod
    def of(cls, model: Model, protocol: Protocol, rows: GivenRows, manifest: Manifest) -> WhatIf:
        """Return it for the audited model; refuse another."""
        if model.fingerprint != manifest.model.fingerprint:
            raise ModelError("this is not the model that was audited: its fingerprint differs; give the audited model")
        return cls(model, protocol, rows)

    def ask(self, place: int, severities: Mapping[str, float]) -> Answer:
        """Return the model's answer for the row at ``place`` with groups degraded; groups not named stay whole."""
        severity = self._severity(severities)
        protocol = self.protocol
        with self._lock:
            rows = self._row(place)
            both = np.stack([np.zeros_like(severity), severity])
            p = rows.answers(rows.dense(), RowStates(np.zeros(2, dtype=np.int64), both > 0.0, both))
        original = original_class(rows, p[:1], protocol.resolution)
        predicted = int(state_prediction(p[1:], original, protocol.resolution, rows.offset)[0])
        margins = reading_margin(p, original[[0, 0]], protocol.reading, rows.offset, protocol.smoothing)
        before, after = margins.tolist()
        names = [str(label) for label in rows.model.classes]
        return Answer(
            predicted=names[predicted],
            confidence=min(float(p[1, predicted]), 1.0),
            original=names[int(original[0])],
            support=min(float(p[1, int(original[0])]), 1.0),
            margin=after,
            margin_before=before,
            flipped=predicted != int(original[0]),
            probabilities=dict(zip(names, p[1].tolist(), strict=True)),
        )

    def _severity(self, severities: Mapping[str, float]) -> Any:
        names = {name: i for i, name in enumerate(self.protocol.group_names)}
        severity = np.zeros(len(names))
        for name, value in severities.items():
            if name not in names:
                raise DataError(f"this protocol has no evidence group {str(name)[:60]!r}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
                raise DataError(f"a severity lies between 0 and 1, got {value!r:.40} for {name!r}")
            severity[names[name]] = value
        return severity

    def _row(self, place: int) -> EvidenceRows:
        if place not in self._bound:
            self._bound[place] = bind(self.model, self.rows.row(place), self.protocol, [self.rows.ids[place]])
            while len(self._bound) > KEPT:
                self._bound.popitem(last=False)
        self._bound.move_to_end(place)
        return self._bound[place]
