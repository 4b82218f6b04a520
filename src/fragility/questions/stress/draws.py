"""Counter-based random numbers (format ``fragility-draw/1``), so that another implementation can repeat them.

1. Row key: the 8-byte BLAKE2b digest, read as a little-endian unsigned integer, of the UTF-8 text
   ``fragility-draw/1 <US> seed <US> stream <US> id`` without the blanks, where <US> is the character U+001F, seed is in
   decimal, stream is the stressor's kind (``mask``, ``dropout``, ``noise``, ``outages``) and id is ``str(sample id)``.
2. Word for draw t = 0, 1, ... and position j: output number n = t * 2**32 + j + 1 of the SplitMix64 generator seeded
   with the row key, that is, with all arithmetic modulo 2**64,
   w = key + n * 0x9E3779B97F4A7C15;  w = (w ^ w>>30) * 0xBF58476D1CE4E5B9;  w = (w ^ w>>27) * 0x94D049BB133111EB;
   w = w ^ w>>31.
3. Uniform: u = (w >> 11) * 2**-53.
4. Position j: the group's place in `protocol.groups` for masks, the column's place in `protocol.columns` for dropout
   and noise, 0 for outages. The outage event is number floor(u * N) of the N events sorted by their sorted field names.

5. Balanced draws 0 ... D - 1 of J positions take u' = (rank + v) / D instead of u, where rank counts the draws whose u
   is smaller at the same position, v = (place + w) / J, place counts the positions whose u is smaller in draw D, and w
   is the u of the first position in draw D + 1. Every u' is uniform too, but at each position the draws share [0, 1)
   out among them: at a rate r they strike each position floor(r D) or floor(r D) + 1 times, and all J positions
   together r D J times, rounded down or up. Mirrored draws are balanced draws 0 ... D / 2 - 1, then 1 - u' of each of
   them. Their row keys have the stream ``rehearsal KIND``, with the stressor's kind.

A row's draws therefore depend on the seed, the stressor's kind, the row's id and the draw number, and on nothing else:
not on the batch, the order or the other rows. The severity is no part of the key, so the groups masked at r = 0.1 are
among those masked at r = 0.3 and severities are compared on common random numbers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fragility.base.arrays import Booleans, Floats, Integers

Words: TypeAlias = npt.NDArray[np.uint64]

DRAW_FORMAT = "fragility-draw/1"
KERNELS = "fragility.engines.kernels.preparing"
ROWS_AT_ONCE = 256  # of a thread

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class BalancedDraws:
    """The numbers of draws that are balanced with each other: 0 to ``count`` - 1; step 5 of the draw format."""

    count: int

    def __len__(self) -> int:
        return self.count


Draws: TypeAlias = Integers | BalancedDraws


def row_keys(seed: int, stream: str, ids: Iterable[object]) -> Words:
    """Return one 64-bit key per row from (seed, stream, sample id); step 1 of the draw format."""
    prefix = blake2b(f"{DRAW_FORMAT}\x1f{seed}\x1f{stream}\x1f".encode(), digest_size=8)

    def key(sample_id: object) -> bytes:
        state = prefix.copy()
        state.update(str(sample_id).encode())
        return state.digest()

    return np.frombuffer(b"".join(key(i) for i in ids), dtype="<u8").astype(np.uint64)


def uniforms(keys: Words, draws: Draws, positions: Integers) -> Floats:
    """Return uniforms on [0, 1), (rows, draws, positions); steps 2, 3 and 5 of the draw format."""
    if isinstance(draws, BalancedDraws):
        return _balance(keys, draws.count, positions)
    out = np.empty((len(keys), len(draws), len(positions)))
    for block, words in _word_blocks(keys, draws, positions):
        words >>= np.uint64(11)
        np.multiply(words, 2.0**-53, out=out[block])
    return out


def mirrored(keys: Words, draws: Draws, positions: Integers) -> Floats:
    """Return uniforms for noise, which has two directions: balanced draws come in pairs u and 1 - u."""
    if not isinstance(draws, BalancedDraws):
        return uniforms(keys, draws, positions)
    half = _balance(keys, -(-len(draws) // 2), positions)
    return np.concatenate([half, 1.0 - half], axis=1)[:, : len(draws)]


def _balance(keys: Words, count: int, positions: Integers) -> Floats:
    """Return balanced uniforms (rows, count, positions)."""
    raw = uniforms(keys, np.arange(count + 2), positions)
    if not raw.size:
        return raw[:, :count]
    rank = _rank(raw[:, :count], axis=1)
    v = (_rank(raw[:, count], axis=1) + raw[:, count + 1, :1]) / len(positions)
    rank += v[:, None]
    rank /= count
    return np.minimum(rank, 1.0 - 2.0**-53, out=rank)


def _rank(values: Floats, axis: int) -> Floats:
    """Return how many values are smaller along an axis; of equal ones, the first count as smaller."""
    order = np.argsort(values, axis=axis, kind="stable")
    rank = np.empty(values.shape)
    shape = [1] * values.ndim
    shape[axis] = values.shape[axis]
    np.put_along_axis(rank, order, np.arange(values.shape[axis], dtype=np.float64).reshape(shape), axis=axis)
    return rank


def strikes(keys: Words, draws: Draws, positions: Integers, rate: float) -> Booleans:
    """Return whether each uniform is below `rate`, (rows, draws, positions): `uniforms(...) < rate`, but faster.

    (w >> 11) * 2**-53 < r holds exactly when w >> 11 < ceil(r * 2**53), since the left side is a whole number.
    """
    if isinstance(draws, BalancedDraws):
        return np.asarray(uniforms(keys, draws, positions) < rate)
    out = np.empty((len(keys), len(draws), len(positions)), dtype=bool)
    bound = np.uint64(math.ceil(rate * 2.0**53))
    if KERNELS in sys.modules:  # an engine uses them; to load them for draws alone would take longer than drawing
        from fragility.engines.kernels.compiling import run_on_all_threads
        from fragility.engines.kernels.preparing import strike

        offsets = _offsets(draws, positions).ravel()
        flat = out.reshape(len(keys), offsets.size)
        run_on_all_threads(len(keys), ROWS_AT_ONCE, lambda span: strike(keys, offsets, bound, span, flat))
        return out
    for block, words in _word_blocks(keys, draws, positions):
        words >>= np.uint64(11)
        np.less(words, bound, out=out[block])
    return out


_WORDS_AT_ONCE = 2**16  # 512 KB: a block of words stays in a core's cache through all the steps of the mixer


def _word_blocks(keys: Words, draws: Integers, positions: Integers) -> Iterator[tuple[slice, Words]]:
    """Yield the words of a few rows at a time; step 2 of the draw format."""
    offset = _offsets(draws, positions)[None]
    rows = max(1, _WORDS_AT_ONCE // max(1, offset.size))
    shifted = np.empty((rows, *offset.shape[1:]), dtype=np.uint64)
    for start in range(0, len(keys), rows):
        block = slice(start, min(start + rows, len(keys)))
        word = keys[block, None, None] + offset
        scratch = shifted[: len(word)]
        for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
            np.right_shift(word, np.uint64(shift), out=scratch)
            word ^= scratch
            word *= factor
        np.right_shift(word, np.uint64(31), out=scratch)
        word ^= scratch
        yield block, word


def _offsets(draws: Integers, positions: Integers) -> Words:
    """Return (draws, positions) the number that is added to a row's key."""
    counter = (draws.astype(np.uint64)[:, None] << np.uint64(32)) + positions.astype(np.uint64) + np.uint64(1)
    return counter * _GOLDEN
