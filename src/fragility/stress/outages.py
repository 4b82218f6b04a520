"""Recorded outages as a stressor, and the forms in which people keep such records.

``Outages(patterns, counts)``: a recorded event is drawn and the groups of the fields it lacked take their baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import narwhals as nw
import numpy as np

from fragility.arrays import Booleans, Integers
from fragility.errors import Advice, DataError, ProtocolError
from fragility.evidence import RowStates
from fragility.stress.draws import Words, uniforms
from fragility.stress.stressors import Layout


@dataclass(frozen=True, slots=True)
class Outages:
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
    counts: tuple[int, ...]
    kind = "outages"

    def __post_init__(self) -> None:
        if not self.patterns:
            raise DataError(
                "outages: expected at least one event with at least one unavailable field, got none; "
                "check the log, or the markers that say a field is unavailable"
            )
        if len(self.patterns) != len(self.counts) or any(count < 1 for count in self.counts):
            raise DataError("outages: expected one positive count a pattern")
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
        tally: dict[tuple[str, ...], int] = {}
        for event in events:
            pattern = tuple(sorted({str(name) for name in event}))
            if pattern:
                tally[pattern] = tally.get(pattern, 0) + 1
        ordered = sorted(tally)
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
        """Return how often each field was unavailable, for :func:`failure_probability` with independent failures.

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
        seen = {name: 0 for name in self.fields}
        for pattern, count in zip(self.patterns, self.counts, strict=True):
            for name in pattern:
                seen[name] += count
        return {name: count / observations for name, count in seen.items()}

    @property
    def name(self) -> str:
        """Readable name."""
        return "outages"

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form.

        Returns
        -------
        dict
            JSON values; :meth:`Stress.from_dict` reads them.
        """
        return {"kind": self.kind, "patterns": [list(p) for p in self.patterns], "counts": list(self.counts)}

    def states(self, keys: Words, draws: Integers, layout: Layout) -> RowStates:
        """Return the states of rows, draw by draw.

        Parameters
        ----------
        keys : array of shape (n,)
            One random key a row, made from seed, stressor and row id.
        draws : array of int
            Numbers of the draws.
        layout : Layout
            Groups, baseline and spread of the columns.

        Returns
        -------
        RowStates
            What each draw removes from each row.
        """
        return RowStates.removals(self.removed_groups(layout)[self.drawn_patterns(keys, draws)])

    def drawn_patterns(self, keys: Words, draws: Integers) -> Integers:
        """Return the pattern each draw takes.

        Parameters
        ----------
        keys : array of shape (n,)
            One random key a row.
        draws : array of int
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


# --- reading a log ----------------------------------------------------------------------------------------------

Markers: TypeAlias = Sequence[object] | Mapping[str, Sequence[object]]


def outage_events(
    log: Any,
    *,
    markers: Markers | None = None,
    event: str = "event",
    field: str = "field",
    fields: Sequence[str] | None = None,
) -> list[tuple[str, ...]]:
    """Sets of fields that were unavailable together, from a user's table or from a list of sets.

    Parameters
    ----------
    log : one of
        - a list of sets (or lists) of field names, one an event;
        - a long table with a row for each unavailable field: columns `event` and `field`;
        - a wide table of booleans, one row an event, one column a field, true = unavailable (a column called
          `event` is its name and is skipped);
        - with `markers`, a table of raw rows in which the markers say that a field was unavailable.
    markers : values that mean "unavailable", for every column, or a dict from column to values; `None` in
        the values stands for null and NaN.
    fields : keep only these fields.

    Rows that lack nothing are no events.
    """
    if _is_list_of_sets(log):
        found = [tuple(str(name) for name in entry) for entry in log]
    else:
        frame = nw.from_native(log, eager_only=True)
        if markers is not None:
            found = _events_of(frame, _marked(frame, markers))
        elif {event, field} <= set(frame.columns):
            found = _long_events(frame, event, field)
        else:
            found = _events_of(frame, _wide(frame, event))
    kept = None if fields is None else set(fields)
    trimmed = [tuple(n for n in names if kept is None or n in kept) for names in found]
    return [names for names in trimmed if names]


def _is_list_of_sets(log: Any) -> bool:
    return isinstance(log, (list, tuple)) and all(isinstance(e, (list, tuple, set, frozenset)) for e in log)


def _long_events(frame: nw.DataFrame[Any], event: str, field: str) -> list[tuple[str, ...]]:
    together: dict[object, set[str]] = {}
    for key, name in zip(frame[event].to_list(), frame[field].to_list(), strict=True):
        together.setdefault(key, set()).add(str(name))
    return [tuple(sorted(names)) for names in together.values()]


def _wide(frame: nw.DataFrame[Any], event: str) -> dict[str, Booleans]:
    columns = [name for name in frame.columns if name != event]
    other = [name for name in columns if frame[name].dtype != nw.Boolean]
    if other or not columns:
        raise DataError(
            "outage log: expected columns 'event' and 'field', or one boolean column per field, or ",
            Advice("markers=...", "--markers A,B"),
            f"; got columns {list(frame.columns)}, of which {other} are not boolean",
        )
    return {name: frame[name].fill_null(False).to_numpy().astype(bool) for name in columns}


def _marked(frame: nw.DataFrame[Any], markers: Markers) -> dict[str, Booleans]:
    declared = markers if isinstance(markers, Mapping) else {name: markers for name in frame.columns}
    absent = sorted(set(declared) - set(frame.columns))
    if absent:
        raise DataError(f"outage markers name columns {absent} that the table does not have: {list(frame.columns)}")
    return {name: _is_marked(frame[name], values) for name, values in declared.items()}


def _is_marked(column: nw.Series[Any], values: Sequence[object]) -> Booleans:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise DataError(f"outage markers of {column.name!r} must be a list of values, got {values!r}")
    entries = column.to_list()
    wanted = [value for value in values if value is not None]
    null = any(value is None for value in values)
    hits = ((null and (v is None or v != v)) or any(v == w for w in wanted) for v in entries)
    return np.fromiter(hits, dtype=bool, count=len(entries))


def _events_of(frame: nw.DataFrame[Any], unavailable: Mapping[str, Booleans]) -> list[tuple[str, ...]]:
    names = np.asarray(list(unavailable), dtype=object)
    table = np.column_stack([unavailable[name] for name in names]) if len(names) else np.zeros((len(frame), 0), bool)
    return [tuple(names[row]) for row in table if row.any()]
