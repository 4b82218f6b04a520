"""The seven data sets of the study: declarations, loading, verification, splits and preprocessing.

    from fragility_paper.data import load, split

    data = load("credit_g")
    parts = split(data.y, seed=0)

Rows come from a folder (``data`` argument or ``FRAGILITY_DATA``) or, for Credit-G, the copy bundled with fragility;
:func:`download` fills a folder from OpenML. Whatever the place, rows are checked against the declared digest first.
"""

from fragility_paper.data.declared import DATASETS, dataset_spec
from fragility_paper.data.loading import DATA_VARIABLE, Dataset, load, load_table, prepare
from fragility_paper.data.openml import download
from fragility_paper.data.preparation import column_fields, preprocessing
from fragility_paper.data.spec import DatasetSpec
from fragility_paper.data.splits import Split, split

__all__ = [
    "DATASETS",
    "DATA_VARIABLE",
    "Dataset",
    "DatasetSpec",
    "Split",
    "column_fields",
    "dataset_spec",
    "download",
    "load",
    "load_table",
    "prepare",
    "preprocessing",
    "split",
]
