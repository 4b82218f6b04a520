"""The ways people use an audit, each with what they would check of it, on one table and one model."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fragility_check
import joblib
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from command_line import Done, run
from ordinary_asking import Asker, check_rows
from ordinary_cells import Cell
from ordinary_models import SLOW_TO_ASK, build, fit_labels, fit_table
from ordinary_tables import read_ordinary

import fragility as fg
from fragility.base.errors import DataError

TRAINED, AUDITED, AUDITED_RAW, AUDITED_SLOWLY = 3000, 2000, 120, 60
CHECKED = 8  # certificates that the pipeline is asked about
VERIFIED, INTERVALS, MODES, ANY_VALUE = 8, 4, 2000, 1000
WITH_INTERVALS = {"python", "report", "guard"}
IN_BLOCKS = 16  # rows with every block


@dataclass(frozen=True)
class Work:
    """A folder with a fitted model, its training rows and the rows to audit, as a user has them."""

    folder: Path
    cell: Cell

    @property
    def model(self) -> Any:
        return joblib.load(self.folder / "model.joblib")

    @property
    def rows(self) -> pd.DataFrame:
        """The rows to audit, with the ids that the commands give them."""
        table = pd.read_parquet(self.folder / "test.parquet").drop(columns="label")
        return table.reset_index(drop=True) if self.is_csv and table.index.name is None else table

    @property
    def training(self) -> pd.DataFrame:
        return pd.read_parquet(self.folder / "train.parquet").drop(columns="label")

    def hand_over(self, table: pd.DataFrame) -> Any:
        """Return rows as the audit was given them."""
        return pytest.importorskip("polars").from_pandas(table) if self.cell.source == "polars" else table

    @property
    def differs_in_pandas(self) -> bool:
        """Whether the model may answer otherwise to the commands: encoders tell None, as polars says, from NaN."""
        return self.cell.source == "polars" and bool(self.rows.select_dtypes(exclude="number").isna().any(axis=None))

    @property
    def is_csv(self) -> bool:
        return self.cell.source == "csv"

    def file(self, name: str) -> Path:
        """Return the rows to train or to audit, as the commands are given them."""
        return self.folder / f"{name}.{'csv' if self.is_csv else 'parquet'}"

    def words(self, *given: object) -> list[object]:
        index = self.rows.index.name
        return [*given, "--target", "label", "--trust", *(["--id", index] if self.is_csv and index else [])]

    @property
    def settings(self) -> dict[str, Any]:
        """What is declared of the evidence, as `Protocol.fit` takes it."""
        groups = {"fields": "raw-origin", "merged": "merged", "declared": self.folder / "groups.json"}[self.cell.groups]
        return {"groups": groups} | ({} if self.cell.space == "default" else {"space": self.cell.space})

    def audit_words(self, out: str, *more: object) -> list[object]:
        declared = [word for name, value in self.settings.items() for word in (f"--{name}", value)]
        given = ["audit", self.folder / "model.joblib", self.file("test"), "--train", self.file("train")]
        return self.words(*given, "--out", self.folder / out, *declared, *more)

    @property
    def labels(self) -> list[object]:
        return [word for word in self.words("--labels", self.file("test")) if word != "--trust"]

    @property
    def asked(self) -> list[object]:
        return ["--model", self.folder / "model.joblib", "--data", self.file("test")]


def prepare(cell: Cell, folder: Path, models: Path) -> Work:
    """Write what a user starts from; a model is fitted once for all cells that have it."""
    X, y = read_ordinary(cell.table)
    X, y = fit_table(cell.model, X), fit_labels(cell.model, y)
    n_train = min(TRAINED, len(X) * 3 // 5)
    n_test = AUDITED_RAW if cell.space == "raw" or X.shape[1] > 40 else AUDITED
    if cell.model in SLOW_TO_ASK:
        n_test = AUDITED_SLOWLY
    for name, part in (("train", slice(0, n_train)), ("test", slice(n_train, n_train + n_test))):
        table = X[part].assign(label=y[part])
        table.to_parquet(folder / f"{name}.parquet")
        if cell.source == "csv":
            table.to_csv(folder / f"{name}.csv", index=table.index.name is not None)
    (folder / "groups.json").write_text(json.dumps(declare_groups(list(X))))
    kept = models / f"{cell.table}-{cell.model}-{cell.preparation}.joblib"
    if not kept.exists():
        train = pd.read_parquet(folder / "train.parquet")
        labels = train.pop("label")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = build(cell.model, cell.preparation, train).fit(train, labels)
        unfinished = kept.with_suffix(f".{os.getpid()}")
        joblib.dump(fitted, unfinished)
        unfinished.replace(kept)
    (folder / "model.joblib").symlink_to(kept)
    return Work(folder, cell)


def as_it_is(table: pd.DataFrame) -> pd.DataFrame:
    return table


def declare_groups(names: list[str]) -> dict[str, str]:
    """Return field -> block: the first two fields together, the last three, and each other one alone."""
    return {name: "first" if name in names[:2] else "last" if name in names[-3:] else name for name in names}


def ends_well(*words: object, code: int = 0) -> Done:
    done = run(*words)
    assert done.code == code, f"{' '.join(map(str, words[:2]))} ends with {done.code}: {(done.err or done.out)[-600:]}"
    return done


def bytes_of(folder: Path) -> dict[str, str]:
    """Return what is in a folder: names and digests."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# --- every cell -------------------------------------------------------------------------------------------------


