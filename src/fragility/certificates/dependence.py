"""How much a finding depends on the baseline: the same confident rows under every baseline that the model admits.

Of n rows, let c_b be those that flip within two groups under baseline b, and c those under the declared one. The
finding is stable across baselines if for every other baseline b

    c / 2 <= c_b <= 2 c     or     |c_b - c| <= 0.02 n,

else it depends on the baseline (SPEC section 16). The rows are the confident ones whose ids have the smallest hashes,
which is as good as drawn at random, and does not depend on the order of the rows, on their parts or on the protocol.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.arrays import Floats, Integers
from fragility.certificates.claims import check_side_table, float_column, id_array, whole_column
from fragility.errors import CertificateError
from fragility.ids import id_keys
from fragility.protocol import Protocol
from fragility.scores import CONFIDENT, flips_early, flips_within
from fragility.text import align_columns
from fragility.wording import describe_dependence

COMPARED_ROWS = 500
FACTOR, POINTS = 2, 50  # the share may change by a factor of 2, or by 1/50 of the rows
STABLE, DEPENDS = "stable", "depends"
COMPARED_CLAIMS = ("id", "confidence", "flip_budget", "exposure")  # what is read of an audit
SHOWN_EXPOSED = 10
SHOWN_IDS = 10


def rows_to_compare(ids: Sequence[Hashable], confidence: Floats, count: int = COMPARED_ROWS) -> Integers:
    """Return the positions of the confident rows whose ids have the smallest hashes, in the order of these."""
    confident = np.flatnonzero(confidence >= CONFIDENT)
    keys = id_keys([ids[i] for i in confident.tolist()])
    return np.asarray(confident[np.argsort(keys, kind="stable")][:count], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class BaselineFigures:
    """The headline figures of an audit under one baseline; the manifest has fields of the same names."""

    baseline: str
    flip_within_one: int  # rows that flip when one group is lost
    flip_within_two: int
    never_flip: int  # rows that the path never flips
    median_flip_budget: float  # of k*, which is depth + 1 for rows that never flip
    most_exposed: tuple[Hashable, ...]  # ids of the ten most exposed rows, the most exposed first


@dataclass(frozen=True, eq=False)
class BaselineComparison:
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

    @property
    def disagreeing(self) -> tuple[str, ...]:
        """The baselines under which the share of early flips is too far from that under the declared one."""
        own = self.figures[0].flip_within_two
        found = []
        for other in self.figures[1:]:
            count = other.flip_within_two
            within_factor = count <= FACTOR * own and own <= FACTOR * count
            if not within_factor and POINTS * abs(count - own) > len(self):
                found.append(other.baseline)
        return tuple(found)

    @property
    def verdict(self) -> str:
        """``stable`` or ``depends``."""
        return DEPENDS if self.disagreeing else STABLE

    def section(self) -> dict[str, Any]:
        """Return what the manifest of an audit says of the comparison.

        Returns
        -------
        dict
            The figures under each baseline, how many rows flip early under how many of them, and the verdict.
        """
        counts = np.bincount(self.flips_under, minlength=len(self.baselines) + 1).tolist()
        figures = [{**asdict(one), "most_exposed": list(one.most_exposed)} for one in self.figures]
        return {"rows": len(self), "figures": figures, "rows_by_baselines": counts, "verdict": self.verdict}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            ``section()``, and the ids of the rows that flip early under all baselines and under only one.
        """
        only = {name: list(self.under_only(name)) for name in self.baselines}
        return {**self.section(), "under_all": list(self.under_all), "under_only": only}

    def to_pandas(self) -> Any:
        """Return the table for pandas.

        Returns
        -------
        pandas.DataFrame
            One row per prediction.
        """
        return self.table.to_pandas()

    def sentence(self) -> str:
        """Say whether the finding depends on the baseline.

        Returns
        -------
        str
            One sentence.
        """
        stable = self.verdict == STABLE
        own, *others = [
            (one.baseline, self._share(one.flip_within_two))
            for place, one in enumerate(self.figures)
            if place == 0 or stable or one.baseline in self.disagreeing
        ]
        return describe_dependence(len(self), own, others, stable=stable)

    def rows_sentence(self) -> str:
        """Say which rows flip early whatever the baseline, and how many under only one.

        Returns
        -------
        str
            One sentence.
        """
        every = self.under_all
        shown = ", ".join(str(own) for own in every[:SHOWN_IDS]) + (", ..." if len(every) > SHOWN_IDS else "")
        named = f" (rows {shown})" if every else ""
        only = [f"{len(self.under_only(name))} under {name}" for name in self.baselines if self.under_only(name)]
        also = f"; under one only: {', '.join(only)}" if only else ""
        return f"{len(every)} flip early under all {len(self.baselines)} baselines{named}{also}"

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

    __repr__ = __str__


# --- table --------------------------------------------------------------------------------------------------


def comparison_table(ids: Sequence[Hashable], claims: Sequence[tuple[str, Integers, Floats]]) -> pa.Table:
    """Return the table of a comparison; claims: of each baseline its name, flip budgets and exposures."""
    columns: dict[str, Any] = {"id": id_array(ids)}
    for name, budgets, exposures in claims:
        columns[f"flip_budget_{name}"] = pa.array(budgets, type=pa.int32())
        columns[f"exposure_{name}"] = pa.array(exposures, type=pa.float64())
    return pa.table(columns)


def check_comparison_table(table: pa.Table, baselines: Sequence[str], depth: int) -> None:
    """Refuse a table that is not written as the format says."""
    columns = [
        column
        for name in baselines
        for column in ((f"flip_budget_{name}", pa.int32()), (f"exposure_{name}", pa.float64()))
    ]
    check_side_table(table, "baselines", columns)
    if any(column.null_count for column in table.columns):
        raise CertificateError("the table of baselines holds nulls")
    if not 1 <= len(table) <= COMPARED_ROWS:
        raise CertificateError(f"the table of baselines has {len(table)} rows, from 1 to {COMPARED_ROWS} were expected")
    comparison = BaselineComparison(table, tuple(baselines), depth)
    for name in baselines:
        budgets, exposures = comparison.flip_budgets(name), comparison.exposures(name)
        if not ((budgets >= 1) & (budgets <= depth + 1)).all() or not ((exposures >= 0) & (exposures <= 1)).all():
            raise CertificateError(f"the table of baselines holds an impossible flip budget or exposure under {name}")


def check_comparison(comparison: BaselineComparison, claims: pa.Table, protocol: Protocol) -> None:
    """Refuse a comparison of other rows or baselines than an audit has.

    claims: the columns COMPARED_CLAIMS of all rows of the audit, or of those that may be compared.
    """
    if comparison.baselines != (protocol.baseline, *protocol.alternatives) or comparison.depth != protocol.depth:
        raise CertificateError(
            f"the comparison is of the baselines {', '.join(comparison.baselines)}, the protocol has "
            f"{', '.join((protocol.baseline, *protocol.alternatives))}"
        )
    chosen = rows_to_compare(claims.column("id").to_pylist(), claims.column("confidence").to_numpy())
    rows = claims.take(pa.array(chosen))
    if comparison.ids != tuple(rows.column("id").to_pylist()):
        raise CertificateError("the comparison of baselines is of other rows than the format chooses from this audit")
    for name, stated in {"flip_budget": comparison.flip_budgets, "exposure": comparison.exposures}.items():
        if not np.array_equal(stated(protocol.baseline), rows.column(name).to_numpy()):
            raise CertificateError(f"{name} in the comparison of baselines is not that of the certificates")
