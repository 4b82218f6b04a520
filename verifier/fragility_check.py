"""Check an audit of counterfactual fragility without the library that made it.

A second opinion: written from the page that defines the format (docs/format.md of fragility), it imports nothing of
fragility, and fragility imports nothing of it. It has no fast path. Whatever a certificate says about a changed row is
asked of the model, state by state; where raw values change, of the whole pipeline.

    python -m fragility_check AUDIT MODEL ROWS [--train TRAIN] [--id COLUMN] [--sample N]

From top to bottom: the result; digests; the shapes of documents; the columns of tables; the folder; raw rows; evidence
and the decision; the claims and each block, asked again; what the model and the training rows show; the whole check;
the command. Throughout, `p` is the protocol, `f` the result, `i` a row's place, `y` the place of its class, and `P` the
model's probabilities; "raw" rows are those that the whole pipeline takes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import json
import math
import re
import struct
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FORMAT, BATCH, DRAWN, PROBABILITY = "fragility-certificates/1", 2**14, 64, 2.0**-20
# BATCH: states that are asked together; DRAWN: random changes of a row, of each kind
LIMITS = (
    "A witness under the declared protocol, not a proof of robustness: it shows one trajectory on which the "
    "prediction loses support. The greedy flip budget is an upper bound on the smallest failing set, never the "
    "minimum."
)
LISTS = ("path_margin", "path_predicted", "path_collapse", "fade_margin", "one_step_drop", "one_step_confidence_drop")
BASELINES = ("typical", "median", "missing", "mean")
ALL_MODES = ("lost", "wrong", "noisy", "stale", "sentinel", "outage")
MINIMUM, BOUND, NONE_SMALL, NONE, OPEN = STATES = (
    "minimum",
    "upper bound",
    "none up to K, proved",
    "none at all, proved",
    "not decided",
)
INTERVAL_TEXTS = ("value", "low", "high", "below", "above", "categories")
INTERVALS = ("exact", "bracketed", "missing", "not whole", "unlisted")
Document = dict[str, Any]


class Refused(Exception):
    """This is no audit, or it contradicts itself, so that nothing can be recomputed."""


class CannotCheck(Exception):
    """Something that the check needs is not there."""


# What reading a malformed claim raises; whatever the model raises is a CannotCheck.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error, pa.ArrowException)


class Result:
    """What was checked, topic by topic: how often, what is false, and what nobody could tell."""

    def __init__(self) -> None:
        self.counts, self.wrong, self.open, self.unable = {}, {}, {}, ""

    def check(self, topic: str, holds: Any, where: Any = "", claimed: Any = None, own: Any = None) -> None:
        self.counts[topic] = self.counts.get(topic, 0) + 1
        if not holds:
            told = where if own is None else f"{where}: claimed {claimed}, recomputed {own}"
            self.wrong.setdefault(topic, []).append(str(told)[:500])

    def leave(self, what: str, times: int = 0) -> None:
        self.open[what] = self.open.get(what, 0) + times

    @property
    def lists(self) -> dict[str, list[str]]:
        open_ = [f"{what} ({n})" if n else what for what, n in self.open.items()]
        return {
            "false": [f"{one}: {len(told)} of {self.counts[one]}; {told[0]}" for one, told in self.wrong.items()],
            "proved": [f"{topic} ({n})" for topic, n in self.counts.items() if topic not in self.wrong],
            "not proved": [self.unable] * bool(self.unable) + open_,
        }

    @property
    def exit_code(self) -> int:
        return 1 if self.wrong else 2 if self.unable else 0

    def __str__(self) -> str:
        return "\n".join("\n  - ".join([title.upper(), *lines]) for title, lines in self.lists.items() if lines)


# --- documents and digests --------------------------------------------------------------------------------------


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def canonical(value: Any) -> bytes:
    """RFC 8785 JSON in which floats are hexadecimal text, and integers from 2^53 on are decimal text."""
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(canonical, value)) + b"]"
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return b"{" + b",".join(canonical(key) + b":" + canonical(value[key]) for key in keys) + b"}"
    text = value.hex() if isinstance(value, float) else value
    return json.dumps(str(text) if type(text) is int and abs(text) >= 2**53 else text, ensure_ascii=False).encode()


def find_root(digests: Sequence[str]) -> str:
    """The Merkle tree of RFC 6962 over sorted digests: neighbours are joined, an odd last node moves up."""
    level = [hashlib.sha256(b"\0" + leaf).digest() for leaf in sorted(bytes.fromhex(d[7:]) for d in digests)]
    while len(level) > 1:
        odd = level[len(level) // 2 * 2 :]
        level = [hashlib.sha256(b"\1" + a + b).digest() for a, b in zip(level[::2], level[1::2], strict=False)] + odd
    return "sha256:" + (level[0].hex() if level else hashlib.sha256(b"").hexdigest())


def read_json(data: bytes, what: str) -> Document:
    def read_object(pairs: list[tuple[str, Any]]) -> Document:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a field stands twice")
        return dict(pairs)

    def read_number(text: str) -> float:
        return float(text) if math.isfinite(float(text)) else int(text)  # int refuses NaN, infinities and 1e999

    def find_depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + max(map(find_depth, inner), default=0)

    try:
        document = json.loads(data, object_pairs_hook=read_object, parse_float=read_number, parse_constant=read_number)
        json.dumps(document, ensure_ascii=False).encode()
        if len(data) > 64 * 2**20 or find_depth(document) > 61 or not isinstance(document, dict):
            raise ValueError("too large, too deep, or no object")
    except (ValueError, RecursionError) as error:
        raise Refused(f"the {what} cannot be read: {error}") from None
    return document


def write_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def pack_units(values: Any, unit: float) -> bytes:
    numbers = np.array([math.nan if v is None else v for v in np.atleast_1d(values)], dtype=float)
    return np.where(np.isnan(numbers), math.nan, np.rint(numbers / unit) + 0.0).astype("<f8").tobytes()


def pack_share(values: Any) -> bytes:
    return pack_units(values, PROBABILITY)


def pack_text(value: str | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else struct.pack("<I", len(value.encode())) + value.encode()


def pack_id(id_: Any) -> bytes:
    return b"s" + pack_text(id_) if isinstance(id_, str) else b"i" + struct.pack("<q", id_)


def pack_whole(value: int | None) -> bytes:
    return struct.pack("<q", -1 if value is None else value)


def pack_number(value: float | None) -> bytes:
    return struct.pack("<d", math.inf if value is None else value)


def pack_truth(value: bool) -> bytes:
    return struct.pack("<?", value)


def hash_id(id_: Any) -> bytes:
    return hashlib.blake2b(str(id_).encode(), digest_size=16).digest()


# --- the shapes of documents ------------------------------------------------------------------------------------


def find_misfit(value: Any, shape: Any, at: str) -> str:
    """Where a value has another shape: fields in this order, items, alternatives (a tuple), type, test, or value."""
    if isinstance(shape, tuple):
        return "" if any(not find_misfit(value, one, at) for one in shape) else at
    if isinstance(shape, dict):
        if not isinstance(value, dict) or list(value) != list(shape):
            return at
        return next(filter(None, (find_misfit(value[k], one, f"{at}.{k}") for k, one in shape.items())), "")
    if isinstance(shape, list):
        items = value if isinstance(value, list) else ()
        return at if items is not value else next(filter(None, (find_misfit(v, shape[0], at) for v in items)), "")
    fits = type(value) is shape if isinstance(shape, type) else shape(value) if callable(shape) else None
    return "" if (type(value) is type(shape) and value == shape if fits is None else fits) else at


def conform(value: Any, shape: Any, what: str) -> None:
    if at := find_misfit(value, shape, what):
        raise Refused(f"{at} is not what the format allows, or lacks a field, or has one too many")


def between(low: float, high: float = math.inf) -> Callable[[Any], bool]:
    return lambda v: type(v) is float and low <= v <= high and v < math.inf


def matching(pattern: str) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, str) and re.fullmatch(pattern, v) is not None


def count_from(low: int) -> Callable[[Any], bool]:
    return lambda v: type(v) is int and low <= v < 2**63


def are_labels(value: Any) -> bool:
    kinds = {type(label) for label in value} if isinstance(value, list) else set()
    return len(kinds) == 1 and kinds <= {int, float, str, bool} and 1 < len(value) == len(set(value))


def are_narrow(value: Any) -> bool:
    return isinstance(value, dict) and all(own in ("float32", "float16") for own in value.values())


def are_versions(value: Any) -> bool:
    return isinstance(value, dict) and all(map(matching(r"[\w.+!-]{1,64}"), value.values()))


DIGEST, COUNT, POSITIVE = matching("sha256:[0-9a-f]{64}"), count_from(0), count_from(1)
TINY, NEARLY_1, KIND = math.ulp(0.0), 1 - 2**-53, ("numeric", "nominal")
CELL, MAYBE = (None, bool, int, float, str), (None, float, str)
ENGINE = ("blackbox", "trees", "linear", "wrapped", "neural")
TYPE = ("integer", "number", "boolean", "text", "date", "duration", "mixed", "empty")
EVENTS = [{"groups": [str], "count": POSITIVE}]
MANIFEST = {
    "format": FORMAT,
    "claim": "fragility_witness",
    "limits": LIMITS,
    "protocol_digest": DIGEST,
    "training_digest": DIGEST,
    "model": {
        "kind": str,
        "fingerprint": DIGEST,
        "classes": are_labels,
        "probabilities": ("predict_proba", "raw score, link applied in float64"),
        "partial": [str],
    },
    "input": {"digest": DIGEST, "rows": COUNT},
    "engine": {"name": ENGINE, "evaluations": COUNT, "paper_evaluations": COUNT, "blackbox_rows": COUNT},
    "tolerance": {"margin": float, "probability": float},
    "versions": are_versions,
    "rows": COUNT,
    "root_digest": DIGEST,
    "claims": ("full", "summary"),
    "blocks": dict,
    "protocol_signature": (None, DIGEST),
    "files": dict,
    "manifest_digest": DIGEST,
}
PROTOCOL = {
    "format": "fragility-protocol/1",
    "space": ("transformed", "raw"),
    "fields": [{"name": str, "kind": KIND, "type": TYPE, "categorical": bool, "dtype": (None, str)}],
    "columns": [{"name": str, "kind": KIND, "baseline": CELL, "spread": (None, between(0))}],
    "inputs": [{"name": str, "fields": [str]}],
    "groups": [{"name": str, "columns": [str]}],
    "grouping": matching(r"raw-origin|declared|merged at [0-9.e-]+"),
    "baseline": (*BASELINES, "zero", "explicit"),
    "artificial": [str],
    "alternatives": dict,
    "refused": [BASELINES],
    "operators": [matching("attenuate_(all|top[1-9][0-9]*)")],
    "severities": [between(TINY, 1)],
    "depth": POSITIVE,
    "reading": ("support", "current", "support_unbounded"),
    "weights": [between(0)],
    "exposure_weights": [between(0)],
    "resolution": between(1e-9, 0.001),
    "smoothing": between(0, 1),
    "min_confidence": between(0, NEARLY_1),
    "decision": (None, {"class": CELL, "threshold": between(TINY, NEARLY_1)}),
    "modes": {
        "declared": [ALL_MODES],
        "catalogue": [{"group": str, "fields": [str], "values": [[CELL]], "counts": [POSITIVE]}],
        "catalogue_size": COUNT,
        "noise": between(0),
        "whole": [str],
        "sentinels": [{"field": str, "values": [CELL], "weights": [between(0, 1)]}],
        "outages": EVENTS,
        "ranges": [{"field": str, "low": (float, str), "high": (float, str), "whole": bool}],
    },
    "domain": matching(r"range|declared|0?\.\d+-0?\.\d+"),
    "domains": [
        {"field": str, "low": MAYBE, "high": MAYBE, "categories": (None, [CELL]), "missing": bool, "fixed": bool}
    ],
    "training_digest": DIGEST,
    "training_rows": COUNT,
}
ALTERNATIVES = (
    {"artificial": [str], "values": [CELL]},
    (
        {"artificial": [str]},
        {"artificial": [str], "groups": [{"name": str, "columns": [str]}], "spreads": [(None, between(0))]},
    ),
)
BLOCKS = {  # which rows have a block, and its own fields
    "lattice": (
        (None, {"most": 1000, "by": "exposure"}),
        {
            "max_size": POSITIVE,
            "budget": 10000,
            "width": 8,
            "rates": (None, dict),
            "draws": (None, POSITIVE),
            "seed": (None, COUNT),
            "events": (None, EVENTS),
        },
    ),
    "modes": ((None, {"most": POSITIVE, "by": "content"}), {"units": dict}),
    "intervals": ((None, {"most": POSITIVE, "by": "exposure"}), {"fields": [str], "narrow": are_narrow}),
    "any_value": ((None, {"most": POSITIVE, "by": "exposure"}), {"max_size": 2, "groups": [str], "narrow": are_narrow}),
    "baselines": ({"most": 500, "by": "content"}, {"baselines": [str]}),
}


def find_origins(p: Document) -> dict[str, list[str]]:
    """The raw fields that each column of the evidence space is made from."""
    made_from = {c["name"]: c["fields"] for c in p["inputs"]} if p["space"] == "transformed" else {}
    return {c["name"]: made_from.get(c["name"], [c["name"]]) for c in p["columns"]}


def change_baseline(p: Document, name: str) -> Document:
    """The protocol under one of its other baselines."""
    other = p["alternatives"][name]
    if name != "missing":
        columns = [{**c, "baseline": v} for c, v in zip(p["columns"], other["values"], strict=True)]
        return {**p, "baseline": name, "artificial": other["artificial"], "columns": columns}
    spreads = other.get("spreads") or [c["spread"] for c in p["columns"]]
    columns = [
        {"name": x["name"], "kind": x["kind"], "baseline": None, "spread": s}
        for x, s in zip(p["fields"], spreads, strict=True)
    ]
    groups, artificial = other.get("groups", p["groups"]), other["artificial"]
    whole = [x["name"] for x in p["fields"] if x["kind"] == "numeric" and x["type"] == "integer"]
    raw = {"space": "raw", "columns": columns, "groups": groups, "modes": {**p["modes"], "whole": whole}}
    return {**p, "baseline": name, "artificial": artificial, **raw}


def are_in_order(names: Sequence[str], of: Iterable[str]) -> bool:
    return list(names) == [name for name in of if name in names]


def check_protocol(p: Document) -> None:
    """Refuse a protocol whose names do not agree with its values."""
    conform(p, PROTOCOL, "the protocol")
    fields, columns = {f["name"]: f for f in p["fields"]}, {c["name"]: c for c in p["columns"]}
    groups, made_from = {g["name"]: g["columns"] for g in p["groups"]}, find_origins(p)
    raw, modes, baseline = p["space"] == "raw", p["modes"], p["baseline"]
    own = list(fields) if raw or not p["inputs"] else [c["name"] for c in p["inputs"]]
    names = all(len(p[part]) == len({x["name"] for x in p[part]}) > 0 for part in ("fields", "columns", "groups"))
    if not names or list(columns) != own or sorted(itertools.chain(*groups.values())) != sorted(columns):
        raise Refused("the protocol's columns are no fields or inputs, are not partitioned, or a name stands twice")
    held = {g: [f for f in fields if any(f in made_from[c] for c in cs)] for g, cs in groups.items()}
    numeric = [c for c in p["columns"] if c["kind"] == "numeric"]
    catalogue = {e["group"]: e for e in modes["catalogue"]}
    first = {e["fields"][0]: e["values"][0][0] for e in catalogue.values() if len(e["fields"]) == 1}
    nominal = [c for c in p["columns"] if raw and c["kind"] == "nominal" and fields[c["name"]]["type"] != "date"]
    ranges = {r["field"] for r in modes["ranges"]}
    ordered = {g for g, e in catalogue.items() if len(e["fields"]) == 1 and e["fields"][0] in ranges}
    typical, others = baseline in ("typical", "median"), sorted(set(BASELINES) - {baseline})
    whole = [c["baseline"] or 0 for c in numeric if raw and fields[c["name"]]["type"] == "integer"]
    whole += [columns[c]["baseline"] for c in modes["whole"] if baseline == "typical" and c in columns]
    rules = {
        "groups bear the names of the fields they hold": all(groups.values())
        and all(g in held[g] for g in groups if g in fields),
        "a raw-origin group is its field": p["grouping"] != "raw-origin"
        or all(made_from[c] == [g] for g in groups for c in groups[g]),
        "a merged group joins names of fields": p["grouping"][0] != "m" or all(g == "+".join(held[g]) for g in groups),
        "inputs name fields in order": all(c["fields"] == [f for f in fields if f in c["fields"]] for c in p["inputs"]),
        "a matrix holds numbers": raw or all(type(c["baseline"]) is float for c in p["columns"]),
        "'zero' is 0": baseline != "zero" or all(c["baseline"] == 0 for c in numeric),
        "'missing' is missing": baseline != "missing" or (raw and all(c["baseline"] is None for c in p["columns"])),
        "numbers have baselines": baseline in ("missing", "explicit")
        or all(type(c["baseline"]) is float or c["spread"] is None for c in numeric),
        "whole numbers have whole baselines": all(b % 1 == 0 for b in whole),
        "a nominal baseline leads its catalogue": not (typical or baseline == "mean")
        or all(c["baseline"] == first.get(c["name"], c["baseline"]) for c in nominal),
        "nothing typical is artificial": p["artificial"] == [f for f in fields if f in p["artificial"] and not typical],
        "every other baseline is there or refused": sorted([*p["alternatives"], *p["refused"]]) in ([], others),
        "operators stand once": len(set(p["operators"])) == len(p["operators"]),
        "severities rise": len(p["severities"]) > 0 and all(a < b for a, b in itertools.pairwise(p["severities"])),
        "depth and weights fit": p["depth"] <= len(groups) and len(p["weights"]) == len(p["exposure_weights"]) == 3,
        "the catalogue is that of the groups": list(catalogue) == [g for g in groups if g in catalogue]
        and all(e["fields"] == held[g] and len(e["values"]) == len(e["counts"]) for g, e in catalogue.items()),
        "the catalogue has its size": all(
            sum(e["counts"]) == modes["catalogue_size"] if g in ordered else len(e["counts"]) <= modes["catalogue_size"]
            for g, e in catalogue.items()
        ),
        "modes and domains name what is there, in order": are_in_order(modes["declared"], ALL_MODES)
        and are_in_order(modes["whole"], columns)
        and are_in_order([r["field"] for r in modes["ranges"]], fields)
        and are_in_order([x["field"] for x in p["domains"]], fields)
        and {s["field"] for s in modes["sentinels"]} <= {*fields}
        and {g for o in modes["outages"] for g in o["groups"]} <= {*groups},
        "fixed fields have no domain": not any(
            x["fixed"] and (x["missing"] or any(x[k] is not None for k in ("low", "high", "categories")))
            for x in p["domains"]
        ),
        "categories of domains are sorted": all(
            x["categories"] == sorted(x["categories"], key=lambda v: (type(v).__name__, str(v)))
            for x in p["domains"]
            if x["categories"]
        ),
        "ranges rise": all(r["low"] <= r["high"] for r in modes["ranges"]),
    }
    for rule, holds in rules.items():
        if not holds:
            raise Refused(f"the protocol contradicts itself: it is not so that {rule}")
    for name, other in p["alternatives"].items():
        conform(other, ALTERNATIVES[name == "missing"], f"alternatives.{name}")
        check_protocol({**change_baseline(p, name), "alternatives": {}, "refused": []})


# --- the columns of tables, and the folder ----------------------------------------------------------------------------


Column = tuple[str, str, Any]  # name, kind of values, and what makes of them the bytes that are hashed, if any


def pack_each(pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    return lambda values: b"".join(map(pack, values))


def pack_place(names: Sequence[Any]) -> Callable[[Any], bytes]:
    return lambda value: struct.pack("<i", names.index(value))


def pack_set(names: Sequence[str]) -> Callable[[Any], bytes]:
    return lambda values: bytes(name in values for name in names)


def list_claims(p: Document, classes: Sequence[Any], full: bool) -> list[Column]:
    """The columns of the certificates."""
    groups, fields = [g["name"] for g in p["groups"]], [f["name"] for f in p["fields"]]
    faded = len(p["severities"]) if "attenuate_all" in p["operators"] else 0

    def pack_margins(values: Any, length: int = 0) -> bytes:
        return pack_units([*values, *[None] * (length - len(values))], p["resolution"])

    columns: list[Column] = [
        ("predicted", "c", pack_place(classes)),
        ("confidence", "n", pack_share),
        ("margin", "n", None),
        ("flip_budget", "i", pack_whole),
        ("flipped", "b", pack_truth),
        *((name, "n", None) for name in ("rcma", "fds", "exposure", "independent_loss")),
        ("common_loss", "n?", None),
        *((f"lambda_{o}", "n?", pack_number) for o in p["operators"]),
        ("path", "T", pack_each(pack_place(groups))),
        ("path_margin", "N", pack_margins),
        ("path_predicted", "C", pack_each(pack_place(classes))),
        ("path_collapse", "N", None),
        ("fade_margin", "N", lambda values: pack_margins(values, faded)),
        ("one_step_drop", "N", pack_margins),
        ("one_step_confidence_drop", "N", pack_share),
        ("already_missing", "T", pack_set(fields)),
    ]
    return [one for one in columns if full or one[0] not in LISTS]


def list_columns(block: str, p: Document, own: Document) -> list[Column]:
    """The columns of a block that is declared with these fields of its own."""
    if block == "lattice":
        columns: list[Column] = [
            ("smallest_state", "t", pack_place(STATES)),
            ("smallest_size", "i?", pack_whole),
            ("smallest_set", "T", pack_set([g["name"] for g in p["groups"]])),
            ("smallest_count", "l?", pack_whole),
        ]
        rated: list[Column] = [(f"failure_{name}", "n", pack_share) for name in ("probability", "low", "high")]
        rated += [("failure_exact", "b", pack_truth), ("expected_margin", "n?", None)]
        return columns + (rated if own["rates"] or own["events"] else [])
    if block == "modes":
        parts = (
            ("exposure", "n", None),
            ("mode_drop", "N", lambda drops: pack_units(drops, p["resolution"])),
            ("flip_chance", "N", pack_share),
        )
        return [(f"{name}_{mode}", kind, pack) for mode in own["units"] for name, kind, pack in parts]
    if block == "intervals":
        states = ("interval_state", "T", pack_each(pack_place(INTERVALS)))
        return [states, *((f"interval_{name}", "T?", pack_each(pack_text)) for name in INTERVAL_TEXTS)]
    if block == "any_value":
        return [
            ("any_value_budget", "i?", pack_whole),
            ("any_value_proved", "i", pack_whole),
            ("any_value_sets", "i?", pack_whole),
            ("any_value_witness", "t?", pack_text),
            ("any_value_alone", "I", pack_each(pack_whole)),
            ("any_value_chance_one", "n?", pack_share),
            ("any_value_chance_two", "n?", pack_share),
        ]
    kinds = (("flip_budget", "i", pack_whole), ("exposure", "n", pack_share))
    return [(f"{name}_{baseline}", kind, pack) for baseline in own["baselines"] for name, kind, pack in kinds]


def find_context(m: Document, **more: Any) -> bytes:
    """What binds the rows of a table to model and protocol; those of a block also to how it was declared."""
    model = {"classes": m["model"]["classes"], "model_fingerprint": m["model"]["fingerprint"]}
    bound = {"format": FORMAT, "protocol_digest": m["protocol_digest"], **model, **more}
    return hashlib.sha256(canonical(bound)).digest()


def hash_row(context: bytes, columns: Sequence[Column], row: Document) -> str:
    return sha256(b"".join([context, pack_id(row["id"]), *(pack(row[name]) for name, _, pack in columns if pack)]))


class Folder:
    """Manifest, protocol and tables of an audit; what can be told without the model is checked when it is read."""

    def __init__(self, place: Path, f: Result) -> None:
        self.f, m = f, read_json((place / "manifest.json").read_bytes(), "manifest")
        conform(m, MANIFEST, "the manifest")
        self.m, parts = m, [f"{i:05d}" for i in range(sum(name[:13] == "certificates-" for name in m["files"]))]
        own = sha256(canonical({key: value for key, value in m.items() if key != "manifest_digest"}))
        f.check("the digest of the manifest", m["manifest_digest"] == own, "manifest.json")
        stems = [f"certificates-{i}" for i in parts]
        for name, d in m["blocks"].items():
            rows, fields = BLOCKS[name]
            conform(d, {"engine": ENGINE, "rows": rows, **fields, "root_digest": DIGEST}, f"blocks.{name}")
            stems += [name] if d["rows"] else [f"{name}-{i}" for i in parts]
        stems += ["protocol"] + ["protocol-signature"] * bool(m["protocol_signature"])
        ends = ["json" if stem[:8] == "protocol" else "parquet" for stem in stems]
        names = [f"{s}-{str(d)[7:23]}.{end}" for s, d, end in zip(stems, m["files"].values(), ends, strict=True)]
        if list(m["files"]) != names or not parts or list(m["blocks"]) != [b for b in BLOCKS if b in m["blocks"]]:
            raise Refused("files or blocks in the manifest are not those that the format names, in its order")
        self.files = {stem: (place / name).read_bytes() for stem, name in zip(stems, names, strict=True)}
        for name, data in zip(names, self.files.values(), strict=True):
            f.check("the digests of all files", m["files"][name] == sha256(data), name)
        p = self.p = read_json(self.files["protocol"], "protocol")
        check_protocol(p)
        readable = (json.dumps(p, indent=2, ensure_ascii=False) + "\n").encode()
        f.check("the protocol is written as the format says", readable == self.files["protocol"], "the file's bytes")
        t, n, engine = p["resolution"], m["input"]["rows"], m["engine"]
        signature = sha256(self.files["protocol-signature"]) if m["protocol_signature"] else None
        follow = {
            "protocol_digest": sha256(canonical(p)),
            "training_digest": p["training_digest"],
            "protocol_signature": signature,
            "tolerance": {"margin": t, "probability": t},
        }
        same = all(m[k] == v for k, v in follow.items())
        f.check("what the manifest repeats", same, "manifest", [m[k] for k in follow], follow)
        if "lattice" in m["blocks"]:
            largest, told = min(len(p["groups"]), 24), m["blocks"]["lattice"]["max_size"]
            f.check("the largest failing set asked for", told == largest, "blocks.lattice.max_size", told, largest)
        states = 1 + len(p["groups"]) + p["depth"] + len(p["operators"]) * len(p["severities"])
        counts = engine["paper_evaluations"] == n * states and m["rows"] <= n >= engine["blackbox_rows"]
        counts = counts and (engine["name"] != "blackbox" or engine["blackbox_rows"] == n)
        f.check("the counts of the manifest", counts, engine)
        self.classes, self.full = m["model"]["classes"], m["claims"] == "full"
        if p["decision"] and (len(self.classes) > 2 or p["decision"]["class"] not in self.classes):
            raise Refused("the protocol's decision is about other classes")
        self.hash_claims = partial(hash_row, find_context(m), list_claims(p, self.classes, full=True))
        rows = self.read([f"certificates-{i}" for i in parts], list_claims(p, self.classes, self.full))
        self.rows = {row["id"]: row for row in rows}
        f.check("the number of rows", len(self.rows) == m["rows"], "rows", m["rows"], len(self.rows))
        for row in rows if self.full else ():
            f.check("the digests of rows", row["digest"] == self.hash_claims(row), f"row {row['id']}")
            own = derive(p, row)
            near = [find_difference(row[k], v) <= 1e-9 * (1 + np.max(np.abs(v or 0.0))) for k, v in own.items()]
            told = {k: row[k] for k in own}
            f.check("scores follow from margins and thresholds", all(near), f"row {row['id']}", told, own)
        root = find_root([row["digest"] for row in rows])
        f.check("the root digest", m["root_digest"] == root, "root_digest", m["root_digest"], root)
        self.order: dict[str, list[Any]] = {}  # block -> ids of its rows
        for name, d in m["blocks"].items():
            self.read_block(name, d, [name] if d["rows"] else [f"{name}-{i}" for i in parts])

    def read(self, stems: list[str], columns: list[Column]) -> list[Document]:
        """Rows of tables with these columns between id and digest; capitals are lists, and ? allows nulls."""
        columns = [("id", "id", None), *columns, ("digest", "t", None)]
        kinds = {
            "n": pa.float64(),
            "t": pa.string(),
            "i": pa.int32(),
            "l": pa.int64(),
            "b": pa.bool_(),
            "c": pa.array(self.classes).type,
        }
        rows: list[Document] = []
        for stem in stems:
            data = self.files[stem]
            file = pq.ParquetFile(io.BytesIO(data)).metadata
            size = sum(file.row_group(i).total_byte_size for i in range(file.num_row_groups))
            if file.num_rows * 32 > len(data) or size > 1000 * len(data):
                raise Refused(f"{stem} declares more than a file of its size can hold")
            table = pq.read_table(io.BytesIO(data))
            kinds["id"] = pa.int64() if table.schema.field("id").type == pa.int64() else pa.string()
            like = [(name, kinds[kind.rstrip("?").lower()], kind[0].isupper()) for name, kind, _ in columns]
            schema = pa.schema([(n, pa.list_(pa.field("element", one)) if many else one) for n, one, many in like])
            if not table.schema.equals(schema, check_metadata=True):
                raise Refused(f"{stem} has other columns, in another order, or notes of its own: {table.schema}")
            for (name, kind, _), column in zip(columns, table.columns, strict=True):
                items = pc.list_flatten(column) if kind[0].isupper() else column
                nulls = column.null_count * (items is not column) + items.null_count * ("?" not in kind)
                known = items.drop_null()
                if nulls or (known.type == pa.float64() and not pc.all(pc.is_finite(known), min_count=0).as_py()):
                    raise Refused(f"{name!r} of {stem} holds nulls, NaN or an infinity")
            rows += table.to_pylist()
        if len({row["id"] for row in rows}) < len(rows):
            raise Refused(f"{stems[0]} names a row twice")
        return rows

    def read_block(self, name: str, d: Document, stems: list[str]) -> None:
        """Put the claims of a block to those of its rows, under its name; check digests and which rows have it."""
        p, every = self.p, self.rows.values()
        own = {k: v for k, v in d.items() if k not in ("engine", "rows", "root_digest")}
        context, columns = find_context(self.m, block=name, declaration=own), list_columns(name, p, own)
        rows = self.read(stems, columns)
        for row in rows:
            fits = row["digest"] == hash_row(context, columns, row)
            self.f.check(f"the digests of {name}", fits, f"row {row['id']}")
            self.rows[row["id"]][name] = row
        self.f.check(f"the root digest of {name}", d["root_digest"] == find_root([row["digest"] for row in rows]), name)
        sure = [row for row in every if row["confidence"] >= p["min_confidence"]]
        sure.sort(key=lambda row: (-row["exposure"], hash_id(row["id"])))
        wanted = [row["id"] for row in (sure[: d["rows"]["most"]] if d["rows"] else every)]
        told = self.order[name] = [row["id"] for row in rows]
        if d["rows"] and d["rows"]["by"] == "content":  # the rows given will tell which rows these are
            wanted, told = len(wanted), len(told)
        known = not d["rows"] or self.m["rows"] == self.m["input"]["rows"]
        self.f.check(f"which rows have {name}", not known or wanted == told, name, told, wanted)


def find_difference(claimed: Any, own: Any) -> float:
    """The largest difference; infinite where only one is null, or lists differ in length."""
    lists = (x if hasattr(x, "__len__") else [x] for x in (claimed, own))
    a, b = (np.array([math.nan if v is None else v for v in one], dtype=float) for one in lists)
    if a.shape != b.shape or (np.isnan(a) != np.isnan(b)).any():
        return math.inf
    return float(np.max(np.abs(a - b), initial=0.0, where=~np.isnan(a)))


def derive(p: Document, row: Document) -> Document:
    """The claims that are arithmetic on others of the row."""
    (v1, v2, v3), (w1, w2, w3), m = p["exposure_weights"], p["weights"], row["margin"]
    scale, n, most = abs(m) + 1e-8, len(p["severities"]), 1.0 if p["reading"] == "support" else math.inf
    collapse = [min(max((m - stressed) / scale, 0.0), most) for stressed in row["path_margin"]]
    rcma, alone = sum(collapse) / len(collapse), sum(drop for drop in row["one_step_drop"] if drop > 0) / scale
    speeds = [1 / (s + 1e-8) if (s := row[f"lambda_{o}"]) else 0.0 for o in p["operators"]]
    fds = w1 * rcma + w2 / row["flip_budget"] + w3 * sum(speeds) / (len(speeds) or 1)
    common, u = None, (v1 * rcma + v2 * alone) * (v1 + v2 + v3) / (v1 + v2 or 1)
    if "attenuate_all" in p["operators"]:
        lost = [min(max((m - faded) / scale, 0.0), 1.0) for faded in row["fade_margin"]]
        common = (sum(lost) + n - len(lost)) / n
        u = v1 * rcma + v2 * alone + v3 * common
    return {
        "path_collapse": collapse,
        "rcma": rcma,
        "fds": 1 - math.exp(-fds),
        "independent_loss": alone,
        "common_loss": common,
        "exposure": 1 - math.exp(-u),
    }


# --- rows, evidence and the decision ----------------------------------------------------------------------------


def is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (type(value) is float and value != value)


class Rows:
    """Raw rows as Python values, and tables of changed rows in the columns' own types where the values fit."""

    def __init__(self, source: Any, ids: Any, p: Document) -> None:
        import pandas as pd

        self.pd, self.fields = pd, [f["name"] for f in p["fields"]]
        if isinstance(source, str | Path):
            texts = {f["name"]: str for f in p["fields"] if f["type"] == "text"}
            source = pd.read_csv(source, dtype=texts) if str(source).endswith(".csv") else pd.read_parquet(source)
        self.hand_over = (
            sys.modules["polars"].from_pandas if "polars" in type(source).__module__ else lambda table: table
        )
        table = source.to_pandas() if hasattr(source, "to_pandas") else pd.DataFrame(source)
        if lost := [name for name in self.fields if name not in table]:
            raise CannotCheck(f"the rows have no column {lost[0]!r}")
        own = table.index if ids is None else table[ids] if isinstance(ids, str) else ids
        own = [id_.item() if hasattr(id_, "item") else id_ for id_ in own]
        self.ids = own if all(isinstance(id_, int | str) for id_ in own) else list(map(str, own))
        self.dates = {f["name"]: f["dtype"] for f in p["fields"] if f["type"] == "date"}  # None: Python's own dates
        self.days = {r["field"] for r in p["modes"]["ranges"] if r["whole"] and r["field"] in self.dates}
        table = table.assign(
            **{
                name: pd.to_datetime(table[name], format="ISO8601").astype(dtype)
                for name, dtype in self.dates.items()
                if dtype and table[name].dtype.kind != "M"
            }
        )
        self.types = [table[name].dtype for name in self.fields]
        cells = zip(*(table[name].astype(object).tolist() for name in self.fields), strict=True)
        self.cells = [np.array([*row, None], dtype=object)[:-1] for row in cells]  # objects, whatever they are
        self.missing = np.array([[is_missing(v) for v in row] for row in self.cells]).reshape(-1, len(self.fields))

    def read(self, name: str, value: Any) -> Any:
        """A value of a document as a cell of this column."""
        if name not in self.dates or not isinstance(value, str):
            return math.nan if value is None else value
        day = name in self.days
        return self.pd.Timestamp(value) if self.dates[name] else (date if day else datetime).fromisoformat(value)

    def write(self, value: Any) -> Any:
        """A cell as a value of a document."""
        if not hasattr(value, "isoformat"):
            return value.item() if hasattr(value, "item") else value
        text = value.isoformat()
        return text[:10] if text[10:] in ("", "T00:00:00") else text

    def frame(self, rows: Sequence[Any]) -> Any:
        made = {}
        for j, (name, like) in enumerate(zip(self.fields, self.types, strict=True)):
            values = self.pd.Series([row[j] for row in rows], dtype=object)
            known = [v for v in values if not is_missing(v)]
            gaps, texts = len(known) < len(values), any(isinstance(v, str) for v in known)
            if isinstance(like, self.pd.CategoricalDtype):
                like = self.pd.CategoricalDtype(dict.fromkeys([*like.categories, *known]))
            elif like.kind in "iufb" and texts:
                like = object
            elif (like.kind == "b" and gaps) or (like.kind in "iu" and (gaps or any(v % 1 for v in known))):
                like = float
            made[name] = values.astype(like)
        return self.hand_over(self.pd.DataFrame(made))

    def digest(self, with_ids: bool) -> list[str]:
        """One digest per row, over its cells by sorted column names."""

        def pack(value: Any) -> bytes:
            if not is_missing(value) and (isinstance(value, str) or hasattr(value, "isoformat")):
                text = value if isinstance(value, str) else self.write(value).replace("T", " ")
                return hashlib.sha256(b"text:" + text.encode()).digest()
            if isinstance(value, int) and int(float(value)) != value:
                return hashlib.sha256(b"integer:" + str(value).encode()).digest()
            return bytes(24) + struct.pack("<d", math.nan if is_missing(value) else float(value) + 0.0)

        columns: Document = {name: [row[j] for row in self.cells] for j, name in enumerate(self.fields)}
        columns |= {"id\0": map(str, self.ids)} if with_ids else {}
        head = hashlib.sha256(canonical(sorted(columns))).digest()
        cells = zip(*(columns[name] for name in sorted(columns)), strict=True)
        return [sha256(head + b"".join(map(pack, row))) for row in cells]


