"""Names for the arrays that pass between modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Scores = Mapping[str, Floats]  # score -> one value a row
