"""Groups: which columns fail together: those of one raw field, declared blocks, or fields that are associated."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np
import pandas as pd
from scipy import stats

from fragility.base.errors import Advice, EvidenceError
from fragility.base.files import read_json
from fragility.evidence.fields import Kind
from fragility.evidence.fitting import TrainingEvidence, round_digits
from fragility.evidence.origins import Origin
from fragility.evidence.rows import list_names

GroupMap: TypeAlias = Mapping[str, str | Sequence[str]]


def group_columns(
    groups: str | os.PathLike[str] | GroupMap, evidence: TrainingEvidence, threshold: float
) -> tuple[dict[str, list[str]], str]:
    """Return group -> columns, and how the groups were made; ``threshold`` is that of merged groups."""
    columns, origins = evidence.columns, evidence.origins
    if not isinstance(groups, (str, os.PathLike, Mapping)):
        raise EvidenceError(f"groups must be 'raw-origin', 'merged', a map or a JSON file, got {groups!r}")
    if groups == "raw-origin":
        return raw_origin_groups(columns, origins), "raw-origin"
    if groups == "merged":
        if not isinstance(threshold, (int, float)) or not 0 < threshold <= 1:
            raise EvidenceError(f"merge_threshold must lie in (0, 1], got {threshold!r}")
        if evidence.frame is None:
            raise EvidenceError("merged groups need a table or dense array, got a sparse matrix")
        used = {name for origin in origins for name in origin.fields}
        merged = merged_fields(evidence.frame, {field.name: field.kind for field in evidence.fields}, threshold)
        kept = {name: block for name, block in merged.items() if name in used}
        return declared_groups(kept, columns, origins), f"merged at {float(threshold)!r}"
    if not groups:
        raise EvidenceError("the group map is empty; leave it out to have one group per raw field")
    declared = groups if isinstance(groups, Mapping) else read_group_map(groups)
    return declared_groups(declared, columns, origins), "declared"


def read_group_map(path: str | os.PathLike[str]) -> GroupMap:
    """Return the group map of a JSON file."""
    try:
        document = read_json(path)
    except OSError as error:
        raise EvidenceError(
            f"groups must be 'raw-origin', 'merged', a map or a JSON file; cannot read {str(path)!r}: "
            f"{error.strerror or error}"
        ) from error
    except ValueError as error:
        raise EvidenceError(f"the group map {str(path)!r} is not valid JSON: {error}") from error
    if not isinstance(document, dict) or not document:
        raise EvidenceError(f"the group map {str(path)!r} must be a JSON object field -> block or block -> [fields]")
    return cast(GroupMap, document)


def raw_origin_groups(columns: Sequence[str], origins: Sequence[Origin]) -> dict[str, list[str]]:
    """Return field -> columns traced to it; refuse columns made from several fields."""
    mixed = [(c, o) for c, o in zip(columns, origins, strict=True) if len(o.fields) != 1]
    if mixed:
        shown = "; ".join(f"{column!r} from {', '.join(origin.fields[:6])}" for column, origin in mixed[:3])
        raise EvidenceError(
            f"{len(mixed)} column(s) are made from several raw fields and belong to no single one: "
            f"{shown}{'; ...' if len(mixed) > 3 else ''}; declare ",
            Advice("groups={block: [fields, ...]}", "groups with --groups FILE (JSON: {block: [fields, ...]})"),
            " that keep those fields together, or audit with ",
            Advice.argument("space", "raw"),
        )
    groups: dict[str, list[str]] = {}
    for column, origin in zip(columns, origins, strict=True):
        groups.setdefault(origin.fields[0], []).append(column)
    return groups


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
        raise EvidenceError(
            f"the group map names {list_names(unknown)}, which is not among the fields {list_names(known, 30)}"
        )
    alone = [name for name in known if name not in block_of]
    taken = set(block_of.values()).intersection(alone)
    if taken:
        name = min(taken)
        raise EvidenceError(
            f"the group map has a group {name!r}, but does not say where the field {name!r} belongs; name the group "
            "otherwise, or put the field into one"
        )
    misnamed = [name for name, block in block_of.items() if name != block and name in set(block_of.values())]
    if misnamed:
        name = misnamed[0]
        raise EvidenceError(
            f"the group map has a group {name!r}, and puts the field {name!r} into the group {block_of[name]!r}; name "
            "the group otherwise, as its losses would be read as those of the field"
        )
    block_of |= {name: name for name in alone}
    members = [(column,) if by_column else origin.fields for column, origin in zip(columns, origins, strict=True)]
    groups: dict[str, list[str]] = {block: [] for block in dict.fromkeys(block_of.values())}
    for column, names in zip(columns, members, strict=True):
        blocks = {block_of[name] for name in names}
        if len(blocks) > 1:
            raise EvidenceError(
                f"column {column!r} is made from {list_names(names)}, which the group map puts into different groups "
                f"{list_names(sorted(blocks))}; put them into one"
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
        for member, block in [(key, value)] if isinstance(value, str) else [(member, key) for member in value]:
            if isinstance(member, (list, dict, set)):
                raise EvidenceError(f"the group map puts {member!r} into {block!r}; the name of a field was expected")
            if member in block_of:
                raise EvidenceError(f"the group map puts {member!r} into both {block_of[member]!r} and {block!r}")
            block_of[str(member)] = str(block)
    return block_of


def merged_fields(frame: pd.DataFrame, kinds: Mapping[str, Kind], threshold: float) -> dict[str, str]:
    """Return field -> block, with fields joined (transitively) where their association reaches ``threshold``."""
    from scipy.cluster.hierarchy import DisjointSet  # slow to import, and only this grouping needs it

    blocks = DisjointSet(kinds)
    for a, b in itertools.combinations(kinds, 2):
        if not blocks.connected(a, b) and association(frame[a], kinds[a], frame[b], kinds[b]) >= threshold:
            blocks.merge(a, b)
    named, taken = dict[str, str](), set(kinds)
    for members in ([name for name in kinds if name in block] for block in blocks.subsets()):
        block = "+".join(members)
        while len(members) > 1 and block in taken:  # a field, or another block, is called so
            block += " (merged)"
        taken.add(block)
        named |= dict.fromkeys(members, block)
    return {name: named[name] for name in kinds}


def association(a: pd.Series, kind_a: Kind, b: pd.Series, kind_b: Kind) -> float:
    """Return the strength of association in [0, 1] over rows where both are known; 0 where either is constant.

    |Spearman's rho| for two numeric fields, Cramer's V for two nominal ones, the correlation ratio for one of each,
    rounded so that the order of the rows cannot carry it over a threshold.
    """
    known = (a.notna() & b.notna()).to_numpy()
    a, b = a[known], b[known]
    if len(a) < 2 or a.nunique() < 2 or b.nunique() < 2:
        return 0.0
    if kind_a == kind_b == "numeric":
        strength = abs(stats.spearmanr(a.to_numpy(float), b.to_numpy(float)).statistic)
    elif kind_a == kind_b == "nominal":
        strength = stats.contingency.association(pd.crosstab(a.astype(str), b.astype(str)).to_numpy())
    else:  # eta = sqrt(variance between the categories' means / total variance)
        category, number = (a, b) if kind_a == "nominal" else (b, a)
        values = number.to_numpy(float)
        means = pd.Series(values).groupby(category.astype(str).to_numpy()).transform("mean").to_numpy()
        total = float(((values - values.mean()) ** 2).sum())
        strength = np.sqrt(((means - values.mean()) ** 2).sum() / total) if total > 0 else 0.0
    return round_digits(float(strength), 1.0)