class Axis:
    """The values of a field of numbers or dates from low to high: whole numbers, days, clock ticks, or decimals."""

    def __init__(self, rows: Rows, name: str, low: Any, high: Any, whole: bool, narrow: str = "float64") -> None:
        self.rows, self.name, self.whole = rows, name, whole
        self.kind, self.step = np.dtype(narrow).type, 1 if whole else None  # None: decimals
        if name in rows.dates:
            tick = "D" if whole else re.findall(r"\[(\w+)", rows.dates[name] or "[us]")[0]
            self.step = rows.pd.Timedelta(1, tick)
        self.low, self.high = self.place(low), self.place(high)

    def place(self, value: Any) -> Any:
        """A cell, or a value of a document, as something that can be counted on."""
        return self.rows.pd.Timestamp(value) if self.name in self.rows.dates else value

    def make_cell(self, place: Any) -> Any:
        return self.rows.read(self.name, self.rows.write(place)) if self.name in self.rows.dates else place

    def find_next(self, place: Any, way: int) -> Any:
        """The next value above (1) or below (-1)."""
        if self.step is not None:
            return place + way * self.step
        return float(np.nextafter(self.kind(place), self.kind(way * math.inf)))

    def holds(self, value: Any) -> bool:
        """Whether a value of a document is one of these."""
        fits = isinstance(value, str) if self.name in self.rows.dates else type(value) in (int, float)
        if not fits or not self.low <= self.place(value) <= self.high:
            return False
        if self.name in self.rows.dates:
            return not self.whole or self.place(value) == self.place(value).normalize()
        return value % 1 == 0 if self.whole else float(self.kind(value)) == value

    def count(self, low: Any, high: Any) -> float:
        """How many values there are between two of them, both included."""
        return math.inf if self.step is None else (high - low) // self.step + 1

    def list(self, low: Any, high: Any, random: Any, most: int) -> list[Any]:
        """All values from low to high if these are few whole ones; else some at random."""
        if self.step is None:
            drawn = (float(self.kind(v)) for v in random.uniform(low, high, 16))
            return [min(max(v, low), high) for v in drawn]
        n = int(self.count(low, high))
        return [low + int(k) * self.step for k in (range(n) if n <= most else random.integers(0, n, 64))]


