"""Terms: raw scores of states of a model that adds up tables over few columns each.

A *slot* is a column as some terms read it: its edges cut the numbers into stretches, and a table has an entry for each
combination of its slots' stretches. Each slot's stretch is found once for x and once for each severity; a state then
picks one of them per slot, and each term costs it one look-up. Entries are added in the order of the terms, as the
model does, so sums have its bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import entry, helper, inlined
from fragility.engines.kernels.decisions import round_cell, stress_cell

TERM_BLOCK = 512  # rows of a span
TOGETHER = 8  # rows whose states go through the terms together, so that what a term costs by itself is shared


@inlined
def _find_stretch(edges: Any, first: int, last: int, v: float) -> Any:
    """Return how many of the edges first..last a number exceeds; a missing one exceeds all."""
    if v != v:
        return np.uint64(last - first)
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if v > edges[np.uint64(middle)]:
            low = middle + 1
        else:
            high = middle
    return np.uint64(low - first)


@helper
def _find_stretches(terms: Any, cells: Any, rounding: Any, out: Any) -> None:
    """Fill out (slots,) with the stretches of one row's cells (d,)."""
    slot_column, edge_start, edges = terms.slot_column, terms.edge_start, terms.edges
    for slot in range(len(slot_column)):
        column = slot_column[slot]
        v = round_cell(cells[column], rounding[column])
        out[slot] = _find_stretch(edges, edge_start[slot], edge_start[slot + 1], v)


@helper
def _add_entries(terms: Any, chosen: Any, n_states: int, sums: Any) -> None:
    """Add the entry of each term to the sums (outputs, any) of some states, whose stretches are chosen (slots, any)."""
    axis_start, axis_slot, axis_stride = terms.axis_start, terms.axis_slot, terms.axis_stride
    entry_start, entries = terms.entry_start, terms.entries
    n_outputs = len(sums)
    for term in range(len(entry_start)):
        begin, count = axis_start[term], axis_start[term + 1] - axis_start[term]
        offset = np.uint64(entry_start[term])
        if count == 1 and n_outputs == 1:
            one = axis_slot[begin]
            for q in range(n_states):
                sums[0, q] += entries[offset + chosen[one, q]]
        elif count == 2 and n_outputs == 1:
            one, other, stride = axis_slot[begin], axis_slot[begin + 1], axis_stride[begin]
            for q in range(n_states):
                sums[0, q] += entries[offset + chosen[one, q] * stride + chosen[other, q]]
        else:
            for q in range(n_states):
                place = offset
                for axis in range(begin, begin + count):
                    place += chosen[axis_slot[axis], q] * axis_stride[axis]
                for output in range(n_outputs):
                    sums[output, q] += entries[place + np.uint64(output)]


@entry
def score_ordered_states(terms: Any, plan: Any, cells: Any, order: Any, levels: Any, span: Any, scores: Any) -> None:
    """Fill ``scores`` (Q, outputs, n) with the raw sums of Q states of the rows span[0]..span[1].

    plan: ``scoring.Plan``. cells: (x (n, d), cells that no state moves (n, d), or (0, d) where there are none). order:
    (n, places) groups of a row by place. levels: (severities (S,) between 0 and 1,
    (places, Q) how far each state moves each place: 0 not at all, i by the i-th severity, S + 1 to the baseline).
    """
    slot_column, edge_start, edges, base = terms.slot_column, terms.edge_start, terms.edges, terms.base
    baseline, stepwise, rounding = plan.baseline, plan.stepwise, plan.rounding
    column_group, monotone = plan.column_group, plan.monotone
    severities, level_at = levels
    x, fixed = cells
    n_slots, n_states, n_severities = len(slot_column), scores.shape[0], len(severities)
    lost, at = np.empty(n_slots, dtype=np.uint64), np.empty(n_severities + 2, dtype=np.uint64)
    chosen, sums = np.empty((n_slots, TOGETHER * n_states), dtype=np.uint64), np.empty((len(base), TOGETHER * n_states))
    rank = np.empty(level_at.shape[0], dtype=np.int64)
    _find_stretches(terms, baseline, rounding, lost)
    for start in range(span[0], span[1], TOGETHER):
        size = min(TOGETHER, span[1] - start)
        for row in range(start, start + size):
            begin = (row - start) * n_states
            rank[:] = min(order.shape[1], len(rank) - 1)  # groups that are not in ``order`` share the place after it
            for place in range(order.shape[1]):
                rank[order[row, place]] = place
            for slot in range(n_slots):
                column, first, last = slot_column[slot], edge_start[slot], edge_start[slot + 1]
                cell, place = x[row, column], rank[column_group[column]]
                here = _find_stretch(edges, first, last, round_cell(cell, rounding[column]))
                if (here == lost[slot] and monotone) or (len(fixed) > 0 and fixed[row, column]):
                    for q in range(n_states):
                        chosen[slot, begin + q] = here
                    continue
                at[0], at[n_severities + 1] = here, lost[slot]
                low, high = first, last
                ordered = monotone and not stepwise[column] and cell == cell
                if ordered:  # each severity lies between the one before it and the baseline
                    low, high = first + np.int64(min(here, lost[slot])), first + np.int64(max(here, lost[slot]))
                for i in range(n_severities):
                    v = stress_cell(cell, baseline[column], severities[i], stepwise[column] != 0)
                    beyond = _find_stretch(edges, low, high, round_cell(v, rounding[column]))
                    at[i + 1] = np.uint64(low - first) + beyond
                    if ordered and here < lost[slot]:
                        low += np.int64(beyond)
                    elif ordered:
                        high = low + np.int64(beyond)
                for q in range(n_states):
                    chosen[slot, begin + q] = at[level_at[place, q]]
        for output in range(len(base)):
            for q in range(TOGETHER * n_states):
                sums[output, q] = base[output]
        _add_entries(terms, chosen, size * n_states, sums)
        for q in range(n_states):
            for output in range(len(base)):
                for row in range(size):
                    scores[q, output, start + row] = sums[output, row * n_states + q]


