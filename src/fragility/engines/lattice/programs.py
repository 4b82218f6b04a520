"""A row's smallest failing set as a mixed-integer program, where too many groups are live for a table of all subsets.

    z_g in {0, 1}           whether group g is removed
    l in [0, 1]             one for each leaf that some state reaches; those of a tree add up to 1
    sum of leaves <= z_g    over the leaves of a tree that need g removed; <= 1 - z_g over those that need it kept
    E(S) <= edge            the inequality of ``additive``, a sum over leaves; over groups for a linear model

The smallest sum of z answers for one rival class. The solver works with floating point numbers and tolerances, so the
edge is widened by more than these can amount to: where it finds nothing, there is nothing. A set that it does find is
the model's own to decide, and one that the model denies is excluded by a further inequality.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, hstack, vstack

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.engines.lattice.additive import LinearLattice

if TYPE_CHECKING:
    from fragility.engines.lattice.trees import TreeLattice  # which needs numba

WIDENED = 1e-6  # of all that the leaves can differ: ten times the solver's tolerance
FOUND, NONE = 0, 2  # what the solver ends with; it gave up otherwise
MOST_DENIED = 100  # sets of a row that the model may deny
RANKED_TOGETHER = 10  # groups whose order one program tells


class Undecided(Exception):
    """The limits of a search ended before its answer."""


@dataclass(slots=True, eq=False)
class Program:
    """The failing sets of one row against one rival class. Columns: L live groups, then n leaves."""

    live: Integers  # (L,) groups
    n_groups: int
    value: Floats  # (L + n,) of the inequality
    edge: float
    held: csr_array  # (m, L + n)
    low: Floats  # (m,)
    high: Floats
    nodes: int  # the most that a program may take
    denied: list[Booleans] = field(default_factory=list)  # (L,) sets that the model says hold

    def find(self, cost: Floats, least: int, most: int, decided: dict[int, bool] | None = None) -> Booleans | None:
        """Return the live groups (L,) of a set of least cost (L,) with ``least`` to ``most`` groups; None: no set.

        decided: by place among the live groups, whether one has to be in the set.
        """
        size, width = len(self.live), len(self.value)
        if size < least:  # not even all of them together are enough; the solver takes no empty program
            return None
        groups = np.arange(width) < size
        unit = max(float(np.abs(self.value).max(initial=0.0)), 1e-300)
        extra = [self.value / unit, groups.astype(float)]
        room = WIDENED * (1.0 + float(np.abs(self.value).sum() / unit))
        low, high = [-np.inf, least], [self.edge / unit + room, most]
        for gone in self.denied:
            extra.append(np.append(np.where(gone, -1.0, 1.0), np.zeros(width - size)))
            low.append(1.0 - gone.sum())
            high.append(np.inf)
        first, last = np.zeros(width), np.ones(width)
        for place, wanted in (decided or {}).items():
            first[place] = last[place] = float(wanted)
        found = milp(
            np.append(cost, np.zeros(width - size)),
            integrality=groups.astype(float),
            bounds=Bounds(first, last),
            constraints=LinearConstraint(
                vstack([self.held, csr_array(np.stack(extra))], format="csr"),
                np.append(self.low, low),
                np.append(self.high, high),
            ),
            options={"node_limit": self.nodes, "mip_rel_gap": 0.0},
        )
        if found.status not in (FOUND, NONE):
            raise Undecided
        return None if found.x is None else np.asarray(found.x[:size] > 0.5)

    def find_failing(
        self, flips: Callable[[Booleans], bool], cost: Floats, least: int, most: int, decided: dict[int, bool]
    ) -> Booleans | None:
        """Return what `find` does, of the sets that flip the model; flips: a set (G,) -> whether it does."""
        while least <= most and (gone := self.find(cost, least, most, decided)) is not None:
            if flips(self.name_groups(gone)):
                return gone
            self.denied.append(gone)
            if len(self.denied) > MOST_DENIED:
                raise Undecided
        return None

    def find_first(self, flips: Callable[[Booleans], bool], size: int) -> Booleans | None:
        """Return the first set of a size (L,), in lexicographic order of groups; None: no set has that size.

        The first set has the greatest number whose highest bit stands for the first group: some bits at a time.
        """
        decided: dict[int, bool] = {}
        gone = None
        for start in range(0, len(self.live), RANKED_TOGETHER):
            cost = np.zeros(len(self.live))
            bits = np.arange(start, min(start + RANKED_TOGETHER, len(cost)))
            cost[bits] = -(2.0 ** np.arange(len(bits))[::-1])
            gone = self.find_failing(flips, cost, size, size, decided)
            if gone is None:
                return None
            decided |= {int(place): bool(gone[place]) for place in bits}
        return gone

    def name_groups(self, gone: Booleans) -> Booleans:
        """Return a set of live groups as one of all groups (G,)."""
        out = np.zeros(self.n_groups, dtype=bool)
        out[self.live[gone]] = True
        return out


def make_tree_program(
    lattice: TreeLattice, x: Floats, fixed: Booleans, original: int, rival: int, nodes: int
) -> Program:
    """Return the program of one row (d,); fixed: as in ``TreeLattice.bounds``."""
    edge = lattice.edge(original, rival, wide=True)
    leaves, decisions = lattice.list_reached(x, fixed, edge.trees)
    tree, value = leaves[:, 0], edge.leaf[leaves[:, 1]].astype(np.float64)
    n, trees = len(leaves), len(edge.trees)
    least = np.full(trees, np.inf)
    np.minimum.at(least, tree, value)
    live, group = np.unique(decisions[:, 0], return_inverse=True)
    size, removed, leaf = len(live), decisions[:, 1], decisions[:, 2]
    # One inequality for each tree, group and side: the leaves that need it, and the group itself.
    key, held = np.unique((tree[leaf] * size + group) * 2 + removed, return_inverse=True)
    lost = key % 2 == 1
    of_groups = csr_array((np.where(lost, -1.0, 1.0), (np.arange(len(key)), key // 2 % size)), shape=(len(key), size))
    of_leaves = csr_array((np.ones(len(held)), (held, leaf)), shape=(len(key), n))
    whole = csr_array((np.ones(n), (tree, np.arange(n))), shape=(trees, n))
    return Program(
        live=live,
        n_groups=lattice.rows.n_groups,
        value=np.append(np.zeros(size), value - least[tree]),
        edge=float(edge.high) - float(edge.start) - float(least.sum()),
        held=vstack([hstack([of_groups, of_leaves]), hstack([csr_array((trees, size)), whole])], format="csr"),
        low=np.append(np.full(len(key), -np.inf), np.ones(trees)),
        high=np.append(np.where(lost, 0.0, 1.0), np.ones(trees)),
        nodes=nodes,
    )


def make_sum_program(start: float, steps: Floats, rounding: float, nodes: int) -> Program:
    """Return the program of one row of a linear model: E = start - sum of steps (G,) of the groups removed."""
    live = np.flatnonzero(steps > 0.0)  # the others are in no smallest set
    nothing = csr_array((0, len(live)))
    none = np.zeros(0)
    return Program(live, len(steps), -steps[live], rounding - start, nothing, none, none, nodes)


def list_programs(lattice: Any, place: int, x: Floats, fixed: Booleans, original: int, nodes: int) -> list[Program]:
    """Return a row's programs, one for each rival class; place: of the row, in the block that the lattice has begun."""
    rivals = lattice.rule.rivals(original)
    if isinstance(lattice, LinearLattice):
        total, removed, rounding = (part[..., place : place + 1] for part in lattice.block)
        pairs = [lattice.inequality(total, removed, np.array([original]), rival) for rival in rivals]
        return [make_sum_program(float(start[0]), steps[0], float(rounding[0]), nodes) for start, steps in pairs]
    return [make_tree_program(lattice, x, fixed, original, rival, nodes) for rival in rivals]
