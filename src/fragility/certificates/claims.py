"""Claims: what certificates say, as arrays, and which claims follow from others.

An engine measures classes, margins, confidences and thresholds. The rest is arithmetic on them (SPEC: certificate):

    k*   = first k with path_predicted_k != predicted, else K + 1;   flipped = (k* <= K)
    c_k, RCMA, FDS, independent and common loss, exposure            as in fragility.scores
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fragility.arrays import Booleans, Floats, Integers
from fragility.protocol import Protocol
from fragility.scores import collapse, common_loss, exposure, fds, flip_budget, independent_loss, rcma

# What a table of certificates holds: everything, or no lists with one entry a step, a severity or a group.
Extent: TypeAlias = Literal["full", "summary"]
EXTENTS: tuple[str, ...] = ("full", "summary")
PER_STEP = (
    *("path_margin", "path_predicted", "path_collapse", "fade_margin"),
    *("one_step_drop", "one_step_confidence_drop"),
)
# Derived claims are recomputed from the stored numbers they were made of, so only the last digits may differ.
DERIVED_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Claims:
    """The claims of n certificates as arrays: G groups, K depth, P operators, |Lambda| severities.

    Classes and groups are indices. Claims read from a summary lack those of PER_STEP: their arrays are (n, 0).
    """

    ids: tuple[Hashable, ...]
    predicted: Integers  # (n,)
    confidence: Floats  # (n,)
    margin: Floats  # (n,)
    flip_budget: Integers  # (n,)
    flipped: npt.NDArray[np.bool_]  # (n,)
    rcma: Floats  # (n,)
    fds: Floats  # (n,)
    exposure: Floats  # (n,)
    independent_loss: Floats  # (n,)
    common_loss: Floats  # (n,) NaN where the protocol has no attenuate_all
    thresholds: Floats  # (n, P) infinity where no severity flips
    path: Integers  # (n, K)
    path_margin: Floats  # (n, K+1)
    path_predicted: Integers  # (n, K+1)
    path_collapse: Floats  # (n, K+1)
    fade_margin: Floats  # (n, |Lambda|) NaN from lambda* of attenuate_all on; (n, 0) without that operator
    one_step_drop: Floats  # (n, G)
    one_step_confidence_drop: Floats  # (n, G)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Sequence[int]) -> Claims:
        """Return the claims of these rows."""
        chosen = list(positions)
        arrays = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "ids"}
        return Claims(ids=tuple(self.ids[i] for i in chosen), **arrays)


MEASURED = ("predicted", "margin", "path_margin", "path_predicted", "thresholds", "fade_margin", "one_step_drop")


def derived_claims(measured: Mapping[str, Any], protocol: Protocol) -> dict[str, Any]:
    """Return the claims that follow from the arrays named in MEASURED, by their names."""
    margin, thresholds = measured["margin"], measured["thresholds"]
    budget = flip_budget(measured["path_predicted"] != measured["predicted"][:, None])
    c = collapse(margin, measured["path_margin"], protocol.reading)
    area = rcma(c)
    independent = independent_loss(margin, measured["one_step_drop"])
    fading = thresholds[:, protocol.fading] if protocol.fading is not None else np.full(len(margin), np.inf)
    common = common_loss(margin, measured["fade_margin"], fading, np.array(protocol.severities))
    return {
        "flip_budget": budget,
        "flipped": budget <= protocol.depth,
        "path_collapse": c,
        "rcma": area,
        "fds": fds(area, budget, thresholds, protocol.weights),
        "exposure": exposure(area, independent, common, protocol.exposure_weights),
        "independent_loss": independent,
        "common_loss": common,
    }


def contradictions(claims: Claims, protocol: Protocol, extent: Extent = "full") -> list[tuple[int, str]]:
    """Return (position, claim) wherever a claim contradicts the others of its row, or cannot be true of any row."""
    implied = _implied_by_lists(claims, protocol) if extent == "full" else _implied_by_scores(claims, protocol)
    wrong = {name: _differs(getattr(claims, name), value) for name, value in implied.items()}
    wrong |= {
        "confidence": ~((claims.confidence >= 0.0) & (claims.confidence <= 1.0)),
        "path": _repeats(claims.path),
        "thresholds": ~(np.isin(claims.thresholds, protocol.severities) | np.isposinf(claims.thresholds)),
    }
    if extent == "full":
        wrong |= {
            "path_margin": claims.path_margin[:, 0] != claims.margin,
            "path_predicted": claims.path_predicted[:, 0] != claims.predicted,
            "fade_margin": _faded(claims, protocol),
        }
    return [
        (int(i), name) for name, bad in wrong.items() for i in np.flatnonzero(bad if bad.ndim == 1 else bad.any(axis=1))
    ]


def _implied_by_lists(claims: Claims, protocol: Protocol) -> dict[str, Any]:
    return derived_claims({name: getattr(claims, name) for name in MEASURED}, protocol)


def _implied_by_scores(claims: Claims, protocol: Protocol) -> dict[str, Any]:
    """Return what follows from the claims of a summary alone."""
    losses = claims.rcma, claims.independent_loss, claims.common_loss
    possible = np.clip(claims.flip_budget, 1, protocol.depth + 1)
    return {
        "flip_budget": possible,
        "flipped": claims.flip_budget <= protocol.depth,
        "fds": fds(claims.rcma, possible, claims.thresholds, protocol.weights),
        "exposure": exposure(*losses, protocol.exposure_weights),
    }


def _faded(claims: Claims, protocol: Protocol) -> Booleans:
    """Where fading margins are known from lambda* on, or unknown below it."""
    if protocol.fading is None:
        return np.zeros(len(claims), dtype=bool)
    flipped = np.array(protocol.severities) >= claims.thresholds[:, protocol.fading, None]
    return np.asarray((np.isnan(claims.fade_margin) != flipped).any(axis=1))


def _differs(stated: npt.NDArray[Any], implied: npt.NDArray[Any]) -> Booleans:
    if implied.dtype.kind != "f":
        return np.asarray(stated != implied)
    # An unbounded collapse near a tie is large; its last digits are relative to it.
    close = np.abs(stated - implied) <= DERIVED_TOLERANCE * (1.0 + np.abs(implied))
    return np.asarray(~(close | (np.isnan(stated) & np.isnan(implied))))


def _repeats(path: Integers) -> Booleans:
    ordered = np.sort(path, axis=1)
    return np.asarray((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
