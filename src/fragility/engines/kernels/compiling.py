"""How kernels are compiled and run on threads: the only module that imports numba.

Compiled code is kept beside the sources. numba looks only at the file of the kernel itself for changes: who edits a
helper that another file calls must delete the ``__pycache__`` of this folder (the tests keep a cache of their own).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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


@intrinsic
def lowest_bit(typing_context: Any, word: Any) -> Any:
    """Return the number of the lowest bit set in a non-zero word."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, 1))

    return types.uint64(types.uint64), generate


@intrinsic
def count_bits(typing_context: Any, word: Any) -> Any:
    """Return how many bits of a word are set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


# --- whole vectors ------------------------------------------------------------------------------------------
#
# A loop over the words of a vector is compiled with a test, each time it begins, that the arrays it reads and writes do
# not overlap; for eight words that costs more than the loop. These read a whole vector before they write one. Rows of
# the arrays are as long as the vector; arrays that numba allocates are aligned well enough for it.

VECTOR_WORDS = 8
LANES = 8  # values of a leaf that are added at once
TOGETHER = 4  # trees whose leaves are added before a sum is written back


def _row_of(context: Any, builder: Any, array_type: Any, array: Any, row: Any, length: int) -> tuple[Any, int]:
    """Return the address of a row of ``length`` elements as a vector, and its alignment."""
    structure = context.make_array(array_type)(context, builder, array)
    element = context.get_data_type(array_type.dtype)
    vector = ir.VectorType(element, length)
    first = builder.gep(structure.data, [builder.mul(row, ir.Constant(row.type, length))])
    return builder.bitcast(first, vector.as_pointer()), array_type.dtype.bitwidth // 8


@intrinsic
def split_rows(typing_context: Any, reach: Any, node: Any, right: Any, decisions: Any, test: Any) -> Any:
    """Divide reach[node] into reach[node + 1] and reach[right], by decisions[test]; arrays (any, VECTOR_WORDS)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        reach_type, decisions_type = signature.args[0], signature.args[3]
        reach, node, right, decisions, test = args

        def place(row: Any) -> tuple[Any, int]:
            return _row_of(context, builder, reach_type, reach, row, VECTOR_WORDS)

        address, alignment = place(node)
        here = builder.load(address, align=alignment)
        address, _ = _row_of(context, builder, decisions_type, decisions, test, VECTOR_WORDS)
        way = builder.load(address, align=alignment)
        address, _ = place(builder.add(node, ir.Constant(node.type, 1)))
        builder.store(builder.and_(here, builder.not_(way)), address, align=alignment)
        address, _ = place(right)
        builder.store(builder.and_(here, way), address, align=alignment)
        return context.get_dummy_value()

    return types.void(reach, types.int64, types.int64, decisions, types.int64), generate


@intrinsic
def join_rows(typing_context: Any, words: Any, row: Any, other: Any) -> Any:
    """OR words[other] into words[row]; words (any, VECTOR_WORDS)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words, row, other = args
        target, alignment = _row_of(context, builder, signature.args[0], words, row, VECTOR_WORDS)
        source, _ = _row_of(context, builder, signature.args[0], words, other, VECTOR_WORDS)
        joined = builder.or_(builder.load(target, align=alignment), builder.load(source, align=alignment))
        builder.store(joined, target, align=alignment)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), generate


@intrinsic
def unite_rows(typing_context: Any, reach: Any, nodes: Any, first: Any, last: Any, planes: Any, plane: Any) -> Any:
    """Fill planes[plane] with the union of reach[nodes[first]], ..., reach[nodes[last - 1]]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        reach_type, nodes_type, planes_type = signature.args[0], signature.args[1], signature.args[4]
        reach, nodes, first, last, planes, plane = args
        listed = context.make_array(nodes_type)(context, builder, nodes).data
        nothing = ir.Constant(ir.VectorType(ir.IntType(64), VECTOR_WORDS), [0] * VECTOR_WORDS)
        union = cgutils.alloca_once(builder, nothing.type)  # type: ignore[no-untyped-call]
        builder.store(nothing, union)
        with cgutils.for_range_slice(builder, first, last, ir.Constant(first.type, 1)) as (i, _):
            node = builder.zext(builder.load(builder.gep(listed, [i])), ir.IntType(64))
            address, alignment = _row_of(context, builder, reach_type, reach, node, VECTOR_WORDS)
            builder.store(builder.or_(builder.load(union), builder.load(address, align=alignment)), union)
        address, alignment = _row_of(context, builder, planes_type, planes, plane, VECTOR_WORDS)
        builder.store(builder.load(union), address, align=alignment)
        return context.get_dummy_value()

    return types.void(reach, nodes, types.int64, types.int64, planes, types.int64), generate


