"""Matching rows by id: two tables of the same rows meet here and nowhere else.

Ids are compared as text, because a file may give back "7" for 7.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def places_by_id(wanted: Sequence[object], given: Sequence[object]) -> tuple[npt.NDArray[np.int64], list[object]]:
    """Return the place in ``given`` of every wanted id that is there, and the wanted ids that are not."""
    place = {str(own_id): index for index, own_id in enumerate(given)}
    missing = [own_id for own_id in wanted if str(own_id) not in place]
    found = [place[str(own_id)] for own_id in wanted if str(own_id) in place]
    return np.asarray(found, dtype=np.int64), missing
