"""An audit with everything that a pack can hold, and a pack of it."""

from types import SimpleNamespace

import pytest
from small_audits import declared_model, small_labels, whole_numbers

import fragility as fg

RULES = """
[[rule]]
measure = "flips_early"
at_most = 0.9

[[rule]]
measure = "exposure"
allowance = 0.0

[[rule]]
measure = "accuracy"
at_least = 0.99
"""


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    home = tmp_path_factory.mktemp("packs")
    model = declared_model()
    protocol = fg.Protocol.fit(model, whole_numbers(50, 0).to_numpy())
    rows = whole_numbers(200, 1).to_numpy()
    certs = fg.audit(model, rows, protocol, progress=False, rates=0.1, modes=["wrong", "noisy"])
    certs.save(home / "audit")
    (home / "gate.toml").write_text(RULES)
    public = fg.generate_keys(home / "key")
    given = {
        "rules": home / "gate.toml",
        "against": home / "audit",
        "labels": small_labels(certs),
        "stress": fg.label_brittle(model, rows, protocol, fg.Stress(tau_confidence=0.7)),
        "parity": fg.check_parity(model, model, rows[:20], protocol),
        "reliability": fg.assess_reliability(model, rows, protocol, 0.1),
        "key": home / "key",
        "author": "M. Okafor",
        "date": "2026-11-18",
    }
    pack = fg.pack(home / "audit", home / "pack", **given)
    archive = fg.pack(home / "audit", home / "pack.zip", **given)
    return SimpleNamespace(
        home=home, certs=certs, given=given, pack=pack, archive=archive, public=public, rows=rows, model=model
    )
