"""StoredAudit: the certificates of a folder, read part by part, however many there are."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fragility.certificates.certificate import Certificate
from fragility.certificates.claims import Extent
from fragility.certificates.collection import Certificates, as_int, check_ranked_by
from fragility.certificates.dependence import BaselineComparison
from fragility.certificates.folder import (
    content_of,
    manifest_bytes,
    read_comparison,
    read_declarations,
    read_searched,
)
from fragility.certificates.lattice import LatticeDeclaration, lattice_columns
from fragility.certificates.parts import decoded_part, rows_of_part
from fragility.certificates.searched import join_block
from fragility.certificates.summary import CONFIDENT, AuditSummary, summarise
from fragility.certificates.table import check_schema
from fragility.errors import CertificateError
from fragility.models import ClassLabel


class StoredAudit:
    """The certificates of a folder, read part by part; :func:`open_audit` makes one.

    Nothing is kept but the manifest and the protocol, so it can be larger than memory. Every part is compared with its
    digest as it is read. Whether the claims hold is for :func:`verify` to say.

    Parameters
    ----------
    folder : path
        What :meth:`Certificates.save` or :func:`audit_files` wrote.

    Attributes
    ----------
    folder : pathlib.Path
        The folder.
    manifest : Manifest
        What binds the rest: model, input, engine, versions and digests.
    protocol : Protocol
        The protocol the certificates were made under.
    protocol_signature : bytes or None
        The envelope that signed the protocol before the audit, where the manifest names one.
    part_names : tuple of str
        The files that hold the certificates, in the order of the rows.

    See Also
    --------
    Certificates.load : All certificates of a folder in memory.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._saved, self.protocol, self.protocol_signature = read_declarations(self.folder)
        self.manifest = replace(self._saved, files=None)
        self.part_names = tuple(self._saved.files_of("certificates"))

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
        """``full``, or ``summary`` where the lists with one entry a step, severity or group are left out."""
        return self.manifest.claims

    @property
    def lattice_declaration(self) -> LatticeDeclaration | None:
        """What the lattice block was searched with; None without a block."""
        return self.manifest.lattice

    @cached_property
    def baselines(self) -> BaselineComparison | None:
        """The same confident rows under every baseline that the model admits; None where they were not compared."""
        try:
            return read_comparison(self.folder, self._saved, self.protocol)
        except FileNotFoundError as error:
            raise self._lost(Path(error.filename).name) from error

    @property
    def searched_ids(self) -> list[Hashable]:
        """Ids of the rows whose smallest failing set was searched; the most exposed first where only some were."""
        declared = self.lattice_declaration
        if declared is None:
            return []
        tables = [self._searched[0]] if declared.is_partial else self.batches(["id"])
        return [own_id for table in tables for own_id in table.column("id").to_pylist()]

    def __len__(self) -> int:
        return self.manifest.rows

    def __repr__(self) -> str:
        return f"{len(self)} certificates of {self.manifest.model.kind} in {self.folder}"

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Return the table part by part, in order.

        Parameters
        ----------
        columns : sequence of str, optional
            Only these columns, in this order; all by default.

        Returns
        -------
        iterator of pyarrow.Table
            The next part.
        """
        return (self.part(place, columns) for place in range(len(self.part_names)))

    def part(self, place: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return one part of the table.

        Parameters
        ----------
        place : int
            Which one, from 0.
        columns : sequence of str, optional
            Only these columns, in this order; all by default.

        Returns
        -------
        pyarrow.Table
            The rows of that part.

        Raises
        ------
        CertificateError
            The part is missing, unreadable, or not the one the manifest names.
        """
        name = self.part_names[place]
        beside = self._block_beside(columns)
        stored = columns
        if columns is not None and beside is not None:  # the block is joined by id
            stored = list(dict.fromkeys(["id", *(name for name in columns if name not in beside[0])]))
        try:
            data = content_of(self.folder, self._saved, name)
        except FileNotFoundError as error:
            raise self._lost(name) from error
        table = decoded_part(data, str(self.folder / name), self.protocol, stored)
        if beside is not None:
            table = join_block(table, *beside[1])
        if columns is not None:
            return table.select(list(columns))
        check_schema(table, self.protocol, self.classes, lattice_columns(self.lattice_declaration), extent=self.extent)
        return table

    def _block_beside(
        self, columns: Sequence[str] | None
    ) -> tuple[frozenset[str], tuple[pa.Table, LatticeDeclaration]] | None:
        """Return the names of the block's columns and the block, where it lies beside the parts and is asked for."""
        declared = self.lattice_declaration
        if declared is None or not declared.is_partial:
            return None
        names = frozenset(name for name, _ in lattice_columns(declared))
        return None if columns is not None and not names.intersection(columns) else (names, self._searched)

    @cached_property
    def _searched(self) -> tuple[pa.Table, LatticeDeclaration]:
        try:
            found = read_searched(self.folder, self._saved, self.protocol)
        except FileNotFoundError as error:
            raise self._lost(Path(error.filename).name) from error
        assert found is not None
        return found

    def _lost(self, name: str) -> CertificateError:
        if manifest_bytes(self.folder) == self._saved.to_bytes():
            return CertificateError(f"{self.folder} is incomplete: {name} is missing")
        return CertificateError(f"{self.folder} was rewritten since it was opened; open it again")

    @cached_property
    def part_starts(self) -> tuple[int, ...]:
        """Where each part begins among all rows, and at the end how many rows there are."""
        return tuple(accumulate(map(self._rows_of, self.part_names), initial=0))

    def _rows_of(self, name: str) -> int:
        try:
            return rows_of_part(self.folder / name)
        except FileNotFoundError as error:
            raise self._lost(name) from error

    def take(self, positions: Sequence[int]) -> Certificates:
        """Return the certificates at these positions, in memory.

        Parameters
        ----------
        positions : sequence of int
            Positions counted from 0.

        Returns
        -------
        Certificates
            The selection, in the order asked for; its manifest says how many rows were audited.
        """
        wanted = np.asarray(positions, dtype=np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"positions must lie within the {len(self)} certificates, got {positions!r:.80}")
        places = np.array([bisect_right(self.part_starts, int(i)) - 1 for i in wanted], dtype=np.int64)
        found = [self.part(0).slice(0, 0)]
        for place in np.unique(places):
            found.append(self.part(int(place)).take(pa.array(wanted[places == place] - self.part_starts[place])))
        in_parts = np.argsort(places, kind="stable")
        table = pa.concat_tables(found).combine_chunks().take(pa.array(np.argsort(in_parts, kind="stable")))
        return self._certificates(table).take(range(len(table)))

    def _certificates(self, table: pa.Table) -> Certificates:
        return Certificates(table, self.protocol, self.manifest, self.protocol_signature)

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
        first: list[Any] = []
        for place, batch in enumerate(self.batches(["id"])):
            ids = batch.column("id")
            first = first or ids.slice(0, 3).to_pylist()
            position = _position_of(own_id, ids)
            if position >= 0:
                return self._certificates(self.part(place))[position]
        raise CertificateError(f"no certificate for row {own_id!r}; ids run like {first}")

    def of_rows(self, ids: Sequence[Hashable]) -> Certificates:
        """Return the certificates of these rows, as far as there are any, in memory.

        Parameters
        ----------
        ids : sequence of int or str
            Ids of rows; they are compared as text.

        Returns
        -------
        Certificates
            Those found, in the order of the folder.
        """
        wanted = {str(own_id) for own_id in ids}
        found, start = [], 0
        for batch in self.batches(["id"]):
            found += [start + i for i, own in enumerate(batch.column("id").to_pylist()) if str(own) in wanted]
            start += len(batch)
        return self.take(found)

    def most_fragile(self, n: int = 20, min_confidence: float = 0.9, by: str = "exposure") -> Certificates:
        """Return the confident predictions with the largest score, most fragile first.

        Parameters
        ----------
        n : int, default=20
            How many at most.
        min_confidence : float, default=0.9
            Where confident begins.
        by : str, default="exposure"
            The score, as in :meth:`Certificates.most_fragile`.

        Returns
        -------
        Certificates
            At most ``n`` certificates, in memory.
        """
        check_ranked_by(by, self.protocol, self.lattice_declaration)
        start, positions, scores = 0, np.empty(0, dtype=np.int64), np.empty(0)
        for batch in self.batches(["confidence", by]):
            chosen = np.flatnonzero(batch.column("confidence").to_numpy() >= min_confidence)
            positions = np.concatenate([positions, start + chosen])
            scores = np.concatenate([scores, batch.column(by).to_numpy()[chosen]])
            best = np.argsort(-scores, kind="stable")[:n]
            positions, scores = positions[best], scores[best]
            start += len(batch)
        return self.take(positions.tolist())

    def summary(self, *, min_confidence: float = CONFIDENT, labels: Mapping[Any, Any] | None = None) -> AuditSummary:
        """Return means and shares over all certificates.

        Parameters
        ----------
        min_confidence : float, default=0.9
            Where confident begins.
        labels : mapping of id to class, optional
            True classes by row id, for accuracy.

        Returns
        -------
        AuditSummary
            The figures that ``fragility compare`` prints.
        """
        return summarise(self, min_confidence=min_confidence, labels=labels)


