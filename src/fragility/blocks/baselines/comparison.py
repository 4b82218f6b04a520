"""How much a finding depends on the baseline: the same confident rows under every baseline that the model admits.

Of n rows, let E_b be those that flip within two groups under baseline b, and E those under the declared one. Another
baseline agrees

    in number   if  |E| / 2 <= |E_b| <= 2 |E|   or   abs(|E_b| - |E|) <= 0.02 n,
    in rows     if  at least half of the rows in E or E_b are in both: the Wilson interval of their share lies above
                1/2, or no row is in either.

The finding is stable across baselines if every other baseline agrees in number and in rows. It depends on the baseline
if one does not: in number, or in rows if the interval lies below 1/2. Below 30 rows, or where an interval contains 1/2,
there are too few rows to tell (SPEC section 16).

The rows compared are confident ones, drawn by their content (``blocks/choice.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.base.arrays import Floats, Integers
from fragility.base.shares import Share, share_of
from fragility.base.text import BriefRepr, align_columns
from fragility.blocks.claims import float_column, id_array, whole_column
from fragility.pages.wording import FEW_CONFIDENT, join_names, write_count, write_percent, write_share
from fragility.scores import flips_early, flips_within

COMPARED_ROWS = 500
FACTOR, POINTS = 2, 50  # the share may change by a factor of 2, or by 1/50 of the rows
SAME_ROWS = 0.5  # of the rows that flip early under either of two baselines, so many must do so under both
COMPARED_CLAIMS = ("id", "confidence", "flip_budget", "exposure")  # what is read of an audit
SHOWN_EXPOSED = 10
SHOWN_IDS = 10


class Stability(StrEnum):
    """Whether a finding is the same under another baseline, or under all of them."""

    STABLE = "stable"
    DEPENDS = "depends"
    TOO_FEW_ROWS = "too_few_rows"


@dataclass(frozen=True, slots=True)
class BaselineAgreement:
    """What becomes of the rows that flip early when another baseline replaces the declared one."""

    baseline: str  # the other one
    early: int  # rows that flip early under it
    either: int  # under it or under the declared one
    both: int
    in_number: Stability
    in_rows: Stability

    @property
    def stability(self) -> Stability:
        """``depends`` if it depends in number or in rows, else ``too_few_rows`` if one of them cannot be told."""
        return combine_stability((self.in_number, self.in_rows))

    @property
    def same_rows(self) -> Share:
        """Of the rows that flip early under either baseline, those that do under both: their Jaccard index."""
        return share_of(self.both, self.either)


def combine_stability(found: Sequence[Stability]) -> Stability:
    """Return the worst of several answers: ``depends``, else ``too_few_rows``, else ``stable``."""
    for worst in (Stability.DEPENDS, Stability.TOO_FEW_ROWS):
        if worst in found:
            return worst
    return Stability.STABLE


def _are_near(count: int, other: int, rows: int) -> bool:
    """Whether two counts of the same rows are within the factor or the percentage points of the rule."""
    within_factor = other <= FACTOR * count and count <= FACTOR * other
    return within_factor or POINTS * abs(other - count) <= rows


def find_other_ones(rows: int, figures: Sequence[BaselineFigures]) -> list[BaselineFigures]:
    """Return the baselines under which the flips within one group, of which the verdict says nothing, are not near."""
    own, *others = figures
    return [one for one in others if not _are_near(own.flip_within_one, one.flip_within_one, rows)]


def compare_early(baseline: str, own: Any, other: Any) -> BaselineAgreement:
    """Return how far two baselines agree.

    own, other: (n,) which rows flip early under the declared one and the other, which is called ``baseline``.
    """
    rows, c, c_other = len(own), int(own.sum()), int(other.sum())
    either, both = int((own | other).sum()), int((own & other).sum())
    in_number = in_rows = Stability.TOO_FEW_ROWS
    if rows >= FEW_CONFIDENT:
        in_number = Stability.STABLE if _are_near(c, c_other, rows) else Stability.DEPENDS
        same = share_of(both, either)
        if not either or same.lower > SAME_ROWS:
            in_rows = Stability.STABLE
        elif same.upper < SAME_ROWS:
            in_rows = Stability.DEPENDS
    return BaselineAgreement(baseline, c_other, either, both, in_number, in_rows)


@dataclass(frozen=True, slots=True)
class BaselineFigures:
    """The headline figures of an audit under one baseline."""

    baseline: str
    flip_within_one: int  # rows that flip when one group is lost
    flip_within_two: int
    never_flip: int  # rows that the path never flips
    median_flip_budget: float  # of k*, which is depth + 1 for rows that never flip
    most_exposed: tuple[Hashable, ...]  # ids of the ten most exposed rows, the most exposed first


@dataclass(frozen=True, eq=False, repr=False)
class BaselineComparison(BriefRepr):
    """The same confident rows under every baseline that a model admits; :func:`compare_baselines` makes one.

    Attributes
    ----------
    table : pyarrow.Table
        One row per prediction: ``id``, and for each baseline ``flip_budget_<baseline>`` and ``exposure_<baseline>``.
    baselines : tuple of str
        The declared baseline, then the others.
    depth : int
        Of the protocol: a flip budget of depth + 1 means that the path does not flip the prediction.
    """

    table: pa.Table
    baselines: tuple[str, ...]
    depth: int

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def flip_budgets(self, baseline: str) -> Integers:
        """Return k* under one baseline.

        Parameters
        ----------
        baseline : str
            One of ``baselines``.

        Returns
        -------
        array of shape (n,)
            In the order of the table.
        """
        return np.asarray(whole_column(self.table, f"flip_budget_{baseline}").to_numpy(), dtype=np.int64)

    def exposures(self, baseline: str) -> Floats:
        """Return the exposure under one baseline.

        Parameters
        ----------
        baseline : str
            One of ``baselines``.

        Returns
        -------
        array of shape (n,)
            In the order of the table.
        """
        return float_column(self.table, f"exposure_{baseline}")

    @cached_property
    def figures(self) -> tuple[BaselineFigures, ...]:
        """The headline figures under each baseline, the declared one first."""
        return tuple(map(self._figures_under, self.baselines))

    def _figures_under(self, baseline: str) -> BaselineFigures:
        budgets = self.flip_budgets(baseline)
        order = np.argsort(-self.exposures(baseline), kind="stable")[:SHOWN_EXPOSED]
        return BaselineFigures(
            baseline=baseline,
            flip_within_one=int(flips_within(1, budgets, self.depth).sum()),
            flip_within_two=int(self._early(baseline).sum()),
            never_flip=int((budgets > self.depth).sum()),
            median_flip_budget=float(np.median(budgets)),
            most_exposed=tuple(self.ids[i] for i in order),
        )

    def _early(self, baseline: str) -> Any:
        return flips_early(self.flip_budgets(baseline), self.depth)

    @cached_property
    def ids(self) -> tuple[Hashable, ...]:
        """Ids of the rows."""
        return tuple(self.table.column("id").to_pylist())

    @cached_property
    def flips_under(self) -> Integers:
        """Under how many baselines each row flips within two groups."""
        return np.asarray(sum(self._early(name).astype(np.int64) for name in self.baselines), dtype=np.int64)

    @property
    def under_all(self) -> tuple[Hashable, ...]:
        """Ids of the rows that flip within two groups under every baseline."""
        return self._ids_where(self.flips_under == len(self.baselines))

    def under_only(self, baseline: str) -> tuple[Hashable, ...]:
        """Return the rows that flip within two groups under one baseline and under no other.

        Parameters
        ----------
        baseline : str
            One of ``baselines``.

        Returns
        -------
        tuple of int or str
            Their ids.
        """
        return self._ids_where((self.flips_under == 1) & self._early(baseline))

    def _ids_where(self, chosen: Any) -> tuple[Hashable, ...]:
        return tuple(self.ids[i] for i in np.flatnonzero(chosen))

    @cached_property
    def agreements(self) -> tuple[BaselineAgreement, ...]:
        """How far each other baseline agrees with the declared one, in number and in rows."""
        own, *others = self.baselines
        return tuple(compare_early(name, self._early(own), self._early(name)) for name in others)

    @property
    def disagreeing(self) -> tuple[str, ...]:
        """The baselines under which the finding is another, in number or in rows."""
        return tuple(one.baseline for one in self.agreements if one.stability is Stability.DEPENDS)

    @property
    def verdict(self) -> Stability:
        """``stable``, ``depends`` or ``too_few_rows``."""
        return combine_stability([one.stability for one in self.agreements])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            The figures under each baseline, how many rows flip early under how many of them, how far each other
            baseline agrees with the declared one, the verdict, and the ids of the rows that flip early under all
            baselines and under only one.
        """
        counts = np.bincount(self.flips_under, minlength=len(self.baselines) + 1).tolist()
        figures = [{**asdict(one), "most_exposed": list(one.most_exposed)} for one in self.figures]
        agreements = [
            {**asdict(one), "in_number": str(one.in_number), "in_rows": str(one.in_rows)} for one in self.agreements
        ]
        return {
            "rows": len(self),
            "figures": figures,
            "rows_by_baselines": counts,
            "agreements": agreements,
            "verdict": str(self.verdict),
            "under_all": list(self.under_all),
            "under_only": {name: list(self.under_only(name)) for name in self.baselines},
        }

    def to_pandas(self) -> Any:
        """Return the table for pandas.

        Returns
        -------
        pandas.DataFrame
            One row per prediction.
        """
        return self.table.to_pandas()

    def sentence(self) -> str:
        """Say whether the finding depends on the baseline, and if so whether in number or in rows.

        Returns
        -------
        str
            One sentence, without a capital and a full stop.
        """
        return describe_dependence(len(self), self.figures, self.agreements)

    def rows_sentence(self) -> str:
        """Say which rows flip early whatever the baseline, and how many under only one.

        Returns
        -------
        str
            One sentence.
        """
        every = self.under_all
        shown = ", ".join(str(own) for own in every[:SHOWN_IDS]) + (", ..." if len(every) > SHOWN_IDS else "")
        named = f": rows {shown}" if every else ""
        only = [f"{len(self.under_only(name))} under {name}" for name in self.baselines if self.under_only(name)]
        also = f"; under one only: {', '.join(only)}" if only else ""
        return f"{describe_under_all(len(every), len(self), self.baselines)}{named}{also}"

    def _share(self, count: int) -> str:
        return f"{count / len(self):.1%}" if len(self) else "none"

    def __str__(self) -> str:
        unflipped = f"not within {self.depth}"
        lines: list[tuple[str, ...]] = [("baseline", "flip within one", "within two", unflipped, "median k*")]
        for place, one in enumerate(self.figures):
            name = f"{one.baseline} (declared)" if place == 0 else one.baseline
            counts = (one.flip_within_one, one.flip_within_two, one.never_flip)
            told = [f"{count} ({self._share(count)})" for count in counts]
            median = "none" if one.median_flip_budget > self.depth else f"{one.median_flip_budget:g}"
            lines.append((name, *told, median))
        return "\n".join([*align_columns(lines), self.sentence(), self.rows_sentence()])

    def _headline(self) -> str:
        return self.sentence()