class Domains:
    """The values that free fields may take in the block any_value."""

    def __init__(self, p: Document, rows: Rows, axes: dict[str, Axis], catalogue: dict[str, dict[Any, int]]) -> None:
        self.rows, self.axes, self.free = rows, axes, {x["field"]: x for x in p["domains"] if not x["fixed"]}
        self.units = self.find_units(p)
        counts = {
            name: [(v, n) for v, n in catalogue.get(name, {}).items() if self.holds(name, v)] for name in self.free
        }
        totals = {name: sum(n for _, n in own) for name, own in counts.items()}
        self.weights = {name: [(rows.read(name, v), n / totals[name]) for v, n in own] for name, own in counts.items()}

    def find_units(self, p: Document) -> dict[str, list[str]]:
        """The free fields of each group that has any; each field by itself where groups share some."""
        origins = find_origins(p)
        held = {g["name"]: {name for c in g["columns"] for name in origins[c]} for g in p["groups"]}
        if sum(map(len, held.values())) > len(set().union(*held.values())):
            return {name: [name] for name in self.free}
        own = {u: [name for name in self.free if name in fields] for u, fields in held.items()}
        return {u: fields for u, fields in own.items() if fields}

    def holds(self, name: str, value: Any) -> bool:
        """Whether the domain of a field has a value of a document."""
        categories = self.free[name]["categories"]
        if value is None:
            return bool(self.free[name]["missing"])
        if categories is not None:
            return any(type(v) is type(value) and v == value for v in categories)
        return name in self.axes and self.axes[name].holds(value)

    def list_values(self, name: str, random: Any) -> list[tuple[Any, float]]:
        """The values of a field that are asked in every row, with their weights in the catalogue."""
        if name in self.axes:
            axis = self.axes[name]
            others = [axis.low, axis.high, *axis.list(axis.low, axis.high, random, DRAWN)]
            others = [axis.make_cell(v) for v in others]
        else:
            own = [v for v, _ in self.weights[name]]
            others = [v for v in self.free[name]["categories"] or () if v not in own]
        others += [math.nan] * self.free[name]["missing"]
        return [*self.weights[name], *((v, 0.0) for v in others)]

    def draw(self, name: str, listed: dict[str, Any], random: Any) -> Any:
        """A value of a field: one of those listed, or any other between the ends of its domain."""
        axis = self.axes.get(name)
        if axis and random.random() < 0.5:
            return axis.make_cell(axis.list(axis.low, axis.high, random, 0)[0])
        return listed[name][random.integers(len(listed[name]))][0]

    def draw_catalogue(self, name: str, random: Any) -> Any:
        own = self.weights[name]
        return own[random.choice(len(own), p=[w for _, w in own])][0]

    def check_claims(self, f: Result, i: int, row: Document) -> bool:
        """Whether the claims of a row agree with each other, and its witness with the domains."""
        names = ("budget", "proved", "sets", "witness", "alone", "chance_one", "chance_two")
        k, proved, sets, text, alone, *chances = (row["any_value"][f"any_value_{name}"] for name in names)
        values, to = json.loads(text) if text else ({}, None)
        changed = [u for u, fields in self.units.items() if set(fields) & set(values)]
        cells = dict(zip(self.rows.fields, self.rows.cells[i], strict=True))
        limits = [1e-9 if proved >= size else 1 + 1e-9 for size in (1, 2)]
        fits = [
            (text is None) == (k is None) == (not values),
            text is None or write_json([values, to]) == text,
            set(values) <= set(self.free),
            0 <= proved <= 2 and (k is None or (proved < k <= 2 and len(changed) <= k)),
            len(alone) == len(self.units) and set(alone) <= {-1, 0, 1} and (1 in alone) == (k == 1),
            proved == 0 or set(alone) == {0},
            sets is None or ((sets > 0) == (k is not None) and (k is None or proved == k - 1)),
            k != 1 or sets in (None, alone.count(1)),
            all(c is None or 0 <= c <= most for c, most in zip(chances, limits, strict=True)),
        ]
        f.check("budgets whatever the value", all(fits), f"row {row['id']}", row["any_value"])
        kept = all(self.holds(name, v) or v == self.rows.write(cells[name]) for name, v in values.items() if all(fits))
        f.check("witnesses are of the domains", kept, f"row {row['id']}", text)
        return all(fits)


