"""FragilityPenalty: the price of losing support when evidence is mildly degraded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from fragility.base.arrays import Floats, Integers, is_count, is_number
from fragility.base.errors import Advice, EvidenceError
from fragility.evidence.fitting import column_moments
from fragility.evidence.groups import raw_origin_groups
from fragility.evidence.origins import claim_origins, output_names
from fragility.pages.results import without_nan
from fragility.protocol import Protocol

Member: TypeAlias = int | str | tuple[int, str]  # a position, a name, or both, as traced from a preprocessing
Groups: TypeAlias = tuple[tuple[Member, ...], ...]


@dataclass(frozen=True, slots=True)
class FragilityPenalty:
    """The price that a network pays for losing support when its evidence is mildly degraded.

    Parameters
    ----------
    alpha, beta : float, default=0.5 and 0.1
        Weight of the whole penalty (0 trains the plain network, bit for bit), and of the margin term inside it.
    groups : sequence, Protocol or fitted transformer, optional
        Which columns fail together. None: every column by itself. A sequence of groups, each a sequence of column
        positions or names. A flat sequence with one label per column (columns of equal label form a group). A
        Protocol of the transformed space: its groups. The preprocessing that the network's rows come from, fitted: one
        group per raw field, traced as :meth:`Protocol.fit` traces it. Where the rows have column names, its columns
        are matched by name, and those that the rows lack are left out, so that it may be fitted on all rows while
        cross-validation fits the network on some.
    baseline : "mean", array of shape (d,) or Protocol, default="mean"
        What evidence is attenuated toward: the mean of the rows given to ``fit``, a vector with one number per column,
        or a protocol's baseline.
    min_groups, max_groups : int, default=1 and 3
        How many groups of a row are degraded, drawn uniformly.
    min_severity, max_severity : float, default=0.1 and 0.5
        How far toward the baseline, drawn uniformly, one number per row.
    margin_floor : float, default=1e-8
        Added to the size of m(x) in the normaliser of the margin term. With the default a row at the decision boundary
        can outweigh a whole batch; a floor of about 0.1 bounds its influence.

    See Also
    --------
    ResMLPClassifier : The network that pays it.

    Examples
    --------
    >>> from fragility.analysis.resmlp import FragilityPenalty
    >>> FragilityPenalty(groups=["age", "job", "job"]).groups
    ((0,), (1, 2))
    """

    alpha: float = 0.5
    beta: float = 0.1
    groups: Any = None
    baseline: Any = "mean"
    min_groups: int = 1
    max_groups: int = 3
    min_severity: float = 0.1
    max_severity: float = 0.5
    margin_floor: float = 1e-8

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                raise EvidenceError(f"{name} must be a number of at least 0, got {value!r}")
        if not is_number(self.margin_floor) or self.margin_floor <= 0:
            raise EvidenceError(f"margin_floor must be a positive number, got {self.margin_floor!r}")
        if not (is_count(self.min_groups) and is_count(self.max_groups) and self.min_groups <= self.max_groups):
            raise EvidenceError(
                "min_groups and max_groups must be whole numbers with 1 <= min_groups <= max_groups, "
                f"got {self.min_groups!r} and {self.max_groups!r}"
            )
        low, high = self.min_severity, self.max_severity
        if not (is_number(low) and is_number(high) and 0 <= low <= high <= 1):
            raise EvidenceError(
                f"severities must satisfy 0 <= min_severity <= max_severity <= 1, got {low!r} and {high!r}"
            )
        # Tuples instead of what came: equality, hashing and copying then work on values.
        object.__setattr__(self, "groups", _plain_groups(self.groups))
        object.__setattr__(self, "baseline", _plain_baseline(self.baseline))

    def column_group(self, n_columns: int, names: Sequence[str] | None = None) -> Integers:
        """Return the group index of every column; groups that do not partition the columns are refused.

        Parameters
        ----------
        n_columns, names : int, sequence of str
            d, the number of columns, and their names where groups are declared by name.

        Returns
        -------
        array of shape (d,)
            Group indices.
        """
        if self.groups is None:
            return np.arange(n_columns, dtype=np.int64)
        owner = np.full(n_columns, -1, dtype=np.int64)
        for g, members in enumerate(_resolve_traced(self.groups, n_columns, names)):
            for member in members:
                j = _column_position(member, n_columns, names)
                if owner[j] >= 0:
                    raise EvidenceError(f"column {member!r} is in the groups at positions {owner[j]} and {g}")
                owner[j] = g
        if (owner < 0).any():
            missing = [names[j] if names is not None else int(j) for j in np.flatnonzero(owner < 0)[:5]]
            raise EvidenceError(
                f"the groups cover {int((owner >= 0).sum())} of the {n_columns} columns; left out are {missing}; "
                "every column belongs to exactly one group"
            )
        return np.unique(owner, return_inverse=True)[1].astype(np.int64)  # without groups of which no column is there

    def baseline_vector(self, matrix: Any) -> Floats:
        """Return the values the columns are attenuated toward.

        Parameters
        ----------
        matrix : array of shape (n, d)
            The rows given to ``fit``, for the mean.

        Returns
        -------
        array of shape (d,)
            One number per column.
        """
        if isinstance(self.baseline, str):
            return column_moments(matrix)[0]
        if len(self.baseline) != matrix.shape[1]:
            raise EvidenceError(
                f"the baseline must have one number for each of the {matrix.shape[1]} columns, got {len(self.baseline)}"
            )
        return np.asarray(self.baseline, dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Return the penalty as plain JSON values.

        Returns
        -------
        dict
            What ``from_dict`` takes.
        """
        document: dict[str, Any] = without_nan(asdict(self))
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> FragilityPenalty:
        """Return the penalty that ``to_dict`` wrote.

        Parameters
        ----------
        document : mapping
            What ``to_dict`` returned.

        Returns
        -------
        FragilityPenalty
            An equal penalty.
        """
        return cls(**document)


