"""Signatures: an audit or a protocol is the one that a key signed, and any other is refused with a reason."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import stat
from pathlib import Path

import pytest
from command_line import refuse, run
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pipelines import fitted

import fragility as fg
from fragility.base.errors import CertificateError, VerificationError


@pytest.fixture(scope="module")
def case():
    return fitted("credit_g", "logistic", "transformed")


@pytest.fixture(scope="module")
def place(case, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("signing")
    fg.generate_keys(folder / "key")
    fg.generate_keys(folder / "other")
    protocol = fg.Protocol.fit(case.model, case.X_train, depth=3)
    protocol.save(folder / "protocol.json")
    fg.sign(folder / "protocol.json", folder / "key")
    certs = fg.audit(case.model, case.X_test[:40], protocol)
    certs.with_protocol_signature(folder / "protocol.json.dsse.json").save(folder / "audit")
    fg.sign(folder / "audit", folder / "key")
    return folder


@pytest.fixture
def audit(place: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(place / "audit", tmp_path / "audit"))


def statement(envelope: Path) -> dict:
    return json.loads(base64.b64decode(json.loads(envelope.read_text())["payload"]))


def failed(outcome) -> list[str]:
    return [check.name for check in outcome.checks if not check.passed]


def test_a_signed_audit_verifies_and_says_that_nothing_was_recomputed(place: Path) -> None:
    outcome = fg.verify_signature(place / "audit", place / "key.pub")
    assert outcome and outcome.verdict.endswith("no claim was recomputed")
    assert [check.name for check in outcome.checks][-3:] == ["signature", "statement", "protocol key"]
    assert failed(fg.verify_signature(place / "audit", place / "other.pub")) == ["signature", "protocol key"]


def test_the_statement_is_in_toto_and_speaks_of_the_files(place: Path) -> None:
    stated = statement(place / "audit" / "signature.dsse.json")
    manifest = json.loads((place / "audit" / "manifest.json").read_text())
    digest = hashlib.sha256((place / "audit" / "manifest.json").read_bytes()).hexdigest()
    assert stated["_type"] == "https://in-toto.io/Statement/v1"
    assert stated["subject"][0] == {"name": "manifest.json", "digest": {"sha256": digest}}
    assert "sha256:" + stated["subject"][1]["digest"]["fragilityFingerprint"] == manifest["model"]["fingerprint"]
    assert stated["predicate"]["root_digest"] == manifest["root_digest"]
    summary = fg.Certificates.load(place / "audit").summary()
    told = stated["predicate"]["summary"]
    assert told["confident"] == summary["confident"].count
    assert told["flips_early"] == summary["flips_early"].count
    assert told["mean_exposure"] == summary["mean_exposure"].value


def test_the_signature_is_over_the_encoding_of_dsse(place: Path) -> None:
    """Checked with the cryptographic library alone, as another tool would."""
    document = json.loads((place / "audit" / "signature.dsse.json").read_text())
    payload, kind = base64.b64decode(document["payload"]), document["payloadType"]
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    key = load_pem_private_key((place / "key").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    key.public_key().verify(base64.b64decode(document["signatures"][0]["sig"]), signed)


def test_an_envelope_of_another_tool_without_key_ids_verifies(place: Path, audit: Path) -> None:
    path = audit / "signature.dsse.json"
    document = json.loads(path.read_text())
    own = {"sig": document["signatures"][0]["sig"]}
    stranger = {"keyid": "", "sig": base64.b64encode(b"0" * 64).decode()}
    path.write_text(json.dumps({**document, "signatures": [stranger, own]}, separators=(",", ":")))
    assert fg.verify_signature(audit, place / "key.pub")
    path.write_text(json.dumps({**document, "signatures": [stranger]}))
    assert failed(fg.verify_signature(audit, place / "key.pub")) == ["signature"]
    path.write_text(json.dumps({**document, "signatures": []}))
    assert failed(fg.verify_signature(audit, place / "key.pub")) == ["signature"]


def test_two_people_sign_one_audit(place: Path, audit: Path) -> None:
    fg.sign(audit, place / "other")
    for key in ("key.pub", "other.pub"):
        assert fg.verify_signature(audit, place / key, protocol_key=place / "key.pub")


def test_a_forger_who_makes_every_digest_anew_is_caught_by_the_signature_alone(case, place: Path, audit: Path) -> None:
    certs = fg.Certificates.load(audit)
    certs[:20].save(audit)  # a true audit of other rows, whole in itself
    outcome = fg.verify_signature(audit, place / "key.pub")
    assert failed(outcome) == ["statement"] and "the signature is of another manifest.json" in str(outcome)
    certs.save(audit)
    assert fg.verify_signature(audit, place / "key.pub")


def test_an_audit_that_is_not_whole_is_not_signed(place: Path, audit: Path) -> None:
    data = next(audit.glob("certificates-*"))
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(CertificateError, match=r"cannot be signed, its format is wrong"):
        fg.sign(audit, place / "key")


def test_another_protocols_signature_is_refused(case, place: Path, tmp_path: Path) -> None:
    other = fg.Protocol.fit(case.model, case.X_train, depth=4)
    certs = fg.audit(case.model, case.X_test[:5], other)
    with pytest.raises(CertificateError, match=r"signs the protocol sha256:"):
        certs.with_protocol_signature(place / "protocol.json.dsse.json")
    with pytest.raises(CertificateError, match=r"not a protocol"):
        certs.with_protocol_signature(place / "audit" / "signature.dsse.json")


def test_keys_are_private_and_never_overwritten(tmp_path: Path) -> None:
    public = fg.generate_keys(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert b"BEGIN PRIVATE KEY" in (tmp_path / "key").read_bytes() and b"BEGIN PUBLIC KEY" in public.read_bytes()
    with pytest.raises(VerificationError, match="never overwritten"):
        fg.generate_keys(tmp_path / "key")
    (tmp_path / "key").unlink()
    with pytest.raises(VerificationError, match="never overwritten"):
        fg.generate_keys(tmp_path / "key")


def test_the_wrong_kind_of_key_is_told(place: Path) -> None:
    with pytest.raises(VerificationError, match="holds a public key; signing needs the private one"):
        fg.sign(place / "audit", place / "key.pub")
    with pytest.raises(VerificationError, match="holds a private key, which verifying must not need"):
        fg.verify_signature(place / "audit", place / "key")
    with pytest.raises(VerificationError, match="holds no public key"):
        fg.verify_signature(place / "audit", place / "protocol.json")
    with pytest.raises(VerificationError, match="cannot read the key"):
        fg.verify_signature(place / "audit", place / "nowhere.pub")


def test_the_command_line_signs_and_verifies(place: Path, audit: Path, tmp_path: Path) -> None:
    assert run("sign", "keys", "--out", tmp_path / "mine").code == 0
    assert run("sign", audit, "--key", tmp_path / "mine").code == 0
    done = run("verify", audit, "--public-key", tmp_path / "mine.pub", "--protocol-key", place / "key.pub")
    assert done.code == 0 and "no claim was recomputed" in done.out
    assert run("verify", audit, "--public-key", tmp_path / "mine.pub").code == 1
    assert "--model MODEL is missing" in refuse("verify", audit)
    assert "--sample has no effect" in refuse("verify", audit, "--public-key", place / "key.pub", "--sample", 3)
