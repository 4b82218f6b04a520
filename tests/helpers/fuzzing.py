"""Malformed inputs for every reader, made from sound ones by chance, and the process that feeds them.

Run as a script: ``python fuzzing.py READER SEED FIRST COUNT FOLDER``. Every input may be read or refused with an error
of ours in one sentence; anything else is a finding, told as one JSON line. The number of the input at hand is kept in
the file ``at``, so that the caller knows it even if this process dies. Memory and time are bounded.
"""

from __future__ import annotations

import copy
import gzip
import importlib
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

MEMORY = 6 * 2**30
SECONDS = 20
LONGEST_SENTENCE = 2000


class TooLong(BaseException):
    """An input took too long; not an Exception, so that no reader takes it for one of its own."""


# --- bytes ----------------------------------------------------------------------------------------------------


def mutated_bytes(data: bytes, chance: random.Random) -> bytes:
    """Flip, cut, splice, repeat or overwrite bytes, once or a few times."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        if not out:
            return bytes(out)
        place, kind = chance.randrange(len(out)), chance.randrange(7)
        end = min(len(out), place + chance.randrange(1, 64))
        if kind == 0:
            out[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            out[place] = chance.randrange(256)
        elif kind == 2:
            del out[place:]
        elif kind == 3:
            del out[place:end]
        elif kind == 4:
            out[place:place] = out[place:end] * chance.choice((1, 2, 50))
        elif kind == 5:
            other = chance.randrange(len(out))
            out[place:end] = out[other : other + end - place]
        else:
            out[place:end] = chance.choice((b"\x00", b"\xff", b"\x7f", b"9", b"-")) * (end - place)
    return bytes(out)


# --- JSON -----------------------------------------------------------------------------------------------------

STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, -(2**63) - 1, 10**40, 10**400, 0.0, -0.0, 1e-320, 1e308, -1.5,
    float("nan"), float("inf"), "", " ", "a", "\x00", "é", "\ud800", "../../etc/passwd", "sha256:" + "0" * 64, "NaN",
    "1", "x" * 5000, [], {}, [[]], [None], [1, "a"], {"": None}, {"name": "a"}, [[[[[[1]]]]]],
)  # fmt: skip


def mutated_json(data: bytes, chance: random.Random) -> bytes:
    """Change the structure: values of other types, names left out, doubled or new, lists cut and grown, deep nests."""
    try:
        document = json.loads(data)
    except ValueError:
        return mutated_bytes(data, chance)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(_places(document))
        if not places:
            break
        holder, key = chance.choice(places)
        _change(holder, key, chance)
    text = json.dumps(document, indent=chance.choice((2, 2, None)), ensure_ascii=chance.random() < 0.3)
    return _textual(text, chance).encode("utf-8", "surrogatepass")


def _places(document: Any) -> list[tuple[Any, Any]]:
    found, todo = [], [document]
    while todo:
        at = todo.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        for key in keys:
            found.append((at, key))
            todo.append(at[key])
    return found


def _change(holder: Any, key: Any, chance: random.Random) -> None:
    kind = chance.randrange(8)
    if kind <= 2:
        holder[key] = _strange(chance)
    elif kind == 3:
        del holder[key]
    elif kind == 4 and isinstance(holder, dict):
        holder[chance.choice(("", "extra", "format", "__class__", str(key) + " "))] = _strange(chance)
    elif kind == 5 and isinstance(holder, list):
        holder += holder[: chance.randrange(1, 4)] * chance.choice((1, 100))
    elif kind == 6:
        other = chance.choice(_places(holder))
        holder[key] = json.loads(json.dumps(other[0][other[1]]))
    else:
        value = holder[key]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**64:
            holder[key] = chance.choice((value + 1, -value, value * 1e9, str(value), [value], value / 3 + 0.1))
        elif isinstance(value, str):
            holder[key] = chance.choice((value + "x", value[:-1], value.upper(), value * 2, [value], {value: value}))
        else:
            holder[key] = _strange(chance)


def _strange(chance: random.Random) -> Any:
    return copy.deepcopy(chance.choice(STRANGE))


def _textual(text: str, chance: random.Random) -> str:
    """Now and then what no document has: a name twice, a number without end, brackets without end."""
    kind = chance.randrange(40)
    if kind == 0:
        return "[" * chance.choice((61, 1000, 100_000)) + text
    if kind == 1:
        return text.replace("{", '{"format": 1, "format": 2, ', 1)
    if kind == 2:
        return text.replace("1", "1" * chance.choice((400, 5000, 100_000)), 1)
    if kind == 3:
        deep = chance.choice((59, 60, 100, 900))
        return text.replace("null", "[" * deep + "]" * deep, 1)
    if kind == 4:
        return text.replace(":", ': "\\ud800",', 1) if chance.random() < 0.5 else text.replace('"', '"\\udc00', 1)
    return text


def either(data: bytes, chance: random.Random) -> bytes:
    return mutated_json(data, chance) if chance.random() < 0.6 else mutated_bytes(data, chance)


# --- readers --------------------------------------------------------------------------------------------------
# Each takes the folder of sound files, a place to write to and chance, and reads one malformed input.

Reader = Callable[[Path, Path, random.Random], None]


def read_protocol(sound: Path, place: Path, chance: random.Random) -> None:
    from fragility.protocol import Protocol

    path = place / "protocol.json"
    path.write_bytes(either((sound / "protocol.json").read_bytes(), chance))
    protocol = Protocol.load(path)
    assert Protocol.from_json(protocol.to_json()).digest == protocol.digest
    repr(protocol), protocol._repr_html_()


def _fresh_audit(sound: Path, place: Path) -> Path:
    folder = place / "audit"
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(sound / "audit", folder))


def _read_audit(folder: Path) -> None:
    from fragility.audits import Certificates
    from fragility.audits.integrity import check_integrity

    told = " ".join(check.detail for check in check_integrity(folder))
    assert "the folder is malformed" not in told, told
    certs = Certificates.load(folder)
    certs.claims  # noqa: B018
    repr(certs), certs[0].story() if len(certs) else None


def read_manifest(sound: Path, place: Path, chance: random.Random) -> None:
    from fragility.audits.manifest import manifest_text

    folder = _fresh_audit(sound, place)
    path = folder / "manifest.json"
    data = either(path.read_bytes(), chance)
    if chance.random() < 0.5:  # a forger makes the digest anew
        with suppress(Exception):  # what cannot be a manifest stays as it is
            data = manifest_text(json.loads(data)).encode("utf-8", "surrogatepass")
    path.write_bytes(data)
    _read_audit(folder)


def read_certificates(sound: Path, place: Path, chance: random.Random) -> None:
    folder = _fresh_audit(sound, place)
    own = next(folder.glob("certificates-*"))
    data = own.read_bytes()
    own.unlink()
    replace_table(
        folder, own.name, tricked_table(data, chance) if chance.random() < 0.4 else mutated_bytes(data, chance)
    )
    _read_audit(folder)


def replace_table(folder: Path, name: str, data: bytes) -> None:
    """Put other bytes in the place of the table, under a manifest made anew."""
    from fragility.audits.manifest import manifest_text
    from fragility.base.canonical import digest_bytes

    manifest = json.loads((folder / "manifest.json").read_text())
    digest = digest_bytes(data)
    new = name.rsplit("-", 1)[0] + f"-{digest[7:23]}.parquet"
    files = {
        (new if key == name else key): (digest if key == name else value) for key, value in manifest["files"].items()
    }
    (folder / new).write_bytes(data)
    (folder / "manifest.json").write_text(manifest_text({**manifest, "files": files}))


def tricked_table(data: bytes, chance: random.Random) -> bytes:
    """Return the table with another schema, other values, or more rows than its size can hold."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(data))
    column = chance.randrange(table.num_columns)
    name, kind = table.column_names[column], chance.randrange(9)
    codec = chance.choice(("zstd", "snappy", "gzip", "none", "lz4"))
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        table = table.append_column(chance.choice(("extra", "\x00", "é" * 1000)), table.column(column))
    elif kind == 2:
        type_ = chance.choice(
            (pa.string(), pa.int8(), pa.list_(pa.list_(pa.float64())), pa.null(), pa.struct([("a", pa.int8())]))
        )
        table = table.set_column(column, name, pa.nulls(len(table), type_))
    elif kind == 3:
        values = table.column(column).to_pylist()
        place = chance.randrange(len(values))
        values[place] = chance.choice((None, values[place - 1]))
        table = table.set_column(column, name, pa.array(values, type=table.schema.field(column).type))
    elif kind == 4:
        table = table.replace_schema_metadata({"pandas": chance.choice(("{", "{}", '{"columns": [1]}')), "note": "a"})
    elif kind == 5:
        table = table.rename_columns([name if i else "id " for i, name in enumerate(table.column_names)])
    elif kind == 6:
        table = pa.concat_tables([table.slice(0, 1)] * chance.choice((1_000, 20_000)))
    elif kind == 7:
        long = chance.choice(("x", "é")) * 100_000
        cells = pa.array([long] * len(table), type=pa.string())
        table = table.set_column(0, "id", cells)
    else:
        table = table.take(pa.array([chance.randrange(len(table)) for _ in range(len(table))]))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression=codec, use_dictionary=chance.random() < 0.5)
    out = sink.getvalue().to_pybytes()
    return mutated_bytes(out, chance) if chance.random() < 0.2 else out


