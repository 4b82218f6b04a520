"""Groups: which columns fail together: those of one raw field, declared blocks, or fields that are associated."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from fragility.errors import Advice, EvidenceError
from fragility.evidence.moments import rounded
from fragility.evidence.rows import Kind
from fragility.evidence.tracing import Origin


def raw_origin_groups(columns: Sequence[str], origins: Sequence[Origin]) -> dict[str, list[str]]:
    """Return field -> columns traced to it; refuse columns made from several fields."""
    mixed = [(c, o) for c, o in zip(columns, origins, strict=True) if len(o.fields) != 1]
    if mixed:
        raise EvidenceError(
            f"{len(mixed)} column(s) are made from several raw fields and belong to no single one: "
            f"{_described(mixed)}; declare ",
            Advice("groups={block: [fields, ...]}", "groups with --groups FILE (JSON: {block: [fields, ...]})"),
            " that keep those fields together, or audit with ",
            Advice.argument("space", "raw"),
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

    The map may name raw fields or, instead, the evidence columns themselves, each once. One that it does not name is a
    group of its own.
    """
    block_of = _blocks_by_member(declared)
    fields = list(dict.fromkeys(field for origin in origins for field in origin.fields))
    by_column = bool(block_of) and set(block_of) <= set(columns) and not set(block_of) <= set(fields)
    known = list(columns) if by_column else fields
    unknown = [name for name in block_of if name not in set(known)]
    if unknown:
        raise EvidenceError(f"the group map names {_names(unknown)}, which is not among the fields {_names(known, 30)}")
    alone = [name for name in known if name not in block_of]
    taken = set(block_of.values()).intersection(alone)
    if taken:
        name = min(taken)
        raise EvidenceError(
            f"the group map has a group {name!r}, but does not say where the field {name!r} belongs; name the group "
            "otherwise, or put the field into one"
        )
    block_of |= {name: name for name in alone}
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
            if isinstance(member, (list, dict, set)):
                raise EvidenceError(f"the group map puts {member!r} into {block!r}; the name of a field was expected")
            if member in block_of:
                raise EvidenceError(f"the group map puts {member!r} into both {block_of[member]!r} and {block!r}")
            block_of[str(member)] = str(block)
    return block_of


def _names(names: Sequence[str], limit: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def merged_fields(frame: pd.DataFrame, kinds: Mapping[str, Kind], threshold: float) -> dict[str, str]:
    """Return field -> block, with fields joined (transitively) where their association reaches ``threshold``."""
    from scipy.cluster.hierarchy import DisjointSet  # slow to import, and only this grouping needs it

    blocks = DisjointSet(kinds)
    for a, b in itertools.combinations(kinds, 2):
        if not blocks.connected(a, b) and association(frame[a], kinds[a], frame[b], kinds[b]) >= threshold:
            blocks.merge(a, b)
    return {name: "+".join(other for other in kinds if other in blocks.subset(name)) for name in kinds}


def association(a: pd.Series, kind_a: Kind, b: pd.Series, kind_b: Kind) -> float:
    """Return the strength of association in [0, 1] over rows where both are known; 0 where either is constant.

    |Spearman's rho| for two numeric fields, Cramer's V for two nominal ones, the correlation ratio for one of each,
    rounded so that the order of the rows cannot carry it over a threshold.
    """
    return rounded(_association(a, kind_a, b, kind_b), 1.0)


def _association(a: pd.Series, kind_a: Kind, b: pd.Series, kind_b: Kind) -> float:
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
