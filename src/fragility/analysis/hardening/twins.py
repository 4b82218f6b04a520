"""Twins: degraded copies of training rows (SPEC section 13).

With x_i a row, xbar the baseline, g(j) the group of column j, and uniforms u in [0, 1) of the draw format
``fragility-draw/1`` (stream ``harden``, draw number = number of the copy, G groups):

    mask       twin_ij = xbar_j              where u_{g(j)} < rate, else x_ij
    attenuate  twin_ij = x_ij + s (xbar_j - x_ij)   where u_{g(j)} < rate, with s the severity number
               floor(u_{G + g(j)} * L) of the protocol's L severities
    outages    twin_ij = xbar_j              where u_1 < rate and event number floor(u_0 * N) lacked a field of g(j)

Copies of a mode other than ``lost`` (SPEC section 15):

    wrong      where u_{g(j)} < rate: twin_ij = the cell of value v of the catalogue of g(j), v by entry number
               floor(u_{G + g(j)} * N) of the N that its counts add up to, in the order of the catalogue; a group
               without values stays as it is
    noisy      twin_ij = x_ij + c e s_j for every numeric column, with c = -1, -1/2, 1/2, 1 by number
               floor(u_{G + g(j)} * 4); whole numbers are rounded. Noise is no event that strikes a group now and then

With M modes there are C = max(copies, M) copies, and copy k is of mode number k mod M in the order given.

The key of a row is the digest of its content and its rank among rows of equal content (by label, then by weight).
So the twins of a table do not depend on the order of its rows, its index or the scale of its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.base.arrays import MEBIBYTE, Booleans, Floats, Integers, is_count, is_number, rows_within
from fragility.base.canonical import row_digests
from fragility.base.errors import Advice, EvidenceError, ProtocolError
from fragility.evidence import blend
from fragility.evidence.codec import RawCodec, as_matrix, dense
from fragility.evidence.modes import NOISE_STEPS, tabulate_catalogue, values_frame
from fragility.evidence.rows import Rows, native_like, stacked
from fragility.evidence.states import Absence, find_absence
from fragility.protocol import Protocol
from fragility.questions.stress.declaration import outage_events
from fragility.questions.stress.draws import Words, row_keys, strikes, uniforms
from fragility.questions.stress.stressors import Outages

Degradation: TypeAlias = Literal["mask", "attenuate", "outages"]
DEGRADATIONS: tuple[str, ...] = get_args(Degradation)
HARDENING_MODES = ("lost", "wrong", "noisy")
DEFAULT_RATE = 0.2
# A twin that suffers no event of a log would be a copy of its row.
DEFAULT_OUTAGE_RATE = 1.0
STREAM = "harden"
BLOCK_BYTES = 16 * MEBIBYTE  # rows degraded at a time; no result depends on it
SPARSE_LIMIT = 4096 * MEBIBYTE  # memory that the twins of a sparse matrix may take
SPARSE_ENTRY_BYTES = 12  # a float64 and its column


@dataclass(frozen=True, slots=True)
class Hardening:
    """How a copy of a training row is degraded; ``rate`` None is the default, ``outages`` may be any log of them."""

    rate: Any
    copies: int
    kind: Degradation
    outages: Any
    seed: int
    modes: Any = ("lost",)  # one name, or several
    copy_weight: Any = None  # the share of a row's weight that its copies carry together; None is the default

    def __post_init__(self) -> None:
        if self.kind not in DEGRADATIONS:
            raise ProtocolError(f"kind must be one of {', '.join(DEGRADATIONS)}, got {self.kind!r}")
        if self.rate is None:
            object.__setattr__(self, "rate", DEFAULT_OUTAGE_RATE if self.kind == "outages" else DEFAULT_RATE)
        if not is_number(self.rate) or not 0.0 <= self.rate <= 1.0:
            raise ProtocolError(f"rate must be a number between 0 and 1, got {self.rate!r}")
        if not is_count(self.copies) or self.copies >= 2**31:
            raise ProtocolError(f"copies must be a whole number of at least 1, got {self.copies!r}")
        if not is_count(self.seed, -math.inf):
            raise ProtocolError(f"seed must be a whole number, got {self.seed!r}")
        if self.kind == "outages" and self.outages is None:
            raise ProtocolError("the kind outages needs recorded outages, and none were given")
        if self.kind != "outages" and self.outages is not None:
            raise ProtocolError(f"recorded outages are for the kind outages, and the kind is {self.kind!r}")
        modes = (self.modes,) if isinstance(self.modes, str) else tuple(self.modes)
        object.__setattr__(self, "modes", modes)
        if not modes or len(set(modes)) != len(modes) or not set(modes) <= set(HARDENING_MODES):
            raise ProtocolError(f"modes must be among {', '.join(HARDENING_MODES)}, each once, got {list(modes)!r:.80}")
        if self.copy_weight is None:
            object.__setattr__(self, "copy_weight", len(modes) / (1 + len(modes)))
        if not is_number(self.copy_weight) or not 0.0 < self.copy_weight < 1.0:
            raise ProtocolError(f"copy_weight must be a number between 0 and 1, got {self.copy_weight!r}")
        if self.kind != "mask" and modes != ("lost",):
            raise ProtocolError(
                f"the kind {self.kind!r} is about lost evidence; with modes {', '.join(modes)} the kind is 'mask'"
            )
        if self.outages is not None and not isinstance(self.outages, Outages):
            object.__setattr__(self, "outages", Outages.from_events(outage_events(self.outages)))

    @property
    def twins(self) -> int:
        """Copies of each row: every mode has at least one."""
        return max(self.copies, len(self.modes))

    def mode_of(self, copy: int) -> str:
        """Return the mode of a copy."""
        return str(self.modes[copy % len(self.modes)])


def content_keys(rows: Rows, codes: Integers, weights: Floats, seed: int) -> Words:
    """Return (n,) keys of the rows from their content; ``codes`` are the places of their classes among the labels."""
    if rows.frame is None:
        digests = np.array(_sparse_digests(rows.native), dtype="S32")
    else:  # columns by their place: a table and a bare array of its values are the same
        columns = {f"{j:09d}": values for j, values in enumerate(rows.columns().values())}
        digests = np.array(row_digests(columns), dtype="S32")
    order = np.lexsort((weights, codes, digests))
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = digests[order[1:]] != digests[order[:-1]]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - first
    return row_keys(seed, STREAM, (f"{d.hex()}/{r}" for d, r in zip(digests.tolist(), rank.tolist(), strict=True)))


def _sparse_digests(matrix: Any) -> list[bytes]:
    """Return a digest of the entries of each row; a sparse table is never made dense for it."""
    tidy = sp.csr_matrix(matrix, dtype=np.float64, copy=True)
    tidy.sum_duplicates()
    tidy.eliminate_zeros()
    places, values = tidy.indices.astype("<i8"), tidy.data.astype("<f8")
    bounds = zip(tidy.indptr[:-1], tidy.indptr[1:], strict=True)
    return [blake2b(places[a:b].tobytes() + values[a:b].tobytes(), digest_size=31).digest() + b"." for a, b in bounds]


def take(values: Any, positions: Integers) -> Any:
    """Return rows of a table or matrix, or labels, at some positions."""
    return values.iloc[positions] if isinstance(values, (pd.DataFrame, pd.Series)) else values[positions]


@dataclass(frozen=True, eq=False)
class LentValues:
    """The value catalogue of a protocol, encoded as the rows are."""

    cells: Floats  # (R, d) the r-th value of every group
    ends: tuple[Integers, ...]  # (G,) cumulative counts of the values of each group; empty for one without values

    @classmethod
    def of(cls, protocol: Protocol, rows: Rows, encode: Callable[[pd.DataFrame], Floats]) -> LentValues:
        """Encode the catalogue of a protocol that was fitted to ``rows``."""
        catalogue = protocol.modes.catalogue
        if not catalogue:
            raise ProtocolError(
                "the mode 'wrong' needs a catalogue of values, and there is none for these rows (a sparse matrix never "
                "has one); leave this mode out"
            )
        assert rows.frame is not None  # a catalogue is fitted on a table
        counts = {entry.group: entry.counts for entry in catalogue}
        ends = tuple(np.cumsum(counts.get(name, ()), dtype=np.int64) for name in protocol.group_names)
        return cls(encode(values_frame(tabulate_catalogue(catalogue)[0], rows.frame)), ends)

    def draw(self, u: Floats) -> Integers:
        """Return (m, G) the number of the value that each group takes, from uniforms; -1 if it has none."""
        drawn_event = np.full(u.shape, -1, dtype=np.int64)
        for g, ends in enumerate(self.ends):
            if len(ends):
                drawn_event[:, g] = np.searchsorted(ends, np.floor(u[:, g] * ends[-1]), side="right")
        return drawn_event


@dataclass(frozen=True, eq=False)
class TwinMaker:
    """Training rows in the evidence space of a protocol, from which twins are made; d columns, G groups.

    The final estimator is handed ``restore(matrix)`` for any matrix of the space.
    """

    plan: Hardening
    protocol: Protocol
    removed: Booleans | None  # (patterns, G) groups that each recorded outage lacks
    matrix: Any  # (n, d), dense or CSR
    baseline: Floats  # (d,)
    stepwise: Booleans  # (d,) columns that cannot be interpolated
    restore: Callable[[Any], Any]
    handed: Any  # the estimator's input for the rows, if ``restore`` would run the preprocessing again; else None
    lent: LentValues | None  # what a wrong group takes; None without the mode
    absent: Absence | None  # what is missing in the rows, and stays so

    @classmethod
    def of(
        cls, plan: Hardening, protocol: Protocol, removed: Booleans | None, rows: Rows, transformer: Any, handed: Any
    ) -> TwinMaker:
        """Return the maker of twins of ``rows``, for which a fitted transformer (or None) made the input ``handed``."""
        if undeclared := [mode for mode in plan.modes if mode not in ("lost", *protocol.modes.declared)]:
            raise ProtocolError(
                f"the protocol declares the modes {', '.join(protocol.modes.declared) or 'none'}, got "
                f"{undeclared[0]!r}; fit one that declares it"
            )
        wrong = "wrong" in plan.modes
        absent = find_absence(rows, protocol.fields, protocol.evidence.column_fields, protocol.column_group)
        if protocol.space == "transformed":

            def encode(table: pd.DataFrame) -> Floats:
                raw = native_like(table, rows)
                return dense(as_matrix(raw if transformer is None else transformer.transform(raw))[0])

            matrix, restore = as_matrix(handed)
            baseline = np.array([np.nan if c.baseline is None else float(c.baseline) for c in protocol.columns])
            same_form = sp.issparse(handed) or isinstance(handed, np.ndarray)  # the stack already has that form
            same = (lambda stack: stack) if same_form else restore
            lent = LentValues.of(protocol, rows, encode) if wrong else None
            return cls(plan, protocol, removed, matrix, baseline, np.isnan(baseline), same, None, lent, absent)
        codec = RawCodec.fit(rows, replace(protocol.evidence, listed={}), flags_as_numbers=transformer is None)

        def restore_fields(stack: Floats) -> Any:
            raw = codec.decode(stack)
            return raw if transformer is None else transformer.transform(raw)

        return cls(
            plan,
            protocol,
            removed,
            codec.encode(rows.frame),
            codec.baseline,
            codec.stepwise,
            restore_fields,
            None if transformer is None else handed,
            LentValues.of(protocol, rows, codec.encode) if wrong else None,
            absent,
        )

    def stack_twins(self, kept: Integers, keys: Words) -> Any:
        """Return the estimator's input for the rows at ``kept`` and for their twins, copy by copy."""
        matrix = self.matrix if len(kept) == self.matrix.shape[0] else self.matrix[kept]
        absent = None if self.absent is None else self.absent.take(kept)
        n, blocks = len(kept), self._twin_blocks(matrix, absent, keys[kept])
        if sp.issparse(matrix):
            self._check_sparse_size(matrix)
            stack = sp.vstack([matrix, *(sp.csr_matrix(block, dtype=matrix.dtype) for block in blocks)], format="csr")
        else:
            stack = np.empty((n * (1 + self.plan.twins), matrix.shape[1]), dtype=matrix.dtype)
            stack[:n] = matrix
            filled = n
            for block in blocks:
                stack[filled : filled + len(block)] = block
                filled += len(block)
        if self.handed is None:
            return self.restore(stack)
        # Preprocessing may code the rows it was fitted on in a way of its own, so those are taken as they came.
        return stacked(take(self.handed, kept), self.restore(stack[n:]))

    def _twin_blocks(self, matrix: Any, absent: Absence | None, keys: Words) -> Iterator[Floats]:
        """Yield the twins of some rows at a time, dense, copy by copy."""
        n, width = matrix.shape
        step = rows_within(BLOCK_BYTES, width, copies=3)
        for copy in range(self.plan.twins):
            degrade = {"lost": self._lose, "wrong": self._lend, "noisy": self._disturb}[self.plan.mode_of(copy)]
            for start in range(0, n, step):
                x = matrix[start : start + step]
                x = x.toarray() if sp.issparse(x) else x
                twins = degrade(x, keys[start : start + step], copy)
                spared = None if absent is None else absent.spared(start, start + step)
                yield twins if spared is None else np.where(spared.cells, x, twins)

    def _lose(self, x: Floats, keys: Words, copy: int) -> Floats:
        """Return rows x (m, d) in which struck groups are lost, all of the way or part of it."""
        severity = self._draw_severities(keys, copy)[:, self.protocol.column_group]
        if self.plan.kind == "attenuate":
            return blend(x, self.baseline, severity, self.stepwise)
        return np.where(severity > 0.0, self.baseline, x)

    def _lend(self, x: Floats, keys: Words, copy: int) -> Floats:
        """Return rows x (m, d) in which struck groups take values of the catalogue."""
        assert self.lent is not None
        struck, u = self._draw_struck(keys, copy)
        value = np.where(struck, self.lent.draw(u), -1)[:, self.protocol.column_group]
        return np.where(value >= 0, self.lent.cells[value, np.arange(x.shape[1])], x)

    def _disturb(self, x: Floats, keys: Words, copy: int) -> Floats:
        """Return rows x (m, d) in which all numbers are slightly off."""
        modes, columns = self.protocol.modes, self.protocol.columns
        spread = np.array([c.spread or 0.0 if c.kind == "numeric" else 0.0 for c in columns])
        u = self._draw_struck(keys, copy)[1]
        step = np.array(NOISE_STEPS)[(u * len(NOISE_STEPS)).astype(np.int64)]
        moved = x + step[:, self.protocol.column_group] * (modes.noise * spread)
        return np.where([c.name in modes.whole for c in columns], np.rint(moved), moved)

    def _draw_struck(self, keys: Words, copy: int) -> tuple[Booleans, Floats]:
        """Return (n, G) the groups that are struck in a copy, and a further uniform for each."""
        draw, groups = np.array([copy]), np.arange(len(self.protocol.groups))
        return strikes(keys, draw, groups, self.plan.rate)[:, 0], uniforms(keys, draw, len(groups) + groups)[:, 0]

    def _draw_severities(self, keys: Words, copy: int) -> Floats:
        """Return (n, G) how far each group of each row moves toward its baseline in one copy."""
        plan, draw, groups = self.plan, np.array([copy]), np.arange(len(self.protocol.groups))
        if self.removed is not None:
            lacked = self.removed[plan.outages.draw_patterns(keys, draw)[:, 0]]
            struck = lacked & strikes(keys, draw, np.array([1]), plan.rate)[:, 0]
        else:
            struck = strikes(keys, draw, groups, plan.rate)[:, 0]
        if plan.kind != "attenuate":
            return np.asarray(struck, dtype=np.float64)
        grid = np.asarray(self.protocol.severities)
        place = (uniforms(keys, draw, len(groups) + groups)[:, 0] * len(grid)).astype(np.int64)
        return np.where(struck, grid[place], 0.0)

    def _check_sparse_size(self, matrix: Any) -> None:
        filled = int(np.count_nonzero(self.baseline))
        expected = SPARSE_ENTRY_BYTES * self.plan.twins * (matrix.nnz + self.plan.rate * matrix.shape[0] * filled)
        if expected > SPARSE_LIMIT:
            raise EvidenceError(
                f"the twins of this sparse matrix would take about {expected / 2**30:.0f} GiB, because {filled} of its "
                f"{matrix.shape[1]} columns have a baseline other than 0; give a protocol with ",
                Advice("baseline='zero' or 'typical'", "--baseline zero or --baseline typical"),
            )
