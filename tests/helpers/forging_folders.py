"""A forger who knows the format: changes claims, blocks, protocol or manifest of a folder and makes every digest anew.

It uses the digests of `verifier/fragility_check.py`, which shares no code with the library, so a folder that both
accept is one on which two readings of the format agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fragility_check as checker
import pyarrow as pa
import pyarrow.parquet as pq

Rows = list[dict[str, Any]]


def forge(
    source: Path,
    target: Path,
    *,
    claims: Callable[[Rows], Any] | None = None,
    blocks: dict[str, Callable[[Rows], Any]] | None = None,
    protocol: Callable[[dict[str, Any]], Any] | None = None,
    manifest: Callable[[dict[str, Any]], Any] | None = None,
) -> Path:
    """Write a folder in which what was changed in place, or returned, has the digests of a true one."""
    m = json.loads((source / "manifest.json").read_text())
    files = {name.rsplit("-", 1)[0]: name for name in m["files"]}
    p = json.loads((source / files["protocol"]).read_text())
    p = (protocol(p) if protocol else None) or p
    m["protocol_digest"] = checker.sha256(checker.canonical(p))
    if manifest:
        m = manifest(m) or m
    written: dict[str, bytes] = {}
    digests: dict[str, list[str]] = {}
    for stem, name in files.items():
        if stem.startswith("protocol"):
            continue
        block = stem.split("-")[0]
        table = pq.read_table(source / name)
        rows = table.to_pylist()
        change = claims if block == "certificates" else (blocks or {}).get(block)
        rows = (change(rows) if change else None) or rows
        for row in rows:
            row["digest"] = digest_row(m, p, block, row)
        digests.setdefault(block, []).extend(row["digest"] for row in rows)
        written[stem] = write_table(pa.Table.from_pylist(rows, schema=table.schema))
    m["root_digest"], m["rows"] = checker.find_root(digests["certificates"]), len(digests["certificates"])
    for name, declaration in m["blocks"].items():
        declaration["root_digest"] = checker.find_root(digests.get(name, []))
    written["protocol"] = (json.dumps(p, indent=2, ensure_ascii=False) + "\n").encode()
    return write_folder(target, m, written)


def digest_row(m: dict[str, Any], p: dict[str, Any], block: str, row: dict[str, Any]) -> str:
    """The row's digest, or the one it has where its claims cannot be hashed."""
    if block == "certificates" and m["claims"] == "summary":
        return row["digest"]
    try:
        if block == "certificates":
            columns, more = checker.list_claims(p, m["model"]["classes"], full=True), {}
        else:
            own = {k: v for k, v in m["blocks"][block].items() if k not in ("engine", "rows", "root_digest")}
            columns, more = checker.list_columns(block, p, own), {"block": block, "declaration": own}
        return checker.hash_row(checker.find_context(m, **more), columns, row)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return row["digest"]


def write_table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def write_folder(target: Path, m: dict[str, Any], written: dict[str, bytes]) -> Path:
    """Write files under the names of their digests, and the manifest that names them."""
    target.mkdir(parents=True)
    m = {**m, "files": {}}
    for stem, data in written.items():
        digest = checker.sha256(data)
        name = f"{stem}-{digest[7:23]}.{'json' if stem.startswith('protocol') else 'parquet'}"
        (target / name).write_bytes(data)
        m["files"][name] = digest
    own = {key: value for key, value in m.items() if key != "manifest_digest"}
    if "manifest_digest" in m:
        m["manifest_digest"] = checker.sha256(checker.canonical(own))
    (target / "manifest.json").write_text(json.dumps(m, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return target
