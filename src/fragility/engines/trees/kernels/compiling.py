"""How kernels are compiled: the only module that imports numba.

Compiled code is kept beside the sources. numba looks only at the file of the kernel itself for changes: who edits a
helper that another file calls must delete the ``__pycache__`` of this folder (the tests keep a cache of their own).
"""

from __future__ import annotations

from typing import Any

from numba import config, njit
from numba.core import types
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
