"""Slow twins of hardening, written from SPEC section 13 and the draw format: one row, one group, one cell at a time.

With several failure modes the copies are dealt out to them in order, and each mode has at least one copy. A struck
group takes its baseline (lost) or a value of its catalogue by its count (wrong); a noisy copy has all numbers off. A
row and each mode have the same part of the row's weight, unless a share is given for all copies together.

Nothing here is vectorised and nothing comes from ``fragility``. Rows are lists of numbers; groups are lists of columns.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence

MASK = 2**64 - 1
Rows = list[list[float]]


def naive_uniform(seed: int, row_id: str, draw: int, position: int) -> float:
    """fragility-draw/1: BLAKE2b gives the key, SplitMix64 the word, its upper 53 bits the number in [0, 1)."""
    text = "\x1f".join(["fragility-draw/1", str(seed), "harden", row_id])
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    word = (key + (draw * 2**32 + position + 1) * 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return ((word ^ (word >> 31)) >> 11) * 2.0**-53


def naive_row_ids(rows: Rows, labels: Sequence[str], weights: Sequence[float]) -> list[str]:
    """The digest of a row's values and its rank, by label and weight, among rows of the same values."""
    names = "[" + ",".join(f'"{j:09d}"' for j in range(len(rows[0]))) + "]"
    head = hashlib.sha256(names.encode()).digest()
    digests = []
    for row in rows:
        cells = b"".join(bytes(24) + struct.pack("<d", value + 0.0) for value in row)
        digests.append(hashlib.sha256(head + cells).hexdigest())
    ids = []
    for i, digest in enumerate(digests):
        own = (labels[i], weights[i], i)
        equal = [j for j, other in enumerate(digests) if other == digest]
        ids.append(f"{digest}/{sum((labels[j], weights[j], j) < own for j in equal)}")
    return ids


def naive_twin(
    row: list[float],
    row_id: str,
    copy: int,
    groups: list[list[int]],
    baseline: list[float],
    rate: float,
    seed: int,
    severities: list[float] | None = None,
) -> list[float]:
    """One degraded copy; with severities a struck group moves part of the way, else to its baseline."""
    twin = list(row)
    for g, columns in enumerate(groups):
        if naive_uniform(seed, row_id, copy, g) >= rate:
            continue
        severity = 1.0
        if severities is not None:
            number = math.floor(naive_uniform(seed, row_id, copy, len(groups) + g) * len(severities))
            severity = severities[number]
        for j in columns:
            twin[j] = baseline[j] if severity >= 1.0 else row[j] + severity * (baseline[j] - row[j])
    return twin


def naive_wrong_twin(
    row: list[float],
    row_id: str,
    copy: int,
    groups: list[list[int]],
    catalogue: list[list[tuple[list[float], int]]],
    rate: float,
    seed: int,
) -> list[float]:
    """One copy with wrong values; catalogue: of each group (cells of its columns, count), in order."""
    twin = list(row)
    for g, columns in enumerate(groups):
        if naive_uniform(seed, row_id, copy, g) >= rate or not catalogue[g]:
            continue
        urn = [cells for cells, count in catalogue[g] for _ in range(count)]
        drawn = urn[math.floor(naive_uniform(seed, row_id, copy, len(groups) + g) * len(urn))]
        for j, value in zip(columns, drawn, strict=True):
            twin[j] = value
    return twin


def naive_noisy_twin(
    row: list[float],
    row_id: str,
    copy: int,
    groups: list[list[int]],
    reach: list[float],
    whole: set[int],
    seed: int,
) -> list[float]:
    """One copy with numbers that are off; reach: e s of each column, 0 for one that is no number."""
    twin = list(row)
    for g, columns in enumerate(groups):
        times = [-1.0, -0.5, 0.5, 1.0][math.floor(naive_uniform(seed, row_id, copy, len(groups) + g) * 4)]
        for j in columns:
            moved = row[j] + times * reach[j]
            twin[j] = float(round(moved)) if j in whole else moved
    return twin


def naive_training_set(
    raw: Rows,
    rows: Rows,
    labels: Sequence[str],
    weights: Sequence[float],
    groups: list[list[int]],
    baseline: list[float],
    rate: float,
    copies: int,
    seed: int,
    severities: list[float] | None = None,
    modes: Sequence[str] = ("lost",),
    catalogue: list[list[tuple[list[float], int]]] | None = None,
    noise: tuple[list[float], set[int]] | None = None,
    copy_weight: float | None = None,
) -> tuple[Rows, list[str], list[float]]:
    """Originals with their part of the weight, then the twins, copy by copy, with the rest among them.

    A row is known by its raw values and degraded as the estimator is handed it. What is missing stays missing; here a
    raw value and the cell made of it have the same place.
    """
    ids = naive_row_ids(raw, labels, weights)
    shared = len(modes) / (len(modes) + 1) if copy_weight is None else copy_weight
    stack, y, w = [list(row) for row in rows], list(labels), [weight * (1 - shared) for weight in weights]
    total = max(copies, len(modes))
    for copy in range(total):
        for given, row, row_id, label, weight in zip(raw, rows, ids, labels, weights, strict=True):
            mode = modes[copy % len(modes)]
            if mode == "wrong":
                stack.append(naive_wrong_twin(row, row_id, copy, groups, catalogue, rate, seed))
            elif mode == "noisy":
                stack.append(naive_noisy_twin(row, row_id, copy, groups, *noise, seed))
            else:
                stack.append(naive_twin(row, row_id, copy, groups, baseline, rate, seed, severities))
            stack[-1] = [
                cell if raw_cell != raw_cell else new for raw_cell, cell, new in zip(given, row, stack[-1], strict=True)
            ]
            y.append(label)
            w.append(weight * (shared / total))
    return stack, y, w
