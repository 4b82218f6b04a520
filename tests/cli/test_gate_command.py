"""`fragility gate`: exit codes, files, and one sentence for what cannot be checked."""

import json

import numpy as np
import pandas as pd
import pytest
from command_line import refuse, run
from sklearn.linear_model import LogisticRegression
from small_audits import declared_model, small_audit, small_labels, whole_numbers

import fragility as fg
from fragility.base.errors import CertificateError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("gate")
    small_audit(300).save(home / "audit")
    certs = small_audit(300)
    labels = pd.Series(small_labels(certs), name="truth").rename_axis("loan").reset_index()
    whole_numbers(300, 1).set_axis([f"x{i}" for i in range(6)], axis=1).assign(
        loan=labels["loan"], truth=labels["truth"]
    ).to_parquet(home / "rows.parquet")
    (home / "strict.toml").write_text('[[rule]]\nmeasure = "flips_early"\nat_most = 0.0\n')
    (home / "lax.toml").write_text('[[rule]]\nmeasure = "flips_early"\nat_most = 1.0\n')
    (home / "earlier.toml").write_text('[[rule]]\nmeasure = "exposure"\nallowance = 0.0\n')
    (home / "labels.toml").write_text('[[rule]]\nmeasure = "accuracy"\nat_least = 0.5\nby = "x1:q2"\n')
    return home


def test_the_exit_code_is_the_verdict(folder):
    assert run("gate", folder / "audit", "--rules", folder / "lax.toml").code == 0
    done = run("gate", folder / "audit", "--rules", folder / "strict.toml")
    (verdict,) = [line for line in done.out.splitlines() if line.startswith("fail  ")]
    assert done.code == 1 and "confident predictions that flip when one or two groups are lost  all rows  " in verdict
    words = ["gate", folder / "audit", "--against", folder / "audit", "--rules", folder / "earlier.toml"]
    done = run(*words)
    assert done.code == 0 and done.out.splitlines()[-1].startswith("inconclusive: 1 inconclusive")
    assert run(*words, "--strict").code == 1


def test_several_retrained_models_are_judged_together(folder, tmp_path):
    rows, protocol = whole_numbers(300, 1).to_numpy(), small_audit(2).protocol
    for place in range(4):
        model = declared_model()
        model.intercept_ = np.array([place / 10])  # as if it had been trained again
        fg.audit(model, rows, protocol, progress=False, lattice=False).save(tmp_path / f"model-{place}")
    new, old = ([tmp_path / f"model-{place}" for place in places] for places in ((0, 1), (2, 3)))
    against = [word for one in old for word in ("--against", one)]
    done = run("gate", *new, *against, "--rules", folder / "earlier.toml", "--out", tmp_path / "gate.json")
    assert "about 2 retrained models against 2 retrained models" in done.out
    document = json.loads((tmp_path / "gate.json").read_text())
    assert len(document["models"]) == len(document["against"]) == 2
    told = refuse("gate", *new, *new, "--rules", folder / "lax.toml")
    assert "number 1 and number 3 are of one model, LogisticRegression" in told


def test_rules_are_derived_and_verdicts_written(folder, tmp_path):
    done = run("gate", "init", folder / "audit", "--out", tmp_path / "gate.toml")
    assert done.code == 0 and "rules written to" in done.err
    files = [tmp_path / f"gate{suffix}" for suffix in (".json", ".xml", ".md")]
    words = [word for file in files for word in ("--out", file)]
    assert run("gate", folder / "audit", "--rules", tmp_path / "gate.toml", *words).code == 0
    assert json.loads(files[0].read_text())["outcome"] == "pass" and all(file.exists() for file in files)


def test_labels_and_rows_come_from_tables(folder):
    words = [
        "--labels",
        folder / "rows.parquet",
        "--data",
        folder / "rows.parquet",
        "--target",
        "truth",
        "--id",
        "loan",
    ]
    done = run("gate", folder / "audit", "--rules", folder / "labels.toml", *words)
    assert done.code == 0 and done.out.count("predictions that are right  ") == 2


def test_what_cannot_be_checked_is_said(folder, tmp_path):
    audit, rules = folder / "audit", ("--rules", folder / "lax.toml")
    assert "cannot read the rules" in refuse("gate", audit, "--rules", tmp_path / "none.toml")
    assert "needs an earlier audit; give one with --against" in refuse(
        "gate", audit, "--rules", folder / "earlier.toml"
    )
    assert "--labels" in refuse("gate", audit, "--rules", folder / "labels.toml")
    assert "--target" in refuse("gate", audit, *rules, "--target", "truth")
    assert "must end in .json" in refuse("gate", audit, *rules, "--out", tmp_path / "gate.pdf")
    twice = ("--out", tmp_path / "a.md", "--out", tmp_path / "b.md")
    assert "two files of the same kind" in refuse("gate", audit, *rules, *twice)
    assert "must end in .toml" in refuse("gate", "init", audit, "--out", tmp_path / "gate.json")
    said = refuse("gate", audit, *rules, "--against", audit)
    assert "an earlier audit was given, but no rule compares with it" in said and "leave out --against" in said
    assert "--id has no effect without --data or --labels" in refuse("gate", audit, *rules, "--id", "x1")


def test_no_rules_are_written_where_none_can_be_derived(folder, tmp_path):
    certs = fg.Certificates.load(folder / "audit")
    few = np.flatnonzero(certs.claims.confidence >= 0.9)[:2]
    audit = certs.take(few).save(tmp_path / "few")
    said = refuse("gate", "init", audit, "--out", tmp_path / "gate.toml")
    assert "no rule can be derived: 2 predictions are at least 90% confident, too few to bound a share" in said
    assert "--min-confidence" in said and "--allowance" in said and not (tmp_path / "gate.toml").exists()
    assert run("gate", "init", audit, "--out", tmp_path / "gate.toml", "--allowance", "0.02").code == 0
    with pytest.raises(fg.DataError, match="count less confident predictions too with min_confidence"):
        fg.Gate.derive(certs.take(few))


def test_rules_are_derived_for_a_model_of_one_group():
    X, y = fg.load_credit_g()
    y = X["duration"] > 20
    model = LogisticRegression().fit(X[["duration"]], y)
    audit = fg.audit(model, X[["duration"]], fg.Protocol.fit(model, X[["duration"]]))
    gate = fg.Gate.derive(audit, allowance=0.1)
    assert gate.rules[0].groups == 1 and gate.check(audit, audit)


def test_an_audit_without_certificates_has_nothing_to_compare(folder, tmp_path):
    empty = fg.Certificates.load(folder / "audit").take([])
    said = refuse("report", folder / "audit", empty.save(tmp_path / "empty"))
    assert f"the audit {tmp_path / 'empty'} contains no certificates; there is nothing to report" in said
    with pytest.raises(CertificateError, match="there are no certificates to summarise"):
        empty.summary()


def test_returns_has_no_effect_on_a_report_without_a_model(folder, tmp_path):
    said = refuse("report", folder / "audit", "--returns", "logits", "--out", tmp_path / "r.html")
    assert "--returns has no effect without --model" in said
