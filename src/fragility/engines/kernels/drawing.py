"""Which units the random draws of a row strike: steps 2 and 3 of the draw format (``stress.draws``), word by word."""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import entry

MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@entry
def strike(keys: Any, offset: Any, bound: Any, span: Any, out: Any) -> None:
    """Fill out (n, positions) of the rows span[0]..span[1]: whether the word at each offset lies below the bound."""
    for row in range(span[0], span[1]):
        key = keys[row]
        for place in range(len(offset)):
            word = key + offset[place]
            word = (word ^ (word >> np.uint64(30))) * MIX_1
            word = (word ^ (word >> np.uint64(27))) * MIX_2
            word ^= word >> np.uint64(31)
            out[row, place] = (word >> np.uint64(11)) < bound
