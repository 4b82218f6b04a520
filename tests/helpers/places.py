"""Where the tests find the sources and the data.

The larger public data sets are not bundled. They are looked for in the folder that FRAGILITY_DATA names, then in
`../shared/data` beside the repository.
"""

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src" / "fragility"


def data_folder() -> Path:
    """The folder with the benchmark data sets, whether or not it exists."""
    return Path(os.environ.get("FRAGILITY_DATA") or REPOSITORY.parent / "shared" / "data")