def audit(work: Work) -> None:
    """Audit and verify on the command line, and ask the pipeline about a sample of the claims."""
    intervals = ["--intervals", INTERVALS] if WITH_INTERVALS.intersection(work.cell.ways) else []
    if work.cell.source == "polars":
        audit_polars(work)
    else:
        done = ends_well(*work.audit_words("audit", *intervals))
        assert "Traceback" not in done.err
    if not work.differs_in_pandas:
        verified = ends_well(*work.words("verify", work.folder / "audit", *work.asked, "--sample", VERIFIED))
        assert "holds" in verified.out
        check_alone(work, "audit")
    check_claims(work, "audit")


def audit_polars(work: Work) -> None:
    """Audit a table of polars in Python, verify it there, and save it as the commands do."""
    pytest.importorskip("polars")
    model, rows, training = work.model, work.hand_over(work.rows), work.hand_over(work.training)
    protocol = fg.Protocol.fit(model, training, **work.settings)
    intervals = INTERVALS if WITH_INTERVALS.intersection(work.cell.ways) else None
    ids = list(work.rows.index)
    certificates = fg.audit(model, rows, protocol, ids=ids, modes=MODES, intervals=intervals, progress=False)
    outcome = fg.verify(certificates, model, rows, ids=ids, sample=VERIFIED)
    assert outcome, str(outcome)
    certificates.save(work.folder / "audit")


def check_alone(work: Work, name: str) -> None:
    """The verifier that shares no code with the library agrees, about a sample of the claims."""
    asked = fragility_check.take_apart(work.model)
    found = fragility_check.check(work.folder / name, work.rows, **asked, sample=VERIFIED, limit=256, seed=0)
    assert found.exit_code == 0, str(found)