# --- words --------------------------------------------------------------------------------------------------


def describe_dependence(rows: int, figures: Sequence[BaselineFigures], agreements: Sequence[BaselineAgreement]) -> str:
    """Return whether a finding depends on the baseline, in number or in rows; a sentence without a full stop.

    figures: under the declared baseline and the others, in the order of ``agreements``.
    """
    own = figures[0]
    verdict = combine_stability([one.stability for one in agreements])
    if rows < FEW_CONFIDENT:
        return (
            f"too few rows to tell whether the finding depends on the baseline: {write_count(rows, 'prediction')} "
            f"{'was' if rows == 1 else 'were'} confident and could be compared, and {FEW_CONFIDENT} are needed"
        )

    def name_shares(some: Sequence[BaselineAgreement]) -> str:
        return join_names([f"{write_percent(one.early / rows)} under {one.baseline}" for one in some])

    declared = f"{write_percent(own.flip_within_two / rows)} flip early under {own.baseline}"
    of_rows = f"of {write_count(rows, 'confident prediction')}, {declared}"
    if verdict is Stability.STABLE:
        least = min((one.same_rows.value for one in agreements if one.either), default=None)
        same = ""
        if least is not None:
            same = f"; of those that do under {own.baseline} or another, at least {write_percent(least)} do under both"
        ones = [
            f"{write_percent(one.flip_within_one / rows)} under {one.baseline}"
            for one in find_other_ones(rows, figures)
        ]
        if ones:
            same += f"; not so within one group: {write_percent(own.flip_within_one / rows)} flip under {own.baseline}"
            same += f", but {join_names(ones)}"
        return f"the finding is stable across baselines: {of_rows}, {name_shares(agreements)}{same}"
    told = [one for one in agreements if one.stability is verdict]
    in_number = [one for one in told if one.in_number is verdict]
    in_rows = [one for one in told if one.in_number is not verdict]
    pairs = join_names(
        [
            f"of the {one.either:,} that flip early under {own.baseline} or {one.baseline} {one.both:,} do under both, "
            f"{write_share(one.same_rows)}"
            for one in in_rows
        ]
        or [""]
    )
    if verdict is Stability.TOO_FEW_ROWS:
        return f"too few rows to tell whether the finding depends on the baseline: {of_rows}, and {pairs}"
    which = " and ".join(name for name, some in (("number", in_number), ("rows", in_rows)) if some)
    shares = [f"but {name_shares(in_number)}"] if in_number else []
    others = [f"{name_shares(in_rows)}, but not the same rows: {pairs}"] if in_rows else []
    return f"the finding depends on the baseline, in {which}: {of_rows}, {', and '.join([*shares, *others])}"


