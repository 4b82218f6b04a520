"""Claims: what certificates say, as arrays, and which claims follow from others.

An engine measures classes, margins, confidences and thresholds. The rest is arithmetic on them (SPEC: certificate):

    k*   = first k with path_predicted_k != predicted, else K + 1;   flipped = (k* <= K)
    c_k, RCMA, FDS                                                   as in fragility.scores
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.protocol import Protocol
from fragility.scores import Booleans, Floats, Integers, collapse, fds, flip_budget, rcma

# Derived claims are recomputed from the stored numbers they were made of, so only the last digits may differ.
DERIVED_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Claims:
    """The claims of n certificates as arrays: G groups, K depth, P operators. Classes and groups are indices."""

    ids: tuple[Hashable, ...]
    predicted: Integers  # (n,)
    confidence: Floats  # (n,)
    margin: Floats  # (n,)
    flip_budget: Integers  # (n,)
    flipped: npt.NDArray[np.bool_]  # (n,)
    rcma: Floats  # (n,)
    fds: Floats  # (n,)
    thresholds: Floats  # (n, P) infinity where no severity flips
    path: Integers  # (n, K)
    path_margin: Floats  # (n, K+1)
    path_predicted: Integers  # (n, K+1)
    path_collapse: Floats  # (n, K+1)
    one_step_drop: Floats  # (n, G)
    one_step_confidence_drop: Floats  # (n, G)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Sequence[int]) -> Claims:
        """Return the claims of these rows."""
        chosen = list(positions)
        arrays = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "ids"}
        return Claims(ids=tuple(self.ids[i] for i in chosen), **arrays)


def derived_claims(
    margin: Floats, predicted: Integers, path_margin: Floats, path_predicted: Integers, thresholds: Floats, pi: Protocol
) -> dict[str, Any]:
    """Return the claims that follow from what was measured, by their names."""
    budget = flip_budget(path_predicted != predicted[:, None])
    c = collapse(margin, path_margin, pi.reading)
    area = rcma(c)
    return {
        "flip_budget": budget,
        "flipped": budget <= pi.depth,
        "path_collapse": c,
        "rcma": area,
        "fds": fds(area, budget, thresholds, pi.weights),
    }


def contradictions(claims: Claims, protocol: Protocol) -> list[tuple[int, str]]:
    """Return (position, claim) wherever a claim contradicts the others of its row, or cannot be true of any row."""
    implied = derived_claims(
        claims.margin, claims.predicted, claims.path_margin, claims.path_predicted, claims.thresholds, protocol
    )
    wrong = {name: _differs(getattr(claims, name), value) for name, value in implied.items()}
    wrong |= {
        "confidence": ~((claims.confidence >= 0.0) & (claims.confidence <= 1.0)),
        "path_margin": claims.path_margin[:, 0] != claims.margin,
        "path_predicted": claims.path_predicted[:, 0] != claims.predicted,
        "path": _repeats(claims.path),
        "thresholds": ~(np.isin(claims.thresholds, protocol.severities) | np.isposinf(claims.thresholds)),
    }
    return [
        (int(i), name) for name, bad in wrong.items() for i in np.flatnonzero(bad if bad.ndim == 1 else bad.any(axis=1))
    ]


def _differs(stated: npt.NDArray[Any], implied: npt.NDArray[Any]) -> Booleans:
    if implied.dtype.kind != "f":
        return np.asarray(stated != implied)
    # An unbounded collapse near a tie is large; its last digits are relative to it.
    return np.asarray(~(np.abs(stated - implied) <= DERIVED_TOLERANCE * (1.0 + np.abs(implied))))


def _repeats(path: Integers) -> Booleans:
    ordered = np.sort(path, axis=1)
    return np.asarray((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
