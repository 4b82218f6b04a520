"""How kernels are compiled and run on threads: the only module that imports numba.

Compiled code is kept beside the sources. numba looks only at the file of the kernel itself for changes: who edits a
helper that another file calls must delete the ``__pycache__`` of this folder (the tests keep a cache of their own).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, njit
from numba.core import cgutils, types
from numba.extending import intrinsic

THREADS = int(config.NUMBA_NUM_THREADS)  # the processor's cores, unless the environment says otherwise
SPANS_PER_THREAD = 4  # several, so that a busy core does not hold up the rest

# Division as numpy divides: a test for zero in front of every division would keep loops from using vectors.
_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
entry = njit(**_OPTIONS)  # called from Python, in several threads on separate rows
# Without the wrappers that would make it callable from Python, a helper compiles several times faster.
helper = njit(**_OPTIONS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
# For the innermost loops: no call is left of it, so that a name costs nothing.
inlined = njit(**_OPTIONS, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)


def run_in_this_thread(n: int, block: int, run: Callable[[tuple[int, int]], None]) -> None:
    """Run all rows together, for a caller that has threads of its own."""
    run((0, n))


def run_on_all_threads(n: int, block: int, run: Callable[[tuple[int, int]], None]) -> None:
    """Run the rows in spans of whole blocks on all threads; what a row gets does not depend on its span."""
    blocks = max(-(-n // block), 1)
    spans = min(blocks, SPANS_PER_THREAD * THREADS)
    bounds = [min(n, block * (blocks * i // spans)) for i in range(spans)] + [n]
    if THREADS == 1 or spans == 1:
        run((0, n))
        return
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(run, itertools.pairwise(bounds)))


@inlined
def count_bits(word: Any) -> Any:
    """Return how many bits of a word are set; the compiler knows this sum for one instruction."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@inlined
def lowest_bit(word: Any) -> Any:
    """Return the number of the lowest bit set in a non-zero word."""
    return count_bits((word & (~word + np.uint64(1))) - np.uint64(1))


# --- whole vectors ------------------------------------------------------------------------------------------
#
# A loop over the words of a vector is compiled with a test, each time it begins, that the arrays it reads and writes do
# not overlap; for eight words that costs more than the loop. These read a whole vector before they write one. Rows of
# the arrays are as long as the vector; arrays that numba allocates are aligned well enough for it.
#
# Each of them stays because the audit that uses it takes more than 10% longer with the plain loop in its place. The
# percentage at each says how much longer: processor time of one thread, 4096 rows of 14 columns.

VECTOR_WORDS = 8
LANES = 8  # values of a leaf that are added at once
TOGETHER = 4  # trees whose leaves are added before a sum is written back