def _position_of(own_id: Hashable, ids: pa.ChunkedArray) -> int:
    """Return where an id stands among others; -1 if nowhere."""
    whole = pa.types.is_integer(ids.type)
    wanted = as_int(own_id) if whole else str(own_id)
    if whole and not (isinstance(wanted, int) and -(2**63) <= wanted < 2**63):
        return -1
    return int(pc.index(ids, pa.scalar(wanted, type=ids.type)).as_py())


def open_audit(folder: str | os.PathLike[str]) -> StoredAudit:
    """Open an audit folder without loading it: its certificates are read part by part, as they are asked for.

    Parameters
    ----------
    folder : path
        What :meth:`Certificates.save` or :func:`audit_files` wrote.

    Returns
    -------
    StoredAudit
        Manifest and protocol, checked, and a way to the certificates.

    Raises
    ------
    CertificateError
        The folder is no audit, or its manifest or protocol was changed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X, y)
    >>> with tempfile.TemporaryDirectory() as home:
    ...     folder = fg.audit(model, X[:100], fg.Protocol.fit(model, X)).save(Path(home, "audit"))
    ...     audit = fg.open_audit(folder)
    ...     print(len(audit), [len(batch) for batch in audit.batches(["id", "exposure"])])
    100 [100]
    """
    return StoredAudit(folder)
