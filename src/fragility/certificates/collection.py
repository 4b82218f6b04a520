"""Certificates: the certificates of one audit as a sequence, a table, and a folder.

Every byte of the folder is bound: rows by their digests, rows together by the root digest, files and manifest by
theirs. docs/format.md describes every field, so that someone else can write another reader.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fragility.arrays import Floats
from fragility.canonical import combine_digests, digest_bytes
from fragility.certificates.certificate import Certificate
from fragility.certificates.claims import PER_STEP, Claims, Extent
from fragility.certificates.dependence import COMPARED_CLAIMS, BaselineComparison, check_comparison
from fragility.certificates.digests import context_digest, digest_from_text, row_digests
from fragility.certificates.folder import read_folder, read_protocol_signature, write_folder
from fragility.certificates.lattice import (
    LatticeClaims,
    LatticeDeclaration,
    lattice_claims_of,
    lattice_columns,
    lattice_context,
    with_block,
)
from fragility.certificates.manifest import ComparedBaselines, Manifest
from fragility.certificates.parts import PART_ROWS, cut
from fragility.certificates.searched import join_block, most_exposed, split_block
from fragility.certificates.summary import CONFIDENT, AuditSummary, summarise
from fragility.certificates.table import check_schema, claims_of, table_of
from fragility.drawing.curve import draw_curve_svg
from fragility.drawing.svg import draw_table, escape, put_side_by_side
from fragility.errors import Advice, CertificateError
from fragility.libraries import say_lacking
from fragility.models import ClassLabel
from fragility.protocol import Protocol
from fragility.wording import describe_curve

SHOWN_ROWS = 10
RANKED_BY = ("exposure", "fds", "rcma", "independent_loss", "common_loss", "failure_probability")
BLOCK_FIELDS = ("smallest_state", "smallest_size", "smallest_count")
FAILURE_FIELDS = ("failure_probability", "failure_low", "failure_high", "failure_exact", "expected_margin")


class Certificates:
    """The certificates of one audit: a sequence of :class:`Certificate`, and a table.

    ``certs[0]`` is one certificate, ``certs[0:5]`` are certificates of their own. :func:`audit` makes them, ``load``
    reads them from a folder.

    Parameters
    ----------
    table : pyarrow.Table
        One row a prediction, in the format's columns.
    protocol : Protocol
        The protocol they were made under.
    manifest : Manifest
        What binds the rest: model, input, engine, versions and digests.
    protocol_signature : bytes, optional
        The envelope that signed the protocol before the audit, where the manifest names one.
    baselines : BaselineComparison, optional
        The same confident rows under every baseline that the model admits, where the manifest says so.

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
        baselines: BaselineComparison | None = None,
    ) -> None:
        self.table = table
        self.protocol = protocol
        self.manifest = manifest
        self.protocol_signature = protocol_signature
        self.baselines = baselines

    @classmethod
    def build(cls, claims: Claims, protocol: Protocol, manifest: Manifest) -> Certificates:
        """Return certificates from claims, without the lattice block; digests are made here.

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
        plain = replace(manifest, **derived, lattice=None, lattice_root_digest=None, baselines=None)
        return cls(table_of(claims, digests, protocol, manifest.model.classes), protocol, plain)

    def with_lattice(self, block: LatticeClaims, declaration: LatticeDeclaration) -> Certificates:
        """Return the same certificates with a lattice block in place of the one they may have; digests are made here.

        Parameters
        ----------
        block : LatticeClaims
            Smallest failing sets and failure probabilities of the same rows, in the same order; where the declaration
            says so, of the most exposed rows, most exposed first.
        declaration : LatticeDeclaration
            What they were searched with.

        Returns
        -------
        Certificates
            With the block's row digests and root digest.
        """
        own = self.table.select(self.table.column_names[: self.table.column_names.index("digest") + 1])
        count = declaration.most_exposed
        covered = own.select(["id"]) if count is None else own.select(["id"]).take(pa.array(most_exposed(own, count)))
        if block.ids != tuple(covered.column("id").to_pylist()):
            raise CertificateError("the lattice block is of other rows than the certificates")
        about = self.manifest
        context = lattice_context(about.protocol_digest, about.model.fingerprint, about.model.classes, declaration)
        base = own if count is None else covered
        table, digests = with_block(base, block, declaration, context, self.protocol)
        if count is not None:
            table = join_block(own, table, declaration)
        manifest = replace(about, lattice=declaration, lattice_root_digest=combine_digests(digests))
        return Certificates(table, self.protocol, manifest, self.protocol_signature, self.baselines)

    def with_baselines(self, comparison: BaselineComparison) -> Certificates:
        """Return the same certificates with a comparison of baselines.

        Parameters
        ----------
        comparison : BaselineComparison
            What :func:`compare_baselines` made of these certificates.

        Returns
        -------
        Certificates
            The manifest states the figures; the comparison is saved, verified and reported with the certificates.

        Raises
        ------
        CertificateError
            The comparison is of other rows or other baselines.
        """
        check_comparison(comparison, self.table.select(list(COMPARED_CLAIMS)), self.protocol)
        manifest = replace(self.manifest, baselines=ComparedBaselines(**comparison.section()))
        return Certificates(self.table, self.protocol, manifest, self.protocol_signature, comparison)

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

    @cached_property
    def claims(self) -> Claims:
        """The claims as arrays."""
        return claims_of(self.table, self.protocol, self.classes, self._block_columns, extent=self.extent)

    @property
    def lattice_declaration(self) -> LatticeDeclaration | None:
        """What the lattice block was searched with; None without a block."""
        return self.manifest.lattice

    @cached_property
    def lattice(self) -> LatticeClaims | None:
        """The lattice block as arrays; None without one."""
        declared = self.lattice_declaration
        return None if declared is None else lattice_claims_of(self.table, declared, self.protocol)

    @property
    def searched_ids(self) -> list[Hashable]:
        """Ids of the rows whose smallest failing set was searched; the most exposed first where only some were."""
        declared = self.lattice_declaration
        if declared is None:
            return []
        searched = split_block(self.table, declared)[1] if declared.is_partial else self.table
        return list(searched.column("id").to_pylist())

    @property
    def _block_columns(self) -> list[tuple[str, pa.DataType]]:
        return lattice_columns(self.lattice_declaration)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @overload
    def __getitem__(self, position: int) -> Certificate: ...

    @overload
    def __getitem__(self, position: slice) -> Certificates: ...

    def __getitem__(self, position: int | slice) -> Certificate | Certificates:
        if isinstance(position, slice):
            return self.take(range(len(self))[position])
        return self._certificate(_position(position, len(self)))

    def _certificate(self, position: int) -> Certificate:
        row: dict[str, Any] = self.table.slice(position, 1).to_pylist()[0]
        names = self.protocol.group_names
        if row["flipped"] is not (0 < (row["flip_budget"] or 0) <= self.protocol.depth):
            raise CertificateError(f"flipped and flip_budget of row {row['id']!r} contradict each other")
        steps: dict[str, Any] = {name: row.get(name, ()) for name in PER_STEP}  # none in a summary
        return Certificate(
            **{name: row[name] for name in ("id", "predicted", "confidence", "margin", "flip_budget", "flipped")},
            rcma=row["rcma"],
            fds=row["fds"],
            **{name: row[name] for name in ("exposure", "independent_loss", "common_loss")},
            thresholds={operator: row[f"lambda_{operator}"] for operator in self.protocol.operators},
            path=tuple(row["path"]),
            path_margin=tuple(steps["path_margin"]),
            path_predicted=tuple(steps["path_predicted"]),
            path_collapse=tuple(steps["path_collapse"]),
            fade_margin=tuple(steps["fade_margin"]),
            one_step_drop=dict(zip(names, steps["one_step_drop"], strict=False)),
            one_step_confidence_drop=dict(zip(names, steps["one_step_confidence_drop"], strict=False)),
            digest=row["digest"],
            **self._block_fields(row),
        )

    def _block_fields(self, row: Mapping[str, Any]) -> dict[str, Any]:
        declared = self.lattice_declaration
        if declared is None:
            return {}
        block = {name: row[name] for name in (*BLOCK_FIELDS, "lattice_digest")}
        if declared.has_failures:
            block |= {name: row[name] for name in FAILURE_FIELDS}
            block["failure_condition"] = declared.condition(self.protocol)
        return {**block, "smallest_set": tuple(row["smallest_set"])}

    def __iter__(self) -> Iterator[Certificate]:
        return (self[i] for i in range(len(self)))

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
        for candidate in (own_id, as_int(own_id), str(own_id)):
            if candidate in self._positions:
                return self[self._positions[candidate]]
        raise CertificateError(f"no certificate for row {own_id!r}; ids run like {list(self._positions)[:3]}")

    @cached_property
    def _positions(self) -> dict[Hashable, int]:
        return {own_id: i for i, own_id in enumerate(self.table.column("id").to_pylist())}

    def most_fragile(self, n: int = 20, min_confidence: float = 0.9, by: str = "exposure") -> Certificates:
        """Return the confident predictions with the largest score, most fragile first.

        Parameters
        ----------
        n : int, default=20
            How many at most.
        min_confidence : float, default=0.9
            Where confident begins.
        by : str, default="exposure"
            The score: ``exposure``, ``fds`` (the paper's), ``rcma``, ``independent_loss``, ``common_loss``, or
            ``failure_probability`` where the audit was given rates.

        Returns
        -------
        Certificates
            At most ``n`` certificates; fewer where fewer predictions are confident.
        """
        score = self.score(by)
        chosen = np.flatnonzero(self.table.column("confidence").to_numpy() >= min_confidence)
        return self.take(chosen[np.argsort(-score[chosen], kind="stable")][:n])

    def score(self, by: str) -> Floats:
        """Return one of the scores that rank predictions, large where a prediction is fragile.

        Parameters
        ----------
        by : str
            As in :meth:`most_fragile`.

        Returns
        -------
        array of shape (n,)
            One value a prediction.
        """
        check_ranked_by(by, self.protocol, self.lattice_declaration)
        return np.asarray(self.table.column(by).to_numpy(), dtype=np.float64)

    def take(self, positions: Sequence[int] | npt.NDArray[Any]) -> Certificates:
        """Return the certificates at these positions (or where a mask is true), as certificates of their own.

        The manifest goes on to say how many rows were audited, so :func:`verify` tells a selection from the whole. A
        comparison of baselines is of the whole audit, and is left out.

        Parameters
        ----------
        positions : sequence of int or array of bool
            Positions counted from 0, or a mask over all certificates.

        Returns
        -------
        Certificates
            The selection, in the order asked for.
        """
        table = self.table.take(pa.array(_positions(positions, len(self)), type=pa.int64()))
        root = combine_digests(digest_from_text(text) for text in table.column("digest").to_pylist())
        derived: dict[str, Any] = {"rows": len(table), "root_digest": root, "baselines": None}
        if self.manifest.lattice is not None:
            texts = table.column("lattice_digest").drop_null().to_pylist()  # null: not searched
            derived["lattice_root_digest"] = combine_digests(digest_from_text(text) for text in texts)
        return Certificates(table, self.protocol, replace(self.manifest, **derived), self.protocol_signature)

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
        return Certificates(self.table, self.protocol, manifest, envelope, self.baselines)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Return the table piece by piece, in order, for what must not depend on how many rows there are.

        Parameters
        ----------
        columns : sequence of str, optional
            Only these columns, in this order; all by default.

        Returns
        -------
        iterator of pyarrow.Table
            The next rows.
        """
        return cut(self.table if columns is None else self.table.select(list(columns)))

    @property
    def part_starts(self) -> tuple[int, ...]:
        """Where each piece of :meth:`batches` begins, and at the end how many certificates there are."""
        return (*range(0, max(len(self), 1), PART_ROWS), len(self))

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
        """
        table = self.table if columns is None else self.table.select(list(columns))
        return table.slice(place * PART_ROWS, PART_ROWS)

    def to_arrow(self) -> pa.Table:
        """Return the whole table as it is written.

        Returns
        -------
        pyarrow.Table
            One row a prediction.
        """
        return self.table

    def to_pandas(self) -> Any:
        """Return the table for pandas; lists (path, margins) are one array a cell.

        Returns
        -------
        pandas.DataFrame
            One row a prediction.
        """
        return self._public_table().to_pandas()

    def to_polars(self) -> Any:
        """Return the table for polars, which must be installed.

        Returns
        -------
        polars.DataFrame
            One row a prediction.
        """
        if lacking := say_lacking("to_polars", "polars"):
            raise CertificateError(lacking)
        import polars

        return polars.from_arrow(self._public_table())

    def _public_table(self) -> pa.Table:
        return self.table.drop_columns(list(PER_STEP[-1:])) if self.extent == "full" else self.table

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

    def __repr__(self) -> str:
        opening = f"{len(self)} certificates of {self.manifest.model.kind}"
        if not len(self):
            return opening
        s = self.summary()
        return (
            f"{opening} (mean confidence {s.mean_confidence:.3f}, mean flip budget {s.mean_flip_budget:.3f}, "
            f"{1 - s.share_never_flips:.1%} flip, mean RCMA {s.mean_rcma:.3f}, mean FDS {s.mean_fds:.3f}, "
            f"mean exposure {s.mean_exposure:.3f})"
        )

    def _repr_html_(self) -> str:
        opening = f"<p>{escape(repr(self))}</p>"
        if not len(self):
            return opening
        confident = self.most_fragile(SHOWN_ROWS)
        shown = confident if len(confident) else self.most_fragile(SHOWN_ROWS, min_confidence=0.0)
        which = "confident predictions" if len(confident) else "predictions (none is confident)"
        head = ("row", "predicts", "confidence", "k*", "exposure", "rests on")
        table = draw_table(head, [_shown(cert) for cert in shown], numeric=(2, 3, 4))
        return f"{opening}<p>The {which} that rest on least:</p>{put_side_by_side(table, _worst_curve(shown[0]))}"

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
        check_schema(self.table, self.protocol, self.classes, self._block_columns, extent=self.extent)
        table, beside, declared = self.table, dict[str, pa.Table](), self.lattice_declaration
        if declared is not None and declared.is_partial:
            table, beside["searched"] = split_block(table, declared)
        if self.manifest.baselines is not None:
            if self.baselines is None:
                raise CertificateError("the manifest speaks of other baselines, but their comparison is not here")
            beside["baselines"] = self.baselines.table
        return write_folder(folder, cut(table), self.protocol, self.manifest, self.protocol_signature, beside)

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
        found = read_folder(Path(folder))
        manifest = replace(found.manifest, files=None)
        loaded = cls(found.table, found.protocol, manifest, found.protocol_signature, found.baselines)
        check_schema(loaded.table, loaded.protocol, loaded.classes, loaded._block_columns, extent=loaded.extent)
        return loaded


def check_ranked_by(by: str, protocol: Protocol, declared: LatticeDeclaration | None) -> None:
    """Refuse a score that does not rank predictions, or that these certificates do not have."""
    if by not in RANKED_BY:
        raise CertificateError(f"predictions are ranked by one of {', '.join(RANKED_BY)}; got {by!r}")
    if by == "failure_probability" and (declared is None or not declared.has_failures):
        raise CertificateError(
            "these certificates have no failure_probability: audit with ", Advice("rates=...", "--rates"), " to have it"
        )
    if by == "common_loss" and protocol.fading is None:
        raise CertificateError("these certificates have no common_loss: their protocol lacks attenuate_all")


def _shown(cert: Certificate) -> tuple[object, ...]:
    """Return one line of the notebook's table."""
    budget = str(cert.flip_budget) if cert.flipped else "none"
    rests_on = ", ".join(cert.failing_groups or cert.path[:1])
    return cert.id, cert.predicted, f"{cert.confidence:.1%}", budget, f"{cert.exposure:.3f}", rests_on


def _worst_curve(cert: Certificate) -> str:
    """Return the collapse of the most fragile prediction, with its sentence."""
    caption = f"<p>Row {escape(cert.id)}: {escape(cert.sentence())}.</p>"
    if not cert.path_margin:
        return caption
    return draw_curve_svg(cert.curve, describe_curve(cert.id, cert.sentence())) + caption


def _position(value: Any, n: int) -> int:
    """Return a position counted from the front; IndexError outside, TypeError for what is no position."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        position = operator.index(value)
    except TypeError:
        raise TypeError(
            f"certificates are counted by whole numbers or taken by a slice, got {value!r}; "
            "take(...) selects several, by_id(...) finds a row by its id"
        ) from None
    if not -n <= position < n:
        raise IndexError(f"position {position} is outside the {n} certificates")
    return position % n


def _positions(chosen: Sequence[int] | npt.NDArray[Any], n: int) -> list[int]:
    values = np.asarray(chosen)
    if values.dtype != bool:
        return [_position(value, n) for value in values.ravel().tolist()]
    if values.shape != (n,):
        raise IndexError(f"a mask over the {n} certificates has {n} entries, got shape {values.shape}")
    return list(np.flatnonzero(values).tolist())


def as_int(value: Hashable) -> Hashable:
    try:
        return int(str(value))
    except ValueError:
        return value