def hand_over(function: Callable[[Any], Any], rows: Any) -> Any:
    """Call what is not ours: whatever it raises, the audit is not to blame."""
    try:
        return function(rows)
    except CannotCheck:
        raise
    except Exception as error:
        raise CannotCheck(f"these rows are not taken: {type(error).__name__}: {error}") from error


class Evidence:
    """Rows as cells of one protocol's evidence space, which of them are absent, and the model's word about others."""

    def __init__(self, p: Document, rows: Rows, model: Document, classes: list[Any]) -> None:
        self.p, self.rows, self.model, self.classes, self.raw = p, rows, model, classes, p["space"] == "raw"
        origins, kinds, columns = find_origins(p), {f["name"]: f["type"] for f in p["fields"]}, p["columns"]
        self.names = list(origins)
        self.sources = [[rows.fields.index(f) for f in origins[name]] for name in self.names]
        self.groups = [[self.names.index(name) for name in g["columns"]] for g in p["groups"]]
        self.group_names = [g["name"] for g in p["groups"]]
        self.stepwise = [self.raw and c["kind"] == "nominal" for c in columns]
        self.whole = [self.raw and kinds[c["name"]] == "integer" for c in columns]
        self.base = [rows.read(c["name"], c["baseline"]) if self.raw else c["baseline"] for c in columns]
        self.cells = rows.cells if self.raw else self.make_matrix(rows.cells)
        self.absent = np.stack([rows.missing[:, s].all(axis=1) for s in self.sources], axis=1)
        self.gone = [[bool(self.absent[i, g].all()) for g in self.groups] for i in range(len(self.cells))]

    def make_matrix(self, raw_rows: Sequence[Any]) -> np.ndarray:
        table = self.rows.frame(raw_rows)
        if self.p["inputs"] and not self.model["transform"]:
            raise CannotCheck("what a pipeline hands to its estimator is stressed: give transform and predict_cells")
        made = hand_over(self.model["transform"], table) if self.p["inputs"] else table
        made = np.asarray(made.toarray() if hasattr(made, "toarray") else made, dtype=float)
        if made.shape != (len(raw_rows), len(self.names)):
            raise Refused(f"the preprocessing makes {made.shape[1]} columns, the protocol has {len(self.names)}")
        return made

    def ask(self, states: Sequence[Any], raw: bool = False) -> np.ndarray:
        """Probabilities of states, or of raw rows by the whole pipeline."""
        if len(states) == 0:
            return np.empty((0, len(self.classes)))
        whole = raw or self.raw or not self.model["predict_cells"]
        answer = self.model["predict_proba"] if whole else self.model["predict_cells"]
        P = np.asarray(hand_over(answer, self.rows.frame(states) if whole else np.stack(states)), dtype=float)
        if P.shape != (len(states), len(self.classes)):
            raise Refused(f"the model answers with {P.shape[1:]} columns for {len(self.classes)} classes")
        return P

    def ask_each(self, picked: Sequence[int], list_: Any, make: Any = None, raw: bool = False) -> Iterator[Any]:
        """(row, what is asked about it, the probabilities of the states made of that), many rows at a time."""
        batch: list[tuple[int, Any]] = []
        for at, i in enumerate(picked):
            batch.append((i, list_(i)))
            if at + 1 < len(picked) and sum(len(asked) for _, asked in batch) < BATCH:
                continue
            P = self.ask([make(i, one) if make else one for i, asked in batch for one in asked], raw)
            for (i, asked), own in zip(batch, np.split(P, np.cumsum([len(asked) for _, asked in batch])), strict=False):
                yield i, asked, own
            batch = []

    def move(self, i: int, groups: Any, s: float = 1.0) -> Any:
        """Row i with groups moved by s towards the baseline; what is absent stays, what has no middle steps at 1/2."""
        cells = self.cells[i].copy()
        for j in (j for g in groups for j in self.groups[g] if not self.absent[i, j]):
            x, b = cells[j], self.base[j]
            if s == 1 or self.stepwise[j] or is_missing(b) or is_missing(x):
                cells[j] = b if s >= 0.5 else x
            else:
                cells[j] = float(np.rint(x + s * (b - x))) if self.whole[j] else x + s * (b - x)
        return cells

    def replace(self, i: int, changes: list[dict[int, Any]], columns: list[int]) -> list[Any]:
        """Row i with other raw values where it has some; in a matrix, these columns take what becomes of them."""
        raw = [self.rows.cells[i].copy() for _ in changes]
        for row, change in zip(raw, changes, strict=True):
            for j, value in change.items():
                row[j] = row[j] if self.rows.missing[i, j] else value
        if self.raw or not raw:
            return raw
        kept = np.array([j not in columns or self.absent[i, j] for j in range(len(self.names))])
        return list(np.where(kept, self.cells[i], self.make_matrix(raw)))


