"""Stressors: how a row is changed, given its random numbers.

With xbar the protocol's baseline and u independent uniforms on [0, 1):

* ``Mask(r)``: every column of group g takes its baseline where u_g < r;
* ``Dropout(r)``: column j takes its baseline where u_j < r;
* ``Donor(r)``: every column of group g takes the values of donor row floor(v_g * m) where u_g < r, with m donor rows
  (training rows, in the order of their digests) and v_g the uniform at position G + g: no baseline is involved;
* ``Noise(e)``: a numeric column becomes x_j + e * spread_j * (2 u_j - 1), spread_j its training standard deviation;
  nominal columns (one-hot, ordinal, indicators, nominal fields) and columns without a spread are left alone;
* ``Outages(patterns, counts)``: a recorded event is drawn and the groups of the fields it lacked take their baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import Advice, DataError, ProtocolError
from fragility.base.schemas import Positive
from fragility.base.text import BriefRepr
from fragility.evidence import EvidenceRows, States
from fragility.protocol import Protocol
from fragility.questions.stress.draws import Draws, Words, mirrored, strikes, uniforms


@dataclass(frozen=True, slots=True)
class Layout:
    """The part of the evidence space that stressors read; d columns, G groups."""

    column_group: Integers  # (d,) group index of each column
    n_groups: int
    spread: Floats  # (d,) training standard deviation, 0 where noise does not apply
    fields: tuple[tuple[str, ...], ...]  # (d,) raw fields each column is made from
    donors: Floats | None = None  # (m, d) rows that lend their values, for `Donor`

    @classmethod
    def of(cls, protocol: Protocol, rows: EvidenceRows, donors: Floats | None = None) -> Layout:
        """Return the layout of rows bound to a protocol."""
        spread = [column.spread if column.kind == "numeric" else None for column in protocol.columns]
        return cls(
            column_group=np.asarray(rows.column_group, dtype=np.int64),
            n_groups=int(rows.n_groups),
            spread=np.array([0.0 if s is None or not np.isfinite(s) else float(s) for s in spread]),
            fields=protocol.evidence.column_fields,
            donors=donors,
        )

    def groups_of(self, field: str) -> Integers:
        """Return indices of the groups that hold a column of the raw field."""
        here = np.asarray([field in names for names in self.fields], dtype=bool)
        return np.unique(self.column_group[here])

    @property
    def known_fields(self) -> tuple[str, ...]:
        """Every raw field some column is made from, sorted."""
        return tuple(sorted({name for names in self.fields for name in names}))


class Stressor:
    """Base of the stressors."""

    __slots__ = ()
    kind: ClassVar[str]

    @property
    def name(self) -> str:
        """Readable name, with the severity if there is one."""
        return self.kind

    def stress_rows(self, x: Floats, keys: Words, draws: Draws, layout: Layout) -> States | Floats:
        """Return what each draw does to each row.

        Parameters
        ----------
        x : array of shape (n, d)
            Rows of the evidence space.
        keys : array of shape (n,)
            One random key per row, made from seed, stressor and row id.
        draws : array of int, or BalancedDraws
            Numbers of the draws.
        layout : Layout
            Groups and spread of the columns.

        Returns
        -------
        States or array of shape (n, draws, d)
            What takes its baseline, where lost values do; else the stressed copies themselves.
        """
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form.

        Returns
        -------
        dict
            JSON values; :meth:`Stress.from_dict` reads them.
        """
        raise NotImplementedError


class _Severe(Stressor):
    """Base of the stressors that are declared by one number."""

    __slots__ = ()
    most: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        what, value = self._severity
        if not (isinstance(value, (int, float)) and np.isfinite(value) and 0.0 <= value <= self.most):
            limit = f"between 0 and {self.most:g}" if np.isfinite(self.most) else "a finite number of at least 0"
            raise ProtocolError(f"{self.kind}: {what} must be {limit}, got {value!r}")

    @property
    def _severity(self) -> tuple[str, Any]:
        what = fields(self)[0].name  # type: ignore[arg-type]
        return what, getattr(self, what)

    @property
    def name(self) -> str:
        return f"{self.kind}({self._severity[1]:g})"

    def to_dict(self) -> dict[str, Any]:
        what, value = self._severity
        return {"kind": self.kind, what: float(value)}


