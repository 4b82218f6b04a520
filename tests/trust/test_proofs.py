"""Proofs: a row's certificate belongs to the audit with a root; nothing in a proof can be changed."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import refuse, run
from pipelines import fitted

import fragility as fg
from fragility.base.canonical import digest_of
from fragility.base.errors import CertificateError, VerificationError
from fragility.trust.proofs import proof_text


@pytest.fixture(scope="module")
def certs():
    case = fitted("credit_g", "logistic", "transformed")
    return fg.audit(case.model, case.X_test[:37], fg.Protocol.fit(case.model, case.X_train, depth=3))


@pytest.fixture(scope="module")
def root(certs) -> str:
    return certs.manifest.root_digest


def redigested(proof: dict) -> dict:
    body = {name: value for name, value in proof.items() if name != "proof_digest"}
    return {**body, "proof_digest": digest_of(body)}


def test_every_row_can_be_proved(certs, root: str) -> None:
    for cert in certs:
        assert fg.verify_proof(fg.prove(certs, cert.id), root=root)


def test_an_audit_of_one_row(certs) -> None:
    one = certs[:1]
    proof = fg.prove(one, str(one[0].id))
    assert proof["siblings"] == [] and fg.verify_proof(proof, root=one.manifest.root_digest)


def test_a_proof_of_another_audit_is_refused(certs, root: str) -> None:
    outcome = fg.verify_proof(fg.prove(certs[:20], certs[0].id), root=root)
    assert [check.name for check in outcome.checks if not check.passed] == ["root"]


def renamed_groups(proof: dict) -> None:
    """The row digest knows groups by their places only; their names are bound by the protocol's digest."""
    groups = proof["protocol"]["groups"]
    groups[0]["name"], groups[1]["name"] = groups[1]["name"], groups[0]["name"]
    names = {groups[0]["name"]: groups[1]["name"], groups[1]["name"]: groups[0]["name"]}
    proof["claims"]["path"] = [names.get(name, name) for name in proof["claims"]["path"]]


FORGERIES = {
    "another confidence": lambda p: p["claims"].update(confidence=0.5),
    "another class": lambda p: p.update(classes=p["classes"][::-1]),
    "another id": lambda p: p["claims"].update(id=-1),
    "another model": lambda p: p.update(model_fingerprint="sha256:" + "0" * 64),
    "a laxer resolution": lambda p: p["protocol"].update(resolution=1e-3),
    "groups renamed": renamed_groups,
    "exposure to suit": lambda p: p["claims"].update(exposure=0.01),
    "another place": lambda p: p.update(position=p["position"] ^ 1),
    "a sibling less": lambda p: p["siblings"].pop(),
    "a sibling more": lambda p: p["siblings"].append(p["siblings"][0]),
    "a number as text": lambda p: p["claims"].update(margin=str(p["claims"]["margin"])),
    "no count": lambda p: p.update(count=0),
    "a count without end": lambda p: p.update(count=10**30),
    "an unknown field": lambda p: p.update(approved=True),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forger_who_makes_the_digest_anew_is_caught(certs, root: str, what: str) -> None:
    proof = copy.deepcopy(fg.prove(certs, certs[5].id))
    FORGERIES[what](proof)
    outcome = fg.verify_proof(redigested(proof), root=root)
    assert not outcome and "malformed" not in str(outcome), str(outcome)


def content_of(data: bytes) -> object:
    """What a JSON file says, whatever white space it is written with; the bytes themselves where it is none."""
    try:
        return json.loads(data)
    except ValueError:
        return data


def flip_bytes(path: Path, accepted, times: int, seed: int, *, white_space: bool = False) -> None:
    """No changed byte may be accepted; with ``white_space``, unless the file says the same as before."""
    rng, original = np.random.default_rng(seed), path.read_bytes()
    assert accepted()
    for _ in range(times):
        data, place = bytearray(original), int(rng.integers(len(original)))
        data[place] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(data))
        assert not accepted() or (white_space and content_of(bytes(data)) == content_of(original)), place
    path.write_bytes(original)


