"""What an audit means for the tests of a forest: its baseline and groups (Plan), and the states to score (States)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.arrays import Floats
from fragility.engines.states import StatesAsked
from fragility.engines.trees.encoding import NARROW
from fragility.engines.trees.forest import Forest
from fragility.engines.trees.recoding import Recoding
from fragility.evidence import EvidenceRows
from fragility.protocol import Protocol

MONOTONE_BELOW = 0.999  # severities; only within rounding of 1 can x + s (b - x) pass the baseline itself


class Plan(NamedTuple):
    """What a protocol's baseline and groups mean for the tests of a forest; G groups."""

    baseline: Floats  # (d,)
    stepwise: npt.NDArray[np.uint8]  # (d,)
    column_group: npt.NDArray[np.uint32]  # (d,)
    test_group: npt.NDArray[np.uint32]  # (T,)
    test_base: npt.NDArray[np.uint8]  # (T,) 1 where the baseline goes right
    tree_group: npt.NDArray[np.uint8]  # (G, trees) 1 where a tree asks about a group
    slots: int  # nodes of the largest tree
    rounding: npt.NDArray[np.uint8]  # (d,) of cells before they are compared; see ``encoding``
    single: bool  # all of them are compared in float32
    zero_missing: bool  # a zero cell is missing (XGBoost on sparse rows)
    monotone: bool  # a cell moving through the grid crosses a threshold at most once


class States(NamedTuple):
    """States by place in a row's order: state q moves the groups at the places marked, by one severity."""

    severity: Floats  # (Q,)
    moved: npt.NDArray[np.uint8]  # (Q, G)

    def some(self, chosen: slice) -> States:
        return States(self.severity[chosen], self.moved[chosen])


def plan_for(forest: Forest, recoding: Recoding, rows: EvidenceRows, protocol: Protocol) -> Plan:
    from fragility.engines.kernels import baseline_ways

    baseline = recoding.recoded(rows.baseline)
    zero_missing = bool(sp.issparse(rows.matrix)) and forest.absent_missing
    group = rows.column_group.astype(np.uint32)
    largest = max((severity for severity in protocol.severities if severity < 1.0), default=0.0)
    return Plan(
        baseline=baseline,
        stepwise=rows.stepwise.astype(np.uint8),
        column_group=group,
        test_group=group[forest.test_column],
        test_base=baseline_ways(forest, baseline, recoding.rounding, zero_missing),
        tree_group=tree_groups(forest, group, rows.n_groups),
        slots=forest.most_nodes,
        rounding=recoding.rounding,
        single=bool((recoding.rounding & NARROW).all()),
        zero_missing=zero_missing,
        monotone=not zero_missing and largest <= MONOTONE_BELOW,
    )


def plain_plan(forest: Forest, n_columns: int, sparse: bool) -> Plan:
    """Return the plan of rows that are not stressed: one group that no state moves."""
    return Plan(
        baseline=np.zeros(n_columns),
        stepwise=np.zeros(n_columns, dtype=np.uint8),
        column_group=np.zeros(n_columns, dtype=np.uint32),
        test_group=np.zeros(len(forest.test_column), dtype=np.uint32),
        test_base=np.zeros(len(forest.test_column), dtype=np.uint8),
        tree_group=np.zeros((1, forest.n_trees), dtype=np.uint8),
        slots=forest.most_nodes,
        rounding=np.full(n_columns, NARROW if forest.single else 0, dtype=np.uint8),
        single=forest.single,
        zero_missing=sparse and forest.absent_missing,
        monotone=False,
    )


def tree_groups(forest: Forest, group: npt.NDArray[np.uint32], n_groups: int) -> npt.NDArray[np.uint8]:
    """Return (G, trees): 1 where a tree asks about a group."""
    from fragility.engines.kernels import groups_asked

    tests, starts = (
        (forest.level_test, forest.level_start) if forest.oblivious else (forest.node_test, forest.tree_start)
    )
    asked = np.zeros((n_groups, forest.n_trees), dtype=np.uint8)
    groups_asked(tests, starts, group[forest.test_column], asked)
    return asked


def unmoved(n_groups: int) -> States:
    """Rows as they stand."""
    return States(np.zeros(1), np.zeros((1, n_groups), dtype=np.uint8))


def single_removals(n_groups: int) -> States:
    """x itself, then every group removed alone."""
    severity = np.ones(1 + n_groups)
    severity[0] = 0.0
    return States(severity, np.eye(1 + n_groups, n_groups, -1, dtype=np.uint8))


def path_and_grid(asked: StatesAsked) -> States:
    """Removal of the first 2..K groups, then each severity of each operator."""
    places = np.arange(asked.n_groups)
    steps = range(2, asked.depth + 1)
    moved = [places < k for k in steps] + [places < width for _ in asked.grid for width in asked.widths]
    severity = [1.0 for _ in steps] + [s for s in asked.grid for _ in asked.widths]
    return States(np.array(severity), np.array(moved, dtype=np.uint8).reshape(len(severity), asked.n_groups))
