"""What no output replaces: models, keys, signatures, decisions, and every file of an audit or of a decision log."""

from __future__ import annotations

import pytest
from sklearn.tree import DecisionTreeClassifier

import fragility as fg
from fragility.apps.serving.sealing import write_part
from fragility.audits.manifest import kind_of
from fragility.audits.parts import beside_name, part_name
from fragility.base.files import AUDIT_FILE, precious_kind, replacing
from fragility.blocks.all import BLOCKS


@pytest.fixture(scope="module")
def full_folder(tmp_path_factory):
    """A signed audit with every block, some of whose files cover some rows only; and a decision log's part."""
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "installment_commitment"]]
    y = (X["age"] > 35) == (y == "good")  # so that some predictions are confident
    model = DecisionTreeClassifier(max_depth=4).fit(X, y)
    folder = tmp_path_factory.mktemp("full")
    fg.generate_keys(folder / "key")
    audit = fg.audit(model, X[:60], fg.Protocol.fit(model, X), modes=5, intervals=True, rates=0.1, baselines=True)
    fg.sign(audit.save(folder / "audit"), folder / "key")
    fg.sign(folder / "audit", folder / "key")  # again
    labels = fg.label_brittle(model, X[:60], audit.protocol)
    write_part(folder / "log", 3, labels.to_arrow())
    return folder, labels


def test_no_file_of_an_audit_or_a_log_is_overwritten_by_save(full_folder):
    folder, labels = full_folder
    names = sorted(path.name for path in (folder / "audit").iterdir())
    kinds = {name.split("-")[0].split(".")[0] for name in names}
    assert kinds == {"baselines", "certificates", "intervals", "lattice", "manifest", "modes", "protocol", "signature"}
    for path in [*(folder / "audit").iterdir(), *(folder / "log").iterdir()]:
        before = path.read_bytes()
        with pytest.raises(OSError, match="which is never overwritten"), replacing(path):
            raise AssertionError("a temporary file was offered")
        if path.suffix == ".parquet":
            with pytest.raises(OSError, match="which is never overwritten"):
                labels.save(path)
        assert path.read_bytes() == before
    write_part(folder / "log", 3, labels.to_arrow())  # the log's own writer may


def test_every_name_that_an_audit_gives_its_files_is_protected(tmp_path):
    """Also those of files that this audit does not have."""
    for kind in ("certificates", *BLOCKS, "protocol", "protocol-signature"):
        for name in (part_name(0, b"...", kind), beside_name(kind, b"...")):
            if kind_of(name) == kind:
                (tmp_path / name).write_bytes(b"...")
                assert precious_kind(tmp_path / name) == AUDIT_FILE
