"""StoredAudit: the certificates of a folder, read part by part, however many there are."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.audits.audit import Audit, find_positions
from fragility.audits.folder import (
    BlockReader,
    manifest_bytes,
    read_declarations,
    read_table,
)
from fragility.audits.memory import Certificates
from fragility.audits.parts import rows_of_part
from fragility.base.errors import CertificateError
from fragility.pages.wording import write_count


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
        self._blocks = BlockReader(self.folder, self._saved, self.protocol)

    def block_table(self, name: str) -> pa.Table:
        with self._reading():
            if self.blocks[name].declared.is_partial:
                return self._blocks.of_chosen_rows(name)
            return pa.concat_tables([self._blocks.of_place(name, place) for place in range(len(self.part_names))])

    def __len__(self) -> int:
        return self.manifest.rows

    def __repr__(self) -> str:
        return f"{write_count(len(self), 'certificate')} of {self.manifest.model.kind} in {self.folder}"

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        return (self.part(place, columns) for place in range(len(self.part_names)))

    def part(self, place: int, columns: Sequence[str] | None = None) -> pa.Table:
        stored, beside = columns, self._blocks.columns
        if columns is not None and not beside.isdisjoint(columns):  # blocks beside the parts are joined by id
            stored = list(dict.fromkeys(["id", *(column for column in columns if column not in beside)]))
        with self._reading():
            table = read_table(self.folder, self._saved, self.part_names[place], self.protocol, stored)
            table = self._blocks.add(table, place, columns)
        if columns is not None:
            return table.select(list(columns))
        self.check_table(table)
        return table

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Say which file is missing, or that the folder was rewritten."""
        try:
            yield
        except FileNotFoundError as error:
            if manifest_bytes(self.folder) != self._saved.to_bytes():
                raise CertificateError(f"{self.folder} was rewritten since it was opened; open it again") from error
            raise CertificateError(f"{self.folder} is incomplete: {Path(error.filename).name} is missing") from error

    @cached_property
    def part_starts(self) -> tuple[int, ...]:
        with self._reading():
            return tuple(accumulate((rows_of_part(self.folder / name) for name in self.part_names), initial=0))

    def take(self, positions: Any) -> Certificates:
        wanted = find_positions(positions, len(self))
        places = np.array([bisect_right(self.part_starts, int(i)) - 1 for i in wanted], dtype=np.int64)
        found = [
            self.part(int(place)).take(pa.array(wanted[places == place] - self.part_starts[place]))
            for place in np.unique(places)
        ] or [self.part(0).slice(0, 0)]
        in_parts = np.argsort(places, kind="stable")
        table = pa.concat_tables(found).combine_chunks().take(pa.array(np.argsort(in_parts, kind="stable")))
        chosen = Certificates(table, self.protocol, self.manifest, self.protocol_signature)
        return chosen.take(range(len(table)))  # a manifest of its own

    def most_fragile(
        self, n: int = 20, min_confidence: float | None = None, by: str = "exposure", *, labels: Any = None
    ) -> Certificates:
        return self.take(self._rank(n, min_confidence, by, labels))

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