def read_groups(sound: Path, place: Path, chance: random.Random) -> None:
    from fragility.evidence.groups import declared_groups, read_group_map
    from fragility.evidence.origins import Origin

    path = place / "groups.json"
    path.write_bytes(either((sound / "groups.json").read_bytes(), chance))
    fields = json.loads((sound / "groups.json").read_text())
    columns = [name for members in fields.values() for name in members]
    declared_groups(read_group_map(path), columns, [Origin((name,)) for name in columns])


def read_outages(sound: Path, place: Path, chance: random.Random) -> None:
    from fragility.cli.options import parse_markers
    from fragility.cli.tables import read_table
    from fragility.questions.stress.declaration import outage_events
    from fragility.questions.stress.stressors import Outages

    if chance.random() < 0.3:
        path = place / "markers.json"
        path.write_bytes(either((sound / "markers.json").read_bytes(), chance))
        outage_events(read_table(sound / "rows.csv"), markers=parse_markers(str(path)))
        return
    path = place / "outages.csv"
    source = sound / chance.choice(("long.csv", "wide.csv"))
    path.write_bytes(mutated_bytes(source.read_bytes(), chance))
    Outages.from_events(outage_events(read_table(path))).rates(10**6)


def read_policy(sound: Path, place: Path, chance: random.Random) -> None:
    from fragility.analysis.policy import ReviewPolicy

    path = place / "policy.json"
    path.write_bytes(either((sound / "policy.json").read_bytes(), chance))
    policy = ReviewPolicy.load(path)
    policy.sentence(), repr(policy)
    policy.save(place / "again.json")


