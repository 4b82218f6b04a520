"""Stress: the label channel, declared; and the forms in which people keep records of outages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Annotated, Any, TypeAlias

import narwhals as nw
import numpy as np

from fragility.base.arrays import Booleans
from fragility.base.errors import Advice, DataError, ProtocolError
from fragility.base.schemas import Must, Share, check_fields, one_of, read_document, show_value, whole_between
from fragility.questions.stress.draws import DRAW_FORMAT
from fragility.questions.stress.stressors import Donor, Dropout, Mask, Noise, Outages, Stressor

RULES = ("expected", "any")
# A second seed far from the small ones people choose, so that `independent()` of seed 0 is not their seed 1.
_INDEPENDENT_OFFSET = 1_000_003

Markers: TypeAlias = Sequence[object] | Mapping[str, Sequence[object]]
_STRESSORS: dict[str, type[Stressor]] = {each.kind: each for each in (Mask, Dropout, Noise, Donor, Outages)}


@dataclass(frozen=True, slots=True)
class Stress:
    """The label channel, declared: what is done to a row to see whether its prediction breaks.

    Parameters
    ----------
    stressors : tuple of Mask, Dropout, Noise, Donor or Outages, default=(Mask(), Dropout(), Noise())
        What happens to a row.
    draws : int, default=16
        How often each stressor is drawn for a row.
    rule : {"expected", "any"}, default="expected"
        A row breaks where the mean over the draws does, or where any draw does.
    tau_confidence : float, optional
        Confidence from which a prediction counts as confident; by default what the protocol declares
        (``min_confidence``).
    tau_collapse : float, default=0.5
        Share of the margin whose loss counts as breaking, even where the class stays.
    seed : int, default=0
        Seed of the draws; a row's draws depend on it and on the row's id, not on its place.

    See Also
    --------
    label_brittle : Applies it to the predictions of a model.

    Examples
    --------
    >>> import fragility as fg
    >>> fg.Stress.at(0.2).names
    ('mask(0.2)', 'dropout(0.2)', 'noise(0.2)')
    """

    stressors: tuple[Stressor, ...] = (Mask(), Dropout(), Noise())
    draws: Annotated[int, whole_between(1, 2**31 - 1)] = 16
    rule: Annotated[str, one_of(RULES)] = "expected"
    tau_confidence: Share | None = None
    tau_collapse: Annotated[float, Must("a positive number", lambda value: value > 0)] = 0.50
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "a stress", ProtocolError)
        if not self.stressors:
            raise ProtocolError("stress: expected at least one stressor, got none")
        names = [stressor.name for stressor in self.stressors]
        if len(set(names)) != len(names):
            raise ProtocolError(f"stress: stressors must differ, got {names}")

    @classmethod
    def at(cls, severity: float) -> Stress:
        """Return the three default stressors at one severity.

        Parameters
        ----------
        severity : float
            Rate of mask and dropout, extent of noise.

        Returns
        -------
        Stress
            Everything else as by default.
        """
        return cls((Mask(severity), Dropout(severity), Noise(severity)))

    @classmethod
    def from_outages(
        cls,
        log: Any,
        *,
        markers: Markers | None = None,
        event: str = "event",
        field: str = "field",
        fields: Sequence[str] | None = None,
        draws: int = 16,
        rule: str = "expected",
        tau_confidence: float | None = None,
        tau_collapse: float = 0.50,
        seed: int = 0,
    ) -> Stress:
        """Return stress made of recorded outages: each draw removes what one past event lacked.

        Rows that lack nothing are no events. The paper's naturalistic proxy is ``Stress.from_outages(X_train,
        markers=...)``.

        Parameters
        ----------
        log : table or list
            A list of sets of field names, one per event; a long table with a row for each unavailable field (columns
            ``event`` and ``field``); a wide table of booleans, one row per event, one column per field, true
            for unavailable; or, with ``markers``, a table of raw rows in which the markers say that a field was
            unavailable.
        markers : sequence or mapping of str to sequence, optional
            Values that mean "unavailable", for every column, or by column; None among them stands for null and NaN.
        event : str, default="event"
            The column that names the event.
        field : str, default="field"
            The column that names the field, in a long table.
        fields : sequence of str, optional
            Keep only these fields.
        draws : int, default=16
            How often an event is drawn for a row.
        rule : {"expected", "any"}, default="expected"
            As in :class:`Stress`.
        tau_confidence : float, optional
            As in :class:`Stress`.
        tau_collapse : float, default=0.5
            As in :class:`Stress`.
        seed : int, default=0
            Seed of the draws.

        Returns
        -------
        Stress
            With one stressor, :class:`Outages`.
        """
        events = outage_events(log, markers=markers, event=event, field=field, fields=fields)
        return cls((Outages.from_events(events),), draws, rule, tau_confidence, tau_collapse, seed)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stressors."""
        return tuple(stressor.name for stressor in self.stressors)

    def independent(self) -> Stress:
        """Return the same stress with other draws, for the label-noise ceiling.

        Returns
        -------
        Stress
            Equal but for the seed.
        """
        return replace(self, seed=self.seed + _INDEPENDENT_OFFSET)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, for files.

        Returns
        -------
        dict
            JSON values; ``from_dict`` reads them.
        """
        return {
            "draw_format": DRAW_FORMAT,
            "stressors": [stressor.to_dict() for stressor in self.stressors],
            "draws": self.draws,
            "rule": self.rule,
            "tau_confidence": None if self.tau_confidence is None else float(self.tau_confidence),
            "tau_collapse": float(self.tau_collapse),
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Stress:
        """Return the stress a plain form describes.

        Parameters
        ----------
        document : mapping
            What ``to_dict`` returned.

        Returns
        -------
        Stress
            The same stress, with the same draws.
        """
        return read_stress(document)


def read_stress(document: Any, what: str = "the stress", at: str = "") -> Stress:
    """Return the stress in a document, which may be part of a larger one: ``what``, and its path ``at`` there."""
    entries = document.get("stressors") if isinstance(document, Mapping) else None
    if isinstance(entries, (list, tuple)):
        place = f"{at}.stressors" if at else "stressors"
        read = [_read_stressor(entry, what, f"{place}.{i}") for i, entry in enumerate(entries)]
        document = {**document, "stressors": read}
    return read_document(document, Stress, what, ProtocolError, beside={"draw_format": DRAW_FORMAT}, at=at)


def _read_stressor(entry: Any, what: str, at: str) -> Stressor:
    if not isinstance(entry, Mapping):
        raise ProtocolError(f"{at} in {what} must be an object, got {show_value(entry)}")
    if "kind" not in entry:
        raise ProtocolError(f"{what} lacks the field '{at}.kind'")
    kind = entry["kind"]
    if not isinstance(kind, str) or kind not in _STRESSORS:
        raise ProtocolError(f"{at}.kind in {what} must be one of {', '.join(_STRESSORS)}, got {show_value(kind)}")
    return read_document(entry, _STRESSORS[kind], what, ProtocolError, beside={"kind": kind}, at=at)


def outage_events(
    log: Any,
    *,
    markers: Markers | None = None,
    event: str = "event",
    field: str = "field",
    fields: Sequence[str] | None = None,
) -> list[tuple[str, ...]]:
    """Return sets of fields that were unavailable together; the parameters are those of `Stress.from_outages`.

    In a wide table, a column called `event` is its name and is skipped.
    """
    if isinstance(log, (list, tuple)) and all(isinstance(e, (list, tuple, set, frozenset)) for e in log):
        found = [tuple(str(name) for name in entry) for entry in log]
    else:
        frame = nw.from_native(log, eager_only=True)
        if markers is not None:
            found = _list_events(_find_marked(frame, markers))
        elif {event, field} <= set(frame.columns):
            together: dict[object, set[str]] = {}
            for key, name in zip(frame[event].to_list(), frame[field].to_list(), strict=True):
                together.setdefault(key, set()).add(str(name))
            found = [tuple(sorted(names)) for names in together.values()]
        else:
            found = _list_events(_find_true(frame, event))
    if fields is not None:
        kept = set(fields)
        found = [tuple(name for name in names if name in kept) for names in found]
    return [names for names in found if names]


def _find_marked(frame: nw.DataFrame[Any], markers: Markers) -> dict[str, Booleans]:
    declared = markers if isinstance(markers, Mapping) else {name: markers for name in frame.columns}
    absent = sorted(set(declared) - set(frame.columns))
    if absent:
        raise DataError(f"outage markers name columns {absent} that the table does not have: {list(frame.columns)}")
    unavailable = {}
    for name, values in declared.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise DataError(f"outage markers of {name!r} must be a list of values, got {values!r}")
        wanted = [value for value in values if value is not None]
        null = any(value is None for value in values)
        entries = frame[name].to_list()
        unavailable[name] = np.array(
            [(null and (v is None or v != v)) or any(v == w for w in wanted) for v in entries], dtype=bool
        )
    return unavailable


def _find_true(frame: nw.DataFrame[Any], event: str) -> dict[str, Booleans]:
    columns = [name for name in frame.columns if name != event]
    other = [name for name in columns if frame[name].dtype != nw.Boolean]
    if other or not columns:
        raise DataError(
            "outage log: expected columns 'event' and 'field', or one boolean column per field, or ",
            Advice("markers=...", "--markers A,B"),
            f"; got columns {list(frame.columns)}, of which {other} are not boolean",
        )
    return {name: frame[name].fill_null(False).to_numpy().astype(bool) for name in columns}


def _list_events(unavailable: Mapping[str, Booleans]) -> list[tuple[str, ...]]:
    """Return, row by row, the names of the columns that are true."""
    return [tuple(compress(unavailable, row)) for row in zip(*unavailable.values(), strict=True)]
