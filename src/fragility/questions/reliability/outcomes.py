"""FailureProbability: how likely each decision is lost, and what that means for the population."""

from __future__ import annotations

import itertools
import math
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import DataError, FragilityError
from fragility.base.ids import id_text
from fragility.base.text import BriefRepr, align_columns
from fragility.pages.drawing import ReliabilityDisplay
from fragility.pages.results import JsonFile, save_report, without_nan
from fragility.pages.wording import (
    describe_expected_loss,
    describe_failure,
    describe_first_group,
    describe_single_failures,
)
from fragility.protocol import Protocol

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = "fragility-reliability/1"
ROUNDING = 1e-9  # how far sums that another machine adds up again may lie apart
ROW_COLUMNS = ("id", "predicted", "confidence", "p_flip", "low", "high", "exact", "method", "expected_margin")


class CertifiedRows(typing.Protocol):
    """What is asked of an audit, in memory or in a folder."""

    @property
    def manifest(self) -> Any: ...

    @property
    def protocol(self) -> Protocol: ...

    def __len__(self) -> int: ...

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]: ...


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FailureProbability(JsonFile, BriefRepr):
    """The probability that each decision is lost; n rows, G groups.

    With rates, groups fail independently. With recorded events, one of them has happened, as likely as it was frequent.

    Attributes
    ----------
    id : array of shape (n,)
        The rows' ids.
    predicted : array of shape (n,)
        The decision that may be lost.
    confidence : array of shape (n,)
        The model's probability of it.
    p_flip : array of shape (n,)
        The probability that it is lost.
    low : array of shape (n,)
        Lower end of its 95% interval; ``p_flip`` itself if that is exact.
    high : array of shape (n,)
        Upper end of the interval.
    exact : array of bool of shape (n,)
        Whether ``p_flip`` is exact.
    method : tuple of str
        By row: ``lattice``, ``bounds``, ``enumeration``, ``quasi-random`` or ``events``.
    expected_margin : array of shape (n,)
        The expected margin of two classes, clips aside; NaN if it has no closed form.
    importance : array of shape (n, G)
        Birnbaum's: P(lost | the group fails) - P(lost | it holds); NaN for recorded events, and where a group that
        never fails was left out of the count.
    kept : array of shape (n, G)
        By how much ``p_flip`` falls if the group never fails.
    rates : array of shape (G,) or None
        How often each group fails, whatever the mode; None for recorded events.
    group_names : tuple of str
        Names of the groups, in declared order.
    condition : str
        How evidence fails, in words: ``if each field is missing 5% of the time``.
    model_fingerprint : str
        Fingerprint of the model that was asked.
    protocol_digest : str
        Digest of the protocol, which declares groups, baseline and decision.
    one_failure : array of shape (n,) or None
        With rates per mode, the probability that exactly one group fails and the decision is lost: exact, and part of
        ``p_flip``. None otherwise.

    See Also
    --------
    assess_reliability : Makes one.
    ReliabilityDisplay : Its picture.
    """

    id: npt.NDArray[Any]
    predicted: npt.NDArray[Any]
    confidence: Floats
    p_flip: Floats
    low: Floats
    high: Floats
    exact: Booleans
    method: tuple[str, ...]
    expected_margin: Floats
    importance: Floats
    kept: Floats
    rates: Floats | None
    group_names: tuple[str, ...]
    condition: str
    model_fingerprint: str
    protocol_digest: str
    one_failure: Floats | None = None

    _noun: ClassVar[str] = "reliability analysis"
    _error: ClassVar[type[FragilityError]] = DataError

    def __len__(self) -> int:
        return len(self.id)

    @property
    def lost(self) -> float:
        """Decisions expected to be lost: the sum of p_flip."""
        return float(self.p_flip.sum())

    @property
    def kept_by_group(self) -> Floats:
        """(G,) how many of them would be kept if a group never failed."""
        return np.asarray(self.kept.sum(axis=0))

    def order(self) -> Integers:
        """Return the rows, most likely lost first.

        Returns
        -------
        array of shape (n,)
            Positions of the rows.
        """
        return np.argsort(-self.p_flip, kind="stable")

    def groups(self) -> pd.DataFrame:
        """Return the groups, the most decisions kept first: which feed to make redundant.

        Returns
        -------
        pandas.DataFrame
            One row per group: ``group``, ``rate``, ``decisions_kept`` and ``share_of_lost``.
        """
        kept = self.kept_by_group
        table = pd.DataFrame(
            {
                "group": self.group_names,
                "rate": np.full(len(kept), np.nan) if self.rates is None else self.rates,
                "decisions_kept": kept,
                "share_of_lost": kept / self.lost if self.lost > 0 else np.zeros(len(kept)),
            }
        )
        return table.sort_values("decisions_kept", ascending=False, kind="stable", ignore_index=True)

    def sentence(self, row: int) -> str:
        """Return one row in words: ``lost in 1 of 8 cases if each field is missing 5% of the time``.

        Parameters
        ----------
        row : int
            Its position.

        Returns
        -------
        str
            The sentence, with the interval where the probability is not exact.
        """
        interval = None if self.exact[row] else (float(self.low[row]), float(self.high[row]))
        return describe_failure(float(self.p_flip[row]), self.condition, interval)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a table.

        Returns
        -------
        pandas.DataFrame
            One row per prediction; the importance of each group under ``importance: NAME``.
        """
        own = {name: getattr(self, name) for name in ROW_COLUMNS}
        if self.one_failure is not None:
            own["one_failure"] = self.one_failure
        by_group = {f"importance: {name}": self.importance[:, g] for g, name in enumerate(self.group_names)}
        return pd.DataFrame({**own, **by_group})

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table.

        Returns
        -------
        pyarrow.Table
            As ``to_pandas``, null where a value is not defined.
        """
        return pa.Table.from_pandas(self.to_pandas(), preserve_index=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form.

        Returns
        -------
        dict
            JSON values, which ``from_dict`` takes: the population, the groups, the rows; NaN as None. ``kept`` of a row
            is in the order of ``group_names``.
        """
        rows = self.to_pandas().to_dict("records")
        document = {
            "format": FORMAT,
            "model_fingerprint": self.model_fingerprint,
            "protocol_digest": self.protocol_digest,
            "group_names": list(self.group_names),
            "rows": len(self),
            "decisions_lost": self.lost,
            "decisions_lost_low": float(self.low.sum()),
            "decisions_lost_high": float(self.high.sum()),
            "exact_rows": int(self.exact.sum()),
            "condition": self.condition,
            "groups": self.groups().to_dict("records"),
            "predictions": [row | {"kept": kept} for row, kept in zip(rows, self.kept.tolist(), strict=True)],
        }
        return dict(without_nan(document))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> FailureProbability:
        """Return the probabilities that ``to_dict`` wrote; anything else is refused.

        Parameters
        ----------
        document : mapping
            What ``to_dict`` returned, or a ``.json`` file of ``save`` holds.

        Returns
        -------
        FailureProbability
            Equal to the one that was written.
        """
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            got = document.get("format") if isinstance(document, Mapping) else type(document).__name__
            raise DataError(
                f"expected a reliability analysis of format {FORMAT!r}, got {got!r}; "
                "`fragility reliability --out FILE.json` writes one"
            )
        try:
            found = _read_probabilities(document)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"the reliability analysis is malformed: {error!s:.120}") from error
        _check_sums(found.to_dict(), document)
        return found

    def check_audit(self, audit: CertifiedRows) -> None:
        """Refuse an audit of another model, protocol or rows.

        Parameters
        ----------
        audit : Certificates or StoredAudit
            The audit that is to be reported on.

        Raises
        ------
        DataError
            The probabilities do not belong to it.
        """
        manifest = audit.manifest
        if self.model_fingerprint != manifest.model.fingerprint:
            differs = "model"
        elif self.protocol_digest != audit.protocol.digest:
            differs = "protocol"
        elif len(self) != len(audit) or any(
            id_text(mine) != id_text(own)
            for mine, own in zip(
                self.id,
                (own for batch in audit.batches(["id"]) for own in batch.column("id").to_pylist()),
                strict=True,
            )
        ):
            differs = "rows"
        else:
            return
        other = "are of other rows than" if differs == "rows" else f"are of another {differs} than"
        raise DataError(
            f"the failure probabilities {other} the audit; make them with the audited model, the audit's protocol and "
            "the audited rows"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write everything (.json) or the table of rows (.csv, .parquet).

        Parameters
        ----------
        path : path
            The file to write; its ending names the format. ``load`` reads ``.json`` back.

        Returns
        -------
        Path
            The file written.
        """
        save_report(path, self.to_dict, self.to_arrow)
        return Path(path)

    def plot(self, ax: Axes | None = None, *, top: int = 12) -> ReliabilityDisplay:
        """Draw the groups against the decisions that would be kept if each never failed.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Draw on these; new axes otherwise.
        top : int, default=12
            How many groups, the most decisions kept first.

        Returns
        -------
        ReliabilityDisplay
            The picture, with its axes and figure.
        """
        table = self.groups().head(top)
        display = ReliabilityDisplay(
            table["group"].tolist(), table["decisions_kept"].tolist(), self.lost, len(self), self.condition
        )
        return display.plot(ax)

    def to_text(self, top: int = 5) -> str:
        """Return the population, the groups to make reliable first, and the rows most likely lost.

        Parameters
        ----------
        top : int, default=5
            How many groups and how many rows.

        Returns
        -------
        str
            Several lines of text; also what printing shows.
        """
        cells = [("row", "decision", "confidence", "probability of loss")]
        for i in self.order()[:top]:
            cells.append(
                (str(self.id[i]), str(self.predicted[i]), f"{self.confidence[i]:.3f}", f"{self.p_flip[i]:.4f}")
            )
        return "\n".join([*self.group_lines(top), "", *align_columns(cells, left=2)])

    def __str__(self) -> str:
        return self.to_text()

    def group_lines(self, top: int = 5) -> list[str]:
        """Return the population and the groups to make reliable first, as text.

        Parameters
        ----------
        top : int, default=5
            How many groups.

        Returns
        -------
        list of str
            How many decisions are expected to be lost, which group to make reliable first, and a table.
        """
        table = self.groups().head(top)
        first = describe_first_group(table["group"][0], table["decisions_kept"][0], self.lost)
        lost = describe_expected_loss(self.lost, len(self), int(self.exact.sum()), self.condition)
        if self.one_failure is not None:
            lost = f"{lost} {describe_single_failures(float(self.one_failure.sum()))}"
        cells = [("group", "decisions kept if it never failed", "share of those lost")]
        for name, kept, share in zip(table["group"], table["decisions_kept"], table["share_of_lost"], strict=True):
            cells.append((str(name), f"{kept:.2f}", f"{share:.0%}"))
        return [lost, *([] if first is None else [first]), "", *align_columns(cells)]


# --- from plain values --------------------------------------------------------------------------------------


def _read_probabilities(document: Mapping[str, Any]) -> FailureProbability:
    """Return what a document says; an exception for what is not there, of another type, or no probability."""
    names = tuple(str(name) for name in document["group_names"])
    lines, rows = document["groups"], document["predictions"]
    rate = {line["group"]: line["rate"] for line in lines}
    if len(lines) != len(names) or set(rate) != set(names):
        raise ValueError("groups must list each of group_names once")
    recorded = all(value is None for value in rate.values())
    if not rows or document["rows"] != len(rows):
        raise ValueError(f"it is to have {document['rows']!r} predictions, and has {len(rows)}")
    columns = {*ROW_COLUMNS, *(f"importance: {name}" for name in names), "kept"}
    columns |= {"one_failure"} if "one_failure" in rows[0] else set()
    for row in rows:
        if set(row) != columns:
            raise ValueError(f"the entries of each prediction must be {', '.join(sorted(columns))}")

    def numbers(name: str, *, gaps: bool = False, low: float = -math.inf, high: float = math.inf) -> Floats:
        values = _read_numbers([row[name] for row in rows], name, gaps)
        if not ((values >= low - ROUNDING) & (values <= high + ROUNDING) | np.isnan(values)).all():
            raise ValueError(f"{name} must lie between {low:g} and {high:g}")
        return values

    p, lower, upper = (numbers(name, low=0.0, high=1.0) for name in ("p_flip", "low", "high"))
    exact = np.array([row["exact"] for row in rows])
    if exact.dtype != bool or not all(isinstance(row["method"], str) for row in rows):
        raise TypeError("exact must be true or false, and method text")
    if (np.abs(p - lower) + np.abs(p - upper))[exact].any():
        raise ValueError("the interval of an exact probability must be the probability")
    ids = [row["id"] for row in rows]
    if len({id_text(own) for own in ids}) < len(ids):
        raise ValueError("ids must be distinct")
    importance = [numbers(f"importance: {name}", gaps=True) for name in names]
    kept = np.stack([_read_numbers(row["kept"], "kept", False) for row in rows])
    if kept.shape != (len(rows), len(names)):
        raise ValueError("kept must have one number for each group")
    for name in ("condition", "model_fingerprint", "protocol_digest"):
        if not isinstance(document[name], str):
            raise TypeError(f"{name} must be text")
    return FailureProbability(
        id=np.fromiter(ids, dtype=object, count=len(ids)),
        predicted=np.fromiter((row["predicted"] for row in rows), dtype=object, count=len(ids)),
        confidence=numbers("confidence", low=0.0, high=1.0),
        p_flip=p,
        low=lower,
        high=upper,
        exact=exact,
        method=tuple(row["method"] for row in rows),
        expected_margin=numbers("expected_margin", gaps=True),
        importance=np.stack(importance, axis=1),
        kept=kept,
        rates=None if recorded else _read_numbers([rate[name] for name in names], "rate", False),
        group_names=names,
        condition=document["condition"],
        model_fingerprint=document["model_fingerprint"],
        protocol_digest=document["protocol_digest"],
        one_failure=numbers("one_failure", low=0.0, high=1.0) if "one_failure" in columns else None,
    )


def _read_numbers(values: Any, name: str, gaps: bool) -> Floats:
    """Return numbers as an array; None, where there may be gaps, as NaN."""
    for value in values:
        if not (type(value) in (int, float) or (gaps and value is None)):
            raise TypeError(f"{name} must be a number, got {value!r:.40}")
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _check_sums(expected: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    """Refuse a document whose population does not follow from its rows."""

    def agree(own: Any, given: Any) -> bool:
        if own is None or given is None:
            return own is given
        return type(given) in (int, float) and math.isclose(own, given, rel_tol=ROUNDING, abs_tol=ROUNDING)

    for name in ("decisions_lost", "decisions_lost_low", "decisions_lost_high", "exact_rows"):
        if not agree(expected[name], document.get(name)):
            raise DataError(
                f"the reliability analysis says that {name} is {document.get(name)!r}, but its rows add up to "
                f"{expected[name]!r}"
            )
    given = {line["group"]: line for line in document["groups"]}
    for line in expected["groups"]:
        for name in ("decisions_kept", "share_of_lost"):
            if not agree(line[name], given[line["group"]].get(name)):
                raise DataError(
                    f"the reliability analysis says that {name} of {line['group']!r} is "
                    f"{given[line['group']].get(name)!r}, but its rows add up to {line[name]!r}"
                )
    ranked = [line["decisions_kept"] for line in document["groups"]]
    if any(before < after for before, after in itertools.pairwise(ranked)):
        raise DataError("the reliability analysis does not list its groups by the decisions kept, most first")
