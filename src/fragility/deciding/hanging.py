"""What a decision hangs on: its smallest failing sets, and how likely it is lost at declared rates, row by row.

The same answers as `find_failing_sets` and `assess_reliability` where the lattice of the model is read: it is read and
compared with the model once, and then serves every row that comes in the same form. Other rows are asked by size, up to
a budget that a service can afford; beyond it the path of the certificate is an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fragility.audits import Certificate
from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Floats, Integers
from fragility.engines.lattice.whole import Block, WholeLattice, Workers, find_lattice
from fragility.evidence import EvidenceRows
from fragility.pages.wording import MINIMUM, NONE_AT_ALL, UNDECIDED, UPPER_BOUND
from fragility.protocol import Protocol
from fragility.questions.search.blackbox import search_by_asking
from fragility.questions.search.found import Answers, name_groups

MOST_TABULATED = 18  # live groups of a row whose subsets are all looked at: 2^18 of them take about 2 ms
BUDGET = 500  # states per row that are asked for otherwise: all single groups and pairs of 31 groups
MOST_SETS = 20
KEPT = 4  # lattices, one for each form in which rows come: as many as an auditor holds ready


class Hanging(NamedTuple):
    """What one decision hangs on."""

    sets: tuple[tuple[str, ...], ...]  # the smallest failing sets, at most 20
    state: str  # how far that is proved
    loss: float | None  # how likely the decision is lost; None if no rates are declared, or it is not exact here

    @property
    def exact(self) -> bool:
        """Whether the question is answered: a proved minimum, or proved absence."""
        return self.state not in (UPPER_BOUND, UNDECIDED)


class HangingFinder:
    """Finds what decisions hang on, for rows of a model and a protocol; the lattice is read once per form of rows."""

    def __init__(self, protocol: Protocol, engine: str) -> None:
        self.protocol, self.engine = protocol, engine
        # By the baseline of bound rows, which is the same array for all rows of a form. Threads share them without a
        # lock, which a fork in the middle of a check would leave held: they are replaced as a whole.
        self._kept: tuple[tuple[Any, WholeLattice | None], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {"protocol": self.protocol, "engine": self.engine, "_kept": ()}

    def find(
        self,
        bound: EvidenceRows,
        ready: EvidenceRows,
        original: Integers,
        certificates: Sequence[Certificate],
        rates: Floats | None,
    ) -> list[Hanging]:
        """Return what each decision hangs on.

        bound, ready: the rows, and the same with an engine's answers. original: (n,) the decisions. rates: (G,) how
        often each group fails.
        """
        found: list[Hanging | None] = [None] * len(bound)
        self._read_lattice(bound, ready, original, rates, found)
        left = [i for i, one in enumerate(found) if one is None]
        for i, one in zip(left, self._ask(ready, left, certificates), strict=True):
            found[i] = one
        return [one for one in found if one is not None]

    def _read_lattice(
        self,
        bound: EvidenceRows,
        ready: EvidenceRows,
        original: Integers,
        rates: Floats | None,
        found: list[Hanging | None],
    ) -> None:
        kept = self._find_lattice(bound)
        if kept is None:
            return
        lattice = replace(kept, rows=bound, model=kept.model.rebind(bound))
        x = bound.dense()
        lattice.model.begin(0, len(x))
        doubted = np.zeros(len(x), dtype=bool) if ready.asked_itself is None else ready.asked_itself.are(x)
        live = lattice.model.live(x, Workers(1))
        most = min(MOST_TABULATED, lattice.model.most_live)
        block = Block(0, x, original, live, doubted, most)
        names = self.protocol.group_names
        for subsets in lattice.subsets(block, None if rates is not None else _settle_smallest):
            sizes = subsets.sizes()
            loss = None if rates is None else np.clip(subsets.probabilities(rates)[0], 0.0, 1.0)
            for i, place in enumerate(subsets.place.tolist()):
                own_loss = None if loss is None else float(loss[i])
                if not sizes[i].any():
                    found[place] = Hanging((), NONE_AT_ALL, own_loss)
                    continue
                smallest = int(np.flatnonzero(sizes[i])[0])
                sets = subsets.list_sets(i, smallest, smallest, min(MOST_SETS, int(sizes[i, smallest])))
                found[place] = Hanging(tuple(name_groups(gone, names) for gone in sets), MINIMUM, own_loss)

    def _find_lattice(self, bound: EvidenceRows) -> WholeLattice | None:
        for baseline, lattice in self._kept:
            if baseline is bound.baseline:
                return lattice
        found = find_lattice(bound, self.protocol, self.engine, DEFAULT_BYTE_BUDGET)
        self._kept = ((bound.baseline, found), *self._kept)[:KEPT]
        return found

    def _ask(self, ready: EvidenceRows, places: list[int], certificates: Sequence[Certificate]) -> list[Hanging]:
        """Ask about single groups, pairs and so on, as far as the budget goes."""
        if not places:
            return []
        rows = ready.take(places)
        answers = Answers(rows, self.protocol, rows.n_groups)
        search_by_asking(answers, rows, np.arange(len(places)), "exact", 1, BUDGET, DEFAULT_BYTE_BUDGET, None)
        sets, found = answers.finish(), []
        for i, place in enumerate(places):
            path = certificates[place].failing_groups
            state, own = sets.state[i], sets.groups(i)
            if not own and path:  # the path is one way to lose it
                own = tuple(name for name in self.protocol.group_names if name in path)
                state = MINIMUM if int(sets.searched_size[i]) >= len(path) - 1 else UPPER_BOUND
            found.append(Hanging((own,) if own else (), state, None))
        return found


def _settle_smallest(sizes: Integers) -> Integers:
    """Return the largest size that matters of each row: no state above the smallest certain size does."""
    most = sizes.shape[1] - 1
    return np.asarray(np.where(sizes.any(axis=1), (sizes > 0).argmax(axis=1), most))