def check_claims(work: Work, name: str) -> None:
    """Ask the pipeline about a sample of the claims of an audit, and about the class of every row."""
    certificates, rows = fg.Certificates.load(work.folder / name), work.rows
    model, protocol = work.model, certificates.protocol.to_dict()
    hand_over = work.hand_over if name == "audit" else as_it_is  # all other audits are made by commands
    listed = list(certificates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = np.asarray(model.predict(hand_over(rows[: len(listed)]))).ravel()
        sure = np.sort(model.predict_proba(hand_over(rows[: len(listed)])), axis=1)
    near = sure[:, -1] - sure[:, -2] < 1e-6
    other = [
        c.id for c, label, tie in zip(listed, said, near, strict=True) if str(c.predicted) != str(label) and not tie
    ]
    assert not other, f"predicted differs from predict in {len(other)} rows: {other[:5]}"
    chance = np.random.default_rng(0)
    with_intervals = [place for place, one in enumerate(listed) if one.intervals is not None]
    places = chance.permutation(len(listed))[: CHECKED // 2].tolist()
    places += chance.permutation(with_intervals or len(listed))[: CHECKED - len(places)].tolist()
    check_rows(Asker(model, protocol, rows, hand_over), [listed[place] for place in places], places)


# --- one way ----------------------------------------------------------------------------------------------------


def use_python(work: Work) -> None:
    """Python's audit is the command line's, byte for byte, and so are its certificates in memory; they verify."""
    model, rows = work.model, work.rows
    stored = fg.Certificates.load(work.folder / "audit")
    protocol = fg.Protocol.fit(model, work.training, **work.settings)
    if not work.is_csv:  # a file of text does not tell categories, booleans and whole numbers with gaps
        assert protocol.digest == stored.protocol.digest
    protocol = stored.protocol
    id_column = work.rows.index.name if work.is_csv else None
    given = (model, work.file("test"), protocol, work.folder / "python")
    any_value = (
        ANY_VALUE if "any_value" in stored.manifest.blocks else None
    )  # as the command does of models it can read
    blocks = {"modes": MODES, "intervals": INTERVALS, "any_value": any_value}
    fg.audit_files(*given, target="label", id_column=id_column, progress=False, **blocks)
    if work.cell.source != "polars":
        assert_same_bytes(work.folder / "audit", work.folder / "python")
    given, ids = work.hand_over(rows[:60]), list(rows.index[:60])
    certificates = fg.audit(model, given, protocol, ids=ids, lattice=True, modes=True, progress=False)
    listed = list(certificates)
    assert [one.digest for one in listed] == [one.digest for one in stored][:60]
    outcome = fg.verify(certificates, model, given, ids=ids, sample=20)
    assert outcome, str(outcome)
    assert str(certificates) and listed[0].story() and listed[0].sentence()
    assert len(certificates.to_pandas()) == 60


def assert_same_bytes(one: Path, other: Path) -> None:
    a, b = bytes_of(one), bytes_of(other)
    differing = [name for name in sorted((a.keys() | b.keys()) - {"report.html"}) if a.get(name) != b.get(name)]
    assert not differing, f"equal audits differ in {differing}"


def use_report(work: Work) -> None:
    """A report with everything that can be given to it, the same twice; and the lists on the terminal."""
    given = [*work.asked, *work.labels, "--trust"]
    for name in ("report.html", "again.html"):
        ends_well("report", work.folder / "audit", *given, "--out", work.folder / name)
    html = (work.folder / "report.html").read_bytes()
    assert html == (work.folder / "again.html").read_bytes()
    assert b"</html>" in html
    ends_well("report", work.folder / "audit", "--out", work.folder / "report.md")
    first = next(iter(fg.Certificates.load(work.folder / "audit")))
    assert ends_well("show", work.folder / "audit", "--row", first.id).out
    assert ends_well("show", work.folder / "audit").out


def use_gate(work: Work) -> None:
    """An audit passes the rules that were made from it, and equals itself under an allowance."""
    audit, rules, change = (work.folder / name for name in ("audit", "gate.toml", "change.toml"))
    init = ["gate", "init", audit, "--out", rules]
    done = run(*init)
    if done.code == 2 and "too few to bound a share" in done.err:  # it says what to do instead
        done = ends_well(*init, "--min-confidence", "0.5")
    assert done.code == 0, done.err
    ends_well("gate", audit, "--rules", rules, "--out", work.folder / "gate.json")
    assert json.loads((work.folder / "gate.json").read_text())["outcome"] != "fail"
    ends_well("gate", "init", audit, "--allowance", "0.05", "--out", change)
    ends_well("gate", audit, "--against", audit, "--rules", change)


def use_pack(work: Work) -> None:
    ends_well("pack", work.folder / "audit", "--out", work.folder / "pack.zip", *work.labels)
    done = ends_well("verify", work.folder / "pack.zip")
    assert "Traceback" not in done.err


def use_compare(work: Work) -> None:
    """Against the same model under another baseline."""
    ends_well(*work.audit_words("other", "--baseline", "median", "--other-baselines", "none"))
    both = work.folder / "audit", work.folder / "other"
    ends_well("report", *both, "--out", work.folder / "changes.csv", "--out", work.folder / "both.html")
    assert "The audits side by side" in ends_well("report", *both, *work.labels).out


def use_policy(work: Work) -> None:
    """Held-out labels under stress, and a policy from them; that it cannot be had is a result."""
    labels, policy = work.folder / "labels.parquet", work.folder / "policy.json"
    stress = ["evaluate", "labels", work.folder / "audit", *work.asked, "--rows", "150", "--out", labels]
    words = ["policy", work.folder / "audit", "--stress", labels, "--risk", "0.1", "--out", policy]
    ends_well(*work.words(*stress))
    done = run(*words)
    if done.code == 2 and "label them with a lower --tau-confidence" in done.err:  # no prediction is confident
        ends_well(*work.words(*stress, "--tau-confidence", "0.5"))
        done = ends_well(*words)
    assert done.code == 0 and policy.exists(), done.err
    done = ends_well(*words[:-2], "--out", work.folder / "chosen.json", "--score", "exposure,rehearsal,confidence")
    chosen = json.loads((work.folder / "chosen.json").read_text())
    assert chosen["by"] in chosen["tried"] == ["exposure", "rehearsal", "confidence"], done.out
    table = pq.read_table(labels)
    score = dict(zip(table["id"].to_pylist(), table["rehearsal"].to_pylist(), strict=True))
    audit = fg.open_audit(work.folder / "audit")
    labelled = audit.take(np.flatnonzero(np.isin(np.array(audit.read_columns("id")["id"].to_pylist()), list(score))))
    best = labelled.most_fragile(5, 0.0, "rehearsal", labels=table).claims.ids
    assert [score[own] for own in best] == sorted(score.values(), reverse=True)[: len(best)]


def use_guard(work: Work) -> None:
    """The guard decides as the deployed pipeline does, also where fields are missing."""
    model, rows = work.model, work.rows[:40]
    protocol = fg.Certificates.load(work.folder / "audit").protocol
    guard = fg.Guard(model, protocol)
    gone = [name for name in rows if rows[name].isna().any()] or list(rows.columns[:1])
    holes = rows.copy()
    for name in gone[:2]:
        cells = holes[name].astype(float) if holes[name].dtype.kind in "iub" else holes[name]
        holes[name] = cells.mask(np.arange(len(holes)) % 3 == 0)
    checks = guard.check_rows(holes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = np.asarray(model.predict(holes)).ravel()
            sure = np.sort(model.predict_proba(holes), axis=1)
    except Exception:  # whatever a model says that cannot answer where a field is missing
        said = None
    answers = list(checks)
    assert len(answers) == len(holes)
    if said is not None:
        near = sure[:, -1] - sure[:, -2] < 1e-6
        wrong = [
            (check.id, check.decision, label)
            for check, label, tie in zip(answers, said, near, strict=True)
            if str(check.decision) != str(label) and not tie
        ]
        assert not wrong, f"the guard decides otherwise than the pipeline: {wrong[:3]}"
    for place in (0, 1):  # a dot product's rounding depends on the shape of the batch
        alone, together = guard.check(holes.iloc[[place]]), answers[place]
        assert alone.decision == together.decision and alone.missing == together.missing
        assert np.isclose(alone.confidence, together.confidence, rtol=1e-9)
        assert (alone.p_change is None) == (together.p_change is None)
        assert alone.p_change is None or np.isclose(alone.p_change, together.p_change, rtol=1e-9, atol=1e-12)


def use_parity(work: Work) -> None:
    """A model answers as itself, in every state of an audit."""
    model, copy = work.folder / "model.joblib", work.folder / "copy.joblib"
    copy.write_bytes(model.read_bytes())
    words = work.words("parity", model, copy, "--data", work.file("test"))
    ends_well(*words, "--protocol", work.folder / "audit", "--most-rows", "60", "--out", work.folder / "parity.json")


def use_blocks(work: Work) -> None:
    """Every block for every row, verified and asked about as the audit of every cell."""
    rows = ["--rows", IN_BLOCKS]
    asked = ["--lattice", "all", "--modes", "all", "--rates", "0.05", "--intervals", INTERVALS, "--any-value", "all"]
    ends_well(*work.audit_words("blocks", *asked, *rows))
    verified = ends_well(*work.words("verify", work.folder / "blocks", *work.asked, "--sample", VERIFIED, *rows))
    assert "holds" in verified.out
    check_claims(work, "blocks")
    certificates = fg.Certificates.load(work.folder / "blocks")
    check_witnesses(work, certificates)
    for one in certificates:
        assert one.smallest_state is not None and one.modes is not None
        assert 0 <= one.failure_low <= one.failure_probability <= one.failure_high <= 1
    ends_well(
        *work.words("reliability", work.folder / "blocks", *work.asked, "--rates", "0.05", *rows),
        *("--out", work.folder / "reliability.json"),
    )


def check_witnesses(work: Work, certificates: fg.Certificates) -> None:
    """The pipeline itself decides otherwise on the rows with the values of the first witnesses; a gate counts them."""
    witnesses = [one.any_value.witness if one.any_value else None for one in certificates]
    assert any(one.any_value is not None for one in certificates)
    known = [place for place, witness in enumerate(witnesses) if witness is not None][:CHECKED]
    model = work.model
    for place in known:
        witness, row = witnesses[place], work.rows.iloc[[place]].copy()
        for name, value in witness.values.items():
            row[name] = pd.Series([value], index=row.index).astype(object if value is None else row[name].dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said, p = str(np.asarray(model.predict(row)).ravel()[0]), np.sort(model.predict_proba(row)[0])
        assert said == str(witness.predicted) or p[-1] - p[-2] < 1e-6, f"row {place}: {witness.to_text()}, got {said}"
    gate = fg.Gate((fg.Rule(measure="any_value_budget", groups=1, at_most=1.0),), min_confidence=0.0)
    if all(one.any_value.proved >= 1 or one.any_value.budget == 1 for one in certificates):
        assert gate.check(certificates).outcome == "pass"
    else:  # a model that could only be asked about some values
        with pytest.raises(DataError, match=r"leaves .* open; the model could only be asked"):
            gate.check(certificates)


def use_evaluate(work: Work) -> None:
    """Every ranking is judged against labels that no score has seen; what cannot be judged says why."""
    judged = work.folder / "evaluation.json"
    words = work.words("evaluate", work.folder / "audit", *work.asked, "--draws", 4, "--random-orders", 1)
    ends_well(*words, "--out", judged)
    assert json.loads(judged.read_text())["report"]["results"]


USES = {name.removeprefix("use_"): use for name, use in globals().items() if name.startswith("use_")}


# --- whole processes ------------------------------------------------------------------------------------------

IN_ONE_PROCESS = """
import json, sys
from fragility.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as stop:
        if stop.code:
            raise
"""


def compare_fresh_processes(works: list[Work]) -> None:
    """The same audits in two fresh processes, which make them in either order, and in this one: the same bytes."""
    places = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    for name, order in (("fresh", works), ("fresher", works[::-1])):
        commands = [[str(word) for word in work.audit_words(name)] for work in order]
        process = [sys.executable, "-c", IN_ONE_PROCESS, json.dumps(commands)]
        done = subprocess.run(process, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-600:]
    for work in works:
        assert_same_bytes(work.folder / "fresh", work.folder / "fresher")
        assert_same_bytes(work.folder / "fresh", work.folder / "audit")
