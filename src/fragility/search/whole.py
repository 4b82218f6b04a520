"""Smallest failing sets through the whole lattice: every subset of a row's live groups is decided.

Nothing is left to prove: the smallest size with a failing set is the minimum, its sets are counted, the first in
lexicographic order of declared groups is reported, and where no subset fails there is none at all.
"""

from __future__ import annotations

import numpy as np

from fragility.arrays import Integers
from fragility.engines.lattice.whole import Block, Subsets, WholeLattice
from fragility.progress import Report
from fragility.search.answers import Answers
from fragility.search.found import MinimalSets

LATTICE = "lattice"
MOST_LISTED = 1000  # minimal sets listed for a row


def search_lattice(
    answers: Answers, lattice: WholeLattice, block: Block, names: tuple[str, ...], report: Report | None
) -> None:
    """Fill the answers of the rows of a block whose subsets can be tabulated."""
    every = answers.minimal is not None

    def settle(sizes: Integers) -> Integers:
        """No state above the smallest certain size matters, unless every set is wanted."""
        limit = np.full(len(sizes), answers.max_size)
        smallest = np.where(sizes.any(axis=1), (sizes > 0).argmax(axis=1), answers.max_size)
        return limit if every else np.minimum(limit, smallest)

    done = block.start
    for found in lattice.subsets(block, settle):
        _fill(answers, found, names)
        done += len(found.place)
        if report is not None:
            report(done, len(answers.size))


def _fill(answers: Answers, found: Subsets, names: tuple[str, ...]) -> None:
    sizes = found.sizes()[:, : answers.max_size + 1]
    rows = found.block.start + found.place
    answers.method[rows] = LATTICE
    answers.searched[rows] = answers.max_size
    answers.exhausted[rows] = found.lives <= answers.max_size
    answers.evaluations[rows] = np.int64(1) << found.lives
    for i in np.flatnonzero(sizes.any(axis=1)):
        smallest = int(np.flatnonzero(sizes[i])[0])
        answers.put(int(rows[i]), found.listed(int(i), smallest, smallest, 1)[0], int(sizes[i, smallest]))
        if answers.minimal is not None:
            sets, total = found.minimal(int(i), answers.max_size, MOST_LISTED)
            answers.minimal[rows[i]] = MinimalSets(answers.name_sets(sets, names), total <= MOST_LISTED)
