"""Audit: what certificates in memory and those of a folder have in common.

The table is handed out piece by piece. Whatever is asked of all rows is computed on the pieces, so that an audit may be
larger than memory.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fragility.audits.certificate import Certificate
from fragility.audits.manifest import Manifest
from fragility.audits.measures import label_rows, list_measures
from fragility.audits.tally import AuditSummary, Tally
from fragility.base.arrays import Floats, Integers
from fragility.base.errors import Advice, CertificateError, DataError
from fragility.base.ids import check_same_rows
from fragility.blocks.all import place_blocks
from fragility.blocks.baselines.comparison import BaselineComparison
from fragility.blocks.block import AuditBlock
from fragility.blocks.claims import Claims, Columns, Extent, check_schema, claims_of
from fragility.blocks.intervals.values import IntervalsClaims
from fragility.blocks.lattice.values import LatticeClaims, LatticeDeclaration
from fragility.blocks.modes import ModesClaims, ModesDeclaration
from fragility.evidence.modes import MODES
from fragility.models import ClassLabel
from fragility.protocol import Protocol
from fragility.scores import REHEARSAL

RANKED_BY = (
    *("exposure", "fds", "rcma", "independent_loss", "random_loss", "common_loss"),
    "failure_probability",
)


class Audit(ABC):
    """The certificates of one audit: :class:`Certificates` in memory, or a :class:`StoredAudit` in a folder."""

    manifest: Manifest  # what binds the rest: model, input, engine, versions and digests
    protocol: Protocol  # the protocol the certificates were made under
    protocol_signature: bytes | None  # the envelope that signed it before the audit, where the manifest names one

    @property
    def classes(self) -> tuple[ClassLabel, ...]:
        """The model's classes, in its order."""
        return self.manifest.model.classes

    @property
    def engine(self) -> str:
        """Name of the engine that traced the rows."""
        return self.manifest.engine.name

    @property
    def extent(self) -> Extent:
        """``full``, or ``summary`` without the lists that have one entry per step, severity or group."""
        return self.manifest.claims

    @cached_property
    def blocks(self) -> dict[str, AuditBlock]:
        """The blocks that are here, by name, in the order of their columns."""
        model = self.manifest.model
        return place_blocks(self.manifest.blocks, self.protocol, model.fingerprint, model.classes)

    @abstractmethod
    def block_table(self, name: str) -> pa.Table:
        """Return the table of a block as it is written: its rows, in its order.

        Parameters
        ----------
        name : str
            One of ``blocks``.

        Returns
        -------
        pyarrow.Table
            Ids, the columns of the block and its digests.
        """

    def read_block(self, name: str) -> Any:
        """Return a block as arrays, of the rows that have it, in its order.

        Parameters
        ----------
        name : str
            ``lattice``, ``modes``, ``intervals``, ``baselines`` ...

        Returns
        -------
        LatticeClaims, ModesClaims, IntervalsClaims, BaselineComparison ... or None
            None without the block.
        """
        return self.blocks[name].read(self.block_table(name)) if name in self.blocks else None

    def ids_of_block(self, name: str) -> list[Hashable]:
        """Return the ids of the rows that have a block, in its order.

        Parameters
        ----------
        name : str
            ``lattice``, ``modes``, ``intervals``, ``baselines`` ...

        Returns
        -------
        list of int or str
            Their ids; none without the block.
        """
        if name not in self.blocks:
            return []
        partial = self.blocks[name].declared.is_partial
        tables = [self.block_table(name)] if partial else self.batches(["id"])
        return [own_id for table in tables for own_id in table.column("id").to_pylist()]

    @property
    def lattice(self) -> LatticeClaims | None:
        """The lattice block as arrays (``read_block``); None without one."""
        found: LatticeClaims | None = self.read_block("lattice")
        return found

    @property
    def modes(self) -> ModesClaims | None:
        """The modes block as arrays (``read_block``); None without one."""
        found: ModesClaims | None = self.read_block("modes")
        return found

    @property
    def intervals(self) -> IntervalsClaims | None:
        """The intervals block as arrays of text (``read_block``); None without one."""
        found: IntervalsClaims | None = self.read_block("intervals")
        return found

    @cached_property
    def baselines(self) -> BaselineComparison | None:
        """The same confident rows under every baseline that the model admits; None where none were compared."""
        found: BaselineComparison | None = self.read_block("baselines")
        return found if found is not None and len(found) else None

    @property
    @abstractmethod
    def part_starts(self) -> tuple[int, ...]:
        """Where each piece of :meth:`batches` begins, and at the end how many certificates there are."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def part(self, place: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return one piece of :meth:`batches`.

        Parameters
        ----------
        place : int
            Which one, from 0.
        columns : sequence of str, optional
            Only these columns, in this order; all by default.

        Returns
        -------
        pyarrow.Table
            Its rows.

        Raises
        ------
        CertificateError
            The part of a folder is missing, unreadable, or not the one the manifest names.
        """

    @abstractmethod
    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Return the table piece by piece, in order; a folder's pieces are its files.

        Parameters
        ----------
        columns : sequence of str, optional
            Only these columns, in this order; all by default.

        Returns
        -------
        iterator of pyarrow.Table
            The next rows.
        """

    def read_columns(self, *names: str) -> pa.Table:
        """Return some columns of all rows, in memory.

        Parameters
        ----------
        *names : str
            The columns, in this order.

        Returns
        -------
        pyarrow.Table
            One row per certificate.
        """
        return pa.concat_tables(self.batches(names))

    @abstractmethod
    def take(self, positions: Any) -> Audit:
        """Return the certificates at these positions, in memory, as certificates of their own.

        The manifest goes on to say how many rows were audited, so :func:`verify` tells a selection from the whole. A
        comparison of baselines is of the whole audit, and is left out.

        Parameters
        ----------
        positions : sequence of int or array of bool
            Positions counted from 0, negative ones from the end; or a mask over all certificates.

        Returns
        -------
        Certificates
            The selection, in the order asked for.
        """

    def certificate(self, position: int) -> Certificate:
        """Return the certificate at a position, counted from 0."""
        row = self.row(position).to_pylist()[0]
        return Certificate.from_row(row, self.protocol, self.blocks)

    def row(self, position: int) -> pa.Table:
        """Return the row of the table at a position counted from 0."""
        place = bisect_right(self.part_starts, position) - 1
        return self.part(place).slice(position - self.part_starts[place], 1)

    def by_id(self, own_id: Hashable) -> Certificate:
        """Return the certificate of the row with this id (a number may be given as text).

        Parameters
        ----------
        own_id : int or str
            The row's id.

        Returns
        -------
        Certificate
            The one certificate of that row.

        Raises
        ------
        CertificateError
            No row has this id.
        """
        return self.certificate(self.find(own_id))

    def find(self, own_id: Hashable) -> int:
        """Return the position of the row with this id; refuse an id that no row has."""
        start, first = 0, list[Any]()
        for batch in self.batches(["id"]):
            ids = batch.column("id")
            first = first or ids.slice(0, 3).to_pylist()
            position = _position_of(own_id, ids)
            if position >= 0:
                return start + position
            start += len(batch)
        raise CertificateError(f"no certificate for row {own_id!r}; ids run like {first}")

    @abstractmethod
    def most_fragile(
        self, n: int = 20, min_confidence: float | None = None, by: str = "exposure", *, labels: Any = None
    ) -> Audit:
        """Return the confident predictions with the largest score, most fragile first.

        Parameters
        ----------
        n : int, default=20
            How many at most.
        min_confidence : float, optional
            Where confident begins; by default as the protocol declares.
        by : str, default="exposure"
            The score: ``exposure``, ``fds`` (the paper's), ``rcma``, ``independent_loss``, ``random_loss``,
            ``common_loss``, ``failure_probability`` where the audit was given rates, or the exposure to a failure mode,
            such as ``wrong``, where the audit has a modes block; rows without one are left out. Or ``rehearsal``, which
            is read from ``labels``.
        labels : BrittleLabels or pyarrow.Table, optional
            Labels of these rows from :func:`label_brittle`, or the table that it saves; they have the rehearsal of
            their stress.

        Returns
        -------
        Certificates
            At most ``n`` certificates, in memory; fewer where fewer predictions are confident.
        """

    def score(self, by: str, *, partial: bool = False, labels: Any = None) -> Floats:
        """Return one of the scores that rank predictions, large where a prediction is fragile.

        Parameters
        ----------
        by : str
            As in :meth:`most_fragile`; or ``confidence``, whose negative is returned.
        partial : bool, default=False
            Whether some rows may lack the score, because their failure modes were not assessed; theirs is NaN.
        labels : BrittleLabels or pyarrow.Table, optional
            Where ``rehearsal`` is read from, as in :meth:`most_fragile`.

        Returns
        -------
        array of shape (n,)
            One value per prediction.

        Raises
        ------
        CertificateError
            The certificates do not have this score, or only some of them do and ``partial`` is false.
        """
        if by == "confidence":
            return -np.asarray(self.read_columns(by).column(by).to_numpy(), dtype=np.float64)
        if by == REHEARSAL:
            return self._read_rehearsal(labels)
        name = self.column_ranked_by(by)
        column = self.read_columns(name).column(name)
        if column.null_count and not partial:
            raise CertificateError(
                f"{column.null_count} of the {len(self)} certificates do not say what the failure mode {by!r} costs: "
                "audit with ",
                Advice("modes=True", "--modes all"),
                " to have it for every row",
            )
        return np.asarray(column.to_numpy(), dtype=np.float64)

    def confident_from(self, min_confidence: float | None = None) -> float:
        """Return where confident begins: as given, else as the protocol declares."""
        return self.protocol.min_confidence if min_confidence is None else min_confidence

    def _read_rehearsal(self, labels: Any) -> Floats:
        if labels is None:
            raise CertificateError(
                "the rehearsal of a stress is no part of certificates; ",
                Advice("give labels=label_brittle(...) of these rows", "name the labels of these rows with --stress"),
            )
        known = read_rehearsal(labels)
        columns = self.read_columns("id", "confidence")
        ids = columns.column("id").to_pylist()
        if lacking := [own_id for own_id in ids if own_id not in known]:
            raise CertificateError(
                f"the labels have no rehearsal for {len(lacking)} of the {len(ids)} certificates, for example row "
                f"{lacking[0]!r}; label all rows of the audit"
            )
        scores, labelled = np.array([known[own_id] for own_id in ids], dtype=np.float64).reshape(-1, 2).T
        check_same_rows(ids, columns.column("confidence").to_numpy(), labelled)
        return scores

    def _rank(self, n: int, min_confidence: float | None, by: str, labels: Any = None) -> Integers:
        """Return the positions of the n confident predictions with the largest score."""
        min_confidence = self.confident_from(min_confidence)
        if by == REHEARSAL:
            values = self._read_rehearsal(labels)
            chosen = np.flatnonzero(self.read_columns("confidence").column(0).to_numpy() >= min_confidence)
            return np.asarray(chosen[np.argsort(-values[chosen], kind="stable")[:n]])
        column = self.column_ranked_by(by)
        start, positions, scores = 0, np.empty(0, dtype=np.int64), np.empty(0)
        for batch in self.batches(["confidence", column]):
            values = batch.column(column).to_numpy()
            chosen = np.flatnonzero((batch.column("confidence").to_numpy() >= min_confidence) & ~np.isnan(values))
            positions = np.concatenate([positions, start + chosen])
            scores = np.concatenate([scores, values[chosen]])
            best = np.argsort(-scores, kind="stable")[:n]
            positions, scores = positions[best], scores[best]
            start += len(batch)
        return positions

    def column_ranked_by(self, by: str) -> str:
        """Return the column of a score; refuse one that does not rank predictions, or is not here."""
        declared = self.manifest.find_block(LatticeDeclaration)
        modes = self.manifest.find_block(ModesDeclaration)
        if by not in (*RANKED_BY, *MODES):
            known = ", ".join((*RANKED_BY, *MODES, REHEARSAL))
            raise CertificateError(f"predictions are ranked by one of {known}; got {by!r}")
        if by in MODES:
            if modes is None or by not in modes.units:
                raise CertificateError(
                    f"these certificates do not say what the failure mode {by!r} costs: audit with ",
                    Advice("modes=True", "--modes all"),
                    " under a protocol that declares it",
                )
            return f"exposure_{by}"
        if by == "failure_probability" and (declared is None or not declared.has_failures):
            raise CertificateError(
                "these certificates have no failure_probability: audit with ",
                Advice("rates=...", "--rates"),
                " to have it",
            )
        if by == "common_loss" and self.protocol.fading is None:
            raise CertificateError("these certificates have no common_loss: their protocol lacks attenuate_all")
        return by

    def check_table(self, table: pa.Table) -> None:
        """Refuse rows whose columns are not those of the format."""
        check_schema(table, self.protocol, self.classes, self._block_columns(), extent=self.extent)

    def read_claims(self, table: pa.Table) -> Claims:
        """Return the claims of some rows as arrays; refuse rows whose columns are not those of the format."""
        return claims_of(table, self.protocol, self.classes, self._block_columns(), extent=self.extent)

    def _block_columns(self) -> Columns:
        return [column for own in self.blocks.values() for column in own.joined_columns]

    def tally(self, *, min_confidence: float | None = None, labels: Mapping[Any, Any] | None = None) -> Tally:
        """Count every measure in one pass; ``labels`` maps ids to true classes."""
        measures, known = list_measures(self, labels=labels is not None), None if labels is None else label_rows(labels)
        tally = Tally(self, measures, self.confident_from(min_confidence), labels=known)
        for batch in self.batches(tally.columns):
            tally.add(batch)
        return tally

    def summary(self, *, min_confidence: float | None = None, labels: Mapping[Any, Any] | None = None) -> AuditSummary:
        """Return every measure of the audit: shares and means over all certificates.

        Parameters
        ----------
        min_confidence : float, optional
            Where confident begins; by default as the protocol declares.
        labels : mapping of id to class, optional
            True classes by row id, for accuracy; they must cover every row.

        Returns
        -------
        AuditSummary
            The figures that ``fragility report`` shows.
        """
        return self.tally(min_confidence=min_confidence, labels=labels).summary()


def find_positions(chosen: Any, n: int) -> Integers:
    """Return the positions that a user chose of n rows, counted from the front: whole numbers, or a mask over them.

    IndexError outside, TypeError for what is no position.
    """
    given = np.asarray(chosen)
    if given.dtype == bool:
        if given.shape != (n,):
            raise IndexError(f"a mask over the {n} certificates has {n} entries, got shape {given.shape}")
        return np.flatnonzero(given).astype(np.int64)
    return np.array([find_position(value, n) for value in given.ravel().tolist()], dtype=np.int64)


def find_position(value: Any, n: int) -> int:
    """Return one such position."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        position = operator.index(value)
    except TypeError:
        raise TypeError(
            f"certificates are counted by whole numbers or taken by a slice, got {value!r:.80}; "
            "take(...) selects several, by_id(...) finds a row by its id"
        ) from None
    if not -n <= position < n:
        raise IndexError(f"position {position} is outside the {n} certificates")
    return position % n


def _position_of(own_id: Hashable, ids: pa.ChunkedArray) -> int:
    """Return where an id stands among others; -1 if nowhere."""
    wanted: Any = str(own_id)
    if pa.types.is_integer(ids.type):
        try:
            wanted = int(wanted)
        except ValueError:
            return -1
        if not -(2**63) <= wanted < 2**63:
            return -1
    return int(pc.index(ids, pa.scalar(wanted, type=ids.type)).as_py())


def read_rehearsal(labels: Any) -> dict[Hashable, tuple[float, float]]:
    """Return the rehearsal score and the confidence of each row by its id; refuse labels without them.

    labels: BrittleLabels or their table. Scores know nothing else of labels of stress, which judge them.
    """
    if not isinstance(labels, pa.Table):
        ids, scores, confidence = np.asarray(labels.id).tolist(), labels.rehearsal, labels.confidence
    else:
        has = {"id", "confidence", REHEARSAL} <= set(labels.column_names)
        ids = labels.column("id").to_pylist() if has else []
        scores = np.asarray(labels.column(REHEARSAL), dtype=np.float64) if has else None
        confidence = np.asarray(labels.column("confidence"), dtype=np.float64) if has else np.zeros(0)
    if scores is None or not np.isfinite(scores).all():
        raise DataError(
            "these labels have no rehearsal of their stress, or not for every row; make them with ",
            Advice("label_brittle(..., rehearsal=True)", "fragility evaluate labels"),
        )
    return dict(zip(ids, zip(scores.tolist(), confidence.tolist(), strict=True), strict=True))