class Rule:
    """The decision and the margins of a protocol."""

    def __init__(self, p: Document, classes: list[Any]) -> None:
        self.p, self.classes, self.resolution = p, classes, p["resolution"]

    def score(self, P: np.ndarray, a: float = 0.0) -> np.ndarray:
        z = np.log(np.maximum((P + a) / (1 + P.shape[1] * a), 1e-12))
        if decision := self.p["decision"]:
            t = (decision["threshold"] + a) / (1 + 2 * a)
            z[:, self.classes.index(decision["class"])] -= math.log(t / (1 - t))
        return z

    def support(self, P: np.ndarray, y: int, a: float = 0.0) -> np.ndarray:
        z = self.score(P, a)
        return z[:, y] - np.delete(z, y, axis=1).max(axis=1)

    def margin(self, P: np.ndarray, y: int) -> np.ndarray:
        z = np.sort(self.score(P, self.p["smoothing"]), axis=1)
        return z[:, -1] - z[:, -2] if self.p["reading"] == "current" else self.support(P, y, self.p["smoothing"])

    def flips(self, P: np.ndarray, y: int) -> np.ndarray:
        """1 where another class leads by more than the resolution, 0 where none does, -1 where rounding decides."""
        over = -self.support(P, y) / self.resolution - 1
        return np.where(np.abs(over) <= 1e-3, -1, over > 0).astype(int)

    def may_lead(self, P: np.ndarray, y: int) -> list[Any]:
        """The classes that a state may go to when y loses it: within the resolution, rivals are tied."""
        z = self.score(P[None])[0]
        best = np.delete(z, y).max() - 1.001 * self.resolution
        return [c for j, c in enumerate(self.classes) if j != y and z[j] >= best]


# --- claims and blocks, asked again -----------------------------------------------------------------------------


def certify(e: Evidence, rule: Rule, y: dict[int, int], paths: Any = None) -> dict[int, Document]:
    """What the model says about the rows of `y`: along the given paths, or along those of the largest drops."""
    p, G, K, own = e.p, range(len(e.groups)), e.p["depth"], {}
    n, operators = len(p["severities"]), p["operators"]
    for i, _, P in e.ask_each(list(y), lambda i: [e.cells[i], *(e.move(i, [g]) for g in G)]):
        m, sure = rule.margin(P, y[i]), P[:, y[i]]
        rank = sorted(G, key=lambda g: (e.gone[i][g], -np.rint((m[0] - m[1 + g]) / rule.resolution), g))
        own[i] = {
            "P": P[0],
            "margin": m[0],
            "confidence": sure[0],
            "order": paths[i] if paths else rank,
            "one_step_drop": m[0] - m[1:],
            "one_step_confidence_drop": sure[0] - sure[1:],
        }

    def stress(i: int) -> list[Any]:
        order = own[i]["order"]
        moved = [G if o == "attenuate_all" else order[: int(o[13:])] for o in operators]
        fading = [e.move(i, groups, s) for groups in moved for s in p["severities"]]
        return [e.move(i, order[:k]) for k in range(1, K + 1)] + fading

    for i, _, P in e.ask_each(list(y), stress):
        m, flips = rule.margin(P, y[i]), list(rule.flips(P, y[i]))
        parts = {o: slice(K + j * n, K + j * n + n) for j, o in enumerate(operators)}
        own[i] |= {
            "path_margin": [own[i]["margin"], *m[:K]],
            "flips": flips[:K],
            "path_P": P[:K],
            "faded": list(m[parts["attenuate_all"]]) if "attenuate_all" in parts else [],
            **{f"flips_{o}": flips[part] for o, part in parts.items()},
        }
    return own


def may_be_first(at: int, flips: Sequence[int]) -> bool:
    """Whether the first flip may be at this place; at the end: whether there may be none."""
    return 0 <= at <= len(flips) and 1 not in flips[:at] and (at == len(flips) or flips[at] != 0)


def cut_fading(p: Document, own: Document, row: Document) -> list[float]:
    return own["faded"][: p["severities"].index(s) if (s := row.get("lambda_attenuate_all")) else None]


def find_tolerances(p: Document, own: Document) -> dict[str, float]:
    (v1, v2, v3), m = p["exposure_weights"], abs(own["margin"]) + 1e-8
    t = p["resolution"] * (1 + max(map(abs, own["path_margin"])) / 1000)
    c = min(t * (2 + max(own["path_collapse"])) / m, 1.0 if p["reading"] == "support" else math.inf)
    i = t * (2 * len(p["groups"]) + own["independent_loss"]) / m
    e = (v1 * c + v2 * i) * (v1 + v2 + v3) / (v1 + v2 or 1)
    e = min((v1 + v3) * c + v2 * i, 1.0) if "attenuate_all" in p["operators"] else e
    scores = {
        "path_collapse": c,
        "rcma": c,
        "fds": p["weights"][0] * c,
        "independent_loss": i,
        "common_loss": min(c, 1.0),
        "exposure": e,
    }
    return {
        "confidence": t,
        "margin": t,
        "path_margin": t,
        "fade_margin": t,
        "one_step_drop": 2 * t,
        "one_step_confidence_drop": 2 * t,
        **{name: tolerance + 1e-12 for name, tolerance in scores.items()},
    }


