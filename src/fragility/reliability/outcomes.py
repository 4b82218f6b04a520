"""FailureProbability: how likely each decision is lost, and what that means for the population."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fragility.arrays import Booleans, Floats, Integers
from fragility.drawing.figure import ReliabilityDisplay
from fragility.saving import save_report, without_nan
from fragility.text import BriefRepr, align_columns
from fragility.wording import describe_expected_loss, describe_failure, describe_first_group, describe_single_failures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_COLUMNS = ("id", "predicted", "confidence", "p_flip", "low", "high", "exact", "method", "expected_margin")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FailureProbability(BriefRepr):
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
    one_failure : array of shape (n,) or None
        With rates per mode, the probability that exactly one group fails and the decision is lost: exact, and part of
        ``p_flip``. None otherwise.

    See Also
    --------
    failure_probability : Makes one.
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
    one_failure: Floats | None = None

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
            JSON values: the population, the groups, the rows; NaN as None.
        """
        document = {
            "rows": len(self),
            "decisions_lost": self.lost,
            "decisions_lost_low": float(self.low.sum()),
            "decisions_lost_high": float(self.high.sum()),
            "exact_rows": int(self.exact.sum()),
            "condition": self.condition,
            "groups": self.groups().to_dict("records"),
            "predictions": self.to_pandas().to_dict("records"),
        }
        return dict(without_nan(document))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything (.json) or the table of rows (.csv, .parquet).

        Parameters
        ----------
        path : path
            The file to write; its ending names the format.
        """
        save_report(path, self.to_dict, self.to_arrow)

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
