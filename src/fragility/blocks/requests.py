"""What the modes block and the intervals block have in common: which rows and names are wanted, and who answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from fragility.base.errors import DataError
from fragility.engines.choice import SELF_CHECK_ROWS, choose_oracle
from fragility.evidence import EvidenceRows

# True for all names and rows, some names, or all names of so many confident rows at most; None and False for no block.
Wanted: TypeAlias = bool | int | str | Sequence[str] | None


def read_wanted(wanted: Any, block: str, verb: str) -> tuple[list[str] | None, int | None]:
    """Return the names wanted and the most confident rows; None for all of them. The words are for errors."""
    if not isinstance(wanted, (int, np.integer)):
        return [wanted] if isinstance(wanted, str) else list(wanted), None
    most = None if wanted is True else int(wanted)
    if most is not None and most < 1:
        raise DataError(f"{block} must be at least 1 where it says how many confident rows to {verb}, got {wanted}")
    return None, most


def name_engine(rows: EvidenceRows, engine: str) -> str:
    """Return the engine that answers for these rows: a native one that agrees with the model on the first, or none."""
    return choose_oracle(rows.between(0, SELF_CHECK_ROWS), engine).name