@entry
def score_own_states(terms: Any, sides: Any, x: Any, states: Any, span: Any, scores: Any) -> None:
    """Fill ``scores`` (outputs, q) with the raw sums of the states span[0]..span[1] of rows x (m, d).

    sides: (baseline (d,), stepwise (d,), unit of each column (d,), rounding (d,)). states: (owner (q,), moved (q, U),
    severity (q,), or empty where all are removals).
    """
    baseline, stepwise, unit, rounding = sides
    owner, moved, severity = states
    slot_column, base = terms.slot_column, terms.base
    n_slots = len(slot_column)
    here, there = np.empty(n_slots, dtype=np.uint64), np.empty(n_slots, dtype=np.uint64)
    chosen, sums, cells = np.empty((n_slots, 1), dtype=np.uint64), np.empty((len(base), 1)), np.empty(x.shape[1])
    _find_stretches(terms, baseline, rounding, there)
    for state in range(span[0], span[1]):
        new = state == span[0] or owner[state] != owner[state - 1]
        if new:
            _find_stretches(terms, x[owner[state]], rounding, here)
        if len(severity) and (new or severity[state] != severity[state - 1]):
            for column in range(len(cells)):
                cells[column] = stress_cell(
                    x[owner[state], column], baseline[column], severity[state], stepwise[column] != 0
                )
            _find_stretches(terms, cells, rounding, there)
        for slot in range(n_slots):
            chosen[slot, 0] = there[slot] if moved[state, unit[slot_column[slot]]] else here[slot]
        sums[:, 0] = base
        _add_entries(terms, chosen, 1, sums)
        scores[:, state] = sums[:, 0]


@entry
def score_other_values(
    terms: Any, x: Any, others: Any, unit: Any, asked: Any, rounding: Any, span: Any, scores: Any
) -> None:
    """Fill ``scores`` (k, outputs, m) with the raw sums of the rows span[0]..span[1] of x (m, d), one unit changed.

    The columns of the unit take their cells from others: (m, d), or (1, d) for all rows. unit: (d,) of each column;
    asked: (k,) the units, each of which is changed alone.
    """
    slot_column, base = terms.slot_column, terms.base
    n_slots, n_states = len(slot_column), len(asked)
    here, there = np.empty(n_slots, dtype=np.uint64), np.empty(n_slots, dtype=np.uint64)
    chosen, sums = np.empty((n_slots, n_states), dtype=np.uint64), np.empty((len(base), n_states))
    for row in range(span[0], span[1]):
        _find_stretches(terms, x[row], rounding, here)
        if row == span[0] or len(others) > 1:
            _find_stretches(terms, others[row if len(others) > 1 else 0], rounding, there)
        for slot in range(n_slots):
            own = unit[slot_column[slot]]
            for q in range(n_states):
                chosen[slot, q] = there[slot] if asked[q] == own else here[slot]
        for output in range(len(base)):
            for q in range(n_states):
                sums[output, q] = base[output]
        _add_entries(terms, chosen, n_states, sums)
        for output in range(len(base)):
            for q in range(n_states):
                scores[q, output, row] = sums[output, q]
