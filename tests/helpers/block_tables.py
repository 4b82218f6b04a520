"""Certificates with a block made of arrays, as a forger would put it there: digests and root are made to fit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import fragility as fg
from fragility.audits import BaselineComparison, Certificates, Manifest
from fragility.audits.folder import write_folder
from fragility.audits.manifest import manifest_text
from fragility.audits.parts import cut, encode_block
from fragility.base.canonical import combine_digests, digest_bytes
from fragility.blocks.baselines.block import BaselinesDeclaration
from fragility.blocks.baselines.comparison import COMPARED_ROWS
from fragility.blocks.block import Declaration
from fragility.blocks.choice import ChosenRows
from fragility.blocks.claims import id_array
from fragility.blocks.intervals.values import IntervalsClaims
from fragility.blocks.intervals.values import write_columns as write_intervals
from fragility.blocks.lattice.values import LatticeClaims
from fragility.blocks.lattice.values import write_columns as write_lattice
from fragility.blocks.modes import ModesClaims
from fragility.blocks.modes import write_columns as write_modes


def put_block(certs: Certificates, block: Any, declared: Declaration | None = None) -> Certificates:
    """Return certificates with the block in these arrays; by default as they declare it already."""
    if isinstance(block, BaselineComparison):
        chosen = ChosenRows(COMPARED_ROWS, "content")
        made = BaselinesDeclaration(engine=certs.engine, rows=chosen, baselines=list(block.baselines))
        return certs.with_block("baselines", made if declared is None else declared, block.table)
    name = {LatticeClaims: "lattice", ModesClaims: "modes", IntervalsClaims: "intervals"}[type(block)]
    own = certs.manifest.blocks[name] if declared is None else declared
    columns: Any
    if isinstance(block, LatticeClaims):
        columns = write_lattice(block, own, certs.protocol)  # type: ignore[arg-type]
    else:
        columns = write_modes(block) if isinstance(block, ModesClaims) else write_intervals(block)
    table = pa.table({"id": id_array(block.ids), **{key: value for key, value in columns.items() if value is not None}})
    return certs.with_block(name, own, table)


def declare(manifest: Manifest, name: str, declared: Declaration) -> Manifest:
    """Return a manifest that declares a block otherwise."""
    return replace(manifest, blocks={**manifest.blocks, name: declared})


def change_root(manifest: Manifest, name: str, root: str) -> Manifest:
    """Return a manifest that states another root of a block."""
    return declare(manifest, name, replace(manifest.blocks[name], root_digest=root))


def hide_row(certs: Certificates, name: str, place: int) -> Certificates:
    """Return certificates whose block lacks one of its rows, with a root that fits."""
    own, block = certs.blocks[name], certs.block_table(name)
    kept = block.take(pa.array([i for i in range(len(block)) if i != place]))
    manifest = declare(certs.manifest, name, own.with_root(kept.column("digest").to_pylist()))
    return Certificates(own.join(certs.table.drop_columns(own.names), kept), certs.protocol, manifest)


def forge_folder(
    folder: Path,
    name: str,
    change: Callable[[pa.Table], pa.Table] | None = None,
    *,
    rehash: bool = False,
    **declared: Any,
) -> None:
    """Change the first table of a block in a folder, and what it declares; root, file and manifest are made to fit.

    rehash: whether the digests of its rows are made anew as well.
    """
    document = json.loads((folder / "manifest.json").read_text())
    own = document["blocks"][name]
    document["blocks"][name] = {key: declared.get(key, value) for key, value in own.items()}
    files = [file for file in document["files"] if file.startswith(f"{name}-")]
    if change is not None:
        table = change(pq.read_table(folder / files[0]))
        if rehash:
            made = fg.open_audit(folder).blocks[name]
            digests = [f"sha256:{digest.hex()}" for digest in made.hash_rows(table)]
            table = table.set_column(table.num_columns - 1, "digest", pa.array(digests, type=pa.string()))
        data = encode_block(table)
        digest = digest_bytes(data)
        (folder / files[0]).unlink()
        new = files[0].rpartition("-")[0] + f"-{digest.removeprefix('sha256:')[:16]}.parquet"
        (folder / new).write_bytes(data)
        document["files"] = {
            (new if file == files[0] else file): (digest if file == files[0] else old)
            for file, old in document["files"].items()
        }
        tables = [table, *(pq.read_table(folder / file) for file in files[1:])]
        texts = [text for one in tables if "digest" in one.column_names for text in one.column("digest").to_pylist()]
        if None not in texts:
            root = combine_digests(bytes.fromhex(text.removeprefix("sha256:")) for text in texts)
            document["blocks"][name]["root_digest"] = root
    (folder / "manifest.json").write_text(manifest_text(document))


def set_cell(table: pa.Table, name: str, value: object, row: int = 0) -> pa.Table:
    """Return a table with another value in one row of a column."""
    values, kind = table.column(name).to_pylist(), table.schema.field(name)
    values[row] = value
    return table.set_column(table.column_names.index(name), kind, pa.array(values, type=kind.type))


def save_in_parts(certs: Certificates, folder: Path, rows: int) -> Path:
    """Write certificates to a folder, in parts of so many rows."""
    claims = certs.table.drop_columns([column for own in certs.blocks.values() for column in own.names])
    blocks = {
        name: [certs.block_table(name)] if own.declared.is_partial else list(cut(certs.block_table(name), rows))
        for name, own in certs.blocks.items()
    }
    return write_folder(folder, cut(claims, rows), blocks, certs.protocol, certs.manifest, certs.protocol_signature)