def _plain_groups(groups: Any) -> Groups | None:
    """Return groups as tuples of column positions or names, which compare and hash by value."""
    if groups is None:
        return None
    if isinstance(groups, Protocol):
        _check_transformed(groups)
        return _group_by_label(groups.column_group.tolist())
    if hasattr(groups, "fit"):
        return _trace_groups(groups)
    if isinstance(groups, (str, Mapping)) or not hasattr(groups, "__iter__"):
        raise EvidenceError(
            "groups must be None, a Protocol, a sequence of groups (each a sequence of column positions or names), a "
            f"sequence with one label per column, or a fitted transformer, got {type(groups).__name__}"
        )
    items = [_plain_member(item) for item in groups]
    if not items:
        raise EvidenceError("groups must name at least one group, got none")
    if all(isinstance(item, (int, str)) for item in items):
        return _group_by_label(items)
    if any(isinstance(item, (int, str)) or not item for item in items):
        raise EvidenceError("groups must be non-empty sequences of columns, or one label per column; got a mixture")
    return tuple(
        tuple(_read_traced(member) if isinstance(member, list) else member for member in item) for item in items
    )


def _plain_member(item: Any) -> Any:
    if isinstance(item, (str, bool, np.bool_)) or not hasattr(item, "__iter__"):
        if isinstance(item, np.generic):
            item = item.item()
        if isinstance(item, bool) or not isinstance(item, (int, str)):
            raise EvidenceError(f"a column must be a position (whole number) or a name, got {item!r}")
        return item
    return [_plain_member(member) for member in item]


def _read_traced(member: Sequence[Any]) -> tuple[int, str]:
    if len(member) != 2 or type(member[0]) is not int or type(member[1]) is not str:
        raise EvidenceError(f"a column must be a position (whole number), a name, or both, got {member!r}")
    return member[0], member[1]


