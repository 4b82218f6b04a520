"""Gates: rules are read from a file and refused where they are wrong; verdicts follow from the certificates."""

import json
import subprocess
import sys
from importlib.metadata import entry_points
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg
from fragility.base.errors import CertificateError
from fragility.gate.rules import parse_rules

FIELDS = ["duration", "credit_amount", "age", "installment_commitment", "residence_since"]


@pytest.fixture(scope="module")
def audits(credit):
    """Two audits of the same rows: the second model had fewer training rows."""
    X, y = credit
    X = X[FIELDS] / [10, 1000, 10, 1, 1]
    found = []
    for rows in (700, 60):
        model = LogisticRegression(max_iter=3000).fit(X[:rows], y[:rows])
        protocol = fg.Protocol.fit(model, X[:rows])
        found.append(fg.audit(model, X[700:], protocol, modes=True, rates=0.1))
    labels = dict(zip(X.index[700:], y[700:], strict=True))
    return X[700:], labels, found[0], found[1]


def gate_of(*rules, **settings):
    return fg.Gate(tuple(fg.Rule(**rule) for rule in rules), **{"min_confidence": 0.7, **settings})


def test_a_verdict_follows_from_the_certificates(audits):
    _, _, good, _ = audits
    confident = good.claims.confidence >= 0.7
    share = float((good.claims.flip_budget[confident] <= 2).mean())
    for limit, outcome in [(0.0, "fail"), (1.0, "pass"), (round(share, 3), "inconclusive")]:
        (verdict,) = gate_of({"measure": "flips_early", "at_most": limit}).check(good).verdicts
        assert (verdict.outcome, verdict.rows) == (outcome, int(confident.sum()))
        assert verdict.value == pytest.approx(share) and verdict.lower < share < verdict.upper
    one, other = (
        gate_of({"measure": "flips_early", "groups": groups, "at_most": 0.5}).check(good).verdicts[0].value
        for groups in (1, 2)
    )
    assert one < other == pytest.approx(share)


def test_each_measure_is_what_it_says(audits):
    _, labels, good, _ = audits
    table = good.to_pandas()
    confident = table["confidence"] >= 0.7
    truth = np.array([labels[own_id] for own_id in table["id"]])
    expected = {
        "exposure": (table["exposure"][confident] > 0.4).mean(),
        "wrong": (table["exposure_wrong"][confident] > 0.4).mean(),
        "lost": table["failure_probability"].mean(),
        "accuracy": (table["predicted"] == truth).mean(),
    }
    rules = [
        {"measure": "exposure", "above": 0.4, "at_most": 1.0},
        {"measure": "exposure", "mode": "wrong", "above": 0.4, "at_most": 1.0},
        {"measure": "lost", "at_most": 1.0},
        {"measure": "accuracy", "at_least": 0.0},
        {"measure": "auroc", "at_least": 0.0},
    ]
    found = [verdict.value for verdict in gate_of(*rules).check(good, labels=labels).verdicts]
    assert found[:4] == pytest.approx(list(expected.values()))
    from sklearn.metrics import roc_auc_score

    p = np.where(table["predicted"] == "good", table["confidence"], 1 - table["confidence"])
    assert found[4] == pytest.approx(roc_auc_score(truth == "good", p))


def test_brittle_predictions_are_counted_by_held_out_labels(audits, credit):
    X, _, good, _ = audits
    model = LogisticRegression(max_iter=3000).fit(credit[0][FIELDS][:700] / [10, 1000, 10, 1, 1], credit[1][:700])
    stress = fg.Stress(tau_confidence=0.7)
    labels = fg.label_brittle(model, X, good.protocol, stress)
    gate = gate_of({"measure": "brittle", "at_most": 0.99})
    (verdict,) = gate.check(good, stress=labels).verdicts
    assert verdict.value == pytest.approx(labels.brittle[labels.high_confidence].mean())
    with pytest.raises(fg.DataError, match="needs labels from held-out stress; give them with stress"):
        gate.check(good)