def proof_accepted(path: Path, root: str) -> bool:
    try:
        return bool(fg.verify_proof(path, root=root))
    except CertificateError:
        return False


def test_no_changed_byte_of_a_proof_passes(certs, root: str, tmp_path: Path) -> None:
    fg.prove(certs, certs[3].id, tmp_path / "proof.json")
    flip_bytes(tmp_path / "proof.json", lambda: proof_accepted(tmp_path / "proof.json", root), 300, seed=1)


@pytest.mark.slow
def test_no_changed_byte_of_a_proof_in_ten_thousand_passes(certs, root: str, tmp_path: Path) -> None:
    fg.prove(certs, certs[3].id, tmp_path / "proof.json")
    flip_bytes(tmp_path / "proof.json", lambda: proof_accepted(tmp_path / "proof.json", root), 10_000, seed=2)


@pytest.mark.parametrize("times", [30, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_changed_byte_of_a_signature_passes(certs, tmp_path: Path, times: int) -> None:
    public = fg.generate_keys(tmp_path / "key")
    audit = certs.save(tmp_path / "audit")
    envelope = fg.sign(audit, tmp_path / "key")
    flip_bytes(envelope, lambda: bool(fg.verify_signature(audit, public)), times, seed=3, white_space=True)


def test_white_space_of_a_signature_means_nothing_and_a_field_twice_is_refused(certs, tmp_path: Path) -> None:
    public = fg.generate_keys(tmp_path / "key")
    audit = certs.save(tmp_path / "audit")
    envelope = fg.sign(audit, tmp_path / "key")
    document = json.loads(envelope.read_text())
    for text in (json.dumps(document, indent=7), "\n\t" + json.dumps(document) + "  \n\n"):
        envelope.write_text(text)
        assert fg.verify_signature(audit, public)
    twice = json.dumps(document)[:-1] + ', "payloadType": ' + json.dumps(document["payloadType"]) + "}"
    changes: tuple[dict[str, object], ...] = ({"note": 1}, {"payload": document["payload"] + "=="})
    for text in (twice, *(json.dumps({**document, **change}) for change in changes)):
        envelope.write_text(text)
        assert not fg.verify_signature(audit, public)


def test_the_command_line_proves_and_checks(certs, root: str, tmp_path: Path) -> None:
    certs.save(tmp_path / "audit")
    proof = tmp_path / "proof.json"
    assert run("sign", "prove", tmp_path / "audit", "--row", certs[2].id, "--out", proof).code == 0
    assert json.loads(proof.read_text())["claims"]["id"] == certs[2].id
    done = run("verify", proof, "--root", root)
    assert done.code == 0 and done.out.strip().endswith("belongs to the audit with this root")
    assert run("verify", proof, "--root", "sha256:" + "0" * 64).code == 1
    assert "give --root DIGEST" in refuse("verify", proof)
    assert "64 hexadecimal digits" in refuse("verify", proof, "--root", "7")
    assert "no certificate for row" in refuse("sign", "prove", tmp_path / "audit", "--row", "none", "--out", proof)


def test_a_signed_statement_binds_the_count_too(certs, tmp_path: Path) -> None:
    public = fg.generate_keys(tmp_path / "key")
    envelope = fg.sign(certs.save(tmp_path / "audit"), tmp_path / "key")
    proof = fg.prove(certs, certs[0].id, tmp_path / "proof.json")
    assert fg.verify_proof(tmp_path / "proof.json", public_key=public, signature=envelope)
    other = fg.generate_keys(tmp_path / "other")
    with pytest.raises(VerificationError, match="no valid signature by this key"):
        fg.verify_proof(proof, public_key=other, signature=envelope)
    assert proof_text(proof) == (tmp_path / "proof.json").read_text()
