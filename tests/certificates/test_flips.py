"""How many predictions flip early: every terminal, report, gate, pack and run says what trying all sets says."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

import fragility as fg
from fragility.audits.flips import bound_flips
from fragility.integrations.mlflow_logging import measure_audit

lightgbm = pytest.importorskip("lightgbm")
FIELDS = ["duration", "credit_amount", "age", "installment_commitment", "residence_since", "existing_credits"]


@pytest.fixture(scope="module")
def case(credit):
    """A boosted model on six fields, and for each row the fewest fields whose loss flips it, by trying all sets."""
    X, y = credit
    X = X[FIELDS].astype(float)
    model = lightgbm.LGBMClassifier(n_estimators=60, num_leaves=15, verbose=-1, n_jobs=1).fit(X[:600], y[:600])
    protocol = fg.Protocol.fit(model, X[:600])
    rows = X[600:]
    lost = pd.Series({column.name: column.baseline for column in protocol.columns})
    fewest = np.full(len(rows), len(FIELDS) + 1)
    predicted = model.predict(rows)
    for size in range(len(FIELDS), 0, -1):
        for names in combinations(FIELDS, size):
            state = rows.assign(**{name: lost[name] for name in names})
            fewest[model.predict(state) != predicted] = size
    confident = model.predict_proba(rows).max(axis=1) >= 0.8
    return model, protocol, rows, fewest, confident


@pytest.fixture(scope="module")
def searched(case):
    model, protocol, rows, *_ = case
    return fg.audit(model, rows, protocol, lattice=True, progress=False)


@pytest.fixture(scope="module")
def unsearched(case):
    model, protocol, rows, *_ = case
    return fg.audit(model, rows, protocol, lattice=False, progress=False)


def test_bounds_are_what_trying_all_sets_says(case, searched, unsearched) -> None:
    *_, fewest, _ = case
    for certs in (searched, unsearched):
        declared = certs.manifest.blocks.get("lattice")
        bounds = bound_flips(certs.table, certs.protocol, declared)
        assert (bounds.fewest >= fewest).all() and (bounds.proved < fewest).all()
        for groups in range(1, len(FIELDS) + 1):
            settled = ~bounds.unsettled_within(groups)
            assert (bounds.flips_within(groups) == (fewest <= groups))[settled].all()
        if declared is not None:
            assert (bounds.fewest == fewest).all() and not bounds.unsettled_within(2).any()
            assert (bounds.holds == (fewest > len(FIELDS))).all()


def test_every_place_says_the_same_exact_share(case, searched, tmp_path) -> None:
    """The path finds fewer of them: whoever reads a headline must not be told the path's number."""
    *_, fewest, confident = case
    early, holds, rows = int((fewest[confident] <= 2).sum()), int((fewest[confident] > 6).sum()), int(confident.sum())
    summary = searched.summary(min_confidence=0.8)
    assert summary["early_on_path"].count < early
    assert (summary["flips_early"].count, summary["flips_early"].rows, summary["flips_early"].exact) == (
        early,
        rows,
        True,
    )
    assert (summary["holds"].count, summary["holds"].exact) == (holds, True)
    report = fg.Report.of(searched, min_confidence=0.8)
    found = report.summary.audits[0].confident
    assert found.flips_early == summary["flips_early"] and found.holds == summary["holds"]
    headline = report.to_markdown().split("## The finding")[1].split("##")[0]
    assert f"{early} of {rows} confident predictions flip early" in headline
    assert f"finds {summary['early_on_path'].count} of them" in headline
    assert f"{holds} ({holds / rows:.0%}) hold whatever groups are lost" in report.to_markdown()
    assert "not by trying all sets" not in report.to_markdown()
    assert f"For all {rows} confident predictions all sets of groups were searched" in report.to_markdown()
    (verdict,) = fg.Gate((fg.Rule(measure="flips_early", at_most=1.0),), min_confidence=0.8).check(searched).verdicts
    assert (verdict.value, verdict.counted) == (early / rows, "sets")
    assert "counted over all sets of groups" in verdict.sentence()
    metrics = measure_audit(searched, 0.8)
    assert metrics["flips_early"] == early / rows and metrics["holds"] == holds / rows
    folder = searched.save(tmp_path / "audit")
    document = json.loads(
        (fg.pack(folder, tmp_path / "pack", min_confidence=0.8) / "pack.json").read_text(encoding="utf-8")
    )
    figures = {figure["name"]: figure for figure in document["figures"]}
    assert float.fromhex(figures["flips_early"]["value"]) == early / rows
    assert float.fromhex(figures["holds"]["value"]) == holds / rows
    assert (
        figures["flips_early"]["interval"]
        == f"{summary['flips_early'].lower:.1%} to {summary['flips_early'].upper:.1%}"
    )


def test_without_a_search_the_share_is_at_least_the_paths(case, unsearched, tmp_path) -> None:
    *_, fewest, confident = case
    summary = unsearched.summary(min_confidence=0.8)
    early = summary["flips_early"]
    assert (
        early.count == summary["early_on_path"].count <= (fewest[confident] <= 2).sum() <= early.count + early.unsettled
    )
    assert not early.exact and summary["flips_after_one"].exact
    report = fg.Report.of(unsearched, min_confidence=0.8)
    assert f"At least {early.count} of {early.rows} confident predictions flip early, " in report.to_markdown()
    assert f"For {early.unsettled} others not every pair of groups was tried" in report.to_markdown()
    folder = unsearched.save(tmp_path / "audit")
    page = (fg.pack(folder, tmp_path / "pack", min_confidence=0.8) / "index.html").read_text(encoding="utf-8")
    assert "of these at least " in page


def test_shares_compare_only_if_they_are_counted_alike(case, searched, unsearched) -> None:
    rule = fg.Rule(measure="flips_early", allowance=0.0)
    (same,) = fg.Gate((rule,), min_confidence=0.8).check(searched, unsearched).verdicts
    assert same.counted == "path" and same.value == same.earlier
    sets = fg.Gate((fg.Rule(measure="flips_early", at_most=1.0, counted="sets"),), min_confidence=0.8)
    with pytest.raises(fg.DataError, match=r"over all sets of groups, but some confident rows .* lattice=True"):
        sets.check(unsearched)
    derived = fg.Gate.derive(searched, min_confidence=0.8)
    assert {rule.counted for rule in derived.rules if rule.measure == "flips_early"} <= {"sets"}
    pair = fg.Report.of({"a": searched, "b": unsearched}, min_confidence=0.8).summary.paired[0]
    assert not pair.by_sets and pair.flip_in_first_only == pair.flip_in_second_only == 0
    with pytest.raises(fg.DataError, match="counted of a rule must be one of sets, path, got 'all'"):
        fg.Rule(measure="flips_early", at_most=0.5, counted="all")


def test_a_group_that_flips_alone_is_counted_wherever_it_stands_on_the_path(case, searched) -> None:
    """Losing a field alone flips a row whether or not another field is stronger."""
    model, protocol, rows, _, confident = case
    lost = {column.name: column.baseline for column in protocol.columns}
    predicted = model.predict(rows)
    found = fg.Report.of(searched, min_confidence=0.8).summary.audits[0].confident
    assert found.alone_exact
    for role in found.groups:
        flips = model.predict(rows.assign(**{role.name: lost[role.name]})) != predicted
        assert role.alone == int(flips[confident].sum())