def read_proof(sound: Path, place: Path, chance: random.Random) -> None:
    from fragility.base.canonical import digest_of
    from fragility.trust.proofs import proof_text, verify_proof

    path, original = place / "proof.json", (sound / "proof.json").read_bytes()
    data = either(original, chance)
    forged = chance.random() < 0.5
    if forged:  # a forger makes the digest anew
        with suppress(Exception):  # what cannot be a proof stays as it is
            document = json.loads(data)
            document["proof_digest"] = digest_of({k: v for k, v in document.items() if k != "proof_digest"})
            data = proof_text(document).encode()
    path.write_bytes(data)
    root = json.loads(original)["root_digest"]
    outcome = verify_proof(path, root=root)
    assert "the proof is malformed" not in str(outcome), str(outcome)


def read_envelope(sound: Path, place: Path, chance: random.Random) -> None:
    import base64

    from fragility.base.envelopes import signed_protocol
    from fragility.trust.signing import signed_predicate

    protocols = chance.random() < 0.3
    original = (sound / ("protocol.json.dsse.json" if protocols else "audit/signature.dsse.json")).read_bytes()
    data = either(original, chance)
    if chance.random() < 0.4:  # the statement inside, under the old signature
        document = json.loads(original)
        payload = either(base64.b64decode(document["payload"]), chance)
        document["payload"] = base64.b64encode(payload).decode()
        data = json.dumps(document, indent=2).encode() + b"\n"
    if protocols:
        signed_protocol(data, "envelope")
        return
    path = place / "signature.dsse.json"
    path.write_bytes(data)
    signed_predicate(path, sound / "key.pub")
    assert json.loads(data)["payload"] == json.loads(original)["payload"], "a changed statement was accepted"


