"""`fragility pack` and `fragility verify` of a pack: exit codes, files, and one sentence for what cannot be done."""

import json

import pytest
from command_line import COLUMNS, refuse, run


@pytest.fixture(scope="module")
def words(made):
    (made / "gate.toml").write_text('[[rule]]\nmeasure = "flips_early"\nat_most = 1.0\n')
    assert run("sign", "keys", "--out", made / "key").code == 0
    rates = ["--model", made / "model.skops", "--data", made / "test.parquet", *COLUMNS, "--rates", "0.1"]
    assert run("reliability", made / "audit", *rates, "--out", made / "lost.json").code == 0
    compared = ["--data", made / "test.parquet", *COLUMNS, "--protocol", made / "audit", "--trust"]
    done = run("parity", made / "model.skops", made / "model.joblib", *compared, "--out", made / "same.json")
    assert done.code == 0, done.err
    labels = ["--labels", made / "test.parquet", *COLUMNS]
    given = ["--rules", made / "gate.toml", "--parity", made / "same.json", "--reliability", made / "lost.json"]
    return ["pack", made / "audit", *labels, *given, "--key", made / "key"]


@pytest.mark.parametrize("name", ["pack", "pack.zip"])
def test_a_pack_is_written_and_checked(words, made, tmp_path, name):
    done = run(*words, "--out", tmp_path / name)
    assert done.code == 0, done.err
    assert f"next: fragility verify {tmp_path / name}" in done.err
    done = run("verify", tmp_path / name, "--public-key", made / "key.pub")
    assert done.code == 0 and done.out.count("ok ") == 8, done.out


def test_a_pack_that_does_not_hold_has_exit_code_1(words, tmp_path):
    assert run(*words, "--out", tmp_path / "pack").code == 0
    (tmp_path / "pack" / "model-card.md").write_text("All is well.")
    done = run("verify", tmp_path / "pack")
    assert done.code == 1 and "FAILED  files          model-card.md was changed" in done.out


def test_a_small_pack_is_checked_with_the_audit(made, tmp_path):
    assert run("pack", made / "audit", "--without-certificates", "--out", tmp_path / "pack").code == 0
    assert "name the audit's folder with --audit" in refuse("verify", tmp_path / "pack")
    assert run("verify", tmp_path / "pack", "--audit", made / "audit").code == 0


def test_what_cannot_be_done_is_said_in_a_sentence(words, made, tmp_path):
    audit, out = made / "audit", ["--out", tmp_path / "pack"]
    assert "exists and is not a pack" in refuse("pack", audit, "--out", audit)
    assert "--target has no effect without --labels" in refuse("pack", audit, *out, "--target", "risk")
    assert "add --rules" in refuse("pack", audit, *out, "--against", audit)
    assert "--key signs the audit anew, so --public-key" in refuse(*words, *out, "--public-key", made / "key.pub")
    (tmp_path / "list.json").write_text(json.dumps([1]))
    said = refuse("pack", audit, *out, "--reliability", tmp_path / "list.json")
    assert "expected a reliability analysis of format 'fragility-reliability/1', got 'list'" in said
    (tmp_path / "list.json").write_text("{")
    assert "is not valid JSON" in refuse("pack", audit, *out, "--reliability", tmp_path / "list.json")
    assert "cannot read the reliability analysis" in refuse("pack", audit, *out, "--reliability", tmp_path / "absent")
    assert not (tmp_path / "pack").exists()
