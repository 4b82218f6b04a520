"""A slow twin's side of a comparison, and the comparison of its certificate with the library's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from naive import Row

from fragility.audits import Certificates

RELATIVE, ABSOLUTE = 1e-9, 1e-11  # the absolute floor is for differences of margins that are nearly equal


@dataclass(frozen=True)
class Twin:
    """What the slow twin needs, prepared by hand."""

    names: list[str]  # groups
    groups: list[list[int]]
    rows: list[Row]
    baseline: Row
    stepwise: list[bool]
    probabilities: Any
    whole: list[bool] | None = None  # fields of whole numbers (raw space)


def remembered(ask: Any) -> Any:
    """The three readings ask for many equal states; the model need answer each once."""
    known: dict[tuple[Any, ...], Sequence[float]] = {}

    def probabilities(matrix: list[Row]) -> Sequence[float]:
        key = tuple("missing" if v is None or v != v else v for v in matrix[0])
        if key not in known:
            known[key] = ask(matrix[0])
        return known[key]

    return probabilities


def close(a: Any, b: Any, what: str, absolute: float = ABSOLUTE) -> None:
    np.testing.assert_allclose(a, b, rtol=RELATIVE, atol=absolute, err_msg=what)


def assert_equal(certs: Certificates, i: int, twin: dict[str, Any], where: str) -> None:
    claims = certs.claims
    assert claims.predicted[i] == twin["predicted"], where
    assert claims.path[i].tolist() == twin["path"], where
    assert claims.path_predicted[i].tolist() == twin["path_predicted"], where
    assert claims.flip_budget[i] == twin["flip_budget"], where
    assert bool(claims.flipped[i]) is twin["flipped"], where
    expected = [math.inf if value is None else value for value in twin["threshold"]]
    assert claims.thresholds[i].tolist() == expected, where
    for name in ("confidence", "margin", "bare_margin", "path_margin", "one_step_drop"):
        close(getattr(claims, name)[i], twin[name], f"{where} {name}")
    # Collapse divides by the margin, so its floor is that of margins over the margin.
    near_tie = ABSOLUTE * max(1.0, (2 + max(twin["path_collapse"])) / (abs(twin["margin"]) + 1e-8))
    known = claims.fade_margin[i][~np.isnan(claims.fade_margin[i])]
    assert len(known) == len(twin["fade_margin"]), where
    close(known, twin["fade_margin"], f"{where} fade_margin")
    close(claims.exposure[i], twin["exposure"], f"{where} exposure", len(twin["one_step_drop"]) * near_tie)
    several = len(twin["one_step_drop"]) * near_tie * (1 + twin["independent_loss"])
    close(claims.independent_loss[i], twin["independent_loss"], f"{where} independent_loss", several)
    close(claims.random_loss[i], twin["random_loss"], f"{where} random_loss", several)
    common = math.nan if twin["common_loss"] is None else twin["common_loss"]
    close(claims.common_loss[i], common, f"{where} common_loss", near_tie)
    for name in ("path_collapse", "rcma", "fds"):
        close(getattr(claims, name)[i], twin[name], f"{where} {name}", near_tie)
    drops = [twin["confidence"] - p for p in twin["one_step_confidence"]]
    close(claims.one_step_confidence_drop[i], drops, f"{where} one_step_confidence_drop")