def read_csv(sound: Path, place: Path, chance: random.Random) -> None:
    from fragility.cli.tables import Columns, read_rows

    data = (sound / "rows.csv").read_bytes()
    if chance.random() < 0.3:
        path = place / "rows.csv.gz"
        packed = gzip.compress(mutated_bytes(data, chance) if chance.random() < 0.5 else data, mtime=0)
        path.write_bytes(mutated_bytes(packed, chance))
    else:
        path = place / "rows.csv"
        path.write_bytes(mutated_bytes(data, chance))
    read_rows(path, Columns(target="class"), rows="1:")


MODELS = ("model.txt", "model.json", "model.ubj", "model.cbm", "model.safetensors")


def read_model(sound: Path, place: Path, chance: random.Random) -> None:
    """As ``load_model`` does it, with a forked process in the place of a new one: first the trial, then the use."""
    name = chance.choice([name for name in MODELS if (sound / name).exists()])  # a network only where torch is
    path = place / name
    data = (sound / name).read_bytes()
    path.write_bytes(either(data, chance) if name.endswith(".json") else _mutated_booster(data, chance, name))
    if name == "model.safetensors":  # has no trial, and torch does not like to be forked
        ended = _use_model(path)
    elif forked(lambda: _trial(path)) != 0:
        return  # refused, or it crashed there, where it does no harm
    else:
        ended = forked(lambda: _use_model(path))
    told = (place / "told").read_text() if ended == 97 else ""
    assert ended == 0, f"{name} passed its trial, and then ended the process with {ended}: {told}"


def read_onnx(sound: Path, place: Path, chance: random.Random) -> None:
    """The same for an ONNX file, whose trees are read as well; libraries are loaded once, before the copies."""
    for module in ("onnx", "onnxruntime", "fragility.models.loading", "fragility.engines.trees.readers", "numba"):
        importlib.import_module(module)
    name = chance.choice(("trees.onnx", "network.onnx", "pipeline.onnx"))
    path, data = place / name, (sound / name).read_bytes()
    path.write_bytes(mutated_graph(data, chance) if chance.random() < 0.7 else mutated_bytes(data, chance))
    if forked(lambda: _trial(path)) == 0:
        ended = forked(lambda: _use_model(path))
        told = (place / "told").read_text() if ended == 97 else ""
        assert ended == 0, f"{name} passed its trial, and then ended the process with {ended}: {told}"


