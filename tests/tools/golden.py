"""Golden folders: what the library writes about real models, to prove that a restructuring changes no byte.

    python tests/tools/golden.py make OLD          # in the tree before
    python tests/tools/golden.py make NEW          # in the tree after
    python tests/tools/golden.py compare OLD NEW   # exit code 1 and the first difference of each file, if any

`make` fits eight small models on public data (FRAGILITY_DATA) and audits rows with missing cells, in both evidence
spaces and with every block: in memory, streamed by the command line, interrupted and resumed, and by Ray and Spark.
Then it writes what the other commands say about these audits. It uses public names and commands alone, so that it runs
in both trees; where a restructuring renames one, the words to edit are those under "Names".

The same machine and the same versions of libraries are needed on both sides: models are trained anew, and `made.json`
names the versions. Left out is what differs by nature: the seconds that an audit took; warnings of other libraries,
which stand at lines of files; what a cluster prints, which has addresses; and files of fitted models, whose bytes are
the business of other libraries, and whose fingerprint is in each manifest.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import platform
import re
import shutil
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

# Set before any library is imported. Seeds of hashes stay random on purpose: no byte may depend on them.
SOURCE = Path(__file__).resolve().parents[2] / "src"  # of the tree that this file stands in, whatever is installed
FIXED = {
    "COLUMNS": "110",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
    "SOURCE_DATE_EPOCH": "1700000000",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

# --- Names ------------------------------------------------------------------------------------------------------
# Everything of the library that this file uses. A tree in which a name differs needs an edit here and nowhere else.

COMMAND_LINE = ("fragility.cli", "main")
BLOCKS = {"rates": 0.05, "modes": True}
BLOCK_OPTIONS = ["--rates", "0.05", "--modes", "all"]
SHORT = {"depth": 5, "severities": (0.25, 0.5, 0.75, 1.0)}
LATTICE, LATTICE_OPTIONS = {"lattice": True}, ["--lattice", "all"]


def fit_protocol(model: Any, training: Any, space: str, threshold: float | None) -> Any:
    return library().Protocol.fit(model, training, space=space, decision=threshold, **SHORT)


def audit_in_memory(model: Any, rows: Any, protocol: Any, blocks: dict[str, Any], folder: Path) -> Any:
    fg = library()
    certificates = fg.audit(model, rows, protocol, progress=False, baselines=True, **blocks)
    certificates.save(folder)
    return certificates


def interrupt_audit(work: Work, protocol: Any, folder: Path) -> None:
    """Audit rows of a file until the first part is finished."""
    fg = library()

    def stop(done: int, total: int) -> None:
        if done >= work.part:
            raise KeyboardInterrupt

    given = {"target": LABEL, "part_rows": work.part, "progress": stop}
    with contextlib.suppress(KeyboardInterrupt):
        model = fg.load_model(work.file, trust=True)
        fg.audit_files(model, work.data, protocol, folder, **given, **work.blocks)
        raise Broken(f"{folder}: the audit was not interrupted")


def audit_words(work: Work, out: str) -> list[object]:
    words = ["audit", work.file, work.data, "--protocol", work.protocol_file, "--out", out, "--part-rows", work.part]
    return [*words, *work.block_options, *COLUMNS]


def list_commands(work: Work) -> Iterator[tuple[str, list[object]]]:
    """Give a name and the words of each command that is asked about a streamed audit, in an order that they need."""
    audit, out, first, last = work.stream, work.words, work.ids[0], work.ids[-1]
    asked = ["--model", work.file, "--data", work.data]
    labels = ["--labels", work.data, "--target", LABEL]
    yield "protocol-show", ["protocol", "show", work.protocol_file]
    yield "protocol-check", ["verify", work.protocol_file, *asked, *COLUMNS]
    yield "verify", ["verify", audit, *asked, *COLUMNS]  # all rows: a sample is drawn anew each time
    yield "show-first", ["show", audit, "--row", first]
    yield "show-last", ["show", audit, "--row", last]
    yield "top", ["show", audit, "-n", "8"]
    yield "top-wrong", ["show", audit, "-n", "8", "--score", "wrong"]
    stress = ["evaluate", "labels", audit, *asked, *COLUMNS, "--tau-confidence", "0.6"]
    yield "stress", [*stress, "--out", out / "labels.parquet"]
    policy = ["policy", audit, "--stress", out / "labels.parquet", "--min-confidence", "0.6", "--risk", "0.3"]
    yield "policy", [*policy, "--out", out / "policy.json"]
    rates = ["reliability", audit, *asked, *COLUMNS, "--rates", "0.05", "--draws", "64"]
    yield "reliability", [*rates, "--out", out / "reliability.json", "--out", out / "reliability.csv"]
    parity = ["parity", work.file, work.file_copy, "--data", work.data, "--protocol", audit, "--most-rows", "20"]
    yield "parity", [*parity, *COLUMNS, "--out", out / "parity.json", "--out", out / "parity.csv"]
    missing = ["evaluate", "missing", work.file, work.data, "--protocol", audit, "--rows", "10", "--draws", "64"]
    yield "without", [*missing, *COLUMNS, "--out", out / "without.json", "--out", out / "without.csv"]
    yield "gate-init", ["gate", "init", audit, "--min-confidence", "0.5", "--out", out / "gate.toml"]
    gate = ["gate", audit, "--rules", out / "gate.toml"]
    yield "gate", [*gate, *(word for kind in ("json", "xml", "md") for word in ("--out", out / f"gate.{kind}"))]
    report = ["report", audit, "--data", work.data, *labels, "--stress", out / "labels.parquet", *asked[:2], "--trust"]
    report += ["--parity", out / "parity.json", "--author", "A. Tester", "--date", "2026-01-01"]
    for kind in ("html", "md", "json"):
        yield f"report-{kind}", [*report, "--out", out / f"report.{kind}"]
    yield "sign-protocol", ["sign", work.protocol_file, "--key", KEY]
    yield "sign", ["sign", audit, "--key", KEY]
    yield "verify-signed", ["verify", audit, "--public-key", PUBLIC_KEY]
    for name, row in (("first", first), ("last", last)):
        yield f"prove-{name}", ["sign", "prove", audit, "--row", row, "--out", out / f"proof-{name}.json"]
    proved = ["verify", out / "proof-last.json", "--public-key", PUBLIC_KEY]
    yield "check-proof", [*proved, "--signature", Path(audit) / "signature.dsse.json"]
    pack = ["pack", audit, *labels, "--rules", out / "gate.toml", "--stress", out / "labels.parquet"]
    pack += ["--reliability", out / "reliability.json", "--parity", out / "parity.json", "--key", KEY]
    for name in ("pack", "pack.zip"):
        yield name, [*pack, "--date", "2026-01-01", "--out", out / name]
    yield "pack-check", ["verify", out / "pack.zip", "--public-key", PUBLIC_KEY]


# What reads certificates, whatever their evidence space, is asked in one space of each model, to save time.
ONCE = (
    "without",
    "sign",
    "verify-signed",
    "prove-first",
    "prove-last",
    "check-proof",
    "pack",
    "pack.zip",
    "pack-check",
)


def compare_words(one: Work, other: Work) -> list[object]:
    words = ["report", one.stream, other.stream, "--out", one.words / "changes.csv", "--out", one.words / "both.txt"]
    return [*words, "--labels", one.data, "--target", LABEL]


def describe_certificates(certificates: Any) -> list[str]:
    told = [str(certificates), str(certificates.summary())]
    return told + [line for one in list(certificates)[:12] for line in (one.sentence(), one.story())]


def ask_guard(model: Any, protocol: Any, rows: Any) -> list[dict[str, Any]]:
    guard = library().Guard(model, protocol)
    checks = guard.check_rows(rows, intervals=True)
    stale = guard.check(rows.iloc[[0]], stale=(str(rows.columns[1]),))
    return [one.to_dict() | {"sentences": one.sentences()} for one in (*checks, stale)]


def certify_singly(model: Any, protocol: Any, rows: Any, lattice: bool) -> list[dict[str, Any]]:
    auditor = library().Auditor(model, protocol, rates=0.05, modes=True, intervals=True, lattice=lattice)
    made = [auditor.certify(rows.iloc[[place]])[0] for place in range(len(rows))]
    return [{"digest": one.digest, "story": one.story()} | dict(one.block_digests) for one in made]


# --- models and rows --------------------------------------------------------------------------------------------

LABEL = "label"
COLUMNS: list[object] = ["--target", LABEL, "--trust"]
KEY, PUBLIC_KEY = Path("inputs/key"), Path("inputs/key.pub")
TRAINED, SEED, GONE = 700, 5, 0.05
SECONDS = re.compile(r"\(\d[\d.,]* s, ")  # how long an audit took, which no audit repeats
NOT_COMPARED = (".joblib", ".skops", ".cbm", ".ubj")
TARGETS = {
    "adult": "income",
    "bank_marketing": "y",
    "covertype": "Cover_Type",
    "credit_g": "class",
    "electricity": "class",
    "heloc": "RiskPerformance",
}


class Broken(Exception):
    """What was made is no golden folder."""


@dataclass(frozen=True)
class Case:
    """A model, its rows and how it is kept."""

    name: str
    table: str
    build: Callable[[Any], Any]
    suffix: str = ".joblib"
    rows: int = 60
    threshold: float | None = None
    lattice: bool = True
    intervals: int = 8
    any_value: int | None = 8
    categories: bool = False  # the model takes them itself
    numbered: bool = False  # its classes are 0 and 1
    quick: bool = False
    clustered: bool = False  # Ray and Spark make it too

    @property
    def spaces(self) -> tuple[str, ...]:
        """Codes of categories cannot be moved toward a baseline, so models that take them are audited in raw fields."""
        return ("raw",) if self.categories else ("transformed", "raw")


@dataclass(frozen=True)
class Work:
    """An audited model in one evidence space; paths are relative to the folder that is made."""

    case: Case
    space: str
    ids: tuple[object, ...]
    part: int

    @property
    def folder(self) -> Path:
        return Path(self.case.name) / self.space

    @property
    def stream(self) -> Path:
        return self.folder / "streamed"

    @property
    def words(self) -> Path:
        return self.folder / "said"

    @property
    def protocol_file(self) -> Path:
        return self.folder / "protocol.json"

    @property
    def inputs(self) -> Path:
        return Path("inputs") / self.case.name

    @property
    def file(self) -> Path:
        return self.inputs / f"model{self.case.suffix}"

    @property
    def file_copy(self) -> Path:
        return self.inputs / f"copy{self.case.suffix}"

    @property
    def data(self) -> Path:
        return self.inputs / "rows.parquet"

    @property
    def blocks(self) -> dict[str, Any]:
        lattice = LATTICE if self.case.lattice else {}
        given = (BLOCKS if self.case.lattice else {"modes": True}) | lattice | {"intervals": self.case.intervals}
        return given | {"any_value": self.case.any_value}

    @property
    def block_options(self) -> list[object]:
        lattice = LATTICE_OPTIONS if self.case.lattice else []
        given = BLOCK_OPTIONS if self.case.lattice else ["--modes", "all"]
        return [*given, *lattice, "--intervals", self.case.intervals, "--any-value", self.case.any_value or "none"]


def list_nominal(table: Any) -> list[str]:
    return [name for name in table if table[name].dtype == object or str(table[name].dtype) in ("category", "str")]


def build_prepared(estimator: Any, scaled: bool = True) -> Callable[[Any], Any]:
    """Return a function that puts an estimator behind imputed numbers and one-hot categories."""

    def build(table: Any) -> Any:
        from sklearn.compose import make_column_transformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        nominal = list_nominal(table)
        numbers = [name for name in table if name not in nominal]
        steps: list[Any] = [(make_pipeline(SimpleImputer(), StandardScaler()) if scaled else "passthrough", numbers)]
        if nominal:
            encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False, min_frequency=5)
            steps.append((make_pipeline(SimpleImputer(strategy="most_frequent"), encoder), nominal))
        return make_pipeline(make_column_transformer(*steps, sparse_threshold=0.0), estimator())

    return build


def build_lightgbm() -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=40, num_leaves=15, n_jobs=1, random_state=SEED, verbose=-1, deterministic=True)


def build_xgboost(table: Any = None) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=40, max_depth=4, n_jobs=1, random_state=SEED, enable_categorical=True)


def build_catboost(table: Any) -> Any:
    from catboost import CatBoostClassifier

    given = {"iterations": 40, "depth": 4, "thread_count": 1, "random_seed": SEED, "allow_writing_files": False}
    return CatBoostClassifier(cat_features=list_nominal(table), verbose=False, **given)


def build_hist(table: Any) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(max_iter=40, categorical_features="from_dtype", random_state=SEED)


def build_logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=500)


def build_forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(30, max_depth=8, n_jobs=1, random_state=SEED)


def build_calibrated() -> Any:
    from sklearn.calibration import CalibratedClassifierCV

    return CalibratedClassifierCV(build_xgboost(), cv=3)


def build_neighbours() -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(15)


CASES = (
    Case("lightgbm-onehot", "adult", build_prepared(build_lightgbm, scaled=False), quick=True, clustered=True),
    Case("xgboost-native", "adult", build_xgboost, ".json", categories=True, numbered=True),
    Case("catboost", "bank_marketing", build_catboost, ".cbm", categories=True, quick=True),
    Case("hist-native", "credit_g", build_hist, categories=True),
    Case("logistic", "heloc", build_prepared(build_logistic), threshold=0.4, quick=True),
    Case("forest", "covertype", build_prepared(build_forest), ".skops"),
    Case("calibrated", "adult", build_prepared(build_calibrated), numbered=True, intervals=4),
    Case("neighbours", "electricity", build_prepared(build_neighbours), lattice=False, intervals=4, any_value=None),
)


def read_rows(case: Case) -> tuple[Any, Any]:
    """Return rows of a public table, in an order drawn once, some cells of which are missing; and their labels."""
    import numpy as np
    import pandas as pd

    path = Path(os.environ.get("FRAGILITY_DATA", "")) / f"{case.table}.parquet"
    if not path.exists():
        raise Broken(f"{path.name} not found; set FRAGILITY_DATA to the folder that holds it")
    table = pd.read_parquet(path)
    if case.table == "covertype":  # three classes, and what is measured
        table = table[table["Cover_Type"].isin([1, 2, 3])]
        table = table[[name for name in table if not name.startswith(("Soil", "Wilderness"))]]
    table = table.sample(TRAINED + case.rows, random_state=SEED).reset_index(drop=True)
    labels = table.pop(TARGETS[case.table]).astype(str)
    gone = np.random.default_rng(SEED).random(table.shape) < GONE
    for place, name in enumerate(table.columns):
        if pd.api.types.is_numeric_dtype(table[name]):
            table[name] = table[name].astype(float).mask(gone[:, place])
            continue
        cells = table[name].astype(object).mask(table[name] == "?")
        if case.categories and case.suffix == ".cbm":  # its categories are never missing
            table[name] = cells.where(cells.notna(), "none given").astype(str).astype(object)
        else:
            cells = cells.mask(gone[:, place])
            table[name] = cells.astype("category") if case.categories else cells
    if case.numbered:
        labels = pd.Series(np.unique(labels, return_inverse=True)[1])
    if case.table == "bank_marketing":  # ids that are text
        table.index = labels.index = pd.Index([f"case {row}" for row in range(len(table))], name="case")
    return table, labels


def save_model(model: Any, path: Path) -> None:
    if path.suffix in (".json", ".cbm"):
        model.save_model(path)
    elif path.suffix == ".skops":
        from skops.io import dump

        dump(model, path)
    else:
        import joblib

        joblib.dump(model, path)


# --- make -------------------------------------------------------------------------------------------------------


def library() -> Any:
    return importlib.import_module("fragility")


def run(words: Sequence[object]) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code and what it wrote."""
    main = getattr(importlib.import_module(COMMAND_LINE[0]), COMMAND_LINE[1])
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return code, out.getvalue(), err.getvalue()