def _access_rows(context: Any, builder: Any, length: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return functions that load and store rows of arrays as vectors of ``length`` elements."""

    def place(kind: Any, array: Any, row: Any, stride: int) -> Any:
        data = context.make_array(kind)(context, builder, array).data
        first = builder.gep(data, [builder.mul(row, ir.Constant(row.type, stride))])
        vector = ir.VectorType(context.get_data_type(kind.dtype), length)
        return builder.bitcast(first, vector.as_pointer())

    def load(kind: Any, array: Any, row: Any, stride: int = length) -> Any:
        return builder.load(place(kind, array, row, stride), align=kind.dtype.bitwidth // 8)

    def store(value: Any, kind: Any, array: Any, row: Any) -> None:
        builder.store(value, place(kind, array, row, length), align=kind.dtype.bitwidth // 8)

    return load, store


def _repeat(builder: Any, value: Any, length: int) -> Any:
    """Return a vector whose elements all are one value."""
    unknown = ir.Constant(ir.VectorType(value.type, length), ir.Undefined)
    first = builder.insert_element(unknown, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, unknown, ir.Constant(ir.VectorType(ir.IntType(32), length), [0] * length))


@intrinsic
def split_rows(typing_context: Any, reach: Any, node: Any, right: Any, decisions: Any, test: Any) -> Any:
    """Divide reach[node] into reach[node + 1] and reach[right], by decisions[test]; arrays (any, VECTOR_WORDS).

    LightGBM 32%, XGBoost 31%.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        load, store = _access_rows(context, builder, VECTOR_WORDS)
        reach, node, right, decisions, test = args
        kind = signature.args[0]
        here, way = load(kind, reach, node), load(signature.args[3], decisions, test)
        store(builder.and_(here, builder.not_(way)), kind, reach, builder.add(node, ir.Constant(node.type, 1)))
        store(builder.and_(here, way), kind, reach, right)
        return context.get_dummy_value()

    return types.void(reach, types.int64, types.int64, decisions, types.int64), generate


@intrinsic
def unite_rows(typing_context: Any, reach: Any, nodes: Any, first: Any, last: Any, planes: Any, plane: Any) -> Any:
    """Fill planes[plane] with the union of reach[nodes[first]], ..., reach[nodes[last - 1]].

    LightGBM 24%, XGBoost 18%.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        load, store = _access_rows(context, builder, VECTOR_WORDS)
        reach, nodes, first, last, planes, plane = args
        listed = context.make_array(signature.args[1])(context, builder, nodes).data
        nothing = ir.Constant(ir.VectorType(ir.IntType(64), VECTOR_WORDS), [0] * VECTOR_WORDS)
        union = cgutils.alloca_once(builder, nothing.type)  # type: ignore[no-untyped-call]
        builder.store(nothing, union)
        with cgutils.for_range_slice(builder, first, last, ir.Constant(first.type, 1)) as (i, _):
            node = builder.zext(builder.load(builder.gep(listed, [i])), ir.IntType(64))
            builder.store(builder.or_(builder.load(union), load(signature.args[0], reach, node)), union)
        store(builder.load(union), signature.args[4], planes, plane)
        return context.get_dummy_value()

    return types.void(reach, nodes, types.int64, types.int64, planes, types.int64), generate


@intrinsic
def compare_lanes(
    typing_context: Any, out: Any, row: Any, starts: Any, start: Any, cells: Any, lanes: Any, count: Any, threshold: Any
) -> Any:
    """Fill out[row] with starts[start] and lanes[p] of every p < count, each where cells[p] exceeds the threshold.

    All arrays (any, VECTOR_WORDS). States of LightGBM and XGBoost 55%.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        load, store = _access_rows(context, builder, VECTOR_WORDS)
        out, row, starts, start, cells, lanes, count, threshold = args
        kinds, everywhere = signature.args, _repeat(builder, threshold, VECTOR_WORDS)
        nothing = ir.Constant(ir.VectorType(ir.IntType(64), VECTOR_WORDS), [0] * VECTOR_WORDS)
        union = cgutils.alloca_once(builder, nothing.type)  # type: ignore[no-untyped-call]
        builder.store(load(kinds[2], starts, start), union)
        with cgutils.for_range(builder, count) as loop:
            above = builder.fcmp_ordered(">", load(kinds[4], cells, loop.index), everywhere)
            right = builder.select(above, load(kinds[5], lanes, loop.index), nothing)
            builder.store(builder.or_(builder.load(union), right), union)
        store(builder.load(union), kinds[0], out, row)
        return context.get_dummy_value()

    return types.void(out, types.int64, starts, types.int64, cells, lanes, types.int64, types.float64), generate


@intrinsic
def add_lanes(typing_context: Any, totals: Any, row: Any, leaves: Any, chosen: Any) -> Any:
    """Add leaves[i] to totals[row] for each of the TOGETHER numbers i, in their order; both arrays (any, LANES).

    Random forest of three classes, depth 6: 45%.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        load, store = _access_rows(context, builder, LANES)
        totals, row, leaves, chosen = args
        added = load(signature.args[0], totals, row)
        for i in range(TOGETHER):
            added = builder.fadd(added, load(signature.args[2], leaves, builder.extract_value(chosen, i)))
        store(added, signature.args[0], totals, row)
        return context.get_dummy_value()

    several = types.UniTuple(types.uint64, TOGETHER)  # type: ignore[no-untyped-call]
    return types.void(totals, types.int64, leaves, several), generate


@intrinsic
def add_slice(typing_context: Any, totals: Any, row: Any, values: Any, first: Any) -> Any:
    """Add values[first], ..., values[first + LANES - 1] to totals[row]; values (any,), totals (any, LANES).

    Random forest of four classes, deep trees: 15%.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        load, store = _access_rows(context, builder, LANES)
        totals, row, values, first = args
        added = builder.fadd(load(signature.args[0], totals, row), load(signature.args[2], values, first, stride=1))
        store(added, signature.args[0], totals, row)
        return context.get_dummy_value()

    return types.void(totals, types.int64, values, types.int64), generate


@intrinsic
def add_where(typing_context: Any, totals: Any, row: Any, bits: Any, value: Any) -> Any:
    """Add a value where the lowest LANES bits say so, elsewhere -0.0, to totals[row]; totals (any, LANES).

    Deep trees: random forest 35%, LightGBM 21%.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        load, store = _access_rows(context, builder, LANES)
        totals, row, bits, value = args
        before = load(signature.args[0], totals, row)
        chosen = builder.bitcast(builder.trunc(bits, ir.IntType(LANES)), ir.VectorType(ir.IntType(1), LANES))
        nothing = ir.Constant(before.type, [-0.0] * LANES)
        added = builder.select(chosen, _repeat(builder, value, LANES), nothing)
        store(builder.fadd(before, added), signature.args[0], totals, row)
        return context.get_dummy_value()

    return types.void(totals, types.int64, types.uint64, totals.dtype), generate