def test_segments_have_verdicts_of_their_own(audits):
    X, _, good, worse = audits
    rule = {"measure": "flips_early", "at_most": 0.5}
    by_class = gate_of({**rule, "by": "predicted"}).check(good).verdicts
    assert [verdict.segment for verdict in by_class] == ["bad", "good"]
    by_age = gate_of({**rule, "by": "age:3,5"}).check(good, rows=X).verdicts
    assert [verdict.segment for verdict in by_age] == ["under 3", "3 to under 5", "5 or more"]
    assert sum(verdict.rows for verdict in by_age) == sum(verdict.rows for verdict in by_class)
    paired = gate_of({"measure": "flips_early", "allowance": 0.1, "by": "age:3,5"}).check(worse, good, rows=X).verdicts
    assert [verdict.earlier for verdict in paired] == pytest.approx([verdict.value for verdict in by_age])
    with pytest.raises(fg.DataError, match="groups the audited rows by one of their columns; give the rows with rows"):
        gate_of({**rule, "by": "age"}).check(good)


def test_a_worse_model_fails_against_the_earlier_one(audits):
    _, labels, good, worse = audits
    gate = gate_of({"measure": "exposure", "allowance": 0.05}, {"measure": "accuracy", "allowance": 0.3})
    found = gate.check(worse, good, labels=labels)
    assert [verdict.outcome for verdict in found.verdicts] == ["fail", "pass"] and not found
    assert found.verdicts[1].shared == len(worse)
    assert gate.check(good, worse, labels=labels).outcome == "pass"
    with pytest.raises(fg.DataError, match="has an allowance, so it needs an earlier audit; give one with against"):
        gate.check(worse, labels=labels)


def test_rows_in_another_order_change_nothing(audits):
    _, labels, good, worse = audits
    gate = gate_of(
        {"measure": "exposure", "allowance": 0.05, "by": "predicted"}, {"measure": "auroc", "allowance": 0.1}
    )
    mixed = worse.take(np.random.default_rng(1).permutation(len(worse)))
    one, other = (gate.check(audit, good, labels=labels) for audit in (worse, mixed))
    for a, b in zip(one.verdicts, other.verdicts, strict=True):
        assert (a.outcome, a.rows, a.shared) == (b.outcome, b.rows, b.shared)
        assert (a.lower, a.upper) == pytest.approx((b.lower, b.upper), abs=1e-12)


def test_more_rules_make_each_verdict_more_careful(audits):
    _, _, good, _ = audits
    rule = {"measure": "flips_early", "at_most": 0.5}
    alone, together = gate_of(rule).check(good).verdicts[0], gate_of(*[rule] * 10).check(good).verdicts[0]
    assert together.lower < alone.lower and together.upper > alone.upper


def test_audits_under_other_protocols_are_not_compared(audits, credit):
    X, _, good, _ = audits
    model = LogisticRegression(max_iter=3000).fit(X, credit[1][700:])
    other = fg.audit(model, X, fg.Protocol.fit(model, X, baseline="zero"))
    with pytest.raises(fg.DataError, match=r"protocols that differ in baseline \(typical against zero\)"):
        gate_of({"measure": "flips_early", "allowance": 0.1}).check(other, good)
    with pytest.raises(fg.DataError, match=r"protocols that differ in baseline \(typical against zero\)"):
        gate_of({"measure": "flips_early", "at_most": 0.1}).check([good, other])


EASIER = [
    ("exposure_weights", {"exposure_weights": (0.1, 0.1, 0.1, 0.1)}, {"measure": "exposure"}),
    ("severities", {"severities": (1.0,)}, {"measure": "exposure"}),
    ("smoothing", {"smoothing": 0.5}, {"measure": "exposure"}),
    ("catalogue_size", {"catalogue": 1}, {"measure": "exposure", "mode": "wrong"}),
    ("noise", {"noise": 1e-6}, {"measure": "exposure", "mode": "noisy"}),
    ("rates", {}, {"measure": "lost"}),
]


