"""Recoding: what a library makes of the cells it is handed before its trees compare them.

Boosters number categories: the code of a category is its place in the list kept from training, and one that is not
listed is missing. Columns of categories are stepwise, they only jump from x to the baseline, so recoding these two
recodes every state. Rounding is left to the kernels, because a blend is rounded after it is made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fragility.base.arrays import Booleans, Floats
from fragility.base.errors import EngineError
from fragility.engines.trees.forest import NARROW, WHOLE, Flags, Forest
from fragility.engines.trees.terms import Terms
from fragility.evidence import CellForm, EvidenceRows

FURTHEST = 2.0**1000  # cells as far from 0 are left to the model: moved toward a baseline they may overflow


def number_categories(categories: Sequence[Any]) -> dict[Any, int]:
    """Return {category: its place in the list}."""
    return {category: code for code, category in enumerate(categories)}


class Vocabulary(NamedTuple):
    """The categories that a library has kept of its training data; {category: code}."""

    listed: Mapping[int, Mapping[Any, int]] = {}  # by column
    in_order: Sequence[Mapping[Any, int]] = ()  # of the columns handed over as categories, first to last
    cut: Mapping[int, tuple[bytes, ...]] = {}  # by column: texts as ``cut_texts`` has them, in the order of their codes
    coded: Callable[[Sequence[CellForm]], Mapping[int, Mapping[Any, float]]] | None = None  # asks the library itself
    reads_numbers: bool = False  # a number in a column that is ``coded`` is compared as it is
    own_codes: bool = False  # a column of categories that is not listed is read by the codes it is handed over with
    closed: bool = False  # what the library makes of a category that is not listed is not known


class Ensemble(NamedTuple):
    """A tree ensemble as its reader gives it."""

    forest: Forest
    vocabulary: Vocabulary = Vocabulary()
    least: float = 0.0  # a cell nearer to 0 than this, 0 itself aside, may be compared as 0
    terms: Terms | None = None  # the trees as tables, where they are


@dataclass(frozen=True, eq=False)
class Recoding:
    """From cells of the evidence space to what the trees compare; d columns."""

    tables: Mapping[int, Floats]  # by column: the code of each place of its table of values
    listed: Mapping[int, tuple[Floats, Floats]]  # by column of numbers: those listed, rising, and their codes
    rounding: Flags  # (d,) of a cell once it is stressed; WHOLE, NARROW
    unknown: Mapping[int, Booleans] = field(default_factory=dict)  # by column: places whose code is only a guess
    closed: bool = False  # the same for numbers that are not listed

    def find_unlisted(self, cells: Floats) -> Booleans:
        """Return (m,) the rows of cells (m, d) with a category that the library may read otherwise than as missing."""
        found = np.zeros(len(cells), dtype=bool)
        for column, places in self.unknown.items():
            found |= places[cells[:, column].astype(np.int64)]
        if self.closed:
            for column, (numbers, _) in self.listed.items():
                found |= ~np.isin(cells[:, column], numbers) & ~np.isnan(cells[:, column])
        return found

    def recode(self, matrix: Floats) -> Floats:
        """Return rows (m, d), or one (d,), with categories as the library codes them; other cells as they are."""
        if not self.tables and not self.listed:
            return matrix
        out = matrix.copy()
        for column, codes in self.tables.items():
            out[..., column] = codes[matrix[..., column].astype(np.int64)]
        for column, (numbers, codes) in self.listed.items():
            cells = matrix[..., column]
            place = np.searchsorted(numbers[:-1], cells)
            out[..., column] = np.where(numbers[place] == cells, codes[place], np.nan)
        return out


def make_recoding(ensemble: Ensemble, rows: EvidenceRows) -> Recoding:
    """Return the recoding of some rows; EngineError where it is not known exactly."""
    forms, vocabulary = rows.forms, ensemble.vocabulary
    everywhere = NARROW if ensemble.forest.single or (forms is None and rows.cell_dtype == np.float32) else 0
    if forms is None:
        if vocabulary.coded is not None and not vocabulary.reads_numbers:
            raise EngineError("its categories are texts, the rows are a matrix of numbers")
        rounding = np.full(rows.width, everywhere, dtype=np.uint8)
        listed = _list_numbers(vocabulary, rows, [None] * rows.width)
        return Recoding({}, listed, rounding, closed=vocabulary.closed)
    for j, form in enumerate(forms):
        holds_codes = form.values is None and not form.whole and form.precision.kind in "iu"
        if holds_codes and rows.baseline[j] != np.rint(rows.baseline[j]):
            raise EngineError(f"the baseline of column {j} is no whole number, as its codes are")
    mappings = _map_categories(vocabulary, forms)
    tables = {j: _code_values(form, mappings.get(j), j) for j, form in enumerate(forms) if form.values is not None}
    if tables and type(rows.source.native).__module__.split(".")[0] != "pandas":
        raise EngineError("values that are not numbers are read from a pandas table only")
    unknown: dict[int, Booleans] = {}
    if vocabulary.closed:
        for j, codes in tables.items():
            guessed = np.isnan(codes) & ~np.array([value is None for value in forms[j].values or ()])
            if guessed.any():
                unknown[j] = guessed
    rounding = np.array([_find_rounding(form) | everywhere for form in forms], dtype=np.uint8)
    return Recoding(tables, _list_numbers(vocabulary, rows, forms), rounding, unknown, vocabulary.closed)


def _map_categories(vocabulary: Vocabulary, forms: Sequence[CellForm]) -> dict[int, Mapping[Any, float]]:
    """Return {category: code} of each column whose values the library numbers."""
    categorical = [j for j, form in enumerate(forms) if form.categories is not None]
    found: dict[int, Mapping[Any, float]] = dict(vocabulary.listed)
    if vocabulary.in_order:
        if len(categorical) != len(vocabulary.in_order):
            raise EngineError(f"{len(categorical)} columns are categories, {len(vocabulary.in_order)} were in training")
        found |= dict(zip(categorical, vocabulary.in_order, strict=True))
    for j, texts in vocabulary.cut.items():  # XGBoost cuts them into pieces, of which two may be alike
        if len(set(texts)) < len(texts):
            raise EngineError(f"column {j} holds categories beyond ASCII that XGBoost cannot tell apart")
    for j, form in enumerate(forms) if vocabulary.closed else ():
        beyond = [text for text in form.categories or () if isinstance(text, str) and not text.isascii()]
        if beyond and j in vocabulary.listed:
            raise EngineError(
                f"column {j} may hold {beyond[0]!r}, which shifts the categories that XGBoost reads after it"
            )
    for j, texts in vocabulary.cut.items():
        categories = forms[j].categories
        if categories is None or cut_texts(categories) != texts:
            raise EngineError(f"column {j} holds categories beyond ASCII in another order than in training")
        found[j] = number_categories(categories)
    if vocabulary.coded is not None:
        found |= vocabulary.coded(forms)
    if vocabulary.own_codes:
        for j in categorical:
            found.setdefault(j, number_categories(forms[j].categories or ()))
    return found


def cut_texts(texts: Sequence[Any]) -> tuple[bytes, ...]:
    """Return texts as XGBoost 3 compares them: their joined bytes, cut where their characters would be cut.

    Beyond ASCII, where a character takes several bytes, the pieces are not the texts.
    """
    joined = "".join(map(str, texts)).encode("utf-8")
    ends = np.cumsum([0, *(len(str(text)) for text in texts)])
    return tuple(joined[a:b] for a, b in itertools.pairwise(ends))


def _code_values(form: CellForm, mapping: Mapping[Any, float] | None, column: int) -> Floats:
    """Return the code of each value of a column's table; NaN for a missing value, and for one that is not listed."""
    assert form.values is not None
    if mapping is None:
        if not all(value is None or isinstance(value, bool) for value in form.values) or str(form.dtype) == "object":
            raise EngineError(f"column {column} is handed over as {form.dtype}, which is no number to the trees")
        mapping = {False: 0, True: 1}
    return np.array([np.nan if value is None else mapping.get(value, np.nan) for value in form.values])


def _list_numbers(
    vocabulary: Vocabulary, rows: EvidenceRows, forms: Sequence[CellForm | None]
) -> dict[int, tuple[Floats, Floats]]:
    """Return (numbers, codes) of the columns of numbers that the library takes for categories."""
    found = {}
    for j, mapping in vocabulary.listed.items():
        form = forms[j]
        if form is not None and form.values is not None:
            continue
        if not rows.stepwise[j]:
            raise EngineError(f"column {j} holds categories as numbers, which the evidence space interpolates")
        if not all(isinstance(value, (int, float)) for value in mapping):
            raise EngineError(f"column {j} holds numbers, in training it held other values")
        numbers = sorted(mapping) or [np.nan]
        found[j] = (np.array(numbers, dtype=np.float64), np.array([mapping.get(n, np.nan) for n in numbers]))
    return found


def _find_rounding(form: CellForm) -> int:
    if form.values is not None:
        return 0
    whole = WHOLE if form.whole else 0
    if form.precision.kind in "iu":
        return whole  # codes are whole numbers and only jump
    if form.precision not in (np.float32, np.float64):
        raise EngineError(f"cells of type {form.dtype} are rounded in a way the tree engine does not follow")
    return whole | (NARROW if form.precision == np.float32 else 0)
