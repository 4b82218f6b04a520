"""How kernels are compiled: the only module that imports numba.

Compiled code is kept beside the sources. numba looks only at the file of the kernel itself for changes: who edits a
helper that another file calls must delete the ``__pycache__`` of this folder (the tests keep a cache of their own).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import config, njit
from numba.core import cgutils, types
from numba.extending import intrinsic

THREADS = int(config.NUMBA_NUM_THREADS)  # the processor's cores, unless the environment says otherwise

entry = njit(cache=True, nogil=True)  # called from Python, in several threads on separate rows
# Without the wrappers that would make it callable from Python, a helper compiles several times faster.
helper = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
# For the innermost loops: no call is left of it, so that a name costs nothing.
inlined = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)


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


@intrinsic
def compare_lanes(
    typing_context: Any, out: Any, row: Any, starts: Any, start: Any, cells: Any, lanes: Any, count: Any, threshold: Any
) -> Any:
    """Fill out[row] with starts[start] and lanes[p] of every p < count, each where cells[p] exceeds the threshold.

    Arrays are (any, 8). A loop over the eight words would be compiled with a test, each time it begins, that the arrays
    it reads and writes do not overlap, which costs more than the loop.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out, row, starts, start, cells, lanes, count, threshold = args
        kinds = signature.args
        words, numbers = ir.VectorType(ir.IntType(64), 8), ir.VectorType(ir.DoubleType(), 8)

        def at(which: int, array: Any, index: Any, vector: Any) -> Any:
            data = context.make_array(kinds[which])(context, builder, array).data
            first = builder.gep(data, [builder.mul(index, ir.Constant(index.type, 8))])
            return builder.bitcast(first, vector.as_pointer())

        single = builder.insert_element(ir.Constant(numbers, ir.Undefined), threshold, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8)
        everywhere = builder.shuffle_vector(single, ir.Constant(numbers, ir.Undefined), zeros)
        union = cgutils.alloca_once_value(builder, builder.load(at(2, starts, start, words), align=8))  # type: ignore[no-untyped-call]
        with cgutils.for_range(builder, count) as loop:
            above = builder.fcmp_ordered(">", builder.load(at(4, cells, loop.index, numbers), align=8), everywhere)
            own = builder.load(at(5, lanes, loop.index, words), align=8)
            right = builder.select(above, own, ir.Constant(words, [0] * 8))
            builder.store(builder.or_(builder.load(union), right), union)
        builder.store(builder.load(union), at(0, out, row, words), align=8)
        return context.get_dummy_value()

    return types.void(out, types.int64, starts, types.int64, cells, lanes, types.int64, types.float64), generate