@pytest.mark.parametrize(("entry", "settings", "rule"), EASIER, ids=[entry for entry, *_ in EASIER])
def test_no_measure_passes_by_another_scale(audits, credit, entry, settings, rule):
    """A worse model audited with gentler settings is not compared, and not held to limits for other settings."""
    X, _, good, _ = audits
    X_train = credit[0][FIELDS][:60] / [10, 1000, 10, 1, 1]
    model = LogisticRegression(max_iter=3000).fit(X_train, credit[1][:60])
    protocol = fg.Protocol.fit(model, X_train, **settings)
    worse = fg.audit(model, X, protocol, modes=True, rates=0.1 if settings else 1e-6)
    with pytest.raises(fg.DataError, match=f"depends on {entry}, which is .* in one audit and .* in the other"):
        gate_of({**rule, "allowance": 0.5}).check(worse, good)
    derived = fg.Gate.derive(good, min_confidence=0.7)
    assert derived.check(good).outcome == "pass" and derived.written_for[entry]
    limited = fg.Gate((fg.Rule(**rule, at_most=1.0),), min_confidence=0.7, written_for=derived.written_for)
    with pytest.raises(fg.DataError, match=f"was written for audits whose {entry} is"):
        limited.check(worse)
    with pytest.raises(fg.DataError, match="written for entries among baseline"):
        fg.Gate(limited.rules, written_for={"colour": "red"})


def test_no_measure_passes_by_calling_numbers_categories(audits, credit):
    """They are lost to another value, fade in one step, and noise does not move them."""
    X, _, good, _ = audits
    model = LogisticRegression(max_iter=3000).fit(X, credit[1][700:])
    other = fg.audit(model, X, fg.Protocol.fit(model, X, nominal=FIELDS), modes=True)
    for rule in ({"measure": "exposure"}, {"measure": "exposure", "mode": "noisy"}, {"measure": "flips_early"}):
        with pytest.raises(fg.DataError, match=r"protocols that differ in nominal fields \(none against "):
            gate_of({**rule, "allowance": 0.5}).check(other, good)
        limited = fg.Gate((fg.Rule(**rule, at_most=1.0),), written_for={"nominal": "none"})
        with pytest.raises(fg.DataError, match="was written for audits whose nominal is none"):
            limited.check(other)


@pytest.mark.parametrize("allowance", [None, 0.02])
def test_derived_rules_hold_for_their_own_audit(audits, tmp_path, allowance):
    _, _, good, _ = audits
    good.save(tmp_path / "audit")
    gate = fg.Gate.derive(tmp_path / "audit", allowance=allowance, min_confidence=0.7)
    assert {rule.measure for rule in gate.rules} >= {"exposure", "lost"}
    found = gate.check(good, None if allowance is None else good)
    assert found.outcome == "pass" if allowance is None else found  # small segments cannot show so little
    assert fg.Gate.load(gate.save(tmp_path / "gate.toml", "a heading\nof two lines")) == gate


@pytest.fixture(scope="module")
def retrained(credit):
    """Audits of ten models that differ by the rows they were trained on, under one protocol."""
    X, y = credit
    X = X[FIELDS] / [10, 1000, 10, 1, 1]
    protocol, found = None, []
    for seed in range(10):
        rows = np.random.default_rng(seed).choice(700, 500, replace=False)
        model = LogisticRegression(max_iter=3000).fit(X.iloc[rows], y.iloc[rows])
        protocol = protocol or fg.Protocol.fit(model, X[:700])
        found.append(fg.audit(model, X[700:], protocol))
    return found


def test_limits_of_several_audits_cover_how_far_retrained_models_differ(retrained):
    alone, several = (fg.Gate.derive(given, min_confidence=0.7) for given in (retrained[0], retrained[:5]))
    assert [rule.measure for rule in several.rules][: len(alone.rules)] == [rule.measure for rule in alone.rules]
    assert all(several.check(one).outcome == "pass" for one in retrained[:5])
    assert all(several.check(one) for one in retrained[5:])
    assert {rule.allowance for rule in fg.Gate.derive(retrained[:5], allowance=0.01).rules} == {0.01}
    with pytest.raises(fg.DataError, match="or from those of at least three retrained models; got 2"):
        fg.Gate.derive(retrained[:2])
    with pytest.raises(fg.DataError, match="the sequence is empty"):
        fg.Gate.derive([])


