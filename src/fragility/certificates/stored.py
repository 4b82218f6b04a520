"""StoredAudit: the certificates of a folder, read part by part, however many there are."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.certificates.audit import Audit
from fragility.certificates.dependence import BaselineComparison
from fragility.certificates.folder import content_of, manifest_bytes, read_comparison, read_declarations, read_searched
from fragility.certificates.lattice import LatticeDeclaration, join_block, lattice_columns
from fragility.certificates.memory import Certificates
from fragility.certificates.parts import decode_part, rows_of_part
from fragility.errors import CertificateError
from fragility.scores import CONFIDENT


class StoredAudit(Audit):
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

    @cached_property
    def baselines(self) -> BaselineComparison | None:
        try:
            return read_comparison(self.folder, self._saved, self.protocol)
        except FileNotFoundError as error:
            raise self._lost(Path(error.filename).name) from error

    @property
    def searched_ids(self) -> list[Hashable]:
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
        return (self.part(place, columns) for place in range(len(self.part_names)))

    def part(self, place: int, columns: Sequence[str] | None = None) -> pa.Table:
        name, declared, stored = self.part_names[place], self.lattice_declaration, columns
        block = {column for column, _ in lattice_columns(declared)} if declared is not None else set()
        joined = declared is not None and declared.is_partial and (columns is None or not block.isdisjoint(columns))
        if columns is not None and joined:  # the block lies beside the parts, and is joined by id
            stored = list(dict.fromkeys(["id", *(column for column in columns if column not in block)]))
        try:
            data = content_of(self.folder, self._saved, name)
        except FileNotFoundError as error:
            raise self._lost(name) from error
        table = decode_part(data, str(self.folder / name), self.protocol, stored)
        if joined:
            table = join_block(table, *self._searched)
        if columns is not None:
            return table.select(list(columns))
        self.check_table(table)
        return table

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
        try:
            return tuple(accumulate((rows_of_part(self.folder / name) for name in self.part_names), initial=0))
        except FileNotFoundError as error:
            raise self._lost(Path(error.filename).name) from error

    def take(self, positions: Any) -> Certificates:
        wanted = np.asarray(positions, dtype=np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"positions must lie within the {len(self)} certificates, got {positions!r:.80}")
        places = np.array([bisect_right(self.part_starts, int(i)) - 1 for i in wanted], dtype=np.int64)
        found = [
            self.part(int(place)).take(pa.array(wanted[places == place] - self.part_starts[place]))
            for place in np.unique(places)
        ] or [self.part(0).slice(0, 0)]
        in_parts = np.argsort(places, kind="stable")
        table = pa.concat_tables(found).combine_chunks().take(pa.array(np.argsort(in_parts, kind="stable")))
        chosen = Certificates(table, self.protocol, self.manifest, self.protocol_signature)
        return chosen.take(range(len(table)))  # a manifest of its own

    def most_fragile(self, n: int = 20, min_confidence: float = CONFIDENT, by: str = "exposure") -> Certificates:
        return self.take(self._rank(n, min_confidence, by))

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
        own = (own_id for batch in self.batches(["id"]) for own_id in batch.column("id").to_pylist())
        return self.take([position for position, own_id in enumerate(own) if str(own_id) in wanted])


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