def describe_under_all(count: int, rows: int, baselines: Sequence[str]) -> str:
    """Return how many of the rows compared flip early under every baseline that was tried."""
    noun = write_count(rows, "confident prediction")
    tried = f"all {len(baselines)} baselines tried ({join_names(baselines)})"
    return f"{count:,} of {noun} {'flips' if 1 in (count, rows) else 'flip'} within two groups under {tried}"


STABILITY_WORDS = {
    Stability.STABLE: "stable across baselines",
    Stability.DEPENDS: "depends on the baseline",
    Stability.TOO_FEW_ROWS: "too few rows to tell whether it depends on the baseline",
}


def name_stability(found: BaselineComparison | None) -> str:
    """Return in a few words whether a finding depends on the baseline, for tables and one line of text."""
    if found is None:
        return "not compared under other baselines"
    told = STABILITY_WORDS[found.verdict]
    ones = [one.baseline for one in find_other_ones(len(found), found.figures)]
    if found.verdict is Stability.STABLE and ones:
        return f"{told} (within two groups; within one it differs under {join_names(ones)})"
    if found.verdict is not Stability.DEPENDS:
        return told
    those = [one for one in found.agreements if one.stability is Stability.DEPENDS]
    number = [one.baseline for one in those if one.in_number is Stability.DEPENDS]
    rows = [one.baseline for one in those if one.in_number is not Stability.DEPENDS]
    which = [f"in {what} under {join_names(names)}" for what, names in (("number", number), ("rows", rows)) if names]
    return f"{told} ({'; '.join(which)})"


# --- table --------------------------------------------------------------------------------------------------


def comparison_table(ids: Sequence[Hashable], claims: Sequence[tuple[str, Integers, Floats]]) -> pa.Table:
    """Return the table of a comparison; claims: of each baseline its name, flip budgets and exposures."""
    columns: dict[str, Any] = {"id": id_array(ids)}
    for name, budgets, exposures in claims:
        columns[f"flip_budget_{name}"] = pa.array(budgets, type=pa.int32())
        columns[f"exposure_{name}"] = pa.array(exposures, type=pa.float64())
    return pa.table(columns)
