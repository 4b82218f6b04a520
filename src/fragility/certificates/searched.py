"""A lattice block of the most exposed rows: which rows those are, and the table beside the parts that holds it.

Which rows are searched is known only when all of them have been audited, so what was found cannot stand in the parts,
which are written as they are finished. It stands in a table of its own, and readers join the two: in memory, and in
every part that is read, the columns of the block follow the claims as they do where every row was searched.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fragility.arrays import Integers
from fragility.certificates.lattice import LatticeDeclaration, lattice_columns
from fragility.certificates.table import ID_TYPES
from fragility.errors import CertificateError
from fragility.scores import CONFIDENT
from fragility.wording import NOT_SEARCHED

RANKED = ("confidence", "exposure", "digest")  # columns by which rows are chosen
UNSEARCHED = {"smallest_state": NOT_SEARCHED, "smallest_set": []}  # of a row without a block; all else is null


def most_exposed(table: pa.Table, count: int) -> Integers:
    """Return the positions of the confident rows with the largest exposure, most exposed first.

    Equal exposures are ordered by row digest, so that the choice depends neither on the rows' order nor on their parts.
    """
    confident = np.flatnonzero(table.column("confidence").to_numpy() >= CONFIDENT)
    if len(confident) > count:
        exposure = table.column("exposure").to_numpy()[confident]
        confident = confident[exposure >= np.partition(exposure, -count)[-count]]
    return np.asarray(confident[_by_exposure(table.take(pa.array(confident)))][:count], dtype=np.int64)


def _by_exposure(table: pa.Table) -> Integers:
    """Return the positions of rows by exposure, the largest first, and then by digest."""
    digests = table.column("digest").to_numpy(zero_copy_only=False).astype("S")
    return np.asarray(np.lexsort((digests, -table.column("exposure").to_numpy())), dtype=np.int64)


def join_block(table: pa.Table, block: pa.Table, declaration: LatticeDeclaration) -> pa.Table:
    """Return certificates with the columns of a block that covers some of them."""
    asked = ["id", *(name for name, _ in lattice_columns(declaration))]
    if "id" not in table.column_names or any(name not in block.column_names for name in asked):
        raise CertificateError("the certificates or the searched rows lack a column that the format asks for")
    ids, searched = table.column("id"), block.column("id")
    if ids.type != searched.type:
        raise CertificateError(f"the searched rows have ids of type {searched.type}, not {ids.type}")
    place = pc.fill_null(pc.index_in(ids, value_set=searched.combine_chunks()), len(block))
    columns = lattice_columns(declaration)
    none = {name: pa.array([UNSEARCHED.get(name)], type=kind) for name, kind in columns}
    for name, kind in columns:
        known = pa.concat_arrays([*block.column(name).chunks, none[name]])
        table = table.append_column(pa.field(name, kind), known.take(place.combine_chunks()))
    return table


def split_block(table: pa.Table, declaration: LatticeDeclaration) -> tuple[pa.Table, pa.Table]:
    """Return certificates without the block's columns, and the block of the rows that were searched."""
    names = [name for name, _ in lattice_columns(declaration)]
    plain = table.drop_columns(names)
    searched = table.filter(pc.not_equal(table.column("smallest_state"), NOT_SEARCHED))
    return plain, searched.select(["id", *names]).take(pa.array(_by_exposure(searched))).combine_chunks()


def check_block_table(block: pa.Table, declaration: LatticeDeclaration) -> None:
    """Refuse a table of searched rows that is not written as the format says."""
    columns = lattice_columns(declaration)
    expected = [pa.schema([("id", kind), *columns]) for kind in ID_TYPES]
    if not any(block.schema.equals(schema, check_metadata=True) for schema in expected):
        names = ", ".join(name for name, _ in columns)
        raise CertificateError(f"the table of searched rows must have the columns id, {names}, of the format's types")
    if len(block) > (declaration.most_exposed or 0):
        raise CertificateError(f"{len(block)} rows were searched, and {declaration.most_exposed} are declared at most")
    if pc.count_distinct(block.column("id"), mode="all").as_py() != len(block) or block.column("id").null_count:
        raise CertificateError("the table of searched rows names a row twice, or none")
    if block.column("lattice_digest").null_count:
        raise CertificateError("the table of searched rows has a row without a digest")
    if NOT_SEARCHED in block.column("smallest_state").to_pylist():
        raise CertificateError(f"the table of searched rows has a row that says {NOT_SEARCHED!r}")