class Recomputation:
    """The rows that are asked again: place among the rows given -> claims, with those of blocks under their names."""

    def __init__(self, e: Evidence, rule: Rule, folder: Folder, rows: dict[int, Document], limit: int, random: Any):
        self.e, self.rule, self.folder, self.rows, self.limit, self.random = e, rule, folder, rows, limit, random
        self.f, self.y = folder.f, {i: e.classes.index(row["predicted"]) for i, row in rows.items()}

    def with_block(self, name: str) -> dict[int, int]:
        return {i: self.y[i] for i, row in self.rows.items() if name in row}

    def ask_claims(self) -> None:
        """Classes, paths and thresholds exactly, numbers within tolerance."""
        f, e, rule, p, full, K = self.f, self.e, self.rule, self.e.p, self.folder.full, self.e.p["depth"]
        paths = {i: [e.group_names.index(g) for g in row["path"]] for i, row in self.rows.items()}
        for i, own in certify(e, rule, self.y, paths).items():
            row, gone, path, at = self.rows[i], e.gone[i], paths[i], f"row {self.rows[i]['id']}"
            k, here = row["flip_budget"], row["already_missing"]
            stands = rule.support(own["P"][None], self.y[i])[0] >= -1.001 * rule.resolution
            f.check("the classes predicted", stands, at, row["predicted"], own["P"])
            missing = [name for name, there in zip(e.rows.fields, e.rows.missing[i], strict=True) if there]
            f.check("the fields already missing", here == missing, at, here, missing)
            # Drops that agree within the tolerance may round to neighbouring units; no other order is accepted.
            drops = np.array([(row if full else own)["one_step_drop"], own["one_step_drop"]]) / rule.resolution
            low, high = np.rint(drops.min(axis=0) - 1e-6), np.rint(drops.max(axis=0) + 1e-6)
            pairs = [*itertools.pairwise(path), *((path[-1], g) for g in range(len(gone)) if g not in path)]
            first, last = (
                [(there, 0 if there else -d, g) for g, (there, d) in enumerate(zip(gone, drop, strict=True))]
                for drop in (high, low)
            )
            fits = len(set(path)) == len(path) == K and all(first[a] <= last[b] for a, b in pairs)
            f.check("the order of paths", fits, at, row["path"], own["one_step_drop"])
            fits = may_be_first(k - 1, own["flips"]) and row["flipped"] == (k <= K)
            f.check("the flip budgets", fits, at, k, own["flips"])
            for o in p["operators"]:
                s, flips = row[f"lambda_{o}"], own[f"flips_{o}"]
                fits = may_be_first(len(flips) if s is None else p["severities"].index(s), flips)
                f.check("the severities that flip", fits, f"{o} of {at}", s, flips)
            rivals = [rule.may_lead(P, self.y[i]) for P in own["path_P"]]
            ends = [r[0] if flip == 1 else row["predicted"] for r, flip in zip(rivals, own["flips"], strict=True)]
            own |= {"fade_margin": cut_fading(p, own, row), "path_predicted": [row["predicted"], *ends]}
            if full:
                steps = zip(row["path_predicted"][1:], own["flips"], rivals, strict=True)
                fits = all((c == row["predicted"] and flip != 1) or (flip != 0 and c in r) for c, flip, r in steps)
                fits = fits and (row["predicted"], row["margin"]) == (row["path_predicted"][0], row["path_margin"][0])
                f.check("the classes along paths", fits, at, row["path_predicted"], own["path_predicted"])
            own |= derive(p, {**row, **own})
            for name, tolerance in find_tolerances(p, own).items():
                if full or name not in LISTS:
                    near = find_difference(row[name], own[name]) <= tolerance
                    f.check(f"the values of {name}", near, at, row[name], own[name])
            if not full:
                told = {**row, **{name: own[name] for name in ("confidence", *LISTS)}}
                f.check("the digests of summaries", row["digest"] == self.folder.hash_claims(told), at)

    def ask_lattice(self) -> None:
        """Every set of groups by size, as far as the limit of states goes."""
        f, e, groups, d = self.f, self.e, self.e.group_names, self.folder.m["blocks"]["lattice"]
        rates, events, reach = d["rates"], d["events"], {}

        def list_sets(i: int) -> list[Any]:
            block = self.rows[i]["lattice"]
            pairs = zip(e.cells[i], e.base, strict=True)
            differs = [not (a == b or (is_missing(a) and is_missing(b))) for a, b in pairs]
            live = [g for g, columns in enumerate(e.groups) if any(differs[j] and not e.absent[i, j] for j in columns)]
            ends = {MINIMUM: block["smallest_size"], NONE_SMALL: d["max_size"]} if not rates else {}
            wanted = ends.get(block["smallest_state"])
            size, n = 0, len(live)
            while size < min(n, wanted or n) and sum(math.comb(n, k) for k in range(size + 2)) <= self.limit:
                size += 1
            sets = [s for k in range(size + 1) for s in itertools.combinations(live, k)]
            reach[i] = (live, size, len(sets))
            if rates and size < n:
                lost = self.random.random((self.limit, len(groups))) < np.array([rates[g] for g in groups])
                sets += [tuple(np.flatnonzero(one)) for one in lost]
            sets += [tuple(map(groups.index, event["groups"])) for event in events or ()]
            return [*sets, tuple(map(groups.index, block["smallest_set"]))]

        for i, sets, P in e.ask_each(list(self.with_block("lattice")), list_sets, e.move):
            block, (live, size, end), at = self.rows[i]["lattice"], reach[i], f"row {self.rows[i]['id']}"
            state, told, count = (block[f"smallest_{name}"] for name in ("state", "size", "count"))
            flips, named, found = self.rule.flips(P, self.y[i]), sets[-1], state in (MINIMUM, BOUND)
            failing = [s for s, flip in zip(sets[:end], flips[:end], strict=True) if flip == 1]
            fits = told == (len(named) if found else None) and bool(named) == found and len(named) <= d["max_size"]
            fits, names = fits and not any(e.gone[i][g] for g in named), block["smallest_set"]
            f.check("failing sets are of groups that are there", fits, at, names)
            f.check("the sets named fail", not found or flips[-1] != 0, at, names, "no flip")
            least = told if found else d["max_size"] + 1 if state == NONE_SMALL else math.inf
            smaller = [[groups[g] for g in s] for s in failing if len(s) < least]
            f.check("no smaller set fails", not smaller, at, block["smallest_set"] or state, smaller[:1])
            if size == len(live) or size >= (told if state == MINIMUM else least):
                number, unsure = sum(len(s) == told for s in failing), int((flips[:end] < 0).sum())
                fits = state not in (BOUND, OPEN) and count is not None and number <= count <= number + unsure * found
                fits = fits and (unsure or not found or named == next((s for s in failing if len(s) == told), ()))
            else:
                f.leave("of rows: that no smaller set fails, or how many do; too many sets", 1)
                fits = count is None or state == MINIMUM or (count == 0 and not found)
            own = f"{len(failing)} of up to {size} of {len(live)} groups"
            f.check("states and counts of failing sets, and which is first", fits, at, (state, count), own)
            if rates or events:
                self.compare_rates(i, live, sets, P, flips, end, size == len(live))

    def compare_rates(self, i: int, live: Any, sets: Any, P: Any, flips: Any, end: int, every: bool) -> None:
        """Failure probabilities: over all sets, over the recorded events, or roughly over draws of ours."""
        f, groups, d, block = self.f, self.e.group_names, self.folder.m["blocks"]["lattice"], self.rows[i]["lattice"]
        rates, events, at, y = d["rates"], d["events"], f"row {self.rows[i]['id']}", self.y[i]
        told, low, high, exact = (block[f"failure_{n}"] for n in ("probability", "low", "high", "exact"))
        fits = 0 <= low <= told <= high <= 1 and (low == high or not exact)
        f.check("failure probabilities lie in their intervals", fits, at, (low, told, high))
        if rates and not every:
            share = float((flips[end:-1] == 1).mean())
            slack = 5 * math.sqrt(max(share * (1 - share), 1 / self.limit) / self.limit)
            f.check("failure probabilities, roughly", low - slack <= share <= high + slack, at, told, share)
            return f.leave("of rows: the failure probability to the last digit; too many sets", 1)
        part = slice(0, end) if rates else slice(-1 - len(events), -1)
        each = [(rates[groups[g]], np.array([g in s for s in sets[part]])) for g in live] if rates else []
        weights = math.prod((np.where(lost, r, 1 - r) for r, lost in each), start=np.ones(len(sets[part])))
        weights = weights if rates else np.array([event["count"] for event in events], dtype=float)
        weights /= weights.sum()
        own, doubt = weights[flips[part] == 1].sum(), weights[flips[part] < 0].sum()
        f.check("failure probabilities", exact and own - 1e-9 <= told <= own + doubt + 1e-9, at, told, own)
        if block["expected_margin"] is not None and rates and (P > 1e-12).all():
            support = (z := self.rule.score(P[part]))[:, y] - z[:, 1 - y]
            mean, claimed = float(weights @ support), block["expected_margin"]
            near = abs(mean - claimed) <= self.rule.resolution * (1 + abs(mean) / 1000)
            f.check("expected margins", near, at, claimed, mean)

    def list_units(self, mode: str, i: int) -> Iterator[tuple[str, list[Any], list[float]]]:
        """The units of a mode: names, the states of row i, and their weights."""
        e, p, fields = self.e, self.e.p["modes"], self.e.rows.fields
        if mode == "lost":
            yield from ((name, [e.move(i, [g])], [1.0]) for g, name in enumerate(e.group_names))
        if mode == "outage":
            states = [e.move(i, map(e.group_names.index, o["groups"])) for o in p["outages"]]
            yield "the whole record", states, [o["count"] / sum(o["count"] for o in p["outages"]) for o in p["outages"]]
        noisy = [j for j, c in enumerate(e.p["columns"]) if c["kind"] == "numeric" and c["spread"]]
        for j in noisy if mode == "noisy" else ():
            column, only = e.p["columns"][j], [e.sources[k] for k in noisy].count(e.sources[j]) == 1
            name = fields[e.sources[j][0]] if only and len(e.sources[j]) == 1 else column["name"]
            for sign, way in ((-1, "downward"), (1, "upward")):
                states = [e.cells[i].copy(), e.cells[i].copy()]
                for cells, part in zip(states, (1, 0.5), strict=True) if not e.absent[i, j] else ():
                    cells[j] += sign * part * p["noise"] * column["spread"]
                    cells[j] = float(np.rint(cells[j])) if column["name"] in p["whole"] else cells[j]
                yield f"{name} ({way})", states, [0.5, 0.5]
        for entry in p["catalogue"] if mode == "wrong" else ():
            at = [fields.index(name) for name in entry["fields"]]
            values = [dict(zip(at, map(e.rows.read, entry["fields"], v), strict=True)) for v in entry["values"]]
            states = e.replace(i, values, e.groups[e.group_names.index(entry["group"])])
            yield entry["group"], states, [n / sum(entry["counts"]) for n in entry["counts"]]
        for entry in p["sentinels"] if mode == "sentinel" else ():
            j, values = fields.index(entry["field"]), []
            for value in entry["values"]:
                scaled = re.fullmatch(r"x ([*/]) (\S+)", str(value)) if not e.rows.missing[i, j] else None
                factor = float(scaled[2]) ** (1 if scaled[1] == "*" else -1) if scaled else 1.0
                values.append({j: e.rows.cells[i][j] * factor if scaled else e.rows.read(entry["field"], value)})
            yield entry["field"], e.replace(i, values, [k for k, s in enumerate(e.sources) if j in s]), entry["weights"]

    def ask_modes(self) -> None:
        """Every value of every unit."""
        f, e, rule, p = self.f, self.e, self.rule, self.e.p["modes"]
        for mode, names in self.folder.m["blocks"]["modes"]["units"].items():
            asked: dict[int, Any] = {}

            def list_states(i: int, mode: str = mode, asked: Any = asked) -> list[Any]:
                asked[i] = list(self.list_units(mode, i))
                return [e.cells[i], *(state for _, states, _ in asked[i] for state in states)]

            for i, _, P in e.ask_each(list(self.with_block("modes")), list_states):
                block, at, start, units = self.rows[i]["modes"], f"{mode} of row {self.rows[i]['id']}", 1, asked.pop(i)
                m, flips, drops, chances = rule.margin(P, self.y[i]), rule.flips(P, self.y[i]), [], []
                for _, states, weights in units:
                    part, w = slice(start, start := start + len(states)), np.array(weights)
                    drops.append(float(m[0] - w @ m[part]))
                    chances.append((float(w @ (flips[part] == 1)), float(w @ (flips[part] != 0))))
                own = [name for name, _, _ in units]
                f.check("the units of modes", names == own and mode in p["declared"], at, names, own)
                d = rule.resolution * (1 + (abs(m[0]) + max(map(abs, drops), default=0)) / 1000)
                told, margin = block[f"mode_drop_{mode}"], abs(self.rows[i]["margin"]) + 1e-8
                f.check("the drops of modes", find_difference(told, drops) <= 2 * d, at, told, drops)
                loss = (0.5 if mode == "noisy" else 1) * sum(x for x in told if x > 0) / margin
                own, claimed, told = 1 - math.exp(-loss), block[f"exposure_{mode}"], block[f"flip_chance_{mode}"]
                f.check("the exposures to modes", abs(claimed - own) <= 1e-9, at, claimed, own)
                near = (a - 1e-9 <= t <= b + 1e-9 for t, (a, b) in zip(told, chances, strict=False))
                fits = len(told) == len(chances) and all(near)
                f.check("the flip chances of modes", fits, at, told, chances)

    def ask_baselines(self) -> None:
        """Flip budgets and exposures under each other baseline."""
        f, p, having = self.f, self.e.p, self.with_block("baselines")
        names = self.folder.m["blocks"]["baselines"]["baselines"]
        f.check("all baselines are compared", names == [p["baseline"], *p["alternatives"]], "baselines", names)
        for name in names:
            own = {}
            if name != p["baseline"]:
                e = Evidence(change_baseline(p, name), self.e.rows, self.e.model, self.e.classes)
                own = certify(e, self.rule, having)
            for i in having:
                row, block, at = self.rows[i], self.rows[i]["baselines"], f"{name}, row {self.rows[i]['id']}"
                k, exposure = block[f"flip_budget_{name}"], block[f"exposure_{name}"]
                if not own:
                    same = (row["flip_budget"], row["exposure"]) == (k, exposure)
                    f.check("the declared baseline repeats the certificates", same, at)
                    continue
                one, grid = own[i], p["severities"]
                fits = may_be_first(k - 1, one["flips"])
                f.check("the flip budgets under other baselines", fits, at, k, one["flips"])
                for o in p["operators"]:
                    steps = zip(grid, one[f"flips_{o}"], strict=True)
                    one[f"lambda_{o}"] = next((s for s, flip in steps if flip == 1), None)
                one |= derive(e.p, {**one, "flip_budget": max(k, 1), "fade_margin": cut_fading(p, one, one)})
                near = abs(one["exposure"] - exposure) <= find_tolerances(e.p, one)["exposure"]
                f.check("the exposures under other baselines", near, at, exposure, one["exposure"])

    def ask_raw(self, block: str, list_points: Callable[[int], list[Any]]) -> Iterator[Any]:
        """Put changed rows to the whole pipeline: (row, [((values by field, ...), does it flip, probabilities)])."""
        rows = self.e.rows

        def put(i: int, point: Any) -> Any:
            row = rows.cells[i].copy()
            for name, value in point[0].items():
                row[rows.fields.index(name)] = value
            return row

        for i, points, P in self.e.ask_each(list(self.with_block(block)), list_points, put, raw=True):
            yield i, list(zip(points, self.rule.flips(P, self.y[i]), P, strict=True))

    def check_flip(self, topic: str, i: int, values: Any, to: Any, flip: int, answer: Any) -> None:
        """Whether the decision flips to a class at these values, or holds where `to` is None."""
        fits = flip != 1 if to is None else flip != 0 and to in self.rule.may_lead(answer, self.y[i])
        own = "holds" if flip == 0 else f"flips to one of {self.rule.may_lead(answer, self.y[i])}"
        self.f.check(topic, fits, f"{values} in row {self.rows[i]['id']}", to or "holds", own)

    def find_axes(self, narrow: dict[str, str], domains: bool) -> dict[str, Axis]:
        """The training range of each field of numbers or dates; or its domain: that range, or a declared one."""
        p, rows = self.e.p, self.e.rows
        ranges = {r["field"]: (r["low"], r["high"], r["whole"]) for r in p["modes"]["ranges"]}
        if domains:
            known = {x["field"]: x for x in p["domains"] if not x["fixed"] and x["categories"] is None}
            whole = {x["name"]: x["type"] == "integer" for x in p["fields"]}
            own = {name: (x["low"], x["high"]) for name, x in known.items() if x["low"] is not None}
            declared = {name: (*ends, ranges.get(name, (0, 0, whole[name]))[2]) for name, ends in own.items()}
            ranges = {name: declared.get(name, ranges.get(name)) for name in known if name in {*declared, *ranges}}
        return {name: Axis(rows, name, *ends, narrow.get(name, "float64")) for name, ends in ranges.items()}

    def list_catalogue(self) -> dict[str, dict[Any, int]]:
        """The known values of each field in the catalogue, and how often each counts."""
        listed: dict[str, dict[Any, int]] = {}
        for entry in self.e.p["modes"]["catalogue"]:
            for k, name in enumerate(entry["fields"]):
                counts = listed.setdefault(name, {})
                for values, count in zip(entry["values"], entry["counts"], strict=True):
                    if values[k] is not None:
                        counts[values[k]] = counts.get(values[k], 0) + count
        return listed

    def ask_intervals(self) -> None:
        """The whole pipeline on raw rows: both sides of each end, what the catalogue has inside, more at random."""
        d, e, rows = self.folder.m["blocks"]["intervals"], self.e, self.e.rows
        axes, listed = self.find_axes(d["narrow"], domains=False), self.list_catalogue()
        numeric = {x["name"] for x in e.p["fields"] if x["kind"] == "numeric"}

        def list_points(i: int) -> list[tuple[dict[str, Any], Any]]:
            """({field: value}, None or the class that it flips to)"""
            block, told = self.rows[i]["intervals"], []
            parts = ["state", *INTERVAL_TEXTS]
            for name, state, *texts in zip(d["fields"], *(block[f"interval_{part}"] for part in parts), strict=True):
                told += [({name: value}, to) for value, to in list_field(i, name, state, texts)]
            return told

        def list_field(i: int, name: str, state: str, texts: list[str | None]) -> list[tuple[Any, Any]]:
            where, j = f"{name} in row {self.rows[i]['id']}", rows.fields.index(name)
            x, gone = rows.cells[i][j], bool(rows.missing[i, j])
            value, low, high, below, above, categories = read = [None if t is None else json.loads(t) for t in texts]
            known, ordered = name in axes or name in listed, name in axes or name in numeric
            found = state in ("exact", "bracketed")
            cell = None if gone or (ordered and not found) else rows.write(x)
            fits = texts == [None if v is None else write_json(v) for v in read] and value == cell
            fits = fits and (state == "unlisted") == (not known) and (not known or (state == "missing") == gone)
            fits = fits and (below is above is None or found)
            fits = fits and (low is None) == (high is None) != (found and ordered)
            fits = fits and (categories is None) != (found and not ordered)
            fits = fits and (state != "exact" or not ordered or d["engine"] in ("trees", "linear"))
            if state == "not whole":
                fractional = len(rows.write(x)) > 10 if name in rows.dates else float(axes[name].kind(x)) != x
                fits = fits and ordered and (fractional or (axes[name].whole and name not in rows.dates and x % 1 != 0))
            self.f.check("states and values of intervals", fits, where, (state, *texts), cell)
            if not found or not fits:
                return []
            if ordered:
                return list_ordered(name, where, state, value, low, high, below, above)
            moved = dict(map(tuple, categories))
            own = [v for v in listed[name] if v in moved]
            self.f.check("categories are the catalogue's, in order", list(moved) == own, where, categories, own)
            return [(rows.read(name, v), moved.get(v)) for v in listed[name]]

        def list_ordered(name: str, where: str, state: str, value: Any, *ends_and_flips: Any) -> list[tuple[Any, Any]]:
            axis = axes[name]
            x, low, high = (axis.place(v) for v in (value, *ends_and_flips[:2]))
            flips = [flip and (axis.place(flip[0]), flip[1]) for flip in ends_and_flips[2:]]
            tried = sorted({*map(axis.place, listed.get(name, ())), axis.low, axis.high})
            if state == "exact":
                near, most = [axis.find_next(low, -1), axis.find_next(high, 1)], self.limit // 4
                inside, beside = axis.list(low, high, self.random, most), True
                if axis.count(low, high) > most:
                    self.f.leave("of exact intervals: values inside that were not asked", 1)
            else:
                near = [
                    max((v for v in tried if v < low), default=None),
                    min((v for v in tried if v > high), default=None),
                ]
                inside, beside = [], {low, high} <= {*tried, x}
            last = (min(axis.low, x), max(axis.high, x))
            for flip, next_, own, end in zip(flips, near, (low, high), last, strict=True):
                beside = beside and (flip[0] == next_ if flip else own == end)
            self.f.check(
                "intervals end beside their flips, or with the range", beside and low <= x <= high, where, near
            )
            inside += [low, high, *(v for v in tried if low <= v <= high)]
            flipping = [(axis.make_cell(flip[0]), flip[1]) for flip in flips if flip]
            return [*((axis.make_cell(v), None) for v in inside), *flipping]

        for i, answers in self.ask_raw("intervals", list_points):
            for (values, to), flip, answer in answers:
                self.check_flip("the decision inside intervals and beyond", i, values, to, flip, answer)

    def ask_any_value(self) -> None:
        """The whole pipeline on raw rows: each witness, the values of each free field, and two fields at random.

        What is said not to flip a row must not, no more pairs of groups may flip it than are counted, and the chances
        must be those of the catalogue: of two fields, where these are more than the limit, roughly and over all rows.
        """
        f, d = self.f, self.folder.m["blocks"]["any_value"]
        domains = Domains(self.e.p, self.e.rows, self.find_axes(d["narrow"], domains=True), self.list_catalogue())
        groups, random = list(domains.units.items()), self.random
        f.check("the groups that any values change", d["groups"] == [u for u, _ in groups], "any_value", d["groups"])
        listed = {name: domains.list_values(name, random) for name in domains.free}
        weighed = [name for name in domains.free if domains.weights[name]]
        owner = {name: u for u, fields in groups for name in fields}
        weights = domains.weights
        pairs = list(itertools.combinations(weighed, 2))
        every = sum(len(weights[a]) * len(weights[b]) for a, b in pairs) <= self.limit
        shares: list[tuple[float, float]] = []  # by row, how likely two fields are said to flip it, and what draws show

        def list_changes(i: int) -> list[tuple[dict[str, Any], Any, frozenset[str], str, float]]:
            """(values by field, the class of a witness, the groups that are changed, in which chance, its weight)"""
            block, changes = self.rows[i]["any_value"], []
            if domains.check_claims(f, i, self.rows[i]) and block["any_value_witness"]:
                values, to = json.loads(block["any_value_witness"])
                changed = frozenset(owner[name] for name in values)
                changes.append(({name: self.e.rows.read(name, v) for name, v in values.items()}, to, changed, "", 0.0))
            for (u, fields), state in zip(groups, block["any_value_alone"], strict=True):
                if state == -1 and block["any_value_chance_one"] is None:
                    continue
                alone = frozenset([u])
                changes += [
                    ({name: v}, None, alone, "one", w / len(weighed)) for name in fields for v, w in listed[name]
                ]
                if len(fields) > 1:
                    together = [{name: domains.draw(name, listed, random) for name in fields} for _ in range(DRAWN)]
                    changes += [(values, None, alone, "", 0.0) for values in together]
            if len(groups) > 1 and (block["any_value_proved"] == 2 or block["any_value_sets"] is not None):
                for _ in range(DRAWN):
                    pair = [groups[k] for k in random.choice(len(groups), 2, replace=False)]
                    values = {name: domains.draw(name, listed, random) for _, fields in pair for name in fields}
                    changes.append((values, None, frozenset(u for u, _ in pair), "", 0.0))
            if pairs and block["any_value_chance_two"] is not None and every:
                for a, b in pairs:
                    both = [({a: v, b: w}, x * y / len(pairs)) for v, x in weights[a] for w, y in weights[b]]
                    changes += [(values, None, frozenset([owner[a], owner[b]]), "two", w) for values, w in both]
            elif pairs and block["any_value_chance_two"] is not None:
                for _ in range(DRAWN):
                    names = pairs[random.integers(len(pairs))]
                    values = {name: domains.draw_catalogue(name, random) for name in names}
                    changes.append((values, None, frozenset(owner[name] for name in names), "drawn", 1 / DRAWN))
            return changes

        for i, answers in self.ask_raw("any_value", list_changes):
            block, where = self.rows[i]["any_value"], f"row {self.rows[i]['id']}"
            proved = block["any_value_proved"]
            never = {
                frozenset([u]) for (u, _), state in zip(groups, block["any_value_alone"], strict=True) if state == 0
            }
            flipping: dict[frozenset[str], Any] = {}
            low, high = (dict.fromkeys(("", "one", "two", "drawn"), 0.0) for _ in range(2))
            for (values, to, changed, chance, weight), flip, answer in answers:
                if to is not None:
                    self.check_flip("witnesses whatever the value", i, values, to, flip, answer)
                elif changed in never or len(changed) <= proved:
                    f.check("values that are said not to flip a row", flip != 1, where, "holds", f"{values} flips it")
                if flip == 1:
                    flipping[changed] = values
                low[chance] += weight * (flip == 1)
                high[chance] += weight * (flip != 0)
            if block["any_value_budget"] == 2 and block["any_value_sets"] is not None:
                count = sum(len(changed) == 2 for changed in flipping)
                f.check("how many pairs flip a row", count <= block["any_value_sets"], where, count)
            for size in ("one", "two"):
                if (told := block[f"any_value_chance_{size}"]) is not None and (size == "one" or every):
                    fits = low[size] - 1e-9 <= told <= high[size] + 1e-9
                    f.check("chances that one and two fields flip a row", fits, where, told, low[size])
                elif told is not None:
                    shares.append((told, low["drawn"]))
                    f.leave("of any_value blocks: the chance of two fields, to the last digit", 1)
            alone = [u for (u, _), state in zip(groups, block["any_value_alone"], strict=True) if state == 1]
            if unseen := sum(frozenset([u]) not in flipping for u in alone):
                f.leave("of groups that are said to flip a row alone: values that do were not met", unseen)
            f.leave("of any_value blocks: values of one and two groups that were not asked", 1)
        if shares:
            claimed, seen = np.array(shares).T
            slack = 5 * math.sqrt(float((claimed * (1 - claimed)).sum()) / DRAWN) + 1e-9 * len(shares)
            near = abs(float(claimed.sum() - seen.sum())) <= slack
            f.check("chances that two fields flip a row, roughly", near, "all rows", claimed.mean(), seen.mean())


# --- what the model and the training rows show of the protocol ------------------------------------------------------


def check_model(f: Result, e: Evidence, random: Any) -> None:
    """Answers that depend on company, baselines called refused, and columns made from other fields than it says."""
    p, rows, n = e.p, e.rows, len(e.cells)
    picked = random.permutation(n)[:24].tolist()
    states = [e.move(i, np.flatnonzero(random.random(len(e.groups)) < 0.5)) for i in picked]
    alone = np.concatenate([e.ask([state]) for state in states])
    f.check("the model answers alike in company and alone", np.abs(e.ask(states) - alone).max() <= 1e-6, "changed rows")
    large = any(isinstance(v, int) and abs(v) > 2**53 for row in rows.cells for v in row)  # no column holds NaN beside
    if "missing" in p["refused"] and not large:
        try:
            answers = np.isfinite(e.ask([np.full(len(rows.fields), math.nan, dtype=object)], raw=True)).all()
        except CannotCheck:
            answers = False
        f.check("refused baselines", not answers, "the model answers where everything is missing")
    if e.raw or not p["inputs"]:
        return
    for entry in (entry for entry in p["modes"]["catalogue"] if len(entry["fields"]) == 1):
        name, j = entry["fields"][0], rows.fields.index(entry["fields"][0])
        own = [c for c, at in enumerate(e.sources) if at == [j] and p["columns"][c]["kind"] == "nominal"]
        changed = [rows.cells[0].copy() for _ in entry["values"]]
        for row, (value,) in zip(changed, entry["values"], strict=True):
            row[j] = rows.read(name, value)
        base = np.array([e.base[c] for c in own])
        same = np.isclose(e.make_matrix(changed)[:, own], base, rtol=0, atol=1e-9).all(axis=1)
        fits = same[0] if p["baseline"] in ("typical", "median") else same.any() or name in p["artificial"]
        told = f"{name}: {base} is not the encoding of {entry['values'][0][0]!r}, or of none and not called artificial"
        f.check("nominal baselines", fits or p["baseline"] in ("zero", "explicit"), told)
    for j, name in enumerate(rows.fields):
        for i in picked[:12]:
            changed = [rows.cells[i].copy() for _ in range(9)]
            others = [math.nan, *(rows.cells[other][j] for other in random.permutation(n)[:8])]
            for row, value in zip(changed, others, strict=False):
                row[j] = value
            try:
                made = e.make_matrix(changed)
            except CannotCheck:  # the preprocessing takes no missing value here
                made = e.make_matrix(changed[1:])
            moved = (~np.isclose(made, e.cells[i], rtol=0, atol=1e-9, equal_nan=True)).any(axis=0)
            strange = [e.names[c] for c in np.flatnonzero(moved) if j not in e.sources[c]]
            told = f"{name} moves {strange[:3]}"
            f.check("columns are made from the fields that the protocol names", not strange, told)


def check_training(f: Result, p: Document, rows: Rows, model: Document, classes: list[Any]) -> None:
    """Fit again what the protocol says of its training rows."""
    e = Evidence(p, rows, model, classes)
    same = p["training_digest"] == find_root(rows.digest(False)) and p["training_rows"] == len(rows.cells)
    f.check("the training rows", same, "the digest")
    own = [isinstance(dtype, rows.pd.CategoricalDtype) for dtype in rows.types]
    f.check("categorical fields", own == [x["categorical"] for x in p["fields"]], "fields")
    columns = {name: [row[j] for row in rows.cells] for j, name in enumerate(rows.fields)}
    known = {name: [v for v in own if not is_missing(v)] for name, own in columns.items()}
    for name in [p["baseline"], *p["alternatives"]]:
        if name == "missing":
            own, told = (
                [n for n in columns if len(known[n]) == len(columns[n])],
                p["alternatives"].get(name, p)["artificial"],
            )
            f.check("artificial baselines", own == told, name, told, own)
            told = p["alternatives"].get(name, {}).get("spreads") or []
            told = [c["spread"] for c in p["columns"]] if name == p["baseline"] else told
            numbers = [np.array(known[x["name"]] if x["kind"] == "numeric" else [], dtype=float) for x in p["fields"]]
            own = [(float(np.std(one)), abs(float(one.mean()))) if len(one) else (0.0, 0.0) for one in numbers]
            near = len(told) in (0, len(own)) and all(
                abs((spread or 0.0) - again) <= 1e-9 * max(again, mean)
                for spread, (again, mean) in zip(told, own, strict=False)
            )
            f.check("spreads of fields where evidence is missing", near, name, told, own)
        if name in ("typical", "mean", "median"):
            check_numbers(f, e, p if name == p["baseline"] else change_baseline(p, name))
    numeric = [x["name"] for x in p["columns"] if x["kind"] == "numeric"]
    own = [x["name"] for x in p["fields"] if x["kind"] == "numeric" and x["type"] == "integer"]
    if not e.raw:
        cells = {name: e.cells[:, j].astype(float) for j, name in enumerate(e.names) if name in numeric}
        own = [name for name, values in cells.items() if (np.nan_to_num(values) % 1 == 0).all()]
    own, told = own if "noisy" in p["modes"]["declared"] else [], p["modes"]["whole"]
    f.check("columns of whole numbers", own == told, "modes.whole", told, own)
    for entry in p["modes"]["ranges"]:
        own = [rows.write(end(known[entry["field"]])) for end in (min, max)]
        f.check("training ranges", own == [entry["low"], entry["high"]], entry["field"], entry, own)
    ordered = {entry["field"] for entry in p["modes"]["ranges"]}
    for entry in p["modes"]["catalogue"]:
        (name, *more), told, where = entry["fields"], entry["counts"], entry["group"]
        if not more and name in ordered:
            values, n, R = sorted(known[name]), len(known[name]), sum(told)
            places = [-(-n * (2 * i + 1) // (2 * R)) - 1 for i in range(R)]  # ceil(n (i + 1/2) / R), from 0
            own = Counter(rows.write(values[place]) for place in places)
            fits = [v for (v,) in entry["values"]] == [*own] and told == [*own.values()]
            f.check("catalogues of numbers are quantiles of training rows", fits, where, entry["values"], [*own])
            continue
        met = Counter(
            zip(*([None if is_missing(v) else rows.write(v) for v in columns[n]] for n in entry["fields"]), strict=True)
        )
        own = [met[tuple(v)] for v in entry["values"]]
        f.check("catalogues hold values of training rows", all(own) if more else own == told, where, told, own)
    for x in p["domains"] if p["domain"] != "declared" else ():
        met = Counter(write_json(rows.write(v)) for v in known[x["field"]])
        often = {v for v, n in met.items() if n >= 5 or len(met) <= 24}
        fits = x["fixed"] or x["missing"] == (len(known[x["field"]]) < len(rows.cells))
        fits = fits and (x["categories"] is None or {*map(write_json, x["categories"])} == often)
        fits = fits and (p["domain"] != "range" or x["low"] is x["high"] is None)
        f.check("domains are what training rows hold", fits, x["field"], x, often)


def check_numbers(f: Result, e: Evidence, p: Document) -> None:
    """Numeric baselines and spreads of one protocol on its training rows."""
    for c, column in enumerate(p["columns"]):
        cells = [row[c] for row in e.cells if not is_missing(row[c])] if column["kind"] == "numeric" else ()
        if len(cells):
            known = np.array(cells, dtype=float)
            own = float(np.median(known)) if p["baseline"] == "median" else math.fsum(known) / len(known)
            told, spread = (column["baseline"], column["spread"]), float(np.std(known))
            own = float(np.rint(own)) if e.whole[c] or (p["baseline"] == "typical" and (known % 1 == 0).all()) else own
            near = max(abs(own - told[0]), abs(spread - (told[1] or 0.0))) <= 1e-9 * max(spread, abs(own))
            f.check("baselines and spreads of numbers", near, f"{column['name']}, {p['baseline']}", told, (own, spread))


# --- the whole check, and the command -------------------------------------------------------------------------------


def check(
    folder: Any,
    rows: Any,
    predict_proba: Any,
    *,
    transform: Any = None,
    predict_cells: Any = None,
    ids: Any = None,
    train: Any = None,
    sample: int | None = None,
    limit: int = 4096,
    seed: int | None = None,
) -> Result:
    """Check an audit folder or evidence pack; a stressed matrix is made by `transform` and asked of `predict_cells`."""
    f, model = Result(), {"predict_proba": predict_proba, "transform": transform, "predict_cells": predict_cells}
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            place = Path(folder)
            if place.is_file():
                zipfile.ZipFile(place).extractall(scratch)
                place = Path(scratch)
            place = place if (place / "manifest.json").exists() or not (place / "audit").exists() else place / "audit"
            try:
                read = Folder(place, f)
                given = hand_over(lambda source: Rows(source, ids, read.p), rows)
                known = None if train is None else hand_over(lambda source: Rows(source, None, read.p), train)
                check_rows(read, given, model, known, sample, limit, np.random.default_rng(seed))
            except MALFORMED as error:
                raise Refused(f"it contradicts itself or the format: {type(error).__name__}: {error}") from None
        except Refused as error:
            f.check("the audit can be read", False, error)
        except (CannotCheck, OSError) as error:
            f.unable = str(error)
    return f


def ask_safely(f: Result, name: str, ask: Callable[[], None]) -> None:
    try:
        ask()
    except MALFORMED as error:
        f.check(f"{name} are what the format allows", False, f"{type(error).__name__}: {error}")


def check_rows(folder: Folder, given: Rows, model: Document, train: Any, sample: Any, limit: int, random: Any) -> None:
    f, p, m, claims, ids = folder.f, folder.p, folder.m, folder.rows, given.ids
    if not set(claims) <= set(ids):
        raise CannotCheck("the rows given are not those of the audit: name the column of ids, or give the audited rows")
    whole, content = m["rows"] == m["input"]["rows"], given.digest(False)
    own = find_root([digest for digest, id_ in zip(given.digest(True), ids, strict=True) if id_ in claims or not whole])
    told = m["input"]["digest"]
    f.check("the rows are those that were audited", told == own, "input digest", told, own)
    if not whole:
        f.leave("audited rows whose certificates are not here", m["input"]["rows"] - m["rows"])
    e, rule = Evidence(p, given, model, folder.classes), Rule(p, folder.classes)
    having, n = [i for i, id_ in enumerate(ids) if id_ in claims], len(claims)
    s = min(n, sample or n)
    check_model(f, e, random)
    if s < n:
        bad = max(1, n // 100)
        escape = math.comb(n - bad, s) / math.comb(n, s)
        f.leave(f"rows not asked again; {bad} false of {n} escape a sample of {s} with probability {escape:.2g}", n - s)
    picked = sorted(random.permutation(having)[:s].tolist())
    again = Recomputation(e, rule, folder, {i: claims[ids[i]] for i in picked}, limit, random)
    ask_safely(f, "claims", again.ask_claims)
    for name, d in m["blocks"].items():
        if d["rows"] and d["rows"]["by"] == "content" and whole:
            sure = [i for i in having if claims[ids[i]]["confidence"] >= p["min_confidence"]]
            sure.sort(key=lambda i: (content[i][:39], hash_id(ids[i])))
            own = sorted((ids[i] for i in sure[: d["rows"]["most"]]), key=hash_id)
            f.check(f"which rows have {name}", folder.order[name] == own, name, folder.order[name], own)
        ask_safely(f, name, getattr(again, f"ask_{name}"))
    f.leave("that the model bears the fingerprint in the manifest: what it answers was compared")
    f.leave("how the audit was made: its engine, evaluations and versions")
    if train is None:
        f.leave("that baselines, ranges and catalogue come from the training rows: none were given")
    else:
        check_training(f, p, train, model, folder.classes)


def load_model(path: Path) -> dict[str, Any]:
    """What to ask of a model file. Loading it runs its author's code."""
    if path.suffix == ".skops":
        import skops.io

        model = skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path))
    else:
        import joblib

        model = joblib.load(path)
    return take_apart(model)


def take_apart(model: Any) -> dict[str, Any]:
    """The callables of a fitted estimator; of a pipeline those before and of its last step."""
    while hasattr(model, "best_estimator_"):
        model = model.best_estimator_
    *_, last = [step for _, step in model.steps] if hasattr(model, "steps") else [model]

    def ask(X: Any) -> Any:
        """XGBoost hands out probabilities in single precision: take the raw score, and the link in double precision."""
        if not hasattr(last, "get_booster"):
            return last.predict_proba(X)
        z = np.asarray(last.predict(X, output_margin=True), dtype=float)
        z = np.stack([np.zeros_like(z), z], axis=1) if z.ndim == 1 else z
        odds = np.exp(z - z.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    if last is model or len(model.steps) == 1:
        return {"predict_proba": ask, "predict_cells": ask}
    before = model[:-1].transform
    return {"predict_proba": lambda X: ask(before(X)), "transform": before, "predict_cells": ask}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("fragility_check", description="Check an audit without the library that made it.")
    parser.add_argument("audit", type=Path, help="audit folder, evidence pack, or its archive")
    parser.add_argument("model", type=Path, help="model file (skops, joblib, pickle); loading runs its author's code")
    parser.add_argument("rows", help="the audited rows, Parquet or CSV")
    parser.add_argument("--train", help="the training rows")
    parser.add_argument("--id", dest="ids", help="the column of ids; default: the rows' index")
    parser.add_argument("--sample", type=int, help="ask so many rows again, chosen at random")
    parser.add_argument("--limit", type=int, default=4096, help="states asked per row in a search for failing sets")
    args = vars(parser.parse_args(argv))
    found = check(args.pop("audit"), args.pop("rows"), **load_model(args.pop("model")), **args)
    print(found)
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
