"""Stressors: what happens to a row, given its random numbers.

With xbar the protocol's baseline and u independent uniforms on [0, 1):

* ``Mask(r)``: every column of group g takes its baseline where u_g < r;
* ``Dropout(r)``: column j takes its baseline where u_j < r;
* ``Donor(r)``: every column of group g takes the values of donor row floor(v_g * m) where u_g < r, with m donor rows
  (training rows, in the order of their digests) and v_g the uniform at position G + g: no baseline is involved;
* ``Noise(e)``: a numeric column becomes x_j + e * spread_j * (2 u_j - 1), spread_j its training standard deviation;
  nominal columns (one-hot, ordinal, indicators, nominal fields) and columns without a spread are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fragility.arrays import Floats, Integers
from fragility.errors import Advice, EvidenceError, ProtocolError
from fragility.evidence import EvidenceRows, RowStates
from fragility.evidence.space import EvidenceSpace
from fragility.evidence.tracing import trace_columns
from fragility.protocol import Protocol
from fragility.stress.draws import Words, strikes, uniforms


@dataclass(frozen=True, slots=True)
class Layout:
    """What a stressor needs to know of the evidence space; d columns, G groups."""

    baseline: Floats  # (d,)
    column_group: Integers  # (d,) group index of each column
    n_groups: int
    spread: Floats  # (d,) training standard deviation, 0 where noise does not apply
    fields: tuple[tuple[str, ...], ...]  # (d,) raw fields each column is made from
    donors: Floats | None = None  # (m, d) rows that lend their values, for `Donor`

    @classmethod
    def of(cls, protocol: Protocol | EvidenceSpace, rows: EvidenceRows, donors: Floats | None = None) -> Layout:
        """The layout of rows bound to a protocol."""
        spread = [_noise_spread(column.kind, column.spread) for column in protocol.columns]
        return cls(
            baseline=np.asarray(rows.baseline, dtype=np.float64),
            column_group=np.asarray(rows.column_group, dtype=np.int64),
            n_groups=int(rows.n_groups),
            spread=np.asarray(spread, dtype=np.float64),
            fields=_column_fields(protocol, rows),
            donors=donors,
        )

    def groups_of(self, field: str) -> Integers:
        """Indices of the groups that hold a column of the raw field."""
        here = np.asarray([field in names for names in self.fields], dtype=bool)
        return np.unique(self.column_group[here])

    @property
    def known_fields(self) -> tuple[str, ...]:
        """Every raw field some column is made from, sorted."""
        return tuple(sorted({name for names in self.fields for name in names}))


def _column_fields(protocol: Protocol | EvidenceSpace, rows: EvidenceRows) -> tuple[tuple[str, ...], ...]:
    """Raw fields of every column: its own name, or what the preprocessing made it from."""
    transformer = rows.model.transformer
    if protocol.space == "raw" or transformer is None:
        return tuple((column.name,) for column in protocol.columns)
    try:
        return tuple(origin.fields for origin in trace_columns(transformer, rows.source.names))
    except EvidenceError:  # groups were declared over columns; only an outage log needs the fields, and says so
        return tuple(() for _ in protocol.columns)


def _noise_spread(kind: str, spread: float | None) -> float:
    usable = kind == "numeric" and spread is not None and np.isfinite(spread)
    return float(spread) if usable and spread is not None else 0.0


def _check_rate(kind: str, what: str, value: float, upper: float) -> None:
    if not (isinstance(value, (int, float)) and 0.0 <= value <= upper):
        limit = f"between 0 and {upper:g}" if np.isfinite(upper) else "a finite number of at least 0"
        raise ProtocolError(f"{kind}: {what} must be {limit}, got {value!r}")


@dataclass(frozen=True, slots=True)
class _Rated:
    """What strikes with a rate has in common."""

    rate: float = 0.3
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        _check_rate(self.kind, "rate", self.rate, 1.0)

    @property
    def name(self) -> str:
        """Readable name with its severity."""
        return f"{self.kind}({self.rate:g})"

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form.

        Returns
        -------
        dict
            JSON values; :meth:`Stress.from_dict` reads them.
        """
        return {"kind": self.kind, "rate": float(self.rate)}


@dataclass(frozen=True, slots=True)
class Mask(_Rated):
    """Every group replaced by its baseline independently with probability ``rate``.

    Parameters
    ----------
    rate : float, default=0.3
        Between 0 and 1.

    See Also
    --------
    Stress : Puts stressors together.
    """

    kind = "mask"

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
        return RowStates.removals(strikes(keys, draws, np.arange(layout.n_groups), self.rate))


@dataclass(frozen=True, slots=True)
class Dropout(_Rated):
    """Every column replaced by its baseline independently with probability ``rate``.

    Parameters
    ----------
    rate : float, default=0.3
        Between 0 and 1.

    See Also
    --------
    Stress : Puts stressors together.
    """

    kind = "dropout"

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
        columns = np.arange(len(layout.column_group))
        return RowStates.removals(strikes(keys, draws, columns, self.rate), by_column=True)


@dataclass(frozen=True, slots=True)
class Donor(_Rated):
    """Every group replaced by another row's values independently with probability ``rate``; needs donor rows.

    Parameters
    ----------
    rate : float, default=0.3
        Between 0 and 1.

    See Also
    --------
    Stress : Puts stressors together.
    """

    kind = "donor"

    def stressed(self, x: Floats, keys: Words, draws: Integers, layout: Layout) -> Floats:
        """Return stressed copies of rows.

        Parameters
        ----------
        x : array of shape (n, d)
            Rows of the evidence space.
        keys : array of shape (n,)
            One random key a row, made from seed, stressor and row id.
        draws : array of int
            Numbers of the draws.
        layout : Layout
            Groups, baseline and spread of the columns.

        Returns
        -------
        array of shape (n, draws, d)
            One copy a row and draw.
        """
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
class Noise:
    """Uniform noise of at most ``extent`` training standard deviations on numeric columns.

    Parameters
    ----------
    extent : float, default=0.3
        A finite number of at least 0.

    See Also
    --------
    Stress : Puts stressors together.
    """

    extent: float = 0.3
    kind = "noise"

    def __post_init__(self) -> None:
        _check_rate("noise", "extent", self.extent, np.inf)

    @property
    def name(self) -> str:
        """Readable name with its severity."""
        return f"noise({self.extent:g})"

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form.

        Returns
        -------
        dict
            JSON values; :meth:`Stress.from_dict` reads them.
        """
        return {"kind": self.kind, "extent": float(self.extent)}

    def stressed(self, x: Floats, keys: Words, draws: Integers, layout: Layout) -> Floats:
        """Return stressed copies of rows.

        Parameters
        ----------
        x : array of shape (n, d)
            Rows of the evidence space.
        keys : array of shape (n,)
            One random key a row, made from seed, stressor and row id.
        draws : array of int
            Numbers of the draws.
        layout : Layout
            Groups, baseline and spread of the columns.

        Returns
        -------
        array of shape (n, draws, d)
            One copy a row and draw.
        """
        moved = np.flatnonzero(layout.spread > 0.0)
        out = np.repeat(x[:, None, :], len(draws), axis=1)
        shift = uniforms(keys, draws, moved)
        shift *= 2.0
        shift -= 1.0
        shift *= self.extent * layout.spread[moved]
        out[:, :, moved] += shift
        return out
