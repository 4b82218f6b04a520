"""Check an audit of counterfactual fragility without the library that made it.

A second opinion: written from the page that defines the format (docs/format.md of fragility), it imports nothing of
fragility, and fragility imports nothing of it. It has no fast path. Whatever a certificate says about a changed row is
asked of the model, state by state; where raw values change, of the whole pipeline.

    python -m fragility_check AUDIT MODEL ROWS [--train TRAIN] [--id COLUMN] [--sample N]

From top to bottom: the result; documents and digests; the shapes of documents; tables and the folder; raw rows;
evidence and the decision; one row asked again, its claims and each of its blocks; what the model and the training rows
show of the protocol; the whole check; the command. Throughout, `p` is the protocol, `f` the result, `i` a row's place,
`y` the place of its class, and `P` the model's probabilities; "raw" rows are those that the whole pipeline takes.
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
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FORMAT, DRAWN = "fragility-certificates/1", 64  # DRAWN: random changes of a row, of each kind
LIMITS = (
    "A witness under the declared protocol, not a proof of robustness: it shows one trajectory on which the "
    "prediction loses support. The greedy flip budget is an upper bound on the smallest failing set, never the "
    "minimum."
)
LISTS = ("path_margin", "path_predicted", "path_collapse", "fade_margin", "one_step_drop", "one_step_confidence_drop")
BASELINES = ("typical", "median", "missing", "mean")
LOSS_RATES = (0.1, 0.3, 0.5)
ALL_MODES = ("lost", "wrong", "noisy", "stale", "sentinel", "outage")
STATES = MINIMUM, BOUND, NONE_SMALL, NONE, OPEN = (
    *("minimum", "upper bound"),
    *("none up to K, proved", "none at all, proved", "not decided"),
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
        self.counts, self.wrong, self.open, self.unable = Counter(), {}, Counter(), ""

    def check(self, topic: str, holds: Any, where: Any = "", claimed: Any = None, own: Any = None) -> None:
        self.counts[topic] += 1
        if not holds:
            told = where if own is None else f"{where}: claimed {claimed}, recomputed {own}"
            self.wrong.setdefault(topic, []).append(str(told)[:500])

    def leave(self, what: str, times: int = 0) -> None:
        self.open[what] += times

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


def find_root(digests: Iterable[str]) -> str:
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
        json.dumps(document, ensure_ascii=False).encode()  # which refuses lone surrogates
        if len(data) > 64 * 2**20 or find_depth(document) > 61 or not isinstance(document, dict):
            raise ValueError("too large, too deep, or no object")
    except (ValueError, RecursionError) as error:
        raise Refused(f"the {what} cannot be read: {error}") from None
    return document


def write_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def hash_id(id_: Any) -> bytes:
    return hashlib.blake2b(str(id_).encode(), digest_size=16).digest()


# --- the shapes of documents ------------------------------------------------------------------------------------


def find_misfit(value: Any, shape: Any, at: str) -> str:
    """Where a value has another shape: fields in this order, items, alternatives (a tuple), type, test, or value."""
    if isinstance(shape, tuple):
        return "" if any(not find_misfit(value, one, at) for one in shape) else at
    if isinstance(shape, dict | list):
        if type(value) is not type(shape) or (isinstance(shape, dict) and list(value) != list(shape)):
            return at
        fields = shape if isinstance(shape, dict) else dict.fromkeys(range(len(value)), shape[0])
        return next(filter(None, (find_misfit(value[k], one, f"{at}.{k}") for k, one in fields.items())), "")
    if isinstance(shape, type):
        return "" if type(value) is shape else at
    fits = shape(value) if callable(shape) else type(value) is type(shape) and value == shape
    return "" if fits else at


def conform(value: Any, shape: Any, what: str) -> None:
    if at := find_misfit(value, shape, what):
        raise Refused(f"{at} is not what the format allows, or lacks a field, or has one too many")


def between(low: float, high: float = math.inf) -> Callable[[Any], bool]:
    return lambda v: type(v) is float and low <= v <= high and v < math.inf


def matching(pattern: str) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, str) and re.fullmatch(pattern, v) is not None


def count_from(low: int) -> Callable[[Any], bool]:
    return lambda v: type(v) is int and low <= v < 2**63


def mapping(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, dict) and all(map(fits, v.values()))


def are_labels(value: Any) -> bool:
    kinds = {type(label) for label in value} if isinstance(value, list) else set()
    return len(kinds) == 1 and kinds <= {int, float, str, bool} and 1 < len(value) == len(set(value))


DIGEST, COUNT, POSITIVE = matching("sha256:[0-9a-f]{64}"), count_from(0), count_from(1)
TINY, NEARLY_1, KIND = math.ulp(0.0), 1 - 2**-53, ("numeric", "nominal")
CELL, MAYBE = (None, bool, int, float, str), (None, float, str)
ENGINE = ("blackbox", "trees", "linear", "wrapped", "neural")
TYPE = ("integer", "number", "boolean", "text", "date", "duration", "mixed", "empty")
EVENTS, GROUPS = [{"groups": [str], "count": POSITIVE}], [{"name": str, "columns": [str]}]
MANIFEST = {
    "format": FORMAT,
    "claim": "fragility_witness",
    "limits": LIMITS,
    "protocol_digest": DIGEST,
    "model": {
        "kind": str,
        "fingerprint": DIGEST,
        "classes": are_labels,
        "probabilities": ("predict_proba", "raw score, link applied in float64"),
        "partial": [str],
    },
    "input": {"digest": DIGEST, "rows": COUNT},
    "engine": {"name": ENGINE, "evaluations": COUNT, "blackbox_rows": COUNT},
    "versions": mapping(matching(r"[\w.+!-]{1,64}")),
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
    "groups": GROUPS,
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
VALUES = {"artificial": [str], "values": [CELL]}
ALL_MISSING = ({"artificial": [str]}, {"artificial": [str], "groups": GROUPS, "spreads": [(None, between(0))]})
ALTERNATIVES = {"typical": VALUES, "median": VALUES, "missing": ALL_MISSING, "mean": VALUES}
RATES = {"rates": (None, dict), "draws": (None, POSITIVE), "seed": (None, COUNT), "events": (None, EVENTS)}
NARROW = mapping(lambda kind: kind in ("float32", "float16"))
BLOCKS = {  # block -> how many rows it has if not all, by which order, and its own fields
    "lattice": (1000, "exposure", {"max_size": POSITIVE, "budget": 10000, "width": 8, **RATES}),
    "modes": (POSITIVE, "content", {"units": dict}),
    "intervals": (POSITIVE, "exposure", {"fields": [str], "narrow": NARROW}),
    "any_value": (POSITIVE, "exposure", {"max_size": 2, "groups": [str], "narrow": NARROW}),
    "baselines": (500, "content", {"baselines": [str]}),
}


def find_origins(p: Document) -> dict[str, list[str]]:
    """The raw fields that each column of the evidence space is made from."""
    made_from = {c["name"]: c["fields"] for c in p["inputs"]} if p["space"] == "transformed" else {}
    return {c["name"]: made_from.get(c["name"], [c["name"]]) for c in p["columns"]}


def change_baseline(p: Document, name: str) -> Document:
    """The protocol under one of its other baselines."""
    other = p["alternatives"][name]
    changed = {**p, "baseline": name, "artificial": other["artificial"]}
    if name != "missing":
        columns = [{**c, "baseline": v} for c, v in zip(p["columns"], other["values"], strict=True)]
        return {**changed, "columns": columns}
    spreads = other.get("spreads") or [c["spread"] for c in p["columns"]]
    columns = [
        {"name": x["name"], "kind": x["kind"], "baseline": None, "spread": spread}
        for x, spread in zip(p["fields"], spreads, strict=True)
    ]
    modes = {**p["modes"], "whole": find_whole_fields(p)}
    return {**changed, "space": "raw", "columns": columns, "groups": other.get("groups", p["groups"]), "modes": modes}


def find_whole_fields(p: Document) -> list[str]:
    return [x["name"] for x in p["fields"] if x["kind"] == "numeric" and x["type"] == "integer"]


def check_protocol(p: Document) -> None:
    """Refuse a protocol whose names do not agree with its values."""
    conform(p, PROTOCOL, "the protocol")
    fields, columns = {x["name"]: x for x in p["fields"]}, {c["name"]: c for c in p["columns"]}
    groups, made_from = {g["name"]: g["columns"] for g in p["groups"]}, find_origins(p)
    raw, modes, baseline, artificial = p["space"] == "raw", p["modes"], p["baseline"], p["artificial"]
    own = list(fields) if raw or not p["inputs"] else [c["name"] for c in p["inputs"]]
    names = all(len(p[part]) == len({x["name"] for x in p[part]}) > 0 for part in ("fields", "columns", "groups"))
    if not names or list(columns) != own or sorted(itertools.chain(*groups.values())) != sorted(columns):
        raise Refused("the protocol's columns are no fields or inputs, are not partitioned, or a name stands twice")
    held = {g: [x for x in fields if any(x in made_from[c] for c in cs)] for g, cs in groups.items()}
    numeric = [c for c in p["columns"] if c["kind"] == "numeric"]
    catalogue, size = {e["group"]: e for e in modes["catalogue"]}, modes["catalogue_size"]
    ranges = [r["field"] for r in modes["ranges"]]
    single = {e["fields"][0]: e for e in catalogue.values() if len(e["fields"]) == 1}
    usual = {name: e["values"][0][0] for name, e in single.items() if fields[name]["type"] != "date"}
    full = [g for g, e in catalogue.items() if e["fields"][0] in ranges and len(e["fields"]) == 1]
    whole = {*modes["whole"]} if baseline == "typical" else set()
    whole |= set(find_whole_fields(p)) if raw else set()

    def in_order(part: Iterable[str], of: Iterable[str]) -> bool:
        return list(part) == [name for name in of if name in part]

    rules = {
        "groups bear the names of the fields they hold": all(groups.values())
        and all(g in held[g] for g in groups if g in fields),
        "a raw-origin group is its field": p["grouping"] != "raw-origin"
        or all(made_from[c] == [g] for g in groups for c in groups[g]),
        "a merged group joins names of fields": p["grouping"][0] != "m" or all(g == "+".join(held[g]) for g in groups),
        "inputs name fields, and groups name columns, in order": all(in_order(c["fields"], fields) for c in p["inputs"])
        and all(in_order(cs, columns) for cs in groups.values()),
        "a matrix holds numbers": raw or all(type(c["baseline"]) is float for c in p["columns"]),
        "'zero' is 0": baseline != "zero" or all(c["baseline"] == 0 for c in numeric),
        "'missing' is missing": baseline != "missing" or (raw and all(c["baseline"] is None for c in p["columns"])),
        "numbers have baselines": baseline in ("missing", "explicit")
        or all(type(c["baseline"]) is float or c["spread"] is None for c in numeric),
        "whole numbers have whole baselines": all((c["baseline"] or 0) % 1 == 0 for c in numeric if c["name"] in whole),
        "a nominal baseline leads its catalogue": not raw
        or baseline not in ("typical", "median", "mean")
        or all(c["baseline"] == usual.get(c["name"], c["baseline"]) for c in p["columns"] if c["kind"] == "nominal"),
        "nothing typical is artificial": in_order(artificial, fields)
        and not (artificial and baseline in ("typical", "median")),
        "every other baseline is there or refused": sorted([*p["alternatives"], *p["refused"]])
        in ([], sorted({*BASELINES} - {baseline})),
        "operators stand once": len(set(p["operators"])) == len(p["operators"]),
        "severities rise": len(p["severities"]) > 0 and all(a < b for a, b in itertools.pairwise(p["severities"])),
        "depth and weights fit": p["depth"] <= len(groups)
        and [*map(len, (p["weights"], p["exposure_weights"]))] == [3, 4],
        "the catalogue is that of the groups, and has its size": in_order(catalogue, groups)
        and len(catalogue) == len(modes["catalogue"])
        and all(e["fields"] == held[g] and len(e["values"]) == len(e["counts"]) for g, e in catalogue.items())
        and all(len(e["counts"]) <= size for e in catalogue.values())
        and all(sum(catalogue[g]["counts"]) == size for g in full),
        "modes and domains name what is there, in order": in_order(modes["declared"], ALL_MODES)
        and in_order(modes["whole"], columns)
        and in_order(ranges, fields)
        and in_order([x["field"] for x in p["domains"]], fields)
        and {s["field"] for s in modes["sentinels"]} <= {*fields}
        and {g for o in modes["outages"] for g in o["groups"]} <= {*groups},
        "fixed fields have no domain": not any(
            x["fixed"] and (x["low"], x["high"], x["categories"], x["missing"]) != (None, None, None, False)
            for x in p["domains"]
        ),
        "categories of domains are sorted": all(
            own == sorted(own, key=lambda v: (type(v).__name__, str(v)))
            for own in (x["categories"] or [] for x in p["domains"])
        ),
        "ranges rise": all(r["low"] <= r["high"] for r in modes["ranges"]),
    }
    for rule, holds in rules.items():
        if not holds:
            raise Refused(f"the protocol contradicts itself: it is not so that {rule}")
    for name, other in p["alternatives"].items():
        conform(other, ALTERNATIVES[name], f"alternatives.{name}")
        check_protocol({**change_baseline(p, name), "alternatives": {}, "refused": []})


# --- tables and the folder ----------------------------------------------------------------------------------------


Column = tuple[str, str, Any]  # name, kind of values, and what makes of them the bytes that are hashed, if any
Pack = Callable[[Any], bytes]


def pack(values: Any, number: Callable[[Any], float] = float) -> bytes:
    """A value, or each of a list, as a double; null is NaN."""
    values = [values] if values is None or np.isscalar(values) else values
    return np.array([math.nan if v is None else number(v) for v in values], dtype="<f8").tobytes()


def in_units(unit: float) -> Pack:
    return partial(pack, number=lambda v: round(v / unit) + 0.0)


def place_in(names: Sequence[Any]) -> Pack:
    return partial(pack, number=names.index)


def set_of(names: Sequence[str]) -> Pack:
    return lambda values: pack([name in values for name in names])


def pack_text(values: Any) -> bytes:
    texts = [None if v is None else v.encode() for v in (values if isinstance(values, list) else [values])]
    return b"".join(b"\xff\xff\xff\xff" if t is None else struct.pack("<I", len(t)) + t for t in texts)


SHARE = in_units(2.0**-20)


def list_claims(p: Document, classes: Sequence[Any], full: bool) -> list[Column]:
    """The columns of the certificates."""
    groups, fields = [g["name"] for g in p["groups"]], [x["name"] for x in p["fields"]]
    margins = in_units(p["resolution"])
    faded = len(p["severities"]) if "attenuate_all" in p["operators"] else 0
    columns: list[Column] = [
        ("predicted", "c", place_in(classes)),
        ("confidence", "n", SHARE),
        ("margin", "n", None),
        ("bare_margin", "n", margins),
        ("flip_budget", "i", pack),
        ("flipped", "b", pack),
        *((name, "n", None) for name in ("rcma", "fds", "exposure", "independent_loss")),
        ("common_loss", "n?", None),
        ("random_loss", "n", None),
        *((f"lambda_{o}", "n?", pack) for o in p["operators"]),
        ("path", "T", place_in(groups)),
        ("path_margin", "N", margins),
        ("path_predicted", "C", place_in(classes)),
        ("path_collapse", "N", None),
        ("fade_margin", "N", lambda values: margins([*values, *[None] * (faded - len(values))])),
        ("one_step_drop", "N", margins),
        ("one_step_confidence_drop", "N", SHARE),
        ("already_missing", "T", set_of(fields)),
    ]
    return [one for one in columns if full or one[0] not in LISTS]


def list_columns(block: str, p: Document, own: Document) -> list[Column]:
    """The columns of a block that is declared with these fields of its own."""
    rated = ["probability", "low", "high"] if block == "lattice" and (own["rates"] or own["events"]) else []
    columns: dict[str, list[Column]] = {
        "lattice": [
            ("smallest_state", "t", place_in(STATES)),
            ("smallest_size", "i?", pack),
            ("smallest_set", "T", set_of([g["name"] for g in p["groups"]])),
            ("smallest_count", "l?", pack),
            *((f"failure_{name}", "n", SHARE) for name in rated),
            *([("failure_exact", "b", pack), ("expected_margin", "n?", None)] if rated else []),
        ],
        "modes": [
            (f"{name}_{mode}", kind, hashed)
            for mode in own.get("units", ())
            for name, kind, hashed in (
                ("exposure", "n", None),
                ("mode_drop", "N", in_units(p["resolution"])),
                ("flip_chance", "N", SHARE),
            )
        ],
        "intervals": [
            ("interval_state", "T", place_in(INTERVALS)),
            *((f"interval_{name}", "T?", pack_text) for name in INTERVAL_TEXTS),
        ],
        "any_value": [
            ("any_value_budget", "i?", pack),
            ("any_value_proved", "i", pack),
            ("any_value_sets", "i?", pack),
            ("any_value_witness", "t?", pack_text),
            ("any_value_alone", "I", pack),
            ("any_value_chance_one", "n?", SHARE),
            ("any_value_chance_two", "n?", SHARE),
        ],
        "baselines": [
            (f"{name}_{baseline}", kind, hashed)
            for baseline in own.get("baselines", ())
            for name, kind, hashed in (("flip_budget", "i", pack), ("exposure", "n", SHARE))
        ],
    }
    return columns[block]


def find_context(m: Document, **more: Any) -> bytes:
    """What binds the rows of a table to model and protocol; those of a block also to how it was declared."""
    model = {"classes": m["model"]["classes"], "model_fingerprint": m["model"]["fingerprint"]}
    bound = {"format": FORMAT, "protocol_digest": m["protocol_digest"], **model, **more}
    return hashlib.sha256(canonical(bound)).digest()


def hash_row(context: bytes, columns: Sequence[Column], row: Document) -> str:
    id_ = b"s" + pack_text(row["id"]) if isinstance(row["id"], str) else b"i" + struct.pack("<q", row["id"])
    return sha256(b"".join([context, id_, *(hashed(row[name]) for name, _, hashed in columns if hashed)]))


class Folder:
    """Manifest, protocol and tables of an audit; what can be told without the model is checked when it is read."""

    def __init__(self, place: Path, f: Result) -> None:
        self.f, self.m = f, read_json((place / "manifest.json").read_bytes(), "manifest")
        m = self.m
        conform(m, MANIFEST, "the manifest")
        own = sha256(canonical({key: value for key, value in m.items() if key != "manifest_digest"}))
        f.check("the digest of the manifest", m["manifest_digest"] == own, "manifest.json")
        self.read_files(place)
        p = self.p = read_json(self.files["protocol"], "protocol")
        check_protocol(p)
        readable = (json.dumps(p, indent=2, ensure_ascii=False) + "\n").encode()
        f.check("the protocol is written as the format says", readable == self.files["protocol"], "the file's bytes")
        own = sha256(canonical(p)), self.files.get("protocol-signature") and sha256(self.files["protocol-signature"])
        told, n, engine = (m["protocol_digest"], m["protocol_signature"]), m["input"]["rows"], m["engine"]
        f.check("the protocol and its signature are those of the manifest", told == own, "manifest.json", told, own)
        asked = [n] if engine["name"] == "blackbox" else range(n + 1)
        f.check("the counts of the manifest", m["rows"] <= n and engine["blackbox_rows"] in asked, engine)
        if "lattice" in m["blocks"]:
            largest, told = min(len(p["groups"]), 24), m["blocks"]["lattice"]["max_size"]
            f.check("the largest failing set asked for", told == largest, "blocks.lattice.max_size", told, largest)
        self.classes, self.full = m["model"]["classes"], m["claims"] == "full"
        if p["decision"] and (len(self.classes) > 2 or p["decision"]["class"] not in self.classes):
            raise Refused("the protocol's decision is about other classes")
        self.read_claims()
        self.order = {name: self.read_block(name, d) for name, d in m["blocks"].items()}  # block -> ids of its rows

    def read_files(self, place: Path) -> None:
        """Keep the content of each file; `self.stems` has the tables of the certificates and of each block."""
        m, names = self.m, self.m["files"]
        parts = [f"{i:05d}" for i in range(sum(name.startswith("certificates-") for name in names))]
        self.stems = {"certificates": [f"certificates-{i}" for i in parts]}
        for block, d in m["blocks"].items():
            most, by, own = BLOCKS[block]
            rows = {"most": most, "by": by} if block == "baselines" else (None, {"most": most, "by": by})
            conform(d, {"engine": ENGINE, "rows": rows, **own, "root_digest": DIGEST}, f"blocks.{block}")
            self.stems[block] = [block] if d["rows"] else [f"{block}-{i}" for i in parts]
        stems = [*itertools.chain(*self.stems.values()), "protocol"]
        stems += ["protocol-signature"] if m["protocol_signature"] else []
        ends = [".json" if stem.startswith("protocol") else ".parquet" for stem in stems]
        own = [f"{stem}-{str(d)[7:23]}{end}" for stem, d, end in zip(stems, names.values(), ends, strict=True)]
        if list(names) != own or not parts or list(m["blocks"]) != [b for b in BLOCKS if b in m["blocks"]]:
            raise Refused("files or blocks in the manifest are not those that the format names, in its order")
        self.files = {stem: (place / name).read_bytes() for stem, name in zip(stems, names, strict=True)}
        for (name, digest), data in zip(names.items(), self.files.values(), strict=True):
            self.f.check("the digests of all files", digest == sha256(data), name)

    def read_claims(self) -> None:
        f, m, p = self.f, self.m, self.p
        self.hash_claims = partial(hash_row, find_context(m), list_claims(p, self.classes, full=True))
        hashed = self.hash_claims if self.full else None  # summaries are hashed when their lists are recomputed
        rows = self.read_rows("certificates", list_claims(p, self.classes, self.full), m["root_digest"], hashed)
        self.rows = {row["id"]: row for row in rows}
        f.check("the number of rows", len(rows) == m["rows"], "rows", m["rows"], len(rows))
        for row in rows if self.full else ():
            own = derive(p, row)
            near = [find_difference(row[k], v) <= 1e-9 * (1 + np.max(np.abs(v or 0.0))) for k, v in own.items()]
            told = {k: row[k] for k in own}
            f.check("scores follow from margins and thresholds", all(near), f"row {row['id']}", told, own)

    def read_block(self, name: str, d: Document) -> list[Any]:
        """Put the claims of a block to those of its rows, under its name; check which rows have it."""
        p, every, chosen = self.p, self.rows.values(), d["rows"]
        own = {k: v for k, v in d.items() if k not in ("engine", "rows", "root_digest")}
        columns = list_columns(name, p, own)
        hashed = partial(hash_row, find_context(self.m, block=name, declaration=own), columns)
        rows = self.read_rows(name, columns, d["root_digest"], hashed)
        for row in rows:
            self.rows[row["id"]][name] = row
        sure = [row for row in every if row["confidence"] >= p["min_confidence"]]
        sure.sort(key=lambda row: (-row["exposure"], hash_id(row["id"])))
        wanted = [row["id"] for row in (sure[: chosen["most"]] if chosen else every)]
        told = [row["id"] for row in rows]
        fits = wanted == told if not chosen or chosen["by"] == "exposure" else len(wanted) == len(told)
        known = not chosen or self.m["rows"] == self.m["input"]["rows"]  # of `content`, the rows given will tell
        self.f.check(f"which rows have {name}", not known or fits, name, told, wanted)
        return told

    def read_rows(self, name: str, columns: list[Column], root: str, hashed: Any) -> list[Document]:
        """Rows of tables whose digests, and the root over these, are their own."""
        rows = self.read_table(name, columns)
        for row in rows if hashed else ():
            self.f.check(f"the digests of {name}", row["digest"] == hashed(row), f"row {row['id']}")
        own = find_root(row["digest"] for row in rows)
        self.f.check(f"the root digest of {name}", root == own, name, root, own)
        return rows

    def read_table(self, name: str, columns: list[Column]) -> list[Document]:
        """Rows of tables with these columns between id and digest; capitals are lists, and ? allows nulls."""
        columns = [("id", "u", None), *columns, ("digest", "t", None)]
        kinds = {"n": pa.float64(), "t": pa.string(), "i": pa.int32(), "l": pa.int64(), "b": pa.bool_()}
        kinds["c"] = pa.array(self.classes).type
        rows: list[Document] = []
        for stem in self.stems[name]:
            data = self.files[stem]
            file = pq.ParquetFile(io.BytesIO(data)).metadata
            size = sum(file.row_group(i).total_byte_size for i in range(file.num_row_groups))
            if file.num_rows * 32 > len(data) or size > 1000 * len(data):
                raise Refused(f"{stem} declares more than a file of its size can hold")
            table = pq.read_table(io.BytesIO(data))
            kinds["u"] = pa.int64() if table.schema.field("id").type == pa.int64() else pa.string()
            types = [(one, kinds[kind[0].lower()], kind[0].isupper()) for one, kind, _ in columns]
            schema = pa.schema([(n, pa.list_(pa.field("element", one)) if many else one) for n, one, many in types])
            if not table.schema.equals(schema, check_metadata=True):
                raise Refused(f"{stem} has other columns, in another order, or notes of its own: {table.schema}")
            for (one, kind, _), column in zip(columns, table.columns, strict=True):
                items = pc.list_flatten(column) if kind[0].isupper() else column
                nulls = column.null_count * (items is not column) + items.null_count * ("?" not in kind)
                known = items.drop_null()
                if nulls or (known.type == pa.float64() and not pc.all(pc.is_finite(known), min_count=0).as_py()):
                    raise Refused(f"{one!r} of {stem} holds nulls, NaN or an infinity")
            rows += table.to_pylist()
        if len({row["id"] for row in rows}) < len(rows):
            raise Refused(f"{name} has a row twice")
        return rows


def find_difference(claimed: Any, own: Any) -> float:
    """The largest difference; infinite where only one is null, or lists differ in length."""
    lists = (x if hasattr(x, "__len__") else [x] for x in (claimed, own))
    a, b = (np.array([math.nan if v is None else v for v in one], dtype=float) for one in lists)
    if a.shape != b.shape or (np.isnan(a) != np.isnan(b)).any():
        return math.inf
    return float(np.max(np.abs(a - b), initial=0.0, where=~np.isnan(a)))


def derive(p: Document, row: Document) -> Document:
    """The claims that are arithmetic on others of the row."""
    (v1, v2, v3, v4), (w1, w2, w3), m = p["exposure_weights"], p["weights"], row["margin"]
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
    slope, bare = sum(row["one_step_drop"]), m - row["bare_margin"]
    quadratic = [min(max((r * (1 - r) * slope + r * r * bare) / scale, 0.0), 1.0) for r in LOSS_RATES]
    random = sum(quadratic) / len(quadratic)
    return {
        "path_collapse": collapse,
        "rcma": rcma,
        "fds": 1 - math.exp(-fds),
        "independent_loss": alone,
        "common_loss": common,
        "random_loss": random,
        "exposure": 1 - math.exp(-u - v4 * random),
    }


# --- rows, evidence and the decision ----------------------------------------------------------------------------


def is_missing(value: Any) -> bool:
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


class Rows:
    """Raw rows as Python values, and tables of changed rows in the columns' own types where the values fit."""

    def __init__(self, source: Any, ids: Any, p: Document) -> None:
        import pandas as pd

        self.pd, self.fields = pd, [x["name"] for x in p["fields"]]
        if isinstance(source, str | Path):
            texts = {x["name"]: str for x in p["fields"] if x["type"] == "text"}
            source = pd.read_csv(source, dtype=texts) if str(source).endswith(".csv") else pd.read_parquet(source)
        self.polars = sys.modules["polars"] if "polars" in type(source).__module__ else None
        table = source.to_pandas() if hasattr(source, "to_pandas") else pd.DataFrame(source)
        if lost := [name for name in self.fields if name not in table]:
            raise CannotCheck(f"the rows have no column {lost[0]!r}")
        own = table.index if ids is None else table[ids] if isinstance(ids, str) else ids
        own = [id_.item() if hasattr(id_, "item") else id_ for id_ in own]
        self.ids = own if all(isinstance(id_, int | str) for id_ in own) else list(map(str, own))
        self.dates = {x["name"]: x["dtype"] for x in p["fields"] if x["type"] == "date"}  # None: Python's own dates
        self.days = {r["field"] for r in p["modes"]["ranges"] if r["whole"] and r["field"] in self.dates}
        table = table[self.fields].copy()
        for name, dtype in self.dates.items():
            if dtype and table[name].dtype.kind != "M":
                table[name] = pd.to_datetime(table[name], format="ISO8601").astype(dtype)
        self.types = list(table.dtypes)
        self.missing = table.isna().to_numpy()
        self.cells = np.empty(table.shape, dtype=object)  # objects, whatever they are
        for j, name in enumerate(self.fields):
            self.cells[:, j] = table[name].astype(object).tolist()

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

    def change(self, i: int, changes: Iterable[dict[str, Any]]) -> list[Any]:
        """Row i with other values by field, once for each change."""
        changed = []
        for values in changes:
            changed.append(self.cells[i].copy())
            for name, value in values.items():
                changed[-1][self.fields.index(name)] = value
        return changed

    def make_table(self, rows: Sequence[Any]) -> Any:
        made = {}
        for j, (name, like) in enumerate(zip(self.fields, self.types, strict=True)):
            values = self.pd.Series([row[j] for row in rows], dtype=object)
            known = values.dropna().tolist()
            gaps, texts = len(known) < len(values), any(isinstance(v, str) for v in known)
            if isinstance(like, self.pd.CategoricalDtype):
                like = self.pd.CategoricalDtype(dict.fromkeys([*like.categories, *known]))
            elif like.kind in "iufb" and texts:
                like = object
            elif (like.kind == "b" and gaps) or (like.kind in "iu" and (gaps or any(v % 1 for v in known))):
                like = float
            made[name] = values.astype(like)
        table = self.pd.DataFrame(made)
        return self.polars.from_pandas(table) if self.polars else table

    def digest(self, with_ids: bool) -> list[str]:
        """One digest per row, over its cells by sorted column names."""

        def pack_cell(value: Any) -> bytes:
            if not is_missing(value) and (isinstance(value, str) or hasattr(value, "isoformat")):
                text = value if isinstance(value, str) else self.write(value).replace("T", " ")
                return hashlib.sha256(b"text:" + text.encode()).digest()
            if isinstance(value, int) and int(float(value)) != value:
                return hashlib.sha256(b"integer:" + str(value).encode()).digest()
            return bytes(24) + struct.pack("<d", math.nan if is_missing(value) else float(value) + 0.0)

        columns = dict(zip(self.fields, self.cells.T, strict=True)) | ({"id\0": map(str, self.ids)} if with_ids else {})
        head = hashlib.sha256(canonical(sorted(columns))).digest()
        cells = zip(*(columns[name] for name in sorted(columns)), strict=True)
        return [sha256(head + b"".join(map(pack_cell, row))) for row in cells]


