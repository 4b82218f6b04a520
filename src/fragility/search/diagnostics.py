"""compare_searches: how far the greedy flip budget is from the smallest failing set."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.arrays import Integers
from fragility.errors import ProtocolError
from fragility.saving import NanEqual
from fragility.search.found import FailingSets


@dataclass(frozen=True, slots=True, eq=False)
class SearchComparison(NanEqual):
    """How far the greedy flip budget is from the smallest failing set; NaN where no row allows it.

    exact_match   Pr[k* = k_exact]                    greedy_over  Pr[k* > k_exact]
    mean_gap      E[(k* - k_exact)_+]                 pair_miss    Pr[k_exact = 2 and k* > 2]
    beam_improve  Pr[k_beam < k*]

    The first four are over exact-feasible rows, the last over all rows the beam searched. Where the exact search ran
    out of evaluations, the feasible rows are the ones with small failing sets, so read the first four with
    `exact_unaffordable` beside them.
    """

    rows: int
    exact_feasible: int
    exact_unaffordable: int
    exact_match: float
    greedy_over: float
    mean_gap: float
    pair_miss: float
    beam_rows: int
    beam_improve: float

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return asdict(self)


def compare_searches(
    greedy: npt.ArrayLike, exact: FailingSets | None = None, beam: FailingSets | None = None
) -> SearchComparison:
    """Compare greedy flip budgets with exact and beam searches of the same rows, in the same order.

    k* = K + 1 means "no flip within the protocol's depth K"; so does a smallest set of more than K groups here.

    Parameters
    ----------
    greedy : array of shape (n,)
        k* of the certificates.
    exact : FailingSets, optional
        Of :func:`find_failing_sets` with ``method="exact"``.
    beam : FailingSets, optional
        The same with ``method="beam"``.

    Returns
    -------
    SearchComparison
        How often and by how much the greedy path is longer than need be; NaN where no row allows it.

    Raises
    ------
    ProtocolError
        The searches are of other rows or of a smaller depth.

    See Also
    --------
    find_failing_sets : The searches.
    """
    k = np.asarray(greedy, dtype=np.int64)
    for name, search in (("exact", exact), ("beam", beam)):
        _check_comparable(k, name, search)
    feasible = np.zeros(len(k), dtype=bool) if exact is None else exact.resolved
    gap = np.zeros(0, dtype=np.int64) if exact is None else (k - _within_depth(exact))[feasible]
    pairs = np.zeros(0, dtype=bool) if exact is None else ((exact.size == 2) & (k > 2))[feasible]
    improved = np.zeros(0, dtype=bool) if beam is None else _within_depth(beam) < k
    return SearchComparison(
        rows=len(k),
        exact_feasible=int(feasible.sum()),
        exact_unaffordable=0 if exact is None else int((~feasible).sum()),
        exact_match=_mean(gap == 0),
        greedy_over=_mean(gap > 0),
        mean_gap=_mean(np.maximum(gap, 0)),
        pair_miss=_mean(pairs),
        beam_rows=0 if beam is None else len(beam),
        beam_improve=_mean(improved),
    )


def _within_depth(search: FailingSets) -> Integers:
    """Return the sizes as the greedy path would have counted them: nothing beyond the depth."""
    return np.minimum(search.size, min(search.max_size, search.depth) + 1)


def _check_comparable(greedy: Integers, name: str, search: FailingSets | None) -> None:
    if search is None:
        return
    if len(search) != len(greedy):
        raise ProtocolError(f"{name} search has {len(search)} rows, the greedy budgets {len(greedy)}")
    if len(greedy) and int(greedy.max()) > search.max_size + 1:
        raise ProtocolError(
            f"greedy budgets reach {int(greedy.max())} but the {name} search stopped at size "
            f"{search.max_size}; search with max_size equal to the protocol's depth"
        )


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan
