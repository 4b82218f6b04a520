"""Evidence: groups of columns, baselines, and rows as a matrix that can be stressed.

Every deterministic state of an audit is a severity s in [0, 1] for each group, applied to x: each column of group g
moves by s_g * (baseline - x). ``blend`` is that rule, once, for every engine's twin to agree with.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp
from scipy import stats

from fragility.arrays import Booleans, Floats, Integers
from fragility.errors import EvidenceError
from fragility.frames import Kind, Rows, Scalar
from fragility.models import Model
from fragility.tracing import Origin

BASELINES = ("mean", "median", "zero", "mode", "missing")
STEP = 0.5  # a value that cannot be interpolated takes the baseline's from this severity on


def blend(x: Floats, baseline: Floats, severity: npt.ArrayLike, stepwise: Booleans) -> Floats:
    """Return x moved toward the baseline by ``severity`` (broadcast over x's shape).

    s <= 0 is x exactly and s >= 1 the baseline exactly. Between, a cell is x + s * (baseline - x), unless it cannot be
    interpolated (a nominal column, a missing baseline or a missing value): then it is x while s < 0.5 and the
    baseline from 0.5 on.
    """
    s = np.broadcast_to(np.asarray(severity, dtype=np.float64), x.shape)
    moved = x + s * (baseline - x)
    jump = stepwise | np.isnan(x)
    moved = np.where(jump, np.where(s >= STEP, baseline, x), moved)
    return np.where(s >= 1.0, baseline, np.where(s <= 0.0, x, moved))


@dataclass(frozen=True, eq=False)
class EvidenceRows:
    """Rows to audit as a float64 matrix in the declared evidence space, with all that a state needs."""

    matrix: Any  # (n, d) float64, or CSR where the pipeline hands sparse rows to the model
    ids: tuple[Hashable, ...]
    baseline: Floats  # (d,)
    stepwise: Booleans  # (d,) columns that cannot be interpolated
    column_group: Integers  # (d,) index of each column's group
    n_groups: int
    n_classes: int
    predict_matrix: Callable[[Floats], Floats]
    model: Model  # as confirmed on these rows: its link reproduces its own predict_proba
    source: Rows  # the raw rows, for digests
    cell_dtype: Any = np.float64  # precision in which the estimator is handed its matrix
    native_matrix: bool = True  # the estimator is handed ``matrix`` itself: an engine may read it directly

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return len(self.baseline)

    def dense(self, start: int = 0, stop: int | None = None) -> Floats:
        """Return rows start..stop as a dense float64 matrix of their own."""
        part = self.matrix[start:stop]
        return part.toarray() if sp.issparse(part) else np.array(part, dtype=np.float64)

    def predict(self, matrix: Floats) -> Floats:
        """Return (m, C) probabilities for any stressed matrix of this space."""
        return self.predict_matrix(matrix)

    def take(self, positions: Sequence[int]) -> EvidenceRows:
        """Return the rows at these positions, for an engine; ``source`` stays that of all rows."""
        return replace(self, matrix=self.matrix[list(positions)], ids=tuple(self.ids[i] for i in positions))

    def group_columns(self) -> list[Integers]:
        """Return each group's column indices."""
        return [np.flatnonzero(self.column_group == g) for g in range(self.n_groups)]


# --- groups ---------------------------------------------------------------------------------------------


def raw_origin_groups(columns: Sequence[str], origins: Sequence[Origin]) -> dict[str, list[str]]:
    """Return field -> columns traced to it; refuse columns made from several fields."""
    mixed = [(c, o) for c, o in zip(columns, origins, strict=True) if len(o.fields) != 1]
    if mixed:
        raise EvidenceError(
            f"{len(mixed)} column(s) are made from several raw fields and belong to no single one: "
            f"{_described(mixed)}; declare groups={{block: [fields, ...]}} that keep those fields together, "
            "or audit with space='raw'"
        )
    groups: dict[str, list[str]] = {}
    for column, origin in zip(columns, origins, strict=True):
        groups.setdefault(origin.fields[0], []).append(column)
    return groups


def _described(mixed: Sequence[tuple[str, Origin]], limit: int = 3) -> str:
    shown = "; ".join(f"{column!r} from {', '.join(origin.fields[:6])}" for column, origin in mixed[:limit])
    return shown + ("; ..." if len(mixed) > limit else "")


def declared_groups(
    declared: Mapping[str, str | Sequence[str]], columns: Sequence[str], origins: Sequence[Origin]
) -> dict[str, list[str]]:
    """Return block -> columns for a declared map: field -> block, or block -> fields.

    The map may name raw fields or, instead, the evidence columns themselves. It must cover all of them, once each.
    """
    block_of = _blocks_by_member(declared)
    fields = list(dict.fromkeys(field for origin in origins for field in origin.fields))
    by_column = bool(block_of) and set(block_of) <= set(columns) and not set(block_of) <= set(fields)
    known = list(columns) if by_column else fields
    unknown = [name for name in block_of if name not in set(known)]
    if unknown:
        raise EvidenceError(f"the group map names {_names(unknown)}, which is not among the fields {_names(known, 30)}")
    left_out = [name for name in known if name not in block_of]
    if left_out:
        raise EvidenceError(f"the group map leaves out {_names(left_out)}; every field belongs to exactly one group")
    members = [(column,) if by_column else origin.fields for column, origin in zip(columns, origins, strict=True)]
    groups: dict[str, list[str]] = {block: [] for block in dict.fromkeys(block_of.values())}
    for column, names in zip(columns, members, strict=True):
        blocks = {block_of[name] for name in names}
        if len(blocks) > 1:
            raise EvidenceError(
                f"column {column!r} is made from {_names(names)}, which the group map puts into different groups "
                f"{_names(sorted(blocks))}; put them into one"
            )
        groups[blocks.pop()].append(column)
    return {block: members for block, members in groups.items() if members}


def _blocks_by_member(declared: Mapping[str, str | Sequence[str]]) -> dict[str, str]:
    block_of: dict[str, str] = {}
    for key, value in declared.items():
        if not isinstance(value, (str, list, tuple, set, frozenset)):
            raise EvidenceError(
                f"the group map gives {key!r} the value {value!r}; a block's name or a list of fields was expected"
            )
        pairs = [(key, value)] if isinstance(value, str) else [(member, key) for member in value]
        for member, block in pairs:
            if member in block_of:
                raise EvidenceError(f"the group map puts {member!r} into both {block_of[member]!r} and {block!r}")
            block_of[str(member)] = str(block)
    return block_of


def _names(names: Sequence[str], limit: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def merged_fields(frame: pd.DataFrame, kinds: Mapping[str, Kind], threshold: float) -> dict[str, str]:
    """Return field -> block, with fields joined (transitively) where their association reaches ``threshold``."""
    parent = {name: name for name in kinds}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for a, b in itertools.combinations(kinds, 2):
        if root(a) != root(b) and association(frame[a], kinds[a], frame[b], kinds[b]) >= threshold:
            parent[root(b)] = root(a)
    members: dict[str, list[str]] = {}
    for name in kinds:
        members.setdefault(root(name), []).append(name)
    return {name: "+".join(block) for block in members.values() for name in block}


def association(a: pd.Series, kind_a: Kind, b: pd.Series, kind_b: Kind) -> float:
    """Return the strength of association in [0, 1] over rows where both are known; 0 where either is constant.

    |Spearman's rho| for two numeric fields, Cramer's V for two nominal ones, the correlation ratio for one of each.
    """
    known = (a.notna() & b.notna()).to_numpy()
    a, b = a[known], b[known]
    if len(a) < 2 or a.nunique() < 2 or b.nunique() < 2:
        return 0.0
    if kind_a == kind_b == "numeric":
        return float(abs(stats.spearmanr(a.to_numpy(float), b.to_numpy(float)).statistic))
    if kind_a == kind_b == "nominal":
        return float(stats.contingency.association(pd.crosstab(a.astype(str), b.astype(str)).to_numpy()))
    return _correlation_ratio(a, b) if kind_a == "nominal" else _correlation_ratio(b, a)


def _correlation_ratio(category: pd.Series, number: pd.Series) -> float:
    """Return eta = sqrt(variance between the categories' means / total variance)."""
    values = number.to_numpy(float)
    means = pd.Series(values).groupby(category.astype(str).to_numpy()).transform("mean").to_numpy()
    total = float(((values - values.mean()) ** 2).sum())
    return float(np.sqrt(((means - values.mean()) ** 2).sum() / total)) if total > 0 else 0.0


# --- baselines ------------------------------------------------------------------------------------------


def matrix_baseline(kind: str, matrix: Any, origins: Sequence[Origin], missing_row: Floats | None) -> Floats:
    """Return the (d,) baseline of a transformed training matrix, dense or CSR."""
    if kind == "zero":
        return np.zeros(matrix.shape[1])
    if kind == "median":
        return _column_medians(matrix)
    mean = column_means(matrix)
    if kind == "mode":
        return _mode_rows(matrix, origins, mean)
    if kind == "missing":
        nominal = np.array([origin.nominal for origin in origins])
        token = np.zeros(matrix.shape[1]) if missing_row is None else np.nan_to_num(missing_row)
        return np.where(nominal, token, np.nan)
    return mean


def column_means(matrix: Any) -> Floats:
    if sp.issparse(matrix):
        return np.asarray(matrix.mean(axis=0), dtype=np.float64).ravel()
    return _nan_reduced(np.nanmean, matrix)


def column_spreads(matrix: Any) -> Floats:
    """Return each column's training standard deviation."""
    if sp.issparse(matrix):
        square = np.asarray(matrix.multiply(matrix).mean(axis=0), dtype=np.float64).ravel()
        return np.sqrt(np.maximum(square - column_means(matrix) ** 2, 0.0))
    return _nan_reduced(np.nanstd, matrix)


def _column_medians(matrix: Any) -> Floats:
    if not sp.issparse(matrix):
        return _nan_reduced(np.nanmedian, matrix)
    by_column = matrix.tocsc()
    return np.array([np.median(by_column[:, [j]].toarray()) for j in range(matrix.shape[1])])


def _nan_reduced(reduce: Callable[..., Any], matrix: Any) -> Floats:
    with warnings.catch_warnings():
        # A column without any value has no mean; NaN is the right answer and numpy's warning is noise.
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(reduce(np.asarray(matrix, dtype=np.float64), axis=0), dtype=np.float64)


def _mode_rows(matrix: Any, origins: Sequence[Origin], mean: Floats) -> Floats:
    """Return ``mean`` with the nominal columns of each field set to their most frequent joint value."""
    out = mean.copy()
    blocks: dict[tuple[str, ...], list[int]] = {}
    for j, origin in enumerate(origins):
        if origin.nominal:
            blocks.setdefault(origin.fields, []).append(j)
    for columns in blocks.values():
        part = matrix[:, columns]
        dense = part.toarray() if sp.issparse(part) else np.asarray(part, dtype=np.float64)
        distinct, counts = np.unique(dense, axis=0, return_counts=True)
        out[columns] = distinct[np.argmax(counts)]
    return out


def field_baseline(kind: str, column: pd.Series, field_kind: Kind) -> Scalar:
    """Return one raw field's baseline: a number or None (NaN) for numeric, a value or None (missing) for nominal."""
    if kind == "missing":
        return None
    known = column.dropna()
    if field_kind == "nominal":
        return None if known.empty else _most_frequent(known)
    if kind == "zero":
        return 0.0
    if known.empty:
        return None
    values = known.to_numpy(dtype=np.float64)
    return float(np.median(values) if kind == "median" else values.mean())


def _most_frequent(known: pd.Series) -> Scalar:
    counts = known.value_counts()
    best = [value for value, count in counts.items() if count == counts.iloc[0]]
    value = min(best, key=str)  # equally frequent values: the first in text order, whatever the row order
    return value.item() if isinstance(value, np.generic) else value  # type: ignore[return-value]
