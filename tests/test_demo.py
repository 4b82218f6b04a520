"""The demo writes its folder at the end, and nothing of anybody else's is lost by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fragility.audits import Certificates
from fragility.audits.integrity import check_integrity
from fragility.base.canonical import digest_bytes
from fragility.base.errors import CertificateError
from fragility.cli import demo_audit as demo
from fragility.cli import main


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "demo-audit"
    demo.run_demo(folder)
    return folder


def command(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return int(stop.value.code or 0)


def test_auditing_into_the_demo_folder_keeps_model_and_rows(made) -> None:
    """The command a new user types next: model and rows are read from the folder that is written."""
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    words = ["audit", made / "model.skops", made / "test.parquet", "--train", made / "train.parquet"]
    assert command(*words, "--target", "class", "--trust", "--rows", "20", "--engine", "blackbox", "--out", made) == 0
    assert len(Certificates.load(made)) == 20 and all(check.passed for check in check_integrity(made))
    for name in {*demo.FILES, demo.MARKER} - {demo.PAGE}:
        assert (made / name).read_bytes() == before[name], name
    assert b"20 predictions" in (made / demo.PAGE).read_bytes()  # the report of the newer audit
    (made / "notes.txt").write_text("mine")
    demo.run_demo(made)
    assert len(Certificates.load(made)) == 300 and (made / "notes.txt").read_text() == "mine"


def test_what_is_written(made) -> None:
    manifest = json.loads((made / "manifest.json").read_text())
    assert (
        list(manifest["blocks"]) == ["lattice", "modes", "baselines"]
        and manifest["blocks"]["lattice"]["engine"] == "blackbox"
    )
    own = {name for name in (path.name for path in made.iterdir()) if not name.startswith(("certificates", "protocol"))}
    assert {*demo.FILES, demo.MARKER, "manifest.json"} <= own and not any("hardened" in name for name in own)
    assert (made / "model.skops").stat().st_size < 1_000_000


@pytest.mark.parametrize("name", ["model.skops", "report.html", "train.parquet"])
def test_files_of_somebody_else_are_refused_before_the_work(made, tmp_path, monkeypatch, name: str) -> None:
    monkeypatch.setattr(demo, "load_credit_g", lambda: pytest.fail("the work was begun"))
    target = Certificates.load(made)[:3].save(tmp_path / "audit")
    (target / name).write_bytes(b"my own")
    with pytest.raises(CertificateError, match=rf"{name} exists and was not written by a demo"):
        demo.run_demo(target)
    assert (target / name).read_bytes() == b"my own" and len(Certificates.load(target)) == 3
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(CertificateError, match=r"is not an audit folder"):
        demo.run_demo(tmp_path)


def test_a_demo_interrupted_between_its_files_can_be_run_again(made, tmp_path, monkeypatch) -> None:
    """Whichever file it was at, the marker names both what was there and what was to come."""
    target = Certificates.load(made).save(tmp_path / "audit")
    write, left = demo.write_bytes, 0

    def interrupted(path, data, own=None):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        write(path, data, own=own)

    monkeypatch.setattr(demo, "write_bytes", interrupted)
    for turn in range(2):
        contents = {name: f"{name} of turn {turn}".encode() for name in demo.FILES}
        for done in range(len(demo.FILES)):
            left = done
            with pytest.raises(KeyboardInterrupt):
                demo._write_beside(target, contents)
            demo.check_demo_folder(target)
        left = len(demo.FILES)
        demo._write_beside(target, contents)
        marker = json.loads((target / demo.MARKER).read_text())
        assert marker["files"] == sorted(digest_bytes(data) for data in contents.values())
    (target / "report.html").write_text("edited by hand")
    with pytest.raises(CertificateError, match=r"report.html exists and was not written by a demo"):
        demo.check_demo_folder(target)


def test_an_interrupted_training_leaves_nothing(tmp_path, monkeypatch) -> None:
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "credit_pipeline", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(tmp_path / "demo-audit")
    assert list(tmp_path.iterdir()) == []