def train_again(X, y, seed):
    """Return a one-hot pipeline and its training rows, which lack a rare category if the seed is odd."""
    rare = X["purpose"].value_counts().index[-1]
    rows = [i for i in X[:700].sample(650, random_state=seed).index if seed % 2 == 0 or X["purpose"][i] != rare]
    encode = make_column_transformer(
        (StandardScaler(), ["duration"]), (OneHotEncoder(handle_unknown="ignore"), ["purpose", "housing"])
    )
    return make_pipeline(encode, LogisticRegression()).fit(X.loc[rows], y.loc[rows]), X.loc[rows]


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_models_trained_again_without_a_rare_category_are_judged_together(space):
    X, y = fg.load_credit_g()
    X = X[["duration", "purpose", "housing"]].astype({"purpose": object, "housing": object})
    trained = [train_again(X, y, seed) for seed in range(4)]
    shared = fg.Protocol.fit(*trained[0], space="raw")
    protocols = [fg.Protocol.fit(*one) if space == "transformed" else shared for one in trained]
    audits = [fg.audit(model, X[700:800], own) for (model, _), own in zip(trained, protocols, strict=True)]
    assert len({len(own.columns) for own in protocols}) == (2 if space == "transformed" else 1)
    found = gate_of({"measure": "flips_early", "allowance": 0.9}, {"measure": "exposure", "at_most": 0.9}).check(
        audits[:2], audits[2:]
    )
    assert found.outcome in ("pass", "inconclusive")


def test_a_protocol_for_other_columns_is_refused_with_both_ways_out():
    X, y = fg.load_credit_g()
    X = X[["duration", "purpose", "housing"]].astype({"purpose": object, "housing": object})
    own, (other, _) = train_again(X, y, 0), train_again(X, y, 1)
    with pytest.raises(fg.ProtocolError, match=r"made for \d+ col.*with the same settings, or one .* space='raw'"):
        fg.audit(other, X[700:800], fg.Protocol.fit(*own))


def test_retrained_models_are_judged_by_their_means(retrained, tmp_path):
    rules = [{"measure": "exposure", "allowance": 0.0}, {"measure": "exposure", "at_most": 0.4}]
    gate = gate_of(*rules)
    new, old = retrained[:5], retrained[5:]
    found = gate.check(new, old)
    shares = [[gate.check(one, one).verdicts[0].value for one in side] for side in (new, old)]
    against, limited = found.verdicts
    assert (against.value, against.earlier) == pytest.approx(tuple(map(np.mean, shares)))
    assert limited.value == against.value and len(found.models) == len(found.against) == 5
    assert "about 5 retrained models against 5 retrained models, by their means" in found.to_text()
    assert "about 5 retrained models against one model" in gate.check(new, old[0]).to_text()
    assert "by their means" not in gate.check(new[0], old[0]).to_text()
    assert all(_fingerprint(one) in found.to_markdown() for one in retrained)
    other_order = gate.check(new[::-1], old[::-1]).verdicts[0]
    assert (other_order.lower, other_order.upper) == pytest.approx((against.lower, against.upper), abs=1e-12)
    folders = [one.save(tmp_path / str(i)) for i, one in enumerate(retrained)]
    assert gate.check(folders[:5], folders[5:]) == found


def _fingerprint(certs):
    return certs.manifest.model.fingerprint[:23]


def test_several_audits_are_of_several_models_under_one_protocol(retrained, audits):
    _, _, good, _ = audits
    gate = gate_of({"measure": "exposure", "allowance": 0.0})
    for given in ((retrained[:2] + retrained[:1], retrained[3]), (retrained[3], [*retrained[:2], retrained[0]])):
        with pytest.raises(fg.DataError, match="but number 1 and number 3 are of one model, LogisticRegression"):
            gate.check(*given)
    with pytest.raises(fg.DataError, match="each audit needs its own; got 1 for 2 audits"):
        brittle = gate_of({"measure": "brittle", "at_most": 0.5})
        brittle.check(retrained[:2], stress=[good.table])


def test_a_block_of_a_mode_is_needed_for_its_exposure(audits):
    X, _, good, _ = audits
    with pytest.raises(CertificateError, match="do not say what the failure mode 'stale' costs"):
        gate_of({"measure": "exposure", "mode": "stale", "at_most": 0.1}).check(good)
    with pytest.raises(fg.DataError, match="within 12 groups, but the audit removes only 5"):
        gate_of({"measure": "flips_early", "groups": 12, "at_most": 0.1}).check(good)
    with pytest.raises(fg.DataError, match="about auroc needs the true classes; give them with labels"):
        gate_of({"measure": "auroc", "at_least": 0.1}).check(good)
    with pytest.raises(fg.DataError, match="1 of the 300 audited rows have no label"):
        gate_of({"measure": "accuracy", "at_least": 0.1}).check(good, labels={i: "good" for i in X.index[1:]})


