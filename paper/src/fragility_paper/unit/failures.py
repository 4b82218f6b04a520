"""Two kinds of stress that stand for values which arrived, but wrongly; no baseline is involved.

With u and v independent uniforms on [0, 1), one of each for every group:

* ``Stale(r)``: every column of group g takes the values of the nearest donor row where u_g < r. The donors are training
  rows. Near means a small sum over the fields of |rank - rank| (numeric; ranks among the donors, from 0 to 1) and of
  1[the categories differ] (nominal). The row stands for the same customer some time ago;
* ``Sentinels(r)``: field g takes number floor(3 v_g) of 0, -999 and x * 100 where u_g < r, and a nominal field its
  rarest training category.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from fragility_paper.arrays import Floats
from fragility_paper.library import Draws, Layout, Stressor, Words, strikes, uniforms


@dataclass(frozen=True, slots=True)
class Stale(Stressor):
    """Every group takes the values of the nearest donor row independently with probability ``rate``."""

    rate: float = 0.3
    kind = "stale"

    def stress_rows(self, x: Floats, keys: Words, draws: Draws, layout: Layout) -> Floats:
        hit = strikes(keys, draws, np.arange(layout.n_groups), self.rate)
        return np.where(hit[:, :, layout.column_group], nearest_donors(x, layout)[:, None, :], x[:, None, :])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "rate": self.rate}


def nearest_donors(x: Floats, layout: Layout) -> Floats:
    """(n, d) the donor row nearest to each row; the first one of several that are equally near."""
    donors = layout.donors
    assert donors is not None, "Stale needs donor rows"
    numeric = layout.spread > 0.0
    distance = cdist(*(_ranks_among(donors[:, numeric], part[:, numeric]) for part in (x, donors)), "cityblock")
    both = np.vstack([x, donors])
    for group in range(layout.n_groups):
        nominal = ~numeric & (layout.column_group == group)
        if nominal.any():
            code = np.unique(both[:, nominal], axis=0, return_inverse=True)[1].ravel()
            distance += code[: len(x), None] != code[None, len(x) :]
    return np.asarray(donors[distance.argmin(axis=1)])


def _ranks_among(donors: Floats, values: Floats) -> Floats:
    """Mid-ranks of each column's values among those of the donors, from 0 to 1."""
    ranks = np.empty(values.shape)
    for j, ordered in enumerate(np.sort(donors, axis=0).T):
        below, up_to = (np.searchsorted(ordered, values[:, j], side) for side in ("left", "right"))
        ranks[:, j] = (below + up_to) / (2 * len(ordered))
    return ranks


@dataclass(frozen=True, slots=True, eq=False)
class Sentinels(Stressor):
    """Every field takes 0, an error code or 100 times its value independently with probability ``rate``.

    ``zero`` and ``error`` are the cells of a row whose numeric fields all are 0 and the error code, and whose nominal
    fields all are their rarest category. Preprocessing is affine in a numeric field, so that 100 x has the cell
    zero + 100 (x - zero).
    """

    zero: Floats  # (d,)
    error: Floats  # (d,)
    rate: float = 0.3
    kind = "sentinel"

    def stress_rows(self, x: Floats, keys: Words, draws: Draws, layout: Layout) -> Floats:
        groups, columns = np.arange(layout.n_groups), np.arange(x.shape[1])
        hit = strikes(keys, draws, groups, self.rate)[:, :, layout.column_group]
        chosen = (uniforms(keys, draws, layout.n_groups + groups) * 3).astype(np.int64)[:, :, layout.column_group]
        numeric = self.zero != self.error
        multiple = np.where(numeric, self.zero + 100.0 * (x - self.zero), self.zero)
        values = np.stack([np.broadcast_to(self.zero, x.shape), np.broadcast_to(self.error, x.shape), multiple])
        return np.where(hit, values[chosen, np.arange(len(x))[:, None, None], columns], x[:, None, :])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "rate": self.rate, "zero": self.zero.tolist(), "error": self.error.tolist()}