def run_well(words: Sequence[object], kept: Path | None = None) -> None:
    """Run a command that must end well; its transcript is kept, with the words that were given."""
    code, out, err = run(words)
    if code != 0:
        raise Broken(f"fragility {' '.join(map(str, words))}\nends with {code}: {(err or out)[-1500:]}")
    if kept is not None:
        told = SECONDS.sub("(", out + err)
        kept.write_text(f"$ fragility {' '.join(map(str, words))}\n{told}[exit code {code}]\n")


def write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n")


def write_keys() -> None:
    """Write a key pair that is the same each time, in the form of `fragility keygen`."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"golden").digest())
    KEY.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    KEY.chmod(0o600)
    public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    PUBLIC_KEY.write_bytes(public)


def require_same(one: Path, other: Path) -> None:
    """Ways that must write the same folder are compared where they are made."""
    differing = [line for line in list_differences(one, other) if "report.html" not in line]  # it names its folder
    if differing:
        raise Broken(f"{one} and {other} differ: {differing[0]}")


def make_case(case: Case, quick: bool, skipped: dict[str, str]) -> None:
    X, y = read_rows(case)
    trained, rows = slice(0, TRAINED), slice(TRAINED, TRAINED + (40 if quick else case.rows))
    model = case.build(X[trained]).fit(X[trained], y[trained])
    X, y, training = X[rows], y[rows], X[trained]
    if case.table != "bank_marketing":
        X, y = X.reset_index(drop=True), y.reset_index(drop=True)
    made = [Work(case, space, tuple(X.index), -(-len(X) // 2)) for space in case.spaces]
    made[0].inputs.mkdir(parents=True)
    X.assign(**{LABEL: y}).to_parquet(made[0].data)
    for file in (made[0].file, made[0].file_copy):
        save_model(model, file)
    for work in made:
        start = time.perf_counter()
        make_audits(work, model, training, X, quick)
        audited = time.perf_counter() - start
        if case.clustered and not quick and work.space == "transformed":
            make_clustered(work, skipped)
        if not quick:
            make_words(work, model, X)
        print(f"{work.folder}: {audited:.0f} s of audits, {time.perf_counter() - start:.0f} s", flush=True)
    if not quick and len(made) > 1:
        run_well(compare_words(made[0], made[-1]), made[0].words / "compare.txt")


def make_audits(work: Work, model: Any, training: Any, rows: Any, quick: bool) -> None:
    work.words.mkdir(parents=True)
    protocol = fit_protocol(model, training, work.space, work.case.threshold)
    protocol.save(work.protocol_file)
    certificates = audit_in_memory(model, rows, protocol, work.blocks, work.folder / "memory")
    (work.words / "certificates.txt").write_text("\n".join(describe_certificates(certificates)) + "\n")
    run_well(audit_words(work, str(work.stream)), work.words / "audit.txt")
    if quick:
        return
    resumed = work.folder / "resumed"
    interrupt_audit(work, protocol, resumed)
    run_well([*audit_words(work, str(resumed)), "--resume"])
    require_same(resumed, work.stream)


def make_clustered(work: Work, skipped: dict[str, str]) -> None:
    for name, needed in (("ray", "ray"), ("spark", "pyspark")):
        if importlib.util.find_spec(needed) is None:
            skipped[name] = f"{needed} is not installed"
        elif name == "spark" and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
            skipped[name] = "Java is not installed"
        else:
            folder = work.folder / name
            run_well([*audit_words(work, str(folder)), "--on", name, "--workers", "1"])
            require_same(folder, work.stream)


def make_words(work: Work, model: Any, rows: Any) -> None:
    first = work.space == work.case.spaces[0]
    for name, words in list_commands(work):
        if first or name not in ONCE:
            run_well(words, work.words / f"{name}.txt")
    protocol = library().Protocol.load(work.protocol_file)
    write_json(work.words / "guard.json", ask_guard(model, protocol, rows[:8]))
    if first:
        write_json(work.words / "singly.json", certify_singly(model, protocol, rows[:4], work.case.lattice))


def make(out: Path, quick: bool, only: Sequence[str]) -> None:
    """Write a golden folder."""
    if out.exists() and any(out.iterdir()):
        raise Broken(f"{out} is not empty; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(out)  # all paths are relative, since they stand in what commands say
    Path("inputs").mkdir()
    write_keys()
    skipped: dict[str, str] = {}
    wanted = [case for case in CASES if (case.name in only if only else case.quick or not quick)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in wanted:
            make_case(case, quick, skipped)
    names = ("numpy", "pandas", "pyarrow", "scikit-learn", "lightgbm", "catboost", "numba")
    made = {"python": platform.python_version()} | {name: version(name) for name in names}
    write_json(Path("made.json"), {"quick": quick, "models": [case.name for case in wanted], "skipped": skipped} | made)
    for name, reason in skipped.items():
        print(f"{name} is skipped: {reason}")


# --- compare ----------------------------------------------------------------------------------------------------


def list_files(folder: Path) -> dict[str, Path]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in NOT_COMPARED)
    return {path.relative_to(folder).as_posix(): path for path in found}


def list_differences(old: Path, new: Path) -> Iterator[str]:
    """Give one sentence for each file that is added, missing or changed."""
    before, after = list_files(old), list_files(new)
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"missing: {name}"
        elif name not in before:
            yield f"added: {name}"
        elif (one := before[name].read_bytes()) != (other := after[name].read_bytes()):
            yield f"changed: {name}: {find_difference(name, one, other)}"


def find_difference(name: str, one: bytes, other: bytes) -> str:
    """Say where two files first differ, by their kind."""
    if name.endswith(".parquet"):
        return find_in_tables(one, other)
    if name.endswith(".zip"):
        return find_in_archives(one, other)
    try:
        return find_in_lines(one.decode().splitlines(), other.decode().splitlines())
    except UnicodeDecodeError:
        place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        return f"byte {place}"


def find_in_tables(one: bytes, other: bytes) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    a, b = (pq.read_table(pa.BufferReader(data)) for data in (one, other))
    if a.column_names != b.column_names:
        gone, come = (
            sorted(set(x) - set(y)) for x, y in ((a.column_names, b.column_names), (b.column_names, a.column_names))
        )
        return f"columns: {gone} gone, {come} come" if gone or come else "columns stand in another order"
    if a.num_rows != b.num_rows:
        return f"{a.num_rows} rows, then {b.num_rows}"
    for name in a.column_names:
        if a.schema.field(name) != b.schema.field(name):
            return f"column {name}: {a.schema.field(name)}, then {b.schema.field(name)}"
        for row, (x, y) in enumerate(zip(a[name].to_pylist(), b[name].to_pylist(), strict=True)):
            if repr(x) != repr(y):  # NaN is itself, and -0.0 is not 0.0
                return f"column {name}, row {row}: {shorten(x)}, then {shorten(y)}"
    told = "" if a.schema.metadata == b.schema.metadata else ", by the metadata of the schema"
    return f"the same table in other bytes{told}"


def find_in_archives(one: bytes, other: bytes) -> str:
    a, b = (zipfile.ZipFile(io.BytesIO(data)) for data in (one, other))
    if a.namelist() != b.namelist():
        return f"members: {sorted(set(a.namelist()) ^ set(b.namelist())) or 'in another order'}"
    for name in a.namelist():
        if a.read(name) != b.read(name):
            return f"{name}: {find_difference(name, a.read(name), b.read(name))}"
    return "the same members in other bytes"


def find_in_lines(one: list[str], other: list[str]) -> str:
    for number, (a, b) in enumerate(zip_longest(one, other, fillvalue="(no line)"), 1):
        if a != b:
            start = max(
                0, next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))) - 40
            )
            return f"line {number}: {shorten(a[start:])}, then {shorten(b[start:])}"
    return "line ends"


def shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."


def compare(old: Path, new: Path) -> int:
    """Print what differs; return the exit code."""
    for folder in (old, new):
        if not (folder / "made.json").is_file():
            raise Broken(f"{folder} is no finished golden folder: it has no made.json")
    differences = list(list_differences(old, new))
    for line in differences:
        print(line)
    print(f"{len(differences)} of {len(list_files(old).keys() | list_files(new).keys())} files differ")
    return int(bool(differences))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make", help="write a golden folder")
    maker.add_argument("out", type=Path)
    maker.add_argument("--quick", action="store_true", help="three models, 40 rows, in memory and streamed")
    maker.add_argument("--only", action="append", default=[], choices=[case.name for case in CASES], metavar="MODEL")
    comparer = commands.add_parser("compare", help="list the files that differ")
    comparer.add_argument("old", type=Path)
    comparer.add_argument("new", type=Path)
    given = parser.parse_args()
    try:
        if given.command == "compare":
            return compare(given.old, given.new)
        os.environ.update(
            FIXED, PYTHONPATH=os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        )
        sys.path.insert(0, str(SOURCE))
        make(given.out, given.quick, given.only)
    except Broken as error:
        print(f"golden: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
