"""Transfer: does the gain of hardening carry over to failures that training did not use?

In training a lost group takes the baseline, so a model may learn that baseline instead of spreading its weight. The
share of confident predictions that break is therefore judged again by failures with other values:

    other baselines         groups and columns take each other baseline that the model admits (`Mask`, `Dropout`)
    values of other rows    groups take the values of other training rows (`Donor`)
    noise                   numbers are slightly off (`Noise`)

A gain appears under a judge if the brittle share falls by at least one percentage point and by a tenth of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fragility.arrays import Booleans
from fragility.hardening.standing import line_of
from fragility.protocol import Protocol
from fragility.stress import Donor, Dropout, Mask, Noise, Stress, label_brittle
from fragility.stress.declaration import Stressor
from fragility.words import and_words

LEAST_FALL = 0.01
LEAST_RELATIVE_FALL = 0.1
LOST = (Mask(), Dropout())  # with the protocol's own baseline, as in training
OTHER_VALUES: dict[str, Stressor] = {"values of other rows": Donor(), "noise": Noise()}


@dataclass(frozen=True, slots=True)
class Judged:
    """The brittle share of confident predictions of two models, under one kind of failure."""

    by: str
    before: float  # NaN where a model has no confident prediction
    after: float

    @property
    def gained(self) -> bool:
        """Whether the share fell by more than a trifle."""
        fall = self.before - self.after
        return fall >= LEAST_FALL and fall >= LEAST_RELATIVE_FALL * self.before

    def __str__(self) -> str:
        return f"{self.by} {self.before:.3f} -> {self.after:.3f}"


@dataclass(frozen=True, slots=True)
class Transfer:
    """What hardening gained under the baseline it trained with, and under failures it did not train with."""

    trained: Judged
    others: tuple[Judged, ...]

    @property
    def only_as_trained(self) -> bool:
        """Whether the gain appears under the baseline of the training, and under nothing else."""
        return self.trained.gained and not any(judged.gained for judged in self.others)

    def sentence(self) -> str:
        """Say whether the gain carries over, and to which failures."""
        if not self.trained.gained:
            return f"Hardly fewer confident predictions break: {self.trained}."
        shown = f"Fewer confident predictions break: {self.trained}."
        if self.only_as_trained:
            return (
                f"{shown} The gain appears only under the baseline that the model was trained with, not under "
                f"{_listed(self.others)}: do not count on it."
            )
        kept = [judged for judged in self.others if judged.gained]
        lost = [judged for judged in self.others if not judged.gained]
        carried = f"{shown} The gain carries over to {_listed(kept)}"
        return f"{carried}, not to {_listed(lost)}." if lost else f"{carried}."

    def lines(self) -> list[tuple[str, str, str, str]]:
        """Return the rows of a table of brittle shares before and after."""
        heading = ("brittle share of confident predictions", "", "", "")
        judged = (self.trained, *self.others)
        return [heading, *(line_of(f"  {one.by}", one.before, one.after) for one in judged)]


def _listed(judged: Sequence[Judged]) -> str:
    return and_words([str(one) for one in judged])


def transfer_of(
    before: Any,
    after: Any,
    X: Any,
    donors: Any,
    protocols: tuple[Protocol, Protocol],
    *,
    ids: Any = None,
    engine: str = "auto",
) -> Transfer:
    """Judge two models on the same rows; ``donors`` are training rows, ``protocols`` those of the two models."""
    shares = [
        _brittle_shares(model, X, donors, protocol, ids, engine)
        for model, protocol in zip((before, after), protocols, strict=True)
    ]
    judged = [Judged(by, share, shares[1][by]) for by, share in shares[0].items() if by in shares[1]]
    return Transfer(judged[0], tuple(judged[1:]))


def _brittle_shares(model: Any, X: Any, donors: Any, protocol: Protocol, ids: Any, engine: str) -> dict[str, float]:
    """Return the brittle share of confident predictions by judge; the one that training used comes first."""

    def breaks(declared: Protocol, stressors: Sequence[Stressor], lent: Any = None) -> Booleans:
        """(confident rows, stressors) which stressor breaks a row."""
        own = engine if declared.space == protocol.space else "auto"  # an engine that was insisted on may not read it
        found = label_brittle(
            model, X, declared, Stress(tuple(stressors)), donors=lent, ids=ids, engine=own, progress=False
        )
        return found.brittle_by[found.high_confidence]

    broken = breaks(protocol, (*LOST, *OTHER_VALUES.values()), donors)
    out = {f"baseline {protocol.baseline} (as in training)": _share(broken[:, : len(LOST)])}
    for name in protocol.alternatives:
        out[f"baseline {name}"] = _share(breaks(protocol.with_baseline(name), LOST))
    return out | {by: _share(broken[:, [len(LOST) + i]]) for i, by in enumerate(OTHER_VALUES)}


def _share(broken: Booleans) -> float:
    return float(broken.any(axis=1).mean()) if len(broken) else np.nan