def _group_by_label(labels: Sequence[int | str]) -> Groups:
    groups: dict[int | str, list[int]] = {}
    for j, label in enumerate(labels):
        groups.setdefault(label, []).append(j)
    return tuple(tuple(members) for members in groups.values())


def _trace_groups(transformer: Any) -> Groups:
    """Return one group per raw field, each column as its position and name in the output of a preprocessing."""
    try:
        check_is_fitted(transformer)
    except NotFittedError as error:
        raise EvidenceError(
            f"groups must be a fitted preprocessing, and this {type(transformer).__name__} is not fitted, so that its "
            "columns are not known; fit a copy on all rows, as in groups=clone(prepare).fit(X), also where "
            "cross-validation fits the one in a Pipeline on some of them"
        ) from error
    names = getattr(transformer, "feature_names_in_", None)
    fields = [f"x{j}" for j in range(transformer.n_features_in_)] if names is None else [str(name) for name in names]
    origins = claim_origins(transformer, fields)
    columns = output_names(transformer, len(origins))
    position = {column: j for j, column in enumerate(columns)}
    groups = raw_origin_groups(columns, origins)
    return tuple(tuple((position[column], column) for column in members) for members in groups.values())


def _resolve_traced(groups: Groups, n_columns: int, names: Sequence[str] | None) -> list[list[int | str]]:
    """Return groups in which the columns of a traced preprocessing are found in the rows, by name if they have names.

    Rows of a part of the data may lack columns, of categories that are not in it; they must not have others.
    """
    traced = {member[1] for members in groups for member in members if isinstance(member, tuple)}
    by_name = names is not None and not traced.isdisjoint(names)
    if traced and not by_name and n_columns != len(traced):
        raise EvidenceError(
            f"the preprocessing that the groups were traced from makes {len(traced)} columns, and the rows have "
            f"{n_columns}, without its names for them; let the preprocessing in the Pipeline name its columns, by "
            "set_output(transform='pandas')"
        )
    unknown = [name for name in names or () if name not in traced] if by_name else []
    if unknown:
        raise EvidenceError(
            f"the rows have the column {unknown[0]!r}, which the preprocessing that the groups were traced from does "
            "not make; fit that preprocessing on all rows"
        )
    groups_of_rows: list[list[int | str]] = []
    for members in groups:
        places = [member[by_name] if isinstance(member, tuple) else member for member in members]
        groups_of_rows.append([place for place in places if not by_name or place in (names or ())])
    return groups_of_rows


def _plain_baseline(baseline: Any) -> str | tuple[float, ...]:
    if isinstance(baseline, str):
        if baseline != "mean":
            raise EvidenceError(f"baseline must be 'mean', a vector or a Protocol, got {baseline!r}")
        return baseline
    if isinstance(baseline, Protocol):
        _check_transformed(baseline)
        baseline = [column.baseline for column in baseline.columns]
    values = np.asarray(baseline).tolist()
    if not isinstance(values, list) or not all(is_number(value) for value in values):
        raise EvidenceError("baseline must be one finite number for each column; a network accepts no missing value")
    return tuple(float(value) for value in values)


def _check_transformed(protocol: Protocol) -> None:
    if protocol.space != "transformed":
        raise EvidenceError(
            f"a protocol of the transformed space was expected, this one is of the {protocol.space} space; a network "
            "is trained on transformed columns: fit the protocol with ",
            Advice.argument("space", "transformed"),
        )


def _column_position(member: int | str, n_columns: int, names: Sequence[str] | None) -> int:
    if isinstance(member, str):
        if names is None:
            raise EvidenceError(
                f"the groups name the column {member!r}, but the rows have no column names; use positions, or give a "
                "table",
                Advice(" (in a Pipeline: set_output(transform='pandas'))", ""),
            )
        if member not in names:
            raise EvidenceError(f"the groups name the column {member!r}, which is not among {list(names)[:10]}")
        return list(names).index(member)
    if not 0 <= member < n_columns:
        raise EvidenceError(f"the groups name column {member}; positions go from 0 to {n_columns - 1}")
    return member
