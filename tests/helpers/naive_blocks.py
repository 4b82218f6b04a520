"""Slow twin of the digests of blocks: value by value, from docs/format.md alone."""

import hashlib
import json
import struct


def canonical(value):
    """RFC 8785 after floats and large integers have become text; enough for the names and numbers used here."""

    def plain(own):
        if isinstance(own, bool) or own is None or isinstance(own, str):
            return own
        if isinstance(own, float):
            return own.hex()
        if isinstance(own, int):
            return str(own) if abs(own) >= 2**53 else own
        if isinstance(own, dict):
            return {key: plain(each) for key, each in own.items()}
        return [plain(each) for each in own]

    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def context(name, manifest):
    around = ("engine", "rows", "root_digest")
    document = {
        "block": name,
        "classes": manifest["model"]["classes"],
        "declaration": {key: value for key, value in manifest["blocks"][name].items() if key not in around},
        "format": "fragility-certificates/1",
        "model_fingerprint": manifest["model"]["fingerprint"],
        "protocol_digest": manifest["protocol_digest"],
    }
    return hashlib.sha256(canonical(document)).digest()


def value_bytes(value, kind, unit, names):
    if kind == "set":
        return b"".join(struct.pack("<d", name in value) for name in names)
    if kind != "text":
        number = list(names).index(value) if kind == "position" else value
        number = round(value / unit) + 0.0 if kind == "units" and value is not None else number
        return b"\0\0\0\0\0\0\xf8\x7f" if value is None else struct.pack("<d", number)
    if value is None:
        return b"\xff\xff\xff\xff"
    return struct.pack("<I", len(value.encode())) + value.encode()


def digests(rows, name, manifest, columns):
    """The digest of each row; columns: name, kind, unit and list of names of each, kind None for one not hashed."""
    found = []
    for row in rows:
        own = row["id"]
        data = context(name, manifest)
        if isinstance(own, int):
            data += b"i" + struct.pack("<q", own)
        else:
            data += b"s" + struct.pack("<I", len(own.encode())) + own.encode()
        for column, kind, unit, names in columns:
            if kind is None:
                continue
            entries = row[column] if isinstance(row[column], list) and kind != "set" else [row[column]]
            data += b"".join(value_bytes(entry, kind, unit, names) for entry in entries)
        found.append("sha256:" + hashlib.sha256(data).hexdigest())
    return found


def root(texts):
    """RFC 6962 over the sorted digests."""
    leaves = [bytes.fromhex(text.removeprefix("sha256:")) for text in texts]
    return "sha256:" + _tree(sorted(leaves)).hex()


def _tree(leaves):
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + _tree(leaves[:split]) + _tree(leaves[split:])).digest()
