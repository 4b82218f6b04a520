"""All subsets of a row's live groups: tables of their values, and sets of them as bits.

A subset S of L live groups is a number below 2^L: the first group in declared order is the highest bit, so that of two
sets of one size the larger number comes first in lexicographic order. A table holds one whole number for each subset, a
set of subsets one bit, 64 of them a word. Where L < 6 the bits above L stand for no group and are masked away.

    value(S) = sum_{T subset of S} coefficient(T)            the zeta transform: L passes of additions

Values are whole numbers of a fixed quantum. Additions of whole numbers wrap around without loss: as long as each
value(S) itself fits, every sum is exact, in any order and whatever lies between.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fragility.engines.kernels.compiling import count_bits, entry, helper, inlined, lowest_bit

WORD_BITS = 6  # a word holds the subsets of six groups
FIRST_BITS = 4  # coefficients are spread over the subsets of the lowest four groups when they are entered
BLOCK_BITS = 15  # subsets of the lowest groups that are summed together, in the processor's cache
LOW_BITS = 12  # of 24 groups, those whose sets make up a block where sets of few groups are asked for
LOW = (1 << LOW_BITS) - 1
COLUMNS = 1024  # entries of a block that visit the higher groups together
ONE, NONE = np.uint64(1), np.uint64(0)
# bit s of WITHOUT[g]: subset s of six groups lacks group g; bit s of SIZED[k]: it has k members
WITHOUT = np.array([sum(1 << s for s in range(64) if not s >> g & 1) for g in range(WORD_BITS)], dtype=np.uint64)
SIZED = np.array([sum(1 << s for s in range(64) if s.bit_count() == k) for k in range(WORD_BITS + 1)], dtype=np.uint64)


@inlined
def words_of(live: int) -> Any:
    return 1 << max(live - WORD_BITS, 0)


@inlined
def valid_bits(live: int) -> Any:
    """Return the bits of a word that stand for subsets."""
    return ~NONE if live >= WORD_BITS else (ONE << np.uint64(1 << live)) - ONE


# --- the transform ------------------------------------------------------------------------------------------


@helper
def _add_two_groups(a: Any, b: Any, c: Any, d: Any) -> None:
    """Sum over the subsets of two groups: a holds neither, b and c one, d both."""
    for j in range(len(a)):
        x, z = a[j], c[j]
        y = x + b[j]
        b[j] = y
        c[j] = x + z
        d[j] = d[j] + z + y


@helper
def _add_group(a: Any, b: Any) -> None:
    for j in range(len(a)):
        b[j] += a[j]


@helper
def sum_high_groups(table: Any) -> None:
    """Sum over the groups above a block, column by column, so that what is read again is still in cache."""
    size = len(table)
    block = 1 << BLOCK_BITS
    for s in range(0, min(block, size), COLUMNS):
        h = block
        while 4 * h <= size:
            for i in range(0, size, 4 * h):
                for k in range(i + s, i + h + s, block):
                    m = k + COLUMNS
                    _add_two_groups(
                        table[k:m], table[k + h : m + h], table[k + 2 * h : m + 2 * h], table[k + 3 * h : m + 3 * h]
                    )
            h *= 4
        if 2 * h <= size:
            for k in range(s, h + s, block):
                _add_group(table[k : k + COLUMNS], table[k + h : k + h + COLUMNS])


@helper
def sum_low_groups(block: Any) -> None:
    """Sum over all groups of a block but the lowest FIRST_BITS."""
    size = len(block)
    h = 1 << FIRST_BITS
    while 4 * h <= size:
        for i in range(0, size, 4 * h):
            _add_two_groups(
                block[i : i + h], block[i + h : i + 2 * h], block[i + 2 * h : i + 3 * h], block[i + 3 * h : i + 4 * h]
            )
        h *= 4
    if 2 * h <= size:
        for i in range(0, size, 2 * h):
            _add_group(block[i : i + h], block[i + h : i + 2 * h])


@helper
def mark_values(values: Any, low: Any, high: Any, sure: Any, near: Any) -> None:
    """Mark the subsets of value <= low in ``sure`` and those of value < high in ``near``; bits set before stay."""
    for k in range(len(sure)):
        a, b = NONE, NONE
        part = values[64 * k : 64 * k + 64]
        for j in range(64):
            a |= np.uint64(part[j] <= low) << np.uint64(j)
            b |= np.uint64(part[j] < high) << np.uint64(j)
        sure[k] |= a
        near[k] |= b


@helper
def transform_and_mark(table: Any, low: Any, high: Any, sure: Any, near: Any) -> None:
    """Turn coefficients into values in place, and mark the subsets below the two edges."""
    sum_high_groups(table)
    block = min(len(table), 1 << BLOCK_BITS)
    for i in range(0, len(table), block):
        sum_low_groups(table[i : i + block])
        first, last = i >> WORD_BITS, (i + block) >> WORD_BITS
        mark_values(table[i : i + block], low, high, sure[first:last], near[first:last])


# --- subsets of few groups ------------------------------------------------------------------------------------


class FewGroups(NamedTuple):
    """The subsets of at most ``largest`` of 12 to 24 groups, in blocks.

    There is a block for each set of the groups above the lowest 12. It holds the sets of the lowest groups that may
    still be added, by size and then by number, so that a smaller block is the beginning of a larger one.
    """

    largest: int
    low_set: npt.NDArray[np.int64]  # (4096,) sets of the lowest groups, by size and then by number
    place: npt.NDArray[np.int64]  # (4096,) the place of each of them
    blocks: npt.NDArray[np.int64]  # sets of the higher groups that have a block, by number
    start: npt.NDArray[np.int64]  # (4097,) the first entry of each block
    pairs: npt.NDArray[np.int64]  # (12, 2, 2048) places of the sets with a group, and of these sets without it
    n_pairs: npt.NDArray[np.int64]  # (4096,) how many of them a block has


@cache
def list_few(largest: int) -> FewGroups:
    """Return the subsets of at most ``largest`` groups."""
    low_set = np.array(sorted(range(1 << LOW_BITS), key=lambda s: (s.bit_count(), s)), dtype=np.int64)
    place = np.argsort(low_set)
    sizes = np.array([s.bit_count() for s in range(1 << LOW_BITS)], dtype=np.int64)
    left = largest - sizes  # members that the lowest groups may add to a set of higher ones
    entries = np.searchsorted(sizes[low_set], left, side="right")
    pairs = np.empty((LOW_BITS, 2, 1 << LOW_BITS - 1), dtype=np.int64)
    for g in range(LOW_BITS):
        pairs[g, 0] = np.flatnonzero(low_set >> g & 1)
        pairs[g, 1] = place[low_set[pairs[g, 0]] ^ (1 << g)]
    return FewGroups(
        largest,
        low_set,
        place,
        np.flatnonzero(left >= 0),
        np.concatenate([[0], np.cumsum(entries)]),
        pairs,
        np.searchsorted(pairs[0, 0], entries),
    )


@helper
def enter_few(few: Any, value: Any, kept: int, removed: int, chosen: Any, table: Any) -> None:
    """Add the coefficients of a leaf to the sets of at most few.largest groups; chosen (2, 24) is for its own use."""
    most = few.largest - np.int64(count_bits(np.uint64(removed)))
    depth, members, left = 0, removed, kept  # of ``kept``, what may still be added
    while True:
        table[few.start[members >> LOW_BITS] + few.place[members & LOW]] += -value if depth & 1 else value
        while not left or depth == most:
            if depth == 0:
                return
            depth -= 1
            members ^= chosen[0, depth]
            left = chosen[1, depth]
        bit = left & -left
        left ^= bit
        chosen[0, depth], chosen[1, depth] = bit, left
        members |= bit
        depth += 1


@helper
def transform_and_mark_few(few: Any, live: int, low: Any, high: Any, table: Any, sure: Any, near: Any) -> None:
    """Turn the coefficients of sets of few groups into values in place, and mark those below the two edges."""
    start = few.start
    n_blocks = np.searchsorted(few.blocks, 1 << max(live - LOW_BITS, 0))
    for g in range(live - LOW_BITS):
        for block in few.blocks[:n_blocks]:
            if block >> g & 1:
                first, last = start[block], start[block + 1]
                below = start[block ^ (1 << g)]
                _add_group(table[below : below + last - first], table[first:last])
    for block in few.blocks[:n_blocks]:
        part = table[start[block] : start[block + 1]]
        for g in range(LOW_BITS):
            for i in range(few.n_pairs[block]):
                part[few.pairs[g, 0, i]] += part[few.pairs[g, 1, i]]
        for i in range(len(part)):
            if part[i] < high:
                members = block << LOW_BITS | few.low_set[i]
                bit = ONE << np.uint64(members & 63)
                near[members >> WORD_BITS] |= bit
                if part[i] <= low:
                    sure[members >> WORD_BITS] |= bit


@entry
def mark_sums(
    starts: Any, steps: Any, edges: Any, lives: Any, first_word: Any, sure: Any, near: Any, span: Any
) -> None:
    """Mark the subsets of rows whose value is a plain sum, start + sum of the steps of the groups removed.

    starts (n,), steps (n, 24) by bit, edges (n, 2): low and high; all whole numbers.
    """
    for row in range(span[0], span[1]):
        live = lives[row]
        table = np.empty(1 << max(live, WORD_BITS), dtype=np.int64)
        table[0] = starts[row]
        for bit in range(max(live, WORD_BITS)):
            size = 1 << bit
            step = steps[row, bit] if bit < live else 0
            table[size : 2 * size] = table[:size] + step
        first = first_word[row]
        last = first + words_of(live)
        mark_values(table, edges[row, 0], edges[row, 1], sure[first:last], near[first:last])


# --- sets of subsets ----------------------------------------------------------------------------------------


@entry
def count_sizes(words: Any, first_word: Any, lives: Any, counts: Any, span: Any) -> None:
    """Fill counts (n, 25): how many marked subsets of each size a row has."""
    for row in range(span[0], span[1]):
        valid = valid_bits(lives[row])
        counts[row] = 0
        for k in range(words_of(lives[row])):
            word = words[first_word[row] + k] & valid
            if word:
                above: Any = count_bits(np.uint64(k))
                for size in range(WORD_BITS + 1):
                    found = count_bits(word & SIZED[size])
                    if found:
                        counts[row, np.int64(above) + size] += np.int64(found)


@entry
def list_subsets(words: Any, live: int, smallest: int, largest: int, out: Any) -> int:
    """Write marked subsets with smallest..largest members, largest number first, into ``out``; return how many fit."""
    valid = valid_bits(live)
    count = 0
    for k in range(words_of(live) - 1, -1, -1):
        word = words[k] & valid
        if not word:
            continue
        above = np.int64(count_bits(np.uint64(k)))
        for j in range(63, -1, -1):
            if word >> np.uint64(j) & ONE:
                size = above + np.int64(count_bits(np.uint64(j)))
                if smallest <= size <= largest:
                    if count == len(out):
                        return count
                    out[count] = (k << WORD_BITS) | j
                    count += 1
    return count


@entry
def keep_minimal(words: Any, live: int) -> None:
    """Unmark every subset that has a marked proper subset."""
    some = words.copy()  # S or one of its subsets is marked
    for g in range(min(live, WORD_BITS)):
        for k in range(len(some)):
            some[k] |= (some[k] & WITHOUT[g]) << np.uint64(1 << g)
    for g in range(live - WORD_BITS):
        for k in range(len(some)):
            if k >> g & 1:
                some[k] |= some[k ^ (1 << g)]
    for k in range(len(words)):
        below = NONE
        for g in range(min(live, WORD_BITS)):
            below |= (some[k] & WITHOUT[g]) << np.uint64(1 << g)
        for g in range(live - WORD_BITS):
            if k >> g & 1:
                below |= some[k ^ (1 << g)]
        words[k] &= ~below


# --- probabilities ------------------------------------------------------------------------------------------


@entry
def failure_probabilities(
    words: Any, first_word: Any, lives: Any, rates: Any, probability: Any, slope: Any, span: Any
) -> None:
    """Fill the probability of a marked subset, and its slope in the rate of each group, for rows span[0]..span[1].

    rates, slope: (n, 24) by bit. With t(S) = 1 where S is marked, groups are averaged out one after another,
    t(S) <- (1 - r) t(S without g) + r t(S with g); the slopes follow by the chain rule backwards, since the result is
    linear in each rate: dP/dr_g = P(marked | g fails) - P(marked | g holds).
    """
    by_byte = np.empty((8, 256))
    weight = np.empty(64)
    for row in range(span[0], span[1]):
        live = lives[row]
        low = min(live, WORD_BITS)
        _fill_subset_weights(rates[row], low, weight)
        for place in range(8):  # the weight of each byte of a word
            by_byte[place, 0] = 0.0
            for byte in range(1, 256):
                bit = np.int64(lowest_bit(np.uint64(byte)))
                by_byte[place, byte] = by_byte[place, byte & (byte - 1)] + weight[8 * place + bit]
        part = words[first_word[row] : first_word[row] + words_of(live)]
        levels = np.empty(2 * len(part))
        for k in range(len(part)):
            total = 0.0
            for place in range(8):
                total += by_byte[place, (part[k] >> np.uint64(8 * place)) & np.uint64(255)]
            levels[k] = total
        adjoint = np.zeros(2 * len(part))
        probability[row] = _fold(levels, adjoint, rates[row], slope[row], live)
        _fill_low_slopes(part, adjoint, rates[row], low, slope[row])


@helper
def _fill_subset_weights(rates: Any, low: int, weight: Any) -> None:
    """Fill weight (64,) with the probability of each subset of the lowest groups; 0 for what is no subset."""
    weight[:] = 0.0
    weight[0] = 1.0
    for g in range(low):
        size = 1 << g
        for s in range(size):
            weight[size + s] = weight[s] * rates[g]
            weight[s] *= 1.0 - rates[g]


@helper
def _fold(levels: Any, adjoint: Any, rates: Any, slope: Any, live: int) -> float:
    """Average out the groups above a word; ``adjoint`` of the first half becomes the weight of each word.

    levels: the words' values, then one level after another behind them.
    """
    size, start = len(levels) // 2, 0
    for g in range(live - 1, WORD_BITS - 1, -1):
        half = size // 2
        r = rates[g]
        for k in range(half):
            levels[start + size + k] = (1.0 - r) * levels[start + k] + r * levels[start + half + k]
        start, size = start + size, half
    result = levels[start]
    adjoint[start] = 1.0
    for g in range(WORD_BITS, live):
        half, size = size, 2 * size
        below = start
        start -= size
        r, total = rates[g], 0.0
        for k in range(half):
            weight = adjoint[below + k]
            total += weight * (levels[start + half + k] - levels[start + k])
            adjoint[start + k] = (1.0 - r) * weight
            adjoint[start + half + k] = r * weight
        slope[g] = total
    return result


@helper
def _fill_low_slopes(words: Any, adjoint: Any, rates: Any, low: int, slope: Any) -> None:
    """Fill the slopes of the groups within a word: first how likely each of its 64 subsets is marked."""
    by_byte = np.zeros((8, 256))
    for k in range(len(words)):
        for place in range(8):
            by_byte[place, (words[k] >> np.uint64(8 * place)) & np.uint64(255)] += adjoint[k]
    marked = np.zeros(64)
    for s in range(64):
        for byte in range(256):
            if byte >> (s & 7) & 1:
                marked[s] += by_byte[s >> 3, byte]
    for g in range(low):
        total = 0.0
        for s in range(1 << low):
            weight = 1.0
            for other in range(low):
                if other != g:
                    weight *= rates[other] if s >> other & 1 else 1.0 - rates[other]
            total += weight * marked[s] if s >> g & 1 else -weight * marked[s]
        slope[g] = total