@intrinsic
def add_lanes(typing_context: Any, totals: Any, row: Any, leaves: Any, chosen: Any) -> Any:
    """Add leaves[i] to totals[row] for each of the TOGETHER numbers i, in their order; both arrays (any, LANES)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        totals_type, leaves_type = signature.args[0], signature.args[2]
        totals, row, leaves, chosen = args
        total, alignment = _row_of(context, builder, totals_type, totals, row, LANES)
        added = builder.load(total, align=alignment)
        for i in range(TOGETHER):
            leaf = builder.extract_value(chosen, i)
            value, _ = _row_of(context, builder, leaves_type, leaves, leaf, LANES)
            added = builder.fadd(added, builder.load(value, align=alignment))
        builder.store(added, total, align=alignment)
        return context.get_dummy_value()

    several = types.UniTuple(types.uint64, TOGETHER)  # type: ignore[no-untyped-call]
    return types.void(totals, types.int64, leaves, several), generate


@intrinsic
def add_slice(typing_context: Any, totals: Any, row: Any, values: Any, first: Any) -> Any:
    """Add values[first], ..., values[first + LANES - 1] to totals[row]; values (any,), totals (any, LANES)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        totals, row, values, first = args
        total, alignment = _row_of(context, builder, signature.args[0], totals, row, LANES)
        data = context.make_array(signature.args[2])(context, builder, values).data
        added = builder.load(builder.bitcast(builder.gep(data, [first]), total.type), align=alignment)
        builder.store(builder.fadd(builder.load(total, align=alignment), added), total, align=alignment)
        return context.get_dummy_value()

    return types.void(totals, types.int64, values, types.int64), generate


@intrinsic
def add_where(typing_context: Any, totals: Any, row: Any, bits: Any, value: Any) -> Any:
    """Add a value where the lowest LANES bits say so, elsewhere -0.0, to totals[row]; totals (any, LANES)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        totals, row, bits, value = args
        total, alignment = _row_of(context, builder, signature.args[0], totals, row, LANES)
        before = builder.load(total, align=alignment)
        chosen = builder.bitcast(builder.trunc(bits, ir.IntType(LANES)), ir.VectorType(ir.IntType(1), LANES))
        first = builder.insert_element(ir.Constant(before.type, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
        places = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        everywhere = builder.shuffle_vector(first, ir.Constant(before.type, ir.Undefined), places)
        nothing = ir.Constant(before.type, [-0.0] * LANES)
        builder.store(builder.fadd(before, builder.select(chosen, everywhere, nothing)), total, align=alignment)
        return context.get_dummy_value()

    return types.void(totals, types.int64, types.uint64, totals.dtype), generate


@intrinsic
def fetch(typing_context: Any, array: Any, place: Any) -> Any:
    """Have the line of the cache that holds an element brought near, without waiting for it; array (any,)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, place = args
        data = context.make_array(signature.args[0])(context, builder, array).data
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        name = "llvm.prefetch.p0"
        instruction = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        address = builder.bitcast(builder.gep(data, [place]), pointer)
        builder.call(instruction, [address, number(0), number(2), number(1)])  # to read, second level of cache, data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def compare_lanes(
    typing_context: Any, out: Any, row: Any, starts: Any, start: Any, cells: Any, lanes: Any, count: Any, threshold: Any
) -> Any:
    """Fill out[row] with starts[start] and lanes[p] of every p < count, each where cells[p] exceeds the threshold.

    All arrays (any, VECTOR_WORDS).
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out, row, starts, start, cells, lanes, count, threshold = args
        kinds = signature.args

        def place(which: int, array: Any, index: Any) -> Any:
            return _row_of(context, builder, kinds[which], array, index, VECTOR_WORDS)[0]

        numbers = ir.VectorType(ir.DoubleType(), VECTOR_WORDS)
        unknown = ir.Constant(numbers, ir.Undefined)
        single = builder.insert_element(unknown, threshold, ir.Constant(ir.IntType(32), 0))
        first = ir.Constant(ir.VectorType(ir.IntType(32), VECTOR_WORDS), [0] * VECTOR_WORDS)
        everywhere = builder.shuffle_vector(single, unknown, first)
        nothing = ir.Constant(ir.VectorType(ir.IntType(64), VECTOR_WORDS), [0] * VECTOR_WORDS)
        union = cgutils.alloca_once(builder, nothing.type)  # type: ignore[no-untyped-call]
        builder.store(builder.load(place(2, starts, start), align=8), union)
        with cgutils.for_range(builder, count) as loop:
            above = builder.fcmp_ordered(">", builder.load(place(4, cells, loop.index), align=8), everywhere)
            right = builder.select(above, builder.load(place(5, lanes, loop.index), align=8), nothing)
            builder.store(builder.or_(builder.load(union), right), union)
        builder.store(builder.load(union), place(0, out, row), align=8)
        return context.get_dummy_value()

    return types.void(out, types.int64, starts, types.int64, cells, lanes, types.int64, types.float64), generate