@dataclass(frozen=True, slots=True)
class Mask(_Severe):
    """Every group replaced by its baseline independently with probability ``rate``.

    Parameters
    ----------
    rate : float, default=0.3
        Between 0 and 1.
    """

    rate: float = 0.3
    kind = "mask"

    def stress_rows(self, x: Floats, keys: Words, draws: Draws, layout: Layout) -> States:
        return States.removals(strikes(keys, draws, np.arange(layout.n_groups), self.rate))


@dataclass(frozen=True, slots=True)
class Dropout(_Severe):
    """Every column replaced by its baseline independently with probability ``rate``.

    Parameters
    ----------
    rate : float, default=0.3
        Between 0 and 1.
    """

    rate: float = 0.3
    kind = "dropout"

    def stress_rows(self, x: Floats, keys: Words, draws: Draws, layout: Layout) -> States:
        columns = np.arange(len(layout.column_group))
        return States.removals(strikes(keys, draws, columns, self.rate), by_column=True)


@dataclass(frozen=True, slots=True)
class Donor(_Severe):
    """Every group replaced by another row's values independently with probability ``rate``; needs donor rows.

    Parameters
    ----------
    rate : float, default=0.3
        Between 0 and 1.
    """

    rate: float = 0.3
    kind = "donor"

    def stress_rows(self, x: Floats, keys: Words, draws: Draws, layout: Layout) -> Floats:
        if layout.donors is None:
            raise ProtocolError(
                "donor: another row's values are needed; give training rows",
                Advice(" with donors=X_train", ", in Python"),
            )
        groups = np.arange(layout.n_groups)
        hit = strikes(keys, draws, groups, self.rate)
        chosen = (uniforms(keys, draws, layout.n_groups + groups) * len(layout.donors)).astype(np.int64)
        lent = layout.donors[chosen[:, :, layout.column_group], np.arange(x.shape[1])]
        return np.where(hit[:, :, layout.column_group], lent, x[:, None, :])


@dataclass(frozen=True, slots=True)
class Noise(_Severe):
    """Uniform noise of at most ``extent`` training standard deviations on numeric columns.

    Parameters
    ----------
    extent : float, default=0.3
        A finite number of at least 0.
    """

    extent: float = 0.3
    kind = "noise"
    most = np.inf

    def stress_rows(self, x: Floats, keys: Words, draws: Draws, layout: Layout) -> Floats:
        moved = np.flatnonzero(layout.spread > 0.0)
        out = np.repeat(x[:, None, :], len(draws), axis=1)
        shift = mirrored(keys, draws, moved)
        shift *= 2.0
        shift -= 1.0
        shift *= self.extent * layout.spread[moved]
        out[:, :, moved] += shift
        return out


