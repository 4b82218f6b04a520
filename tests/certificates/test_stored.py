"""StoredAudit: a folder read part by part says what the same certificates say in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from block_tables import save_in_parts
from pipelines import fitted

import fragility as fg
from fragility.audits import Certificates, StoredAudit
from fragility.base.errors import CertificateError


@pytest.fixture(scope="module")
def certs() -> Certificates:
    case = fitted("credit_g", "lightgbm", "transformed")
    return fg.audit(case.model, case.X_test[:90], fg.Protocol.fit(case.model, case.X_train, depth=4))


@pytest.fixture
def stored(certs: Certificates, tmp_path) -> StoredAudit:
    return fg.open_audit(save_in_parts(certs, tmp_path / "a", 25))


def test_it_is_the_same_audit(certs: Certificates, stored: StoredAudit) -> None:
    assert (stored.manifest, stored.protocol.digest) == (certs.manifest, certs.protocol.digest)
    assert (len(stored), stored.classes, stored.engine) == (90, certs.classes, certs.engine)
    assert stored.part_starts == (0, 25, 50, 75, 90) and len(stored.part_names) == 4
    assert pa.concat_tables(stored.batches()).equals(certs.table)
    assert pa.concat_tables(stored.batches(["fds", "id"])).equals(certs.table.select(["fds", "id"]))


def test_selections_are_those_made_in_memory(certs: Certificates, stored: StoredAudit) -> None:
    for positions in ([], [89], [3, 80, 3, 24, 25, 0]):
        assert stored.take(positions).table.equals(certs.take(positions).table)
        assert stored.take(positions).manifest == certs.take(positions).manifest
    for by in ("exposure", "fds", "common_loss"):
        for n, confident in ((5, 0.5), (200, 0.9), (3, 1.01)):
            mine, theirs = (which.most_fragile(n, min_confidence=confident, by=by) for which in (stored, certs))
            assert mine.table.equals(theirs.table)
    wanted = [certs[70].id, str(certs[2].id), "nobody"]
    assert stored.of_rows(wanted).table.equals(certs.take([2, 70]).table)
    assert stored.by_id(str(certs[70].id)) == certs[70] == stored.by_id(certs[70].id)
    with pytest.raises(CertificateError, match=r"no certificate for row 'nobody'; ids run like \[0, 1, 2\]"):
        stored.by_id("nobody")
    with pytest.raises(IndexError, match="position 90 is outside the 90 certificates"):
        stored.take([90])
    with pytest.raises(CertificateError, match="predictions are ranked by one of"):
        stored.most_fragile(by="beauty")


def test_the_summary_is_that_of_all_parts(certs: Certificates, stored: StoredAudit) -> None:
    labels = {own.id: "good" for own in certs}
    mine, theirs = (which.summary(min_confidence=0.8, labels=labels) for which in (stored, certs))
    assert "flips_early" in mine and "accuracy" in mine
    assert mine == theirs  # every count, and every sum to its last digit


def test_a_part_that_was_changed_or_lost_is_refused_when_it_is_read(stored: StoredAudit) -> None:
    path, few = stored.folder / stored.part_names[2], stored.take([3])
    data = path.read_bytes()
    path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    batches = stored.batches(["id"])
    assert [len(next(batches)), len(next(batches))] == [25, 25]
    with pytest.raises(CertificateError, match="was changed after it was written"):
        next(batches)
    path.unlink()
    with pytest.raises(CertificateError, match=r"is incomplete: certificates-00002-.* is missing"):
        stored.part(2)
    with pytest.raises(CertificateError, match="is incomplete"):
        StoredAudit(stored.folder).take([3])
    few.save(stored.folder)
    with pytest.raises(CertificateError, match="was rewritten since it was opened; open it again"):
        stored.part(0)


def test_a_folder_that_is_no_audit_cannot_be_opened(tmp_path) -> None:
    with pytest.raises(CertificateError, match=r"is not an audit folder: manifest\.json is missing"):
        fg.open_audit(tmp_path)


def test_a_mask_and_positions_from_the_end_choose_the_same_rows_as_in_memory(certs, stored) -> None:
    mask = certs.claims.confidence < np.median(certs.claims.confidence)
    for chosen in (mask, mask.tolist(), np.zeros(90, dtype=bool), [-1, 0, -90], np.array([5], dtype=np.uint8)):
        assert stored.take(chosen).table.equals(certs.take(chosen).table)
    assert stored.take(mask).claims.ids == tuple(np.flatnonzero(mask).tolist())
    for audit in (stored, certs):
        with pytest.raises(IndexError, match=r"a mask over the 90 certificates has 90 entries, got shape \(3,\)"):
            audit.take([True, False, True])
        with pytest.raises(TypeError, match="certificates are counted by whole numbers or taken by a slice"):
            audit.take([1.5])