BAD_RULES = [  # single fields: tests/test_schemas.py
    ("[[rule]]\nmeasure = 'lost'", "has one limit, at_most or allowance; got none"),
    ("[[rule]]\nmeasure = 'lost'\nat_least = 0.1", "has one limit, at_most or allowance; got at_least"),
    ("[[rule]]\nmeasure = 'auroc'\nat_most = 0.1", "has one limit, at_least or allowance; got at_most"),
    ("[[rule]]\nmeasure = 'lost'\nat_most = 0.1\nallowance = 0.1", "got at_most and allowance"),
    (
        "[[rule]]\nmeasure = 'lost'\nat_most = 0.1\nmode = 'wrong'",
        r"rule\.0 in .* does not read mode; leave it out",
    ),
    ("confidence = ", "the rules are not valid TOML"),
]


@pytest.mark.parametrize(("text", "message"), BAD_RULES)
def test_wrong_rules_are_refused_in_one_sentence(text, message):
    with pytest.raises(fg.DataError, match=message):
        parse_rules(text)


def test_a_gate_without_rules_or_with_an_odd_level_is_refused(tmp_path):
    with pytest.raises(fg.DataError, match="a gate needs at least one rule"):
        fg.Gate(())
    with pytest.raises(fg.DataError, match=r"confidence of a gate must be a number of .* below 1, got 1\.5"):
        gate_of({"measure": "lost", "at_most": 0.1}, confidence=1.5)
    with pytest.raises(fg.DataError, match=r"cannot read the rules .*none\.toml: No such file"):
        fg.Gate.load(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(fg.DataError, match="are not UTF-8 text"):
        fg.Gate.load(tmp_path / "bytes.toml")


def test_verdicts_are_written_for_people_and_for_machines(audits, tmp_path):
    _, _, good, worse = audits
    gate = gate_of(
        {"measure": "exposure", "allowance": 0.05, "name": "a | <b> & \x1b[2J"}, {"measure": "lost", "at_most": 0.9}
    )
    found = gate.check(worse, good)
    document = json.loads(found.save(tmp_path / "gate.json").read_text())
    assert document["outcome"] == "fail" and len(document["verdicts"]) == 2
    suite = ElementTree.parse(found.save(tmp_path / "gate.xml")).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "0")
    assert suite[0].find("failure") is not None and len(suite[1]) == 0
    twice = gate_of({"measure": "exposure", "at_most": 0.9}, {"measure": "exposure", "allowance": 0.05})
    cases = [case.attrib for case in ElementTree.fromstring(twice.check(worse, good).to_junit().encode())]
    assert len({(case["classname"], case["name"]) for case in cases}) == 2  # a CI system keeps one of each name
    page = found.save(tmp_path / "gate.md").read_text()
    assert "a \\| \\<b\\> \\& \ufffd\\[2J" in page and "\x1b" not in page
    assert "\x1b" not in found.save(tmp_path / "gate.txt").read_text()
    with pytest.raises(fg.DataError, match=r"must end in .json or .xml or .md or .txt or .html"):
        found.save(tmp_path / "gate.pdf")


def test_the_pytest_fixture_fails_a_test_with_the_verdicts(audits, tmp_path):
    _, _, good, worse = audits
    good.save(tmp_path / "good"), worse.save(tmp_path / "worse")
    gate_of({"measure": "exposure", "allowance": 0.05}).save(tmp_path / "gate.toml")
    (tmp_path / "test_gate.py").write_text(
        "def test_worse(fragility_gate):\n    fragility_gate('worse', 'gate.toml', against='good')\n"
        "def test_better(fragility_gate):\n    assert fragility_gate('good', 'gate.toml', 'worse', strict=True)\n"
    )
    known = [found.value for found in entry_points(group="pytest11")]
    plugin = [] if "fragility.integrations.pytest_plugin" in known else ["-p", "fragility.integrations.pytest_plugin"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "test_gate.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "1 failed, 1 passed" in run.stdout
    assert "fail     confident predictions that have an exposure above 0.5" in run.stdout
