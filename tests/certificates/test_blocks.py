"""Every kind of block, and one made up here: declared, made, saved, resumed, verified, and hard to forge.

What each kind says is tested beside it. `ToyBlock` shows what a new kind needs: this class, and its place in BLOCKS.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import naive_blocks
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from block_tables import change_root, declare, forge_folder, hide_row, set_cell
from sklearn.ensemble import GradientBoostingClassifier

import fragility as fg
from fragility.auditing import files as stream
from fragility.audits.folder import WORK_FOLDER
from fragility.audits.integrity import check_integrity
from fragility.audits.manifest import manifest_text
from fragility.base.errors import CertificateError, DataError
from fragility.blocks.all import BLOCKS
from fragility.blocks.block import (
    TEXT,
    Block,
    BlockRecheck,
    Column,
    Contradictions,
    Declaration,
    Requests,
    in_units,
)
from fragility.blocks.checks import Difference, find_differences
from fragility.blocks.choice import ChosenRows
from fragility.blocks.claims import Claims, float_column, whole_column
from fragility.engines.engine import Run
from fragility.evidence import EvidenceRows
from fragility.models import ClassLabel
from fragility.protocol import Protocol

ROWS = 24


# --- a block made up here -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyDeclaration(Declaration):
    factor: float


@dataclass(eq=False)
class ToyRecheck(BlockRecheck):
    def compare(self, block: pa.Table, claims: Claims, rows: EvidenceRows) -> list[Difference]:
        declared = self.own.declared
        assert isinstance(declared, ToyDeclaration)
        stated, own = self.own.read(block), declared.factor * claims.margin
        return find_differences(rows.ids, "toy_margin", stated, own, self.tolerance)

    def describe(self) -> str:
        return f"{self.rows} rows multiplied again, {self.result}"


class ToyBlock(Block):
    """A multiple of the margin, and its sign in words."""

    name = "toy"
    rows = "rows with a toy"
    declaration = ToyDeclaration
    recheck = ToyRecheck
    claims = ("margin",)
    by_default = True  # the public functions have no keyword for it

    def columns(self, declared: ToyDeclaration, protocol: Protocol) -> list[Column]:
        return [Column("toy_margin", pa.float64(), in_units(1e-6)), Column("toy_sign", pa.string(), TEXT)]

    def declare(self, wanted: Requests, rows: EvidenceRows, protocol: Protocol, run: Run) -> ToyDeclaration:
        most = None if wanted.get("rates") is None else 5  # a keyword of the other blocks stands in for its own
        return ToyDeclaration(engine="linear", rows=most and ChosenRows(most, "exposure"), factor=2.0)

    def check_declaration(self, declared: ToyDeclaration, protocol: Protocol, fingerprint: str) -> None:
        if declared.factor != 2.0:
            raise CertificateError("blocks.toy.factor in the manifest must be 2")

    def make(
        self, rows: EvidenceRows, protocol: Protocol, declared: Any, claims: Mapping[str, Any], run: Run
    ) -> Mapping[str, Any]:
        margin = declared.factor * claims["margin"]
        return {"toy_margin": margin, "toy_sign": np.where(margin < 0, "minus", "plus").tolist()}

    def read(self, table: pa.Table, declared: Any, protocol: Protocol) -> Any:
        whole_column(table, "toy_sign")
        return float_column(table, "toy_margin")

    def find_contradictions(
        self, values: Any, claims: Claims, declared: Any, protocol: Protocol, classes: Sequence[ClassLabel]
    ) -> Contradictions:
        return [(int(i), "toy_margin") for i in np.flatnonzero(np.abs(values) > 1e6)]


# --- the suite ------------------------------------------------------------------------------------------------

# By kind: the keywords for every row, those for chosen rows, and a column with a value that only a model denies.
KINDS: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None, tuple[str, Any]]] = {
    "lattice": ({"lattice": True}, {"lattice": None}, ("smallest_count", 7)),
    "modes": ({"modes": True}, {"modes": 5}, ("flip_chance_noisy", 1.0)),
    "intervals": ({"intervals": True}, {"intervals": 5}, ("interval_value", None)),
    "any_value": ({"any_value": True}, {"any_value": 5}, ("any_value_chance_two", 0.5)),
    "baselines": (None, {"baselines": True}, ("exposure_mean", 0.5)),
    "toy": ({}, {"rates": 0.1}, ("toy_margin", 0.25)),
}
CASES = [
    (name, which) for name, (every, chosen, _) in KINDS.items() for which, own in (("every", every), ("chosen", chosen))
    if own is not None
]  # fmt: skip


def test_the_suite_knows_every_kind() -> None:
    assert list(BLOCKS) == list(KINDS)


@pytest.fixture(autouse=True, scope="module")
def toy() -> Iterator[None]:
    BLOCKS["toy"] = ToyBlock()
    yield
    del BLOCKS["toy"]


@pytest.fixture(scope="module")
def model_and_rows() -> tuple[Any, pd.DataFrame, fg.Protocol]:
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "installment_commitment", "credit_amount"]].astype(float)
    model = GradientBoostingClassifier(n_estimators=12, max_depth=3, random_state=0).fit(X[:700], y[:700])
    protocol = fg.Protocol.fit(model, X[:700], depth=3, severities=(0.5, 1.0), min_confidence=0.7)
    return model, X[700 : 700 + ROWS].reset_index(drop=True), protocol


@pytest.fixture(scope="module", params=CASES, ids=" of ".join)
def case(request, model_and_rows) -> tuple[str, dict[str, Any], fg.Certificates]:
    name, which = request.param
    asked = KINDS[name][0 if which == "every" else 1]
    assert asked is not None
    model, X, protocol = model_and_rows
    options = {"lattice": False, "baselines": False, **asked}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fragility.blocks.lattice.making.MOST_EXPOSED", 6)
        patch.setattr("fragility.blocks.lattice.values.MOST_EXPOSED", 6)
        if name != "toy":
            patch.setattr(ToyBlock, "by_default", False)
        return name, options, fg.audit(model, X, protocol, **options)


@pytest.fixture(autouse=True)
def few(monkeypatch, request) -> None:
    monkeypatch.setattr("fragility.blocks.lattice.making.MOST_EXPOSED", 6)
    monkeypatch.setattr("fragility.blocks.lattice.values.MOST_EXPOSED", 6)
    if "case" in request.fixturenames and request.getfixturevalue("case")[0] != "toy":
        monkeypatch.setattr(ToyBlock, "by_default", False)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."}


def test_it_is_declared_and_its_digests_follow_the_page(case, model_and_rows) -> None:
    name, _, certs = case
    declared, own = certs.manifest.blocks[name], certs.blocks[name]
    document = certs.manifest.to_dict()["blocks"][name]
    assert list(document)[:2] == ["engine", "rows"] and list(document)[-1] == "root_digest"
    table = certs.block_table(name)
    assert table.column_names[0] == "id" and table.column_names[-1] == "digest"
    assert certs.ids_of_block(name) == table.column("id").to_pylist()
    hashed = [
        (c.name, c.hashed and c.hashed.kind, c.hashed and c.hashed.unit, c.hashed and c.hashed.names)
        for c in own.columns
    ]
    digests = naive_blocks.digests(table.to_pylist(), name, certs.manifest.to_dict(), hashed)
    assert table.column("digest").to_pylist() == digests
    assert declared.root_digest == naive_blocks.root(digests)


def test_a_new_column_stands_only_in_its_own_table(case, model_and_rows, tmp_path) -> None:
    name, _, certs = case
    model, X, protocol = model_and_rows
    folder = certs.save(tmp_path / "with")
    if name != "toy":  # which is in every audit here
        without = fg.audit(model, X, protocol, lattice=False)
        assert name not in without.manifest.blocks and name not in without[0].blocks
        assert certs.table.select(without.table.column_names) == without.table
        assert certs.manifest.root_digest == without.manifest.root_digest and fg.prove(certs, 3) == fg.prove(without, 3)
        more = set(files_of(folder)) - set(files_of(without.save(tmp_path / "without")))
        assert more and all(file.startswith(f"{name}-") for file in more)
    loaded = fg.Certificates.load(folder)
    assert loaded.table.equals(certs.table) and loaded.manifest == certs.manifest
    stored = fg.open_audit(folder)
    assert stored.block_table(name).equals(certs.block_table(name)) and stored.certificate(7) == certs[7]
    assert name in stored.certificate(0).blocks and name in certs[0].blocks


def test_memory_and_stream_and_resumed_give_the_same_bytes(case, model_and_rows, tmp_path, monkeypatch) -> None:
    name, options, certs = case
    model, X, protocol = model_and_rows
    data = tmp_path / "rows.parquet"
    X.to_parquet(data)
    run = partial(fg.audit_files, model, data, protocol, **options)
    assert files_of(run(tmp_path / "whole").folder) == files_of(certs.save(tmp_path / "memory"))
    parts = run(tmp_path / "parts", part_rows=15)
    assert parts.manifest == certs.manifest and parts.block_table(name).equals(certs.block_table(name))
    write = stream.Journal.write

    def stops(journal: Any, part: Any, files: Any) -> None:
        if part.place == 1:
            raise KeyboardInterrupt
        write(journal, part, files)

    monkeypatch.setattr(stream.Journal, "write", stops)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", part_rows=15)
    monkeypatch.setattr(stream.Journal, "write", write)
    for other in {"toy": (), "lattice": (False,), "baselines": (False,)}.get(name, (False, 3)):
        with pytest.raises(DataError, match=f"begun with other choices about the {name} block"):
            run(tmp_path / "cut", part_rows=15, resume=True, **{name: other})
    begun = list((tmp_path / "cut" / WORK_FOLDER).glob(f"{name}-00000-*"))
    assert begun or certs.manifest.blocks[name].rows is not None
    for damaged in begun:  # made again with its part
        damaged.write_bytes(b"damaged")
    for _ in range(2):  # the second time there is nothing to do
        run(tmp_path / "cut", part_rows=15, resume=True)
        assert files_of(tmp_path / "cut") == files_of(tmp_path / "parts")


def test_it_verifies_and_so_does_a_selection(case, model_and_rows, tmp_path) -> None:
    name, _, certs = case
    model, X, _ = model_and_rows
    result = fg.verify(certs, model, X)
    assert result.complete and name in [check.name for check in result.checks], str(result)
    assert fg.verify(certs, model, X, sample=5, seed=1)
    for place, some in enumerate((certs[5:20], certs.take([5, 1, 8]))):
        assert (name in some.blocks) == BLOCKS[name].in_selections
        result = fg.verify(some.save(tmp_path / str(place)), model, X)
        assert result and not result.complete, str(result)


def test_a_forged_value_is_refused(case, model_and_rows, tmp_path) -> None:
    name, _, certs = case
    model, X, _ = model_and_rows
    column, value = KINDS[name][2]
    folder = certs.save(tmp_path / "a")

    def change(table: pa.Table) -> pa.Table:
        told = table.column(column).to_pylist()
        row = next(
            i for i, own in enumerate(told) if own is not None and (not isinstance(own, list) or any(own) or value)
        )
        return set_cell(table, column, [value for _ in told[row]] if isinstance(told[row], list) else value, row)

    forge_folder(folder, name, change)  # the old digests
    assert [check.name for check in check_integrity(folder) if not check.passed]
    certs.save(folder)
    forge_folder(folder, name, change, rehash=True)
    result = fg.verify(folder, model, X)
    failed = [check.name for check in result.checks if not check.passed]
    assert failed in ([name], ["format"]) and column in str(result), str(result)


def test_forged_rows_are_refused(case, tmp_path) -> None:
    name, _, certs = case
    first = check_integrity(hide_row(certs, name, 1))[0]
    every = certs.manifest.blocks[name].rows is None
    told = f"has no {name} block, and every row must have one" if every else "rows"
    assert not first.passed and told in first.detail
    folder = certs.save(tmp_path / "a")
    for change, told in {
        (lambda table: table.slice(1)): "",
        (lambda table: table.take([1, 0, *range(2, len(table))])): "",
        (lambda table: set_cell(table, "id", 10_000)): "",
        (lambda table: pa.concat_tables([table, table.slice(0, 1)])): "",
        (lambda table: set_cell(table, "digest", None)): "without a digest",
        (lambda table: table.drop_columns([table.column_names[1]])): "must have the columns id",
        (lambda table: table.set_column(0, "id", table.column("id").cast(pa.string()))): "",
    }.items():
        certs.save(folder)
        forge_folder(folder, name, change)
        first = check_integrity(folder)[0]
        assert not first.passed and told in first.detail
    root = change_root(certs.manifest, name, certs.manifest.root_digest)
    checks = check_integrity(fg.Certificates(certs.table, certs.protocol, root))
    assert [difference.field for difference in checks[1].differences] == [f"blocks.{name}.root_digest"]


def test_files_that_were_changed_or_left_out_are_noticed(case, tmp_path) -> None:
    name, _, certs = case
    folder = certs.save(tmp_path / "a")
    (file,) = folder.glob(f"{name}-*.parquet")
    file.write_bytes(file.read_bytes() + b"\0")
    assert "was changed after it was written" in check_integrity(folder)[0].detail
    file.unlink()
    assert "is missing" in check_integrity(folder)[0].detail
    document = json.loads((folder / "manifest.json").read_text())
    del document["files"][file.name]
    (folder / "manifest.json").write_text(json.dumps(document))
    assert "files in the manifest must name the parts" in check_integrity(folder)[0].detail


def test_a_forged_declaration_is_refused(case, tmp_path) -> None:
    name, _, certs = case
    folder = certs.save(tmp_path / "a")
    own = certs.manifest.to_dict()["blocks"][name]
    by = {"exposure": "content", "content": "exposure"}[BLOCKS[name].by]
    for changes in (
        {"engine": "oracle"},
        {"rows": {"most": 3, "by": by}},
        {"rows": {"most": 0, "by": BLOCKS[name].by}},
        {"rows": {"most": 1.5, "by": BLOCKS[name].by}},
        {"rows": 5},
        {"root_digest": None},
        {list(own)[2]: "no"},
    ):
        certs.save(folder)
        forge_folder(folder, name, **changes)
        assert not check_integrity(folder)[0].passed, changes
    document = json.loads((certs.save(folder) / "manifest.json").read_text())
    told: dict[str, dict[str, Any]] = {
        f"has the unknown field 'blocks.x{name}'; the fields of blocks are lattice": {f"x{name}": own},
        "not in the order of the format": {name: dict(reversed(own.items()))},
        "unknown field": {
            name: {**{key: own[key] for key in list(own)[:-1]}, "more": 1, "root_digest": own["root_digest"]}
        },
        "must name the parts": {},
    }
    for words, blocks in told.items():
        (folder / "manifest.json").write_text(manifest_text({**document, "blocks": blocks}))
        first = check_integrity(folder)[0]
        assert not first.passed and words in first.detail, first.detail


def test_one_row_more_or_less_than_declared_is_refused(case) -> None:
    name, _, certs = case
    declared = certs.manifest.blocks[name]
    others = ChosenRows(3, BLOCKS[name].by) if declared.rows is None else None
    manifest = declare(certs.manifest, name, declared.__class__(**{**_fields(declared), "rows": others}))
    assert not check_integrity(fg.Certificates(certs.table, certs.protocol, manifest))[0].passed


def _fields(declared: Declaration) -> dict[str, Any]:
    return {name: getattr(declared, name) for name in declared.__dataclass_fields__}


def test_nothing_covered(case, model_and_rows, tmp_path) -> None:
    name, options, certs = case
    if certs.manifest.blocks[name].rows is None:
        pytest.skip("it has every row")
    model, X, protocol = model_and_rows
    unsure = X[model.predict_proba(X).max(axis=1) < 0.7].reset_index(drop=True)
    none = fg.audit(model, unsure, protocol, **options)
    assert none.ids_of_block(name) == [] and len(none.block_table(name)) == 0
    unsure.to_parquet(tmp_path / "rows.parquet")
    stored = fg.audit_files(model, tmp_path / "rows.parquet", protocol, tmp_path / "a", part_rows=5, **options)
    assert stored.manifest == none.manifest
    result = fg.verify(stored, model, unsure)
    assert result.complete and f"none of the rows recomputed has the {name} block" in str(result)


def test_the_toy_stands_with_all_others(model_and_rows, tmp_path) -> None:
    model, X, protocol = model_and_rows
    options: dict[str, Any] = {"rates": 0.1, "modes": 4, "intervals": True, "any_value": True}
    options["baselines"] = True
    certs = fg.audit(model, X, protocol, **options)
    assert list(certs.blocks) == list(BLOCKS)
    X.to_parquet(tmp_path / "rows.parquet")
    stored = fg.audit_files(model, tmp_path / "rows.parquet", protocol, tmp_path / "a", **options)
    assert files_of(stored.folder) == files_of(certs.save(tmp_path / "b"))
    assert fg.verify(stored, model, X).complete