def mutated_graph(data: bytes, chance: random.Random) -> bytes:
    """Change names, numbers and the structure of a graph that stays a protobuf message."""
    import onnx

    model = onnx.load_from_string(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        node = chance.choice(model.graph.node)
        attributes = [a for a in node.attribute if a.ints or a.floats or a.strings]
        kind = chance.randrange(8)
        if kind <= 2 and attributes:
            attribute = chance.choice(attributes)
            values = attribute.ints or attribute.floats or attribute.strings
            strange = (-1, 0, 1, 3, 999, 2**31, 2**62) if attribute.ints else (0.0, 1e38, float("nan"), -1.0)
            if attribute.strings:
                strange = (b"", b"LEAF", b"BRANCH_GT", b"\xff", b"a")
            values[chance.randrange(len(values))] = chance.choice(strange)
        elif kind == 3 and attributes:
            attribute = chance.choice(attributes)
            del (attribute.ints or attribute.floats or attribute.strings)[:: chance.choice((1, 2, 7))]
        elif kind == 4:
            node.op_type = chance.choice(("Loop", "Exp", "Tile", "Concat", "TopK", "ZipMap", "Gather", "Shape"))
        elif kind == 5:
            values = chance.choice((node.input, node.output))
            if values:
                values[chance.randrange(len(values))] = chance.choice(("", "X", "lost", node.output[0]))
        elif kind == 6 and model.graph.initializer:
            tensor = chance.choice(model.graph.initializer)
            del tensor.dims[:]
            tensor.dims.extend(chance.choice(([], [0], [-1], [1], [2, 3], [2**40], [10**6])))
        elif node.attribute:
            del node.attribute[chance.randrange(len(node.attribute))]
    return model.SerializeToString()


def _mutated_booster(data: bytes, chance: random.Random, name: str) -> bytes:
    if name == "model.txt" and chance.random() < 0.6:  # numbers of the trees
        lines = data.decode().split("\n")
        chosen = [i for i, line in enumerate(lines) if line.split("=")[0] in BOOSTER_LISTS]
        for _ in range(chance.choice((1, 2, 5))):
            i = chance.choice(chosen)
            key, text = lines[i].split("=", 1)
            words = text.split(" ")
            words[chance.randrange(len(words))] = str(
                chance.choice((-1, 0, 1, 3, -100, 99, 10**6, -(2**31), "nan", ""))
            )
            lines[i] = f"{key}={' '.join(words)}"
        return "\n".join(lines).encode()
    return mutated_bytes(data, chance)


BOOSTER_LISTS = ("left_child", "right_child", "split_feature", "threshold", "num_leaves", "leaf_value", "num_cat",
                 "decision_type", "max_feature_idx", "num_tree_per_iteration", "num_class", "tree_sizes")  # fmt: skip


def forked(work: Callable[[], int]) -> int:
    """Return how a copy of this process ends that does this work; -signal where it dies."""
    process = os.fork()
    if process == 0:
        code = 99
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # also where a library never comes back
            signal.alarm(SECONDS // 3)
            code = work()
        finally:
            os._exit(code)
    status = os.waitpid(process, 0)[1]
    return os.waitstatus_to_exitcode(status)


def _trial(path: Path) -> int:
    from fragility.models.soundness import try_file

    return try_file(path.suffix, str(path))


def _use_model(path: Path) -> int:
    import numpy as np

    import fragility.models.loading as loading
    from fragility.base.errors import FragilityError

    loading.TRIALS = {}  # it stood its trial
    try:
        model = loading.load_model(path)
        with suppress(Exception):  # the library's own complaints of rows that are not the model's
            model.probabilities(np.random.default_rng(0).normal(size=(20, model.n_columns or 7)) * 100)
        if path.suffix == ".onnx":
            with suppress(FragilityError):
                importlib.import_module("fragility.engines.trees.readers").read_ensemble(model.head)
    except FragilityError as error:
        return 0 if one_sentence(str(error)) else 98
    except Exception as error:
        (path.parent / "told").write_text(f"{type(error).__name__}: {error}")
        return 97
    return 0


READERS: dict[str, Reader] = {
    "protocol": read_protocol,
    "manifest": read_manifest,
    "certificates": read_certificates,
    "groups": read_groups,
    "outages": read_outages,
    "policy": read_policy,
    "proof": read_proof,
    "envelope": read_envelope,
    "csv": read_csv,
    "model": read_model,
    "onnx": read_onnx,
}


# --- the process ----------------------------------------------------------------------------------------------


def one_sentence(text: str) -> bool:
    return 0 < len(text) <= LONGEST_SENTENCE and "\n" not in text and "Traceback" not in text


def _fault(read: Reader, sound: Path, place: Path, chance: random.Random) -> str | None:
    """Return what is wrong with how one input was met; None if it was read, or refused as it should be."""
    from fragility.base.errors import FragilityError

    try:
        signal.alarm(SECONDS)
        read(sound, place, chance)
    except FragilityError as error:
        return None if one_sentence(str(error)) else f"not one sentence: {str(error)[:300]!r}"
    except TooLong:
        return f"took more than {SECONDS} s"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.alarm(0)
    return None


def _raise_too_long(*_: Any) -> None:
    raise TooLong


def main(reader: str, seed: int, first: int, count: int, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _raise_too_long)
    warnings.simplefilter("ignore")
    place = folder / "place"
    place.mkdir(exist_ok=True)
    if reader == "model":
        network = ("fragility.analysis.resmlp.network",) if importlib.util.find_spec("torch") else ()
        for name in ("catboost", "lightgbm", "xgboost", "fragility.models.loading", *network):
            importlib.import_module(name)  # once, before the forks
    for number in range(first, first + count):
        (folder / "at").write_text(str(number))
        fault = _fault(READERS[reader], folder / "sound", place, random.Random(f"{seed}-{reader}-{number}"))
        if fault is not None:
            print(json.dumps({"input": number, "fault": fault}), flush=True)
    (folder / "at").write_text("end")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