@dataclass(frozen=True, slots=True, repr=False)
class Outages(Stressor, BriefRepr):
    """Recorded outages: which fields were unavailable together, and how often.

    Parameters
    ----------
    patterns : tuple of tuple of str
        Sorted tuples of raw field names, in sorted order.
    counts : tuple of int
        The number of events of each.

    See Also
    --------
    Stress.from_outages : From a log as people keep it.

    Examples
    --------
    >>> import fragility as fg
    >>> fg.Outages.from_events([{"income", "employer"}, {"income"}, {"employer", "income"}])
    Outages(patterns=(('employer', 'income'), ('income',)), counts=(2, 1))
    """

    patterns: tuple[tuple[str, ...], ...]
    counts: tuple[Positive, ...]
    kind = "outages"

    def __post_init__(self) -> None:
        if not self.patterns:
            raise DataError(
                "outages: expected at least one event with at least one unavailable field, got none; "
                "check the log, or the markers that say a field is unavailable"
            )
        if len(self.patterns) != len(self.counts) or any(count < 1 for count in self.counts):
            raise DataError("outages: expected one positive count per pattern")
        if list(self.patterns) != sorted({tuple(sorted(set(p))) for p in self.patterns}) or not all(self.patterns):
            raise DataError("outages: patterns must be distinct, non-empty, sorted tuples in sorted order")

    @classmethod
    def from_events(cls, events: Iterable[Iterable[str]]) -> Outages:
        """Return the outages that sets of field names describe; events that lack nothing are left out.

        Parameters
        ----------
        events : iterable of iterables of str
            The fields each event lacked.

        Returns
        -------
        Outages
            Equal events counted together.
        """
        tally = Counter(tuple(sorted({str(name) for name in event})) for event in events)
        ordered = sorted(pattern for pattern in tally if pattern)
        return cls(tuple(ordered), tuple(tally[p] for p in ordered))

    @property
    def events(self) -> int:
        """Number of recorded events, N."""
        return sum(self.counts)

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field that was ever unavailable, sorted."""
        return tuple(sorted({name for pattern in self.patterns for name in pattern}))

    def rates(self, observations: int) -> dict[str, float]:
        """Return how often each field was unavailable, for :func:`assess_reliability` with independent failures.

        Parameters
        ----------
        observations : int
            How many times the fields were looked at while the log was kept, with or without an outage: rows scored,
            polls of the feeds, days. A log holds the outages alone, so this number is yours to give.

        Returns
        -------
        dict of str to float
            The share of the observations that lacked each field.

        Raises
        ------
        DataError
            There were fewer observations than recorded events.
        """
        if observations < self.events:
            raise DataError(
                f"observations must be at least the {self.events} recorded events, which were observed too, "
                f"got {observations}"
            )
        events = list(zip(self.patterns, self.counts, strict=True))
        lost = {name: sum(count for pattern, count in events if name in pattern) for name in self.fields}
        return {name: count / observations for name, count in lost.items()}

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "patterns": [list(p) for p in self.patterns], "counts": list(self.counts)}

    def stress_rows(self, x: Floats, keys: Words, draws: Draws, layout: Layout) -> States:
        return States.removals(self.removed_groups(layout)[self.draw_patterns(keys, draws)])

    def draw_patterns(self, keys: Words, draws: Draws) -> Integers:
        """Return the pattern each draw takes.

        Parameters
        ----------
        keys : array of shape (n,)
            One random key per row.
        draws : array of int, or BalancedDraws
            Numbers of the draws.

        Returns
        -------
        array of shape (n, draws)
            Indices into ``patterns``.
        """
        event = np.floor(uniforms(keys, draws, np.zeros(1, dtype=np.int64))[:, :, 0] * self.events)
        return np.searchsorted(np.cumsum(self.counts), event, side="right")

    def removed_groups(self, layout: Layout) -> Booleans:
        """Return which groups each pattern removes.

        Parameters
        ----------
        layout : Layout
            Groups of the columns and the fields they are made from.

        Returns
        -------
        array of bool of shape (patterns, G)
            True where the group is lost.
        """
        unknown = sorted(set(self.fields) - set(layout.known_fields))
        if unknown:
            raise ProtocolError(
                f"outages: the model's evidence has no fields {unknown}, only {list(layout.known_fields)}; "
                "correct the names, or ",
                Advice("keep only known ones with fields=[...] when reading the log", "remove the others from the log"),
            )
        groups = {name: layout.groups_of(name) for name in self.fields}
        removed = np.zeros((len(self.patterns), layout.n_groups), dtype=bool)
        for row, pattern in enumerate(self.patterns):
            for name in pattern:
                removed[row, groups[name]] = True
        return removed