class Axis:
    """The values of a field of numbers or dates from low to high: whole numbers, days, clock ticks, or decimals."""

    def __init__(self, rows: Rows, name: str, low: Any, high: Any, whole: bool, narrow: str = "float64") -> None:
        self.rows, self.name, self.whole, self.dated = rows, name, whole, name in rows.dates
        self.kind, self.step = np.dtype(narrow).type, 1 if whole else None  # None: decimals
        if self.dated:
            tick = "D" if whole else re.findall(r"\[(\w+)", rows.dates[name] or "[us]")[0]
            self.step = rows.pd.Timedelta(1, tick)
        self.low, self.high = self.place(low), self.place(high)

    def place(self, value: Any) -> Any:
        """A cell, or a value of a document, as something that can be counted on."""
        return self.rows.pd.Timestamp(value) if self.dated else value

    def make_cell(self, place: Any) -> Any:
        return self.rows.read(self.name, self.rows.write(place)) if self.dated else place

    def find_next(self, place: Any, way: int) -> Any:
        """The next value above (1) or below (-1)."""
        if self.step is not None:
            return place + way * self.step
        return float(np.nextafter(self.kind(place), self.kind(way * math.inf)))

    def is_whole(self, value: Any) -> bool:
        """Whether a value is a day, a whole number, or a decimal of the type of this axis, as the axis asks."""
        if self.dated:
            return not self.whole or self.place(value) == self.place(value).normalize()
        if self.whole and self.kind is np.float16 and max(abs(self.low), abs(self.high)) > 2**11:
            return False  # the column holds some whole numbers only
        return value % 1 == 0 if self.whole else float(self.kind(value)) == value

    def holds(self, value: Any) -> bool:
        """Whether a value of a document is one of these."""
        fits = isinstance(value, str) if self.dated else type(value) in (int, float)
        return fits and self.low <= self.place(value) <= self.high and self.is_whole(value)

    def count(self, low: Any, high: Any) -> float:
        """How many values there are between two of them, both included."""
        return math.inf if self.step is None else int((high - low) // self.step) + 1

    def list(self, low: Any, high: Any, random: Any, most: int) -> list[Any]:
        """All values from low to high if these are few whole ones; else some at random."""
        if self.step is None:
            return np.clip(random.uniform(low, high, 16).astype(self.kind), low, high).astype(float).tolist()
        n = self.count(low, high)
        return [low + int(k) * self.step for k in (range(n) if n <= most else random.integers(0, n, DRAWN))]


def is_step(end: Any) -> bool:
    """Whether a declared end is a whole number, or a day without a time."""
    return len(end) == len("2020-05-17") if isinstance(end, str) else end % 1 == 0


class Domains:
    """The values that free fields may take in the block any_value."""

    def __init__(self, p: Document, rows: Rows, narrow: dict[str, str], catalogue: dict[str, dict[Any, int]]) -> None:
        self.rows, self.free = rows, {x["field"]: x for x in p["domains"] if not x["fixed"]}
        known = {name: x for name, x in self.free.items() if x["categories"] is None}
        whole = {x["name"]: x["type"] == "integer" for x in p["fields"]}
        ends = {r["field"]: (r["low"], r["high"], r["whole"]) for r in p["modes"]["ranges"] if r["field"] in known}
        for name, x in known.items():
            if x["low"] is not None:
                own = ends[name][2] if name in ends else whole[name]
                ends[name] = (x["low"], x["high"], own and all(is_step(x[end]) for end in ("low", "high")))
        self.axes = {name: Axis(rows, name, *own, narrow.get(name, "float64")) for name, own in ends.items()}
        self.weights = {}  # the values of the catalogue that lie in the domain, and how likely each is
        for name in self.free:
            counts = {v: n for v, n in catalogue.get(name, {}).items() if self.holds(name, v)}
            self.weights[name] = [(rows.read(name, v), n / sum(counts.values())) for v, n in counts.items()]
        self.units = self.find_units(p)

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
            others = map(axis.make_cell, [axis.low, axis.high, *axis.list(axis.low, axis.high, random, DRAWN)])
        else:
            own = [v for v, _ in self.weights[name]]
            others = (v for v in self.free[name]["categories"] or () if v not in own)
        return [*self.weights[name], *((v, 0.0) for v in others), *[(math.nan, 0.0)] * self.free[name]["missing"]]

    def draw(self, name: str, listed: dict[str, Any], random: Any) -> Any:
        """A value of a field: one of those listed, or any other between the ends of its domain."""
        axis = self.axes.get(name)
        if axis and random.random() < 0.5:
            return axis.make_cell(axis.list(axis.low, axis.high, random, 0)[0])
        return listed[name][random.integers(len(listed[name]))][0]


def hand_over(function: Callable[[Any], Any], rows: Any) -> Any:
    """Call what is not ours: whatever it raises, the audit is not to blame."""
    try:
        return function(rows)
    except CannotCheck:
        raise
    except Exception as error:
        raise CannotCheck(f"these rows are not taken: {type(error).__name__}: {error}") from error


class Evidence:
    """Rows as cells of one protocol's evidence space, which of them are absent, and what the model says of others."""

    def __init__(self, p: Document, rows: Rows, model: Document, classes: list[Any]) -> None:
        self.p, self.rows, self.model, self.classes, self.raw = p, rows, model, classes, p["space"] == "raw"
        origins, kinds, columns = find_origins(p), {x["name"]: x["type"] for x in p["fields"]}, p["columns"]
        self.names = list(origins)
        self.sources = [[rows.fields.index(x) for x in origins[name]] for name in self.names]
        self.groups = [[self.names.index(name) for name in g["columns"]] for g in p["groups"]]
        self.group_names = [g["name"] for g in p["groups"]]
        self.stepwise = [self.raw and c["kind"] == "nominal" for c in columns]
        self.whole = [self.raw and kinds[c["name"]] == "integer" for c in columns]
        self.base = [rows.read(c["name"], c["baseline"]) if self.raw else c["baseline"] for c in columns]
        self.cells = rows.cells if self.raw else self.make_matrix(rows.cells)
        self.absent = np.stack([rows.missing[:, s].all(axis=1) for s in self.sources], axis=1)
        self.gone = np.stack([self.absent[:, g].all(axis=1) for g in self.groups], axis=1)

    def make_matrix(self, raw_rows: Sequence[Any]) -> np.ndarray:
        table = self.rows.make_table(raw_rows)
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
        P = np.asarray(hand_over(answer, self.rows.make_table(states) if whole else np.stack(states)), dtype=float)
        if P.shape != (len(states), len(self.classes)):
            raise Refused(f"the model answers with {P.shape[1:]} columns for {len(self.classes)} classes")
        return P

    def move(self, i: int, groups: Iterable[int], s: float = 1.0) -> Any:
        """Row i with groups moved by s towards the baseline; what is absent stays, what has no middle steps at 1/2."""
        cells = self.cells[i].copy()
        for j in (j for g in groups for j in self.groups[g] if not self.absent[i, j]):
            x, b = cells[j], self.base[j]
            if s == 1 or self.stepwise[j] or is_missing(b) or is_missing(x):
                cells[j] = b if s >= 0.5 else x
            else:
                cells[j] = float(np.rint(x + s * (b - x))) if self.whole[j] else x + s * (b - x)
        return cells

    def replace(self, i: int, changes: list[dict[str, Any]], columns: list[int]) -> list[Any]:
        """Row i with other raw values where it has some; in a matrix, these columns take what becomes of them."""
        there = {name for name, gone in zip(self.rows.fields, self.rows.missing[i], strict=True) if not gone}
        raw = self.rows.change(i, ({name: v for name, v in one.items() if name in there} for one in changes))
        if self.raw or not raw:
            return raw
        kept = np.array([j not in columns or self.absent[i, j] for j in range(len(self.names))])
        return list(np.where(kept, self.cells[i], self.make_matrix(raw)))

    def score(self, P: np.ndarray, a: float = 0.0) -> np.ndarray:
        """Pseudo-logits, smoothed by a, as the decision compares them."""
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
        over = -self.support(P, y) / self.p["resolution"] - 1
        return np.where(np.abs(over) <= 1e-3, -1, over > 0).astype(int)

    def may_lead(self, P: np.ndarray, y: int) -> list[Any]:
        """The classes that a state may go to when y loses it: within the resolution, rivals are tied."""
        z = self.score(P[None])[0]
        best = np.delete(z, y).max() - 1.001 * self.p["resolution"]
        return [c for j, c in enumerate(self.classes) if j != y and z[j] >= best]


# --- one row asked again: its claims, and each of its blocks ----------------------------------------------------


def certify(e: Evidence, i: int, y: int, path: Sequence[int] | None = None) -> Document:
    """What the model says about row i: along a given path, or along that of the largest drops."""
    p, G, K, n, operators = e.p, range(len(e.groups)), e.p["depth"], len(e.p["severities"]), e.p["operators"]
    P = e.ask([e.cells[i], *(e.move(i, [g]) for g in G)])
    m = e.margin(P, y)
    if path is None:
        path = sorted(G, key=lambda g: (e.gone[i][g], -np.rint((m[0] - m[1 + g]) / p["resolution"]), g))
    moved = {o: G if o == "attenuate_all" else path[: int(o[13:])] for o in operators}
    fading = [e.move(i, groups, s) for groups in moved.values() for s in p["severities"]]
    after = e.ask([*(e.move(i, path[:k]) for k in range(1, K + 1)), *fading, e.move(i, G)])
    margins, flips = e.margin(after, y), e.flips(after, y)
    parts = {o: slice(K + j * n, K + j * n + n) for j, o in enumerate(operators)}
    return {
        "P": P[0],
        "margin": m[0],
        "confidence": P[0, y],
        "order": path,
        "one_step_drop": m[0] - m[1:],
        "one_step_confidence_drop": P[0, y] - P[1:, y],
        "path_margin": [m[0], *margins[:K]],
        "bare_margin": margins[-1],
        "flips": flips[:K],
        "path_P": after[:K],
        "faded": list(margins[parts["attenuate_all"]]) if "attenuate_all" in parts else [],
        **{f"flips_{o}": flips[part] for o, part in parts.items()},
    }


def may_be_first(at: int, flips: Sequence[int]) -> bool:
    """Whether the first flip may be at this place; at the end: whether there may be none."""
    return 0 <= at <= len(flips) and 1 not in flips[:at] and (at == len(flips) or flips[at] != 0)


def cut_fading(p: Document, own: Document, row: Document) -> list[float]:
    return own["faded"][: p["severities"].index(s) if (s := row.get("lambda_attenuate_all")) else None]


def bound_saturation(largest: float) -> float:
    """How far a margin may be off where a model gives 1 - p for a small p: that p is rounded as the 1 is."""
    return 2**-52 * math.exp(min(largest, -math.log(1e-12)))


def find_tolerances(p: Document, own: Document) -> dict[str, float]:
    (v1, v2, v3, v4), m = p["exposure_weights"], abs(own["margin"]) + 1e-8
    largest = max(map(abs, own["path_margin"]))
    near = p["resolution"] * (1 + largest / 1000)
    t = near + bound_saturation(largest)
    c = min(t * (2 + max(own["path_collapse"])) / m, 1.0 if p["reading"] == "support" else math.inf)
    i = t * (2 * len(p["groups"]) + own["independent_loss"]) / m
    e = (v1 * c + v2 * i) * (v1 + v2 + v3) / (v1 + v2 or 1)
    e = (v1 + v3) * c + v2 * i if "attenuate_all" in p["operators"] else e
    slope, bare = abs(sum(own["one_step_drop"])) / m, abs(own["margin"] - own["bare_margin"]) / m
    q = [r * (1 - r) * (2 * len(p["groups"]) + slope) + r * r * (2 + bare) for r in LOSS_RATES]
    q = min(t * sum(q) / (len(q) * m), 1.0)
    scores = {
        "path_collapse": c,
        "rcma": c,
        "fds": p["weights"][0] * c,
        "independent_loss": i,
        "common_loss": min(c, 1.0),
        "random_loss": q,
        "exposure": min(e + v4 * q, 1.0),
    }
    return {
        "confidence": near,
        "margin": t,
        "bare_margin": t,
        "path_margin": t,
        "fade_margin": t,
        "one_step_drop": 2 * t,
        "one_step_confidence_drop": 2 * t,
        **{name: tolerance + 1e-12 for name, tolerance in scores.items()},
    }


class Recomputation:
    """Rows asked again one at a time: `i` is the row's place, `row` its claims with those of blocks by name."""

    def __init__(self, e: Evidence, folder: Folder, limit: int, random: Any) -> None:
        self.e, self.p, self.f, self.folder, self.limit, self.random = e, e.p, folder.f, folder, limit, random
        self.groups, self.blocks = e.group_names, folder.m["blocks"]
        self.catalogue: dict[str, Counter[Any]] = {}  # field -> how often each of its known values counts
        for entry in self.p["modes"]["catalogue"]:
            for values, count in zip(entry["values"], entry["counts"], strict=True):
                for name, v in zip(entry["fields"], values, strict=True):
                    self.catalogue.setdefault(name, Counter()).update({} if v is None else {v: count})
        self.shares: list[tuple[float, float]] = []  # how likely two fields are said to flip a row, and as draws show
        if "baselines" in self.blocks:
            told, own = self.blocks["baselines"]["baselines"], [self.p["baseline"], *self.p["alternatives"]]
            self.f.check("all baselines are compared", told == own, "baselines", told, own)
            changed = {name: change_baseline(self.p, name) for name in self.p["alternatives"]}
            self.others = {name: Evidence(p, e.rows, e.model, e.classes) for name, p in changed.items()}
        if "any_value" in self.blocks:
            told, narrow = (self.blocks["any_value"][k] for k in ("groups", "narrow"))
            self.domains = Domains(self.p, e.rows, narrow, self.catalogue)
            own = list(self.domains.units)
            self.f.check("the groups that any values change", told == own, "any_value", told, own)
            self.listed = {name: self.domains.list_values(name, random) for name in self.domains.free}

    def check_row(self, i: int, row: Document) -> None:
        self.i, self.row, self.at, self.y = i, row, f"row {row['id']}", self.e.classes.index(row["predicted"])
        for name in ("claims", *(block for block in self.blocks if block in row)):
            try:
                getattr(self, f"check_{name}")()
            except MALFORMED as error:
                told = f"{self.at}: {type(error).__name__}: {error}"
                self.f.check(f"{name} are what the format allows", False, told)

    def lose(self, sets: Iterable[Iterable[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Whether the loss of each set of groups flips the decision, and the probabilities then."""
        P = self.e.ask([self.e.move(self.i, s) for s in sets])
        return self.e.flips(P, self.y), P

    def check_flips(self, topic: str, changes: Sequence[tuple[dict[str, Any], Any]]) -> np.ndarray:
        """Put changed raw rows to the whole pipeline: (values by field, the class it flips to, None where it holds)."""
        P = self.e.ask(self.e.rows.change(self.i, (values for values, _ in changes)), raw=True)
        flips = self.e.flips(P, self.y)
        for (values, to), flip, answer in zip(changes, flips, P, strict=True):
            rivals = self.e.may_lead(answer, self.y)
            fits = flip != 1 if to is None else flip != 0 and to in rivals
            own = "holds" if flip == 0 else f"flips to one of {rivals}"
            self.f.check(topic, fits, f"{values} in {self.at}", to or "holds", own)
        return flips

    def check_claims(self) -> None:
        """Classes, paths and thresholds exactly, numbers within tolerance."""
        f, e, p, row, at, full = self.f, self.e, self.p, self.row, self.at, self.folder.full
        path, gone = [self.groups.index(g) for g in row["path"]], e.gone[self.i]
        here, k, K = row["already_missing"], row["flip_budget"], p["depth"]
        own = certify(e, self.i, self.y, path)
        stands = e.support(own["P"][None], self.y)[0] >= -1.001 * p["resolution"]
        f.check("the classes predicted", stands, at, row["predicted"], own["P"])
        missing = [name for name, there in zip(e.rows.fields, e.rows.missing[self.i], strict=True) if there]
        f.check("the fields already missing", here == missing, at, here, missing)
        # Drops that agree within the tolerance may round to neighbouring units; no other order is accepted.
        drops = np.array([(row if full else own)["one_step_drop"], own["one_step_drop"]]) / p["resolution"]
        low, high = np.rint(drops.min(axis=0) - 1e-6), np.rint(drops.max(axis=0) + 1e-6)
        first, last = (
            [(lost, 0 if lost else -d, g) for g, (lost, d) in enumerate(zip(gone, drop, strict=True))]
            for drop in (high, low)
        )
        pairs = [*itertools.pairwise(path), *((path[-1], g) for g in range(len(gone)) if g not in path)]
        fits = len(set(path)) == len(path) == K and all(first[a] <= last[b] for a, b in pairs)
        f.check("the order of paths", fits, at, row["path"], own["one_step_drop"])
        fits = may_be_first(k - 1, own["flips"]) and row["flipped"] == (k <= K)
        f.check("the flip budgets", fits, at, k, own["flips"])
        for o in p["operators"]:
            s, flips = row[f"lambda_{o}"], own[f"flips_{o}"]
            fits = may_be_first(len(flips) if s is None else p["severities"].index(s), flips)
            f.check("the severities that flip", fits, f"{o} of {at}", s, flips)
        rivals = [e.may_lead(P, self.y) for P in own["path_P"]]
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

    def check_lattice(self) -> None:
        """Every set of groups by size, as far as the limit of states goes."""
        f, e, d, block, at, groups = self.f, self.e, self.blocks["lattice"], self.row["lattice"], self.at, self.groups
        state, told, count, names = (block[f"smallest_{name}"] for name in ("state", "size", "count", "set"))
        named, found = tuple(map(groups.index, names)), state in (MINIMUM, BOUND)
        pairs = zip(e.cells[self.i], e.base, e.absent[self.i], strict=True)
        differs = [not (gone or a == b or (is_missing(a) and is_missing(b))) for a, b, gone in pairs]
        live = [g for g, columns in enumerate(e.groups) if any(differs[j] for j in columns)]
        enough = {MINIMUM: told, NONE_SMALL: d["max_size"]}.get(state) if not d["rates"] else None
        n, size = len(live), 0
        while size < min(n, enough or n) and sum(math.comb(n, k) for k in range(size + 2)) <= self.limit:
            size += 1
        sets = [s for k in range(size + 1) for s in itertools.combinations(live, k)]
        flips, P = self.lose(sets)
        failing = [s for s, flip in zip(sets, flips, strict=True) if flip == 1]
        fits = told == (len(named) if found else None) and bool(named) == found and len(named) <= d["max_size"]
        fits = fits and not any(e.gone[self.i][g] for g in named)
        f.check("failing sets are of groups that are there", fits, at, names)
        f.check("the sets named fail", not found or self.lose([named])[0][0] != 0, at, names, "no flip")
        least = told if found else d["max_size"] + 1 if state == NONE_SMALL else math.inf
        smaller = [[groups[g] for g in s] for s in failing if len(s) < least]
        f.check("no smaller set fails", not smaller, at, names or state, smaller[:1])
        if size == n or size >= (told if state == MINIMUM else least):
            same, unsure = [s for s in failing if len(s) == told], int((flips < 0).sum())
            counted = count is not None and 0 <= count - len(same) <= unsure * found
            fits = counted and (unsure or not found or same[:1] == [named])
            fits = state not in (BOUND, OPEN) and (fits or (count is None and state == MINIMUM))
        else:
            f.leave("of rows: that no smaller set fails, or how many do; too many sets", 1)
            fits = count is None or state == MINIMUM or (count == 0 and not found)
        own = f"{len(failing)} of up to {size} of {n} groups"
        f.check("states and counts of failing sets, and which is first", fits, at, (state, count), own)
        if d["rates"] or d["events"]:
            self.check_rates(live, sets, flips, P, size == n)

    def check_rates(self, live: list[int], sets: list[Any], flips: np.ndarray, P: np.ndarray, every: bool) -> None:
        """Failure probabilities: over all sets, over the recorded events, or roughly over draws of ours."""
        f, groups, d, block, at = self.f, self.groups, self.blocks["lattice"], self.row["lattice"], self.at
        told, low, high, exact = (block[f"failure_{n}"] for n in ("probability", "low", "high", "exact"))
        fits = 0 <= low <= told <= high <= 1 and (low == high or not exact)
        f.check("failure probabilities lie in their intervals", fits, at, (low, told, high))
        rates = [d["rates"][g] for g in groups] if d["rates"] else None
        if rates and not every:
            lost = self.random.random((self.limit, len(groups))) < rates
            share = float((self.lose(map(np.flatnonzero, lost))[0] == 1).mean())
            slack = 5 * math.sqrt(max(share * (1 - share), 1 / self.limit) / self.limit)
            f.check("failure probabilities, roughly", low - slack <= share <= high + slack, at, told, share)
            return f.leave("of rows: the failure probability to the last digit; too many sets", 1)
        if rates:
            weights = [math.prod(rates[g] if g in s else 1 - rates[g] for g in live) for s in sets]
        else:
            weights = [event["count"] for event in d["events"]]
            flips, P = self.lose([map(groups.index, event["groups"]) for event in d["events"]])
        weights = np.array(weights, dtype=float) / sum(weights)
        own, doubt = weights[flips == 1].sum(), weights[flips < 0].sum()
        f.check("failure probabilities", exact and own - 1e-9 <= told <= own + doubt + 1e-9, at, told, own)
        if block["expected_margin"] is not None and rates and (P > 1e-12).all():
            mean, claimed = float(weights @ self.e.support(P, self.y)), block["expected_margin"]
            near = abs(mean - claimed) <= self.p["resolution"] * (1 + abs(mean) / 1000)
            f.check("expected margins", near and len(self.e.classes) == 2, at, claimed, mean)

    def list_units(self, mode: str) -> list[tuple[str, list[Any], list[float]]]:
        """The units of a mode: names, the states of the row, and how much each counts."""
        e, i, modes, fields = self.e, self.i, self.p["modes"], self.e.rows.fields
        if mode == "lost":
            return [(name, [e.move(i, [g])], [1]) for g, name in enumerate(self.groups)]
        if mode == "outage":
            states = [e.move(i, map(self.groups.index, o["groups"])) for o in modes["outages"]]
            return [("the whole record", states, [o["count"] for o in modes["outages"]])]
        units = []
        noisy = [j for j, c in enumerate(self.p["columns"]) if c["kind"] == "numeric" and c["spread"]]
        for j in noisy if mode == "noisy" else ():
            column, only = self.p["columns"][j], [e.sources[k] for k in noisy].count(e.sources[j]) == 1
            name = fields[e.sources[j][0]] if only and len(e.sources[j]) == 1 else column["name"]
            for sign, way in ((-1, "downward"), (1, "upward")):
                states = [e.cells[i].copy(), e.cells[i].copy()]
                for cells, part in zip(states, (1, 0.5), strict=True) if not e.absent[i, j] else ():
                    cells[j] += sign * part * modes["noise"] * column["spread"]
                    cells[j] = float(np.rint(cells[j])) if column["name"] in modes["whole"] else cells[j]
                units.append((f"{name} ({way})", states, [1, 1]))
        for entry in modes["catalogue"] if mode == "wrong" else ():
            names = entry["fields"]
            values = [dict(zip(names, map(e.rows.read, names, v), strict=True)) for v in entry["values"]]
            states = e.replace(i, values, e.groups[self.groups.index(entry["group"])])
            units.append((entry["group"], states, entry["counts"]))
        for entry in modes["sentinels"] if mode == "sentinel" else ():
            name, j, values = entry["field"], fields.index(entry["field"]), []
            for value in entry["values"]:
                scaled = re.fullmatch(r"x ([*/]) (\S+)", str(value)) if not e.rows.missing[i, j] else None
                factor = float(scaled[2]) ** (1 if scaled[1] == "*" else -1) if scaled else 1.0
                values.append({name: e.rows.cells[i][j] * factor if scaled else e.rows.read(name, value)})
            states = e.replace(i, values, [k for k, source in enumerate(e.sources) if j in source])
            units.append((name, states, entry["weights"]))
        return units

    def check_modes(self) -> None:
        """Every value of every unit."""
        f, e, block = self.f, self.e, self.row["modes"]
        for mode, names in self.blocks["modes"]["units"].items():
            at, units, drops, chances = f"{mode} of {self.at}", self.list_units(mode), [], []
            P = e.ask([e.cells[self.i], *(state for _, states, _ in units for state in states)])
            m, flips = e.margin(P, self.y), e.flips(P, self.y)
            places = np.cumsum([1, *(len(states) for _, states, _ in units)])
            for (_, _, counts), start, end in zip(units, places, places[1:], strict=False):
                w = np.array(counts) / (1 if mode == "sentinel" else sum(counts))
                drops.append(float(m[0] - w @ m[start:end]))
                chances.append((float(w @ (flips[start:end] == 1)), float(w @ (flips[start:end] != 0))))
            own = [name for name, _, _ in units]
            f.check("the units of modes", names == own and mode in self.p["modes"]["declared"], at, names, own)
            largest = abs(m[0]) + 2 * max(map(abs, drops), default=0)
            d = self.p["resolution"] * (1 + largest / 1000) + bound_saturation(largest)
            told, margin = block[f"mode_drop_{mode}"], abs(self.row["margin"]) + 1e-8
            f.check("the drops of modes", find_difference(told, drops) <= 2 * d, at, told, drops)
            loss = (0.5 if mode == "noisy" else 1) * sum(x for x in told if x > 0) / margin
            own, claimed, told = 1 - math.exp(-loss), block[f"exposure_{mode}"], block[f"flip_chance_{mode}"]
            f.check("the exposures to modes", abs(claimed - own) <= 1e-9, at, claimed, own)
            near = (a - 1e-9 <= t <= b + 1e-9 for t, (a, b) in zip(told, chances, strict=False))
            f.check("the flip chances of modes", len(told) == len(chances) and all(near), at, told, chances)

    def check_baselines(self) -> None:
        """Flip budgets and exposures under each other baseline."""
        f, block, row, declared = self.f, self.row["baselines"], self.row, self.p["baseline"]
        same = all(row[name] == block[f"{name}_{declared}"] for name in ("flip_budget", "exposure"))
        f.check("the declared baseline repeats the certificates", same, self.at)
        for name, e in self.others.items():
            k, exposure, at = block[f"flip_budget_{name}"], block[f"exposure_{name}"], f"{name}, {self.at}"
            own = certify(e, self.i, self.y)
            f.check("the flip budgets under other baselines", may_be_first(k - 1, own["flips"]), at, k, own["flips"])
            for o in self.p["operators"]:
                steps = zip(self.p["severities"], own[f"flips_{o}"], strict=True)
                own[f"lambda_{o}"] = next((s for s, flip in steps if flip == 1), None)
            own |= derive(e.p, {**own, "flip_budget": max(k, 1), "fade_margin": cut_fading(e.p, own, own)})
            near = abs(own["exposure"] - exposure) <= find_tolerances(e.p, own)["exposure"]
            f.check("the exposures under other baselines", near, at, exposure, own["exposure"])

    def check_intervals(self) -> None:
        """Both sides of each end, what the catalogue has inside, and more at random."""
        d, block = self.blocks["intervals"], self.row["intervals"]
        parts = [block[f"interval_{part}"] for part in ("state", *INTERVAL_TEXTS)]
        points = []
        for name, state, *texts in zip(d["fields"], *parts, strict=True):
            points += [({name: value}, to) for value, to in self.list_interval(name, state, texts)]
        self.check_flips("the decision inside intervals and beyond", points)

    def list_interval(self, name: str, state: str, texts: list[str | None]) -> list[tuple[Any, Any]]:
        """The values of a field that its claims are about, each with the class that it flips to, if it does."""
        d, rows, where = self.blocks["intervals"], self.e.rows, f"{name} in {self.at}"
        j = rows.fields.index(name)
        x, gone, listed = rows.cells[self.i][j], rows.missing[self.i, j], self.catalogue.get(name, ())
        axes = {r["field"]: r for r in self.p["modes"]["ranges"]}
        value, low, high, below, above, categories = read = [None if t is None else json.loads(t) for t in texts]
        ordered = name in axes or self.p["fields"][j]["kind"] == "numeric"
        known, found = name in axes or name in self.catalogue, state in ("exact", "bracketed")
        axis = Axis(rows, *axes[name].values(), d["narrow"].get(name, "float64")) if name in axes else None
        cell = None if gone or (ordered and not found) else rows.write(x)
        rules = [
            texts == [None if v is None else write_json(v) for v in read] and value == cell,
            (state == "unlisted") == (not known),
            not known or (state == "missing") == gone,
            found or below is above is None,
            (low is None) == (high is None) != (found and ordered),
            (categories is None) != (found and not ordered),
            state != "exact" or not ordered or d["engine"] in ("trees", "linear"),
            state != "not whole" or (axis is not None and not axis.is_whole(x)),
        ]
        self.f.check("states and values of intervals", all(rules), where, (state, *texts), cell)
        if not found or not all(rules):
            return []
        if not ordered:
            moved = dict(map(tuple, categories))
            own = [v for v in listed if v in moved]
            self.f.check("categories are the catalogue's, in order", list(moved) == own, where, categories, own)
            return [(rows.read(name, v), moved.get(v)) for v in listed]
        x, low, high = map(axis.place, (value, low, high))
        flips = [flip and (axis.place(flip[0]), flip[1]) for flip in (below, above)]
        tried = sorted({*map(axis.place, listed), axis.low, axis.high})
        held = [low, high, *(v for v in tried if low <= v <= high)]
        if state == "exact":
            beyond, most, fits = [axis.find_next(low, -1), axis.find_next(high, 1)], self.limit // 4, True
            held += axis.list(low, high, self.random, most)
            if axis.count(low, high) > most:
                self.f.leave("of exact intervals: values inside that were not asked", 1)
        else:
            beyond, fits = [max((v for v in tried if v < low), default=None)], {low, high} <= {*tried, x}
            beyond.append(min((v for v in tried if v > high), default=None))
        last = (min(axis.low, x), max(axis.high, x))
        for flip, next_, own, end in zip(flips, beyond, (low, high), last, strict=True):
            fits = fits and (flip[0] == next_ if flip else own == end)
        fits = fits and low <= x <= high
        self.f.check("intervals end beside their flips, or with the range", fits, where, read, beyond)
        return [(axis.make_cell(v), to) for v, to in [*((v, None) for v in held), *filter(None, flips)]]

    def check_any_value(self) -> None:
        """Each witness, the values of each free field, and two fields at random, by the whole pipeline on raw rows.

        What is said not to flip a row must not, no more pairs of groups may flip it than are counted, and the chances
        must be those of the catalogue: of two fields, where these are more than the limit, roughly and over all rows.
        """
        f, domains, random, groups = self.f, self.domains, self.random, self.domains.units
        names = ("budget", "proved", "sets", "witness", "alone", "chance_one", "chance_two")
        claims = [self.row["any_value"][f"any_value_{name}"] for name in names]
        k, proved, sets, _, alone, one, two = claims
        states = dict(zip(groups, alone, strict=True))
        flipping = self.check_witness(*claims)
        owner = {name: u for u, fields in groups.items() for name in fields}
        weights = {name: own for name, own in domains.weights.items() if own}
        pairs = list(itertools.combinations(weights, 2))
        every = sum(len(weights[a]) * len(weights[b]) for a, b in pairs) <= self.limit
        changes: list[tuple[dict[str, Any], str, float]] = []  # values by field, the chance they count in, how much
        for u, state in states.items():
            if state == -1 and one is None:
                continue
            listed = [({name: v}, "one", w / max(len(weights), 1)) for name in groups[u] for v, w in self.listed[name]]
            drawn = DRAWN if len(groups[u]) > 1 else 0
            changes += listed + [(self.draw(groups[u]), "", 0.0) for _ in range(drawn)]
        if len(groups) > 1 and (proved == 2 or sets is not None):
            for _ in range(DRAWN):
                a, b = random.choice(len(groups), 2, replace=False)
                changes.append((self.draw([*groups.values()][a] + [*groups.values()][b]), "", 0.0))
        if pairs and two is not None and every:
            for a, b in pairs:
                changes += [({a: v, b: w}, "two", x * y / len(pairs)) for v, x in weights[a] for w, y in weights[b]]
        elif pairs and two is not None:
            for _ in range(DRAWN):
                both = {name: weights[name] for name in pairs[random.integers(len(pairs))]}
                drawn = {name: random.choice(len(own), p=[w for _, w in own]) for name, own in both.items()}
                changes.append(({name: own[drawn[name]][0] for name, own in both.items()}, "drawn", 1 / DRAWN))
        low, high = Counter(), Counter()
        P = self.e.ask(self.e.rows.change(self.i, (values for values, _, _ in changes)), raw=True)
        for (values, chance, weight), flip in zip(changes, self.e.flips(P, self.y), strict=True):
            changed = frozenset(owner[name] for name in values)
            if len(changed) <= proved or (len(changed) == 1 and states[min(changed)] == 0):
                f.check("values that are said not to flip a row", flip != 1, self.at, "holds", f"{values} flips it")
            flipping |= {changed} if flip == 1 else set()
            low[chance] += weight * (flip == 1)
            high[chance] += weight * (flip != 0)
        if k == 2 and sets is not None:
            count = sum(len(changed) == 2 for changed in flipping)
            f.check("how many pairs flip a row", count <= sets, self.at, sets, count)
        for told, size in ((one, "one"), (two, "two")):
            if told is not None and (size == "one" or every):
                fits = low[size] - 1e-9 <= told <= high[size] + 1e-9
                f.check("chances that one and two fields flip a row", fits, self.at, told, low[size])
            elif told is not None:
                self.shares.append((told, low["drawn"]))
                f.leave("of any_value blocks: the chance of two fields, to the last digit", 1)
        if unseen := sum(state == 1 and frozenset([u]) not in flipping for u, state in states.items()):
            f.leave("of groups that are said to flip a row alone: values that do were not met", unseen)
        f.leave("of any_value blocks: values of one and two groups that were not asked", 1)

    def draw(self, names: list[str]) -> dict[str, Any]:
        return {name: self.domains.draw(name, self.listed, self.random) for name in names}

    def check_witness(self, k: Any, proved: int, sets: Any, text: Any, alone: list[int], *chances: Any) -> set[Any]:
        """The claims of a row agree with each other; the groups of which its witness shows that they flip the row."""
        values, to = json.loads(text) if text else ({}, None)
        changed = [u for u, fields in self.domains.units.items() if set(fields) & set(values)]
        limits = [1e-9 if proved >= size else 1 + 1e-9 for size in (1, 2)]
        rules = [
            (text is None) == (k is None) == (not values),
            text is None or write_json([values, to]) == text,
            set(values) <= set(self.domains.free),
            0 <= proved <= 2 and (k is None or (proved < k <= 2 and len(changed) <= k)),
            set(alone) <= {-1, 0, 1} and (1 in alone) == (k == 1),
            proved == 0 or set(alone) == {0},
            sets is None or ((sets > 0) == (k is not None) and (k is None or proved == k - 1)),
            k != 1 or sets in (None, alone.count(1)),
            all(c is None or 0 <= c <= most for c, most in zip(chances, limits, strict=True)),
        ]
        self.f.check("budgets whatever the value", all(rules), self.at, self.row["any_value"])
        if not values or not all(rules):
            return set()
        rows, cells = self.e.rows, self.e.rows.cells[self.i]
        own = {name: rows.write(cells[rows.fields.index(name)]) for name in values}
        kept = all(self.domains.holds(name, v) or v == own[name] for name, v in values.items())
        self.f.check("witnesses are of the domains", kept, self.at, text)
        flips = self.check_flips(
            "witnesses whatever the value", [({n: rows.read(n, v) for n, v in values.items()}, to)]
        )
        return {frozenset(changed)} if flips[0] == 1 else set()

    def check_shares(self) -> None:
        """The chances of two fields over all rows, where these were drawn."""
        if not self.shares:
            return
        claimed, seen = np.array(self.shares).T
        slack = 5 * math.sqrt(float((claimed * (1 - claimed)).sum()) / DRAWN) + 1e-9 * len(claimed)
        near = abs(float(claimed.sum() - seen.sum())) <= slack
        self.f.check("chances that two fields flip a row, roughly", near, "all rows", claimed.mean(), seen.mean())


# --- what the model and the training rows show of the protocol ------------------------------------------------------


def check_model(f: Result, e: Evidence, random: Any) -> None:
    """Answers that depend on company, baselines called refused, and columns made from other fields than it says."""
    p, rows, n = e.p, e.rows, len(e.cells)
    picked = random.permutation(n)[:24].tolist()
    states = [e.move(i, np.flatnonzero(random.random(len(e.groups)) < 0.5)) for i in picked]
    alone = np.concatenate([e.ask([state]) for state in states])
    f.check("the model answers alike in company and alone", np.abs(e.ask(states) - alone).max() <= 1e-6, "changed rows")
    large = any(isinstance(v, int) and abs(v) > 2**53 for v in rows.cells.flat)  # no column holds NaN beside
    if "missing" in p["refused"] and not large:
        try:
            answers = np.isfinite(e.ask([np.full(len(rows.fields), math.nan, dtype=object)], raw=True)).all()
        except CannotCheck:
            answers = False
        f.check("refused baselines", not answers, "the model answers where everything is missing")
    if e.raw or not p["inputs"]:
        return
    for entry in (entry for entry in p["modes"]["catalogue"] if len(entry["fields"]) == 1):
        (name,), values = entry["fields"], entry["values"]
        source = [rows.fields.index(name)]
        own = [c for c, at in enumerate(e.sources) if at == source and p["columns"][c]["kind"] == "nominal"]
        base = np.array([e.base[c] for c in own])
        made = e.make_matrix(rows.change(0, ({name: rows.read(name, v)} for (v,) in values)))[:, own]
        same = np.isclose(made, base, rtol=0, atol=1e-9).all(axis=1)
        fits = same[0] if p["baseline"] in ("typical", "median") else same.any() or name in p["artificial"]
        told = f"{name}: {base} is not the encoding of {values[0][0]!r}, or of none and not called artificial"
        f.check("nominal baselines", fits or p["baseline"] in ("zero", "explicit"), told)
    for j, name in enumerate(rows.fields):
        for i in picked[:12]:
            others = [math.nan, *rows.cells[random.permutation(n)[:8], j]]
            changed = rows.change(i, ({name: value} for value in others))
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
    columns, gaps = (
        dict(zip(rows.fields, rows.cells.T, strict=True)),
        dict(zip(rows.fields, rows.missing.T, strict=True)),
    )
    known = {name: columns[name][~gaps[name]].tolist() for name in columns}
    for name in [p["baseline"], *p["alternatives"]]:
        check_baseline(f, e, p if name == p["baseline"] else change_baseline(p, name), known)
    own = find_whole_fields(p)
    if not e.raw:
        numeric = [j for j, c in enumerate(p["columns"]) if c["kind"] == "numeric"]
        own = [e.names[j] for j in numeric if (np.nan_to_num(e.cells[:, j].astype(float)) % 1 == 0).all()]
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
        fits = x["fixed"] or x["missing"] == gaps[x["field"]].any()
        fits = fits and (x["categories"] is None or {*map(write_json, x["categories"])} == often)
        fits = fits and (p["domain"] != "range" or x["low"] is x["high"] is None)
        f.check("domains are what training rows hold", fits, x["field"], x, often)


def check_baseline(f: Result, e: Evidence, p: Document, known: dict[str, list[Any]]) -> None:
    """Numeric baselines and spreads of one protocol, and what it calls artificial; `known`: values by field."""
    baseline, n = p["baseline"], len(e.cells)
    if baseline == "missing":
        own, told = [name for name, values in known.items() if len(values) == n], p["artificial"]
        f.check("artificial baselines", own == told, baseline, told, own)
    elif baseline not in ("typical", "mean", "median"):
        return
    for c, column in enumerate(p["columns"]):
        values = known[column["name"]] if baseline == "missing" else [v for v in e.cells[:, c] if not is_missing(v)]
        if column["kind"] != "numeric" or not values:
            continue
        numbers, told = np.array(values, dtype=float), (column["baseline"], column["spread"] or 0.0)
        own, spread = math.fsum(numbers) / len(numbers), float(np.std(numbers))
        scale = max(spread, abs(own))
        own = float(np.median(numbers)) if baseline == "median" else own
        whole = baseline == "typical" and (numbers % 1 == 0).all()
        own = None if baseline == "missing" else float(np.rint(own)) if whole or e.whole[c] else own
        near = abs(spread - told[1]) <= 1e-9 * scale
        near = near and (own is told[0] if baseline == "missing" else abs(own - told[0]) <= 1e-9 * scale)
        f.check("baselines and spreads of numbers", near, f"{column['name']}, {baseline}", told, (own, spread))


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


def check_rows(folder: Folder, given: Rows, model: Document, train: Any, sample: Any, limit: int, random: Any) -> None:
    f, p, m, claims, ids = folder.f, folder.p, folder.m, folder.rows, given.ids
    if not set(claims) <= set(ids):
        raise CannotCheck("the rows given are not those of the audit: name the column of ids, or give the audited rows")
    whole, content = m["rows"] == m["input"]["rows"], given.digest(False)
    own = find_root(digest for digest, id_ in zip(given.digest(True), ids, strict=True) if id_ in claims or not whole)
    told = m["input"]["digest"]
    f.check("the rows are those that were audited", told == own, "input digest", told, own)
    if not whole:
        f.leave("audited rows whose certificates are not here", m["input"]["rows"] - m["rows"])
    having = [i for i, id_ in enumerate(ids) if id_ in claims]
    for name, d in m["blocks"].items():
        if d["rows"] and d["rows"]["by"] == "content" and whole:
            sure = [i for i in having if claims[ids[i]]["confidence"] >= p["min_confidence"]]
            sure.sort(key=lambda i: (content[i][:39], hash_id(ids[i])))  # sha256: and 16 bytes
            own = sorted((ids[i] for i in sure[: d["rows"]["most"]]), key=hash_id)
            f.check(f"which rows have {name}", folder.order[name] == own, name, folder.order[name], own)
    e, n = Evidence(p, given, model, folder.classes), len(claims)
    s = min(n, sample or n)
    check_model(f, e, random)
    if s < n:
        bad = max(1, n // 100)
        escape = math.comb(n - bad, s) / math.comb(n, s)
        f.leave(f"rows not asked again; {bad} false of {n} escape a sample of {s} with probability {escape:.2g}", n - s)
    again = Recomputation(e, folder, limit, random)
    for i in sorted(random.permutation(having)[:s].tolist()):
        again.check_row(i, claims[ids[i]])
    again.check_shares()
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
