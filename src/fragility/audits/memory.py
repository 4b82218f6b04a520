"""Certificates: the certificates of one audit as a sequence, a table, and a folder.

Every byte of the folder is bound: rows by their digests, rows together by the root digest, files and manifest by
theirs. docs/format.md describes every field, so that someone else can write another reader.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy.typing as npt
import pyarrow as pa

from fragility.audits.audit import Audit, find_position, find_positions
from fragility.audits.certificate import Certificate
from fragility.audits.folder import read_folder, read_protocol_signature, write_folder
from fragility.audits.manifest import Manifest
from fragility.audits.parts import PART_ROWS, cut
from fragility.base.canonical import combine_digests, digest_bytes
from fragility.base.errors import CertificateError
from fragility.base.libraries import say_lacking
from fragility.blocks.all import BLOCKS, place_blocks
from fragility.blocks.block import DIGEST, AuditBlock, Declaration
from fragility.blocks.choice import compare_ids
from fragility.blocks.claims import (
    Claims,
    context_digest,
    digest_from_text,
    row_digests,
    table_of,
)
from fragility.pages.drawing import draw_curve_svg, draw_table, escape, put_side_by_side
from fragility.pages.wording import describe_curve, write_count
from fragility.protocol import Protocol

SHOWN_ROWS = 10


class Certificates(Audit):
    """The certificates of one audit: a sequence of :class:`Certificate`, and a table.

    ``certs[0]`` is one certificate, ``certs[0:5]`` are certificates of their own. :func:`audit` makes them, ``load``
    reads them from a folder.

    Parameters
    ----------
    table : pyarrow.Table
        One row per prediction, in the format's columns.
    protocol : Protocol
        The protocol they were made under.
    manifest : Manifest
        What binds the rest: model, input, engine, versions and digests.
    protocol_signature : bytes, optional
        The envelope that signed the protocol before the audit, where the manifest names one.

    See Also
    --------
    audit : Make certificates.
    verify : Recompute what they claim.
    """

    def __init__(
        self,
        table: pa.Table,
        protocol: Protocol,
        manifest: Manifest,
        protocol_signature: bytes | None = None,
    ) -> None:
        self.table = table
        self.protocol = protocol
        self.manifest = manifest
        self.protocol_signature = protocol_signature

    @classmethod
    def build(cls, claims: Claims, protocol: Protocol, manifest: Manifest) -> Certificates:
        """Return certificates from claims, without blocks; digests are made here.

        Parameters
        ----------
        claims : Claims
            What an engine measured, as arrays.
        protocol : Protocol
            The protocol the claims were made under.
        manifest : Manifest
            Of the audit; what follows from the claims is replaced.

        Returns
        -------
        Certificates
            With row digests and root digest.
        """
        context = context_digest(protocol.digest, manifest.model.fingerprint, manifest.model.classes)
        digests = row_digests(claims, context, protocol.resolution)
        derived: dict[str, Any] = {"rows": len(claims), "root_digest": combine_digests(digests), "claims": "full"}
        plain = replace(manifest.without_blocks(), **derived)
        return cls(table_of(claims, digests, protocol, manifest.model.classes), protocol, plain)

    def with_block(self, name: str, declaration: Declaration, block: pa.Table) -> Certificates:
        """Return the same certificates with a block in place of the one of its kind that they may have.

        Parameters
        ----------
        name : str
            ``lattice``, ``modes``, ``intervals``, ``baselines`` ...
        declaration : Declaration
            What it was made with.
        block : pyarrow.Table
            Ids and the columns of the block, of the same rows in the same order; where the declaration says so, of
            chosen rows in the order in which the format lists them. Digests are made here.

        Returns
        -------
        Certificates
            With the block's row digests and root digest.
        """
        model = self.manifest.model
        own = place_blocks({name: declaration}, self.protocol, model.fingerprint, model.classes)[name]
        columns = {column.name: block.column(column.name).combine_chunks() for column in own.columns}
        return self.put_block(own, own.tabulate(block.column("id").combine_chunks(), columns))

    def put_block(self, own: AuditBlock, made: pa.Table) -> Certificates:
        """Return the same certificates with the finished table of a block, in place of the one of its kind.

        Parameters
        ----------
        own : AuditBlock
            The block, as this audit declares it.
        made : pyarrow.Table
            Ids, the columns of the block and its digests.

        Returns
        -------
        Certificates
            With the block's root digest.

        Raises
        ------
        CertificateError
            The block is of other rows than the declaration chooses.
        """
        fault = self._find_other_rows(own, made.column("id").to_pylist())
        if fault is not None:
            raise CertificateError(f"the {own.name} block is of other rows than the certificates: {fault}")
        there = self.blocks
        bare = self.table.drop_columns(there[own.name].names) if own.name in there else self.table
        declared = {**self.manifest.blocks, own.name: own.with_root(made.column(DIGEST).to_pylist())}
        manifest = replace(self.manifest, blocks={name: declared[name] for name in BLOCKS if name in declared})
        found = Certificates(own.join(bare, made), self.protocol, manifest, self.protocol_signature)
        claims = found.table.column_names[: found.table.column_names.index(DIGEST) + 1]
        names = [column for block in found.blocks.values() for column in block.names]
        found.table = found.table.select([*claims, *names])
        return found

    def _find_other_rows(self, own: AuditBlock, ids: Sequence[Hashable]) -> str | None:
        """Return why a block cannot be of these rows; None if it may."""
        choice = own.choice
        if choice is None:
            return compare_ids(ids, self.table.column("id").to_pylist())
        candidates, confident = choice.keep_candidates(self.table, set(ids)), choice.find_confident(self.table)
        return choice.find_fault(candidates, len(confident), ids, whole=not self.manifest.is_selection)

    @cached_property
    def claims(self) -> Claims:
        """The claims as arrays."""
        return self.read_claims(self.table)

    def block_table(self, name: str) -> pa.Table:
        return self.blocks[name].cut_out(self.table)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @overload
    def __getitem__(self, position: int) -> Certificate: ...

    @overload
    def __getitem__(self, position: slice) -> Certificates: ...

    def __getitem__(self, position: int | slice) -> Certificate | Certificates:
        if isinstance(position, slice):
            return self.take(range(len(self))[position])
        return self.certificate(find_position(position, len(self)))

    def most_fragile(
        self, n: int = 20, min_confidence: float | None = None, by: str = "exposure", *, labels: Any = None
    ) -> Certificates:
        return self.take(self._rank(n, min_confidence, by, labels))

    def __iter__(self) -> Iterator[Certificate]:
        return (self[i] for i in range(len(self)))

    def take(self, positions: Sequence[int] | npt.NDArray[Any]) -> Certificates:
        table = self.table.take(pa.array(find_positions(positions, len(self))))
        left_out = [name for name, own in self.blocks.items() if not own.kind.in_selections]
        table = table.drop_columns([column for name in left_out for column in self.blocks[name].names])
        root = combine_digests(digest_from_text(text) for text in table.column(DIGEST).to_pylist())
        blocks = {
            name: own.with_root(table.column(own.digest).drop_null().to_pylist())
            for name, own in self.blocks.items()
            if name not in left_out
        }
        manifest = replace(self.manifest, rows=len(table), root_digest=root, blocks=blocks)
        return Certificates(table, self.protocol, manifest, self.protocol_signature)

    def with_protocol_signature(self, path: str | os.PathLike[str]) -> Certificates:
        """Return these certificates with the name of the signature that their protocol had before the audit.

        Parameters
        ----------
        path : path
            The envelope that :func:`sign` wrote for the protocol file; it is saved with the certificates.

        Returns
        -------
        Certificates
            The same claims; the manifest states the envelope's digest.

        Raises
        ------
        CertificateError
            The file is no envelope, or signs another protocol. Whose signature it is, :func:`verify_signature` says.
        """
        envelope = read_protocol_signature(path, self.protocol.digest)
        manifest = replace(self.manifest, protocol_signature=digest_bytes(envelope))
        return Certificates(self.table, self.protocol, manifest, envelope)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        return (self.part(place, columns) for place in range(len(self.part_starts) - 1))

    @property
    def part_starts(self) -> tuple[int, ...]:
        return (*range(0, max(len(self), 1), PART_ROWS), len(self))

    def part(self, place: int, columns: Sequence[str] | None = None) -> pa.Table:
        table = self.table if columns is None else self.table.select(list(columns))
        return table.slice(place * PART_ROWS, PART_ROWS)

    def to_arrow(self) -> pa.Table:
        """Return the whole table as it is written.

        Returns
        -------
        pyarrow.Table
            One row per prediction.
        """
        return self.table

    def to_pandas(self) -> Any:
        """Return the table for pandas; lists (path, margins) are one array per cell.

        Returns
        -------
        pandas.DataFrame
            One row per prediction.
        """
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """Return the table for polars, which must be installed.

        Returns
        -------
        polars.DataFrame
            One row per prediction.
        """
        if lacking := say_lacking("to_polars", "polars"):
            raise CertificateError(lacking)
        import polars

        return polars.from_arrow(self.table)

    def __repr__(self) -> str:
        opening = f"{write_count(len(self), 'certificate')} of {self.manifest.model.kind}"
        if not len(self):
            return opening
        s = self.summary()
        return (
            f"{opening} (mean confidence {s['mean_confidence'].value:.3f}, "
            f"mean flip budget {s['mean_flip_budget'].value:.3f}, "
            f"{1 - s['never_flips'].value:.1%} flip along the path, mean RCMA {s['mean_rcma'].value:.3f}, "
            f"mean FDS {s['mean_fds'].value:.3f}, mean exposure {s['mean_exposure'].value:.3f})"
        )

    def _repr_html_(self) -> str:
        opening = f"<p>{escape(repr(self))}</p>"
        if not len(self):
            return opening
        confident = self.most_fragile(SHOWN_ROWS)
        shown = confident if len(confident) else self.most_fragile(SHOWN_ROWS, min_confidence=0.0)
        which = "confident predictions" if len(confident) else "predictions (none is confident)"
        head = ("row", "predicts", "confidence", "k*", "exposure", "rests on")
        table = draw_table(head, [_list_cells(cert) for cert in shown], numeric=(2, 3, 4))
        worst = shown[0]
        curve = draw_curve_svg(worst.curve, describe_curve(worst.id, worst.sentence())) if worst.path_margin else ""
        curve += f"<p>Row {escape(worst.id)}: {escape(worst.sentence())}.</p>"
        return f"{opening}<p>The {which} that rest on least:</p>{put_side_by_side(table, curve)}"

    # --- files ------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the certificates to a folder: a new one, an empty one, or one that holds an audit, which is replaced.

        Whatever interrupts it, the folder holds the old audit or the new one, whole. Other files in it stay.

        Parameters
        ----------
        folder : path
            Where to write.

        Returns
        -------
        pathlib.Path
            The folder.

        Raises
        ------
        CertificateError
            The folder holds other files and no audit, or cannot be written.
        """
        Manifest.from_dict(self.manifest.to_dict())  # by the rules that it is read by
        self.check_table(self.table)
        claims = self.table.drop_columns([column for own in self.blocks.values() for column in own.names])
        blocks = {
            name: [self.block_table(name)] if own.declared.is_partial else list(cut(self.block_table(name)))
            for name, own in self.blocks.items()
        }
        return write_folder(folder, cut(claims), blocks, self.protocol, self.manifest, self.protocol_signature)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Certificates:
        """Return the certificates of a folder; refuse files that are not the ones written.

        Whether the claims hold is for :func:`verify` to say.

        Parameters
        ----------
        folder : path
            What ``save`` wrote.

        Returns
        -------
        Certificates
            All certificates of the folder.

        Raises
        ------
        CertificateError
            The folder is malformed, incomplete or of an unknown version.
        """
        loaded = cls(*read_folder(Path(folder)))
        loaded.check_table(loaded.table)
        return loaded


def _list_cells(cert: Certificate) -> tuple[object, ...]:
    """Return one line of the notebook's table."""
    budget = str(cert.flip_budget) if cert.flipped else "none"
    rests_on = ", ".join(cert.failing_groups or cert.path[:1])
    return cert.id, cert.predicted, f"{cert.confidence:.1%}", budget, f"{cert.exposure:.3f}", rests_on
