"""The report's numbers are those of the table, counted another way here, and the cuts between pieces do not show."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from block_tables import declare, put_block
from small_audits import InParts, declared_model, small_audit, small_labels, whole_numbers

import fragility as fg
from fragility.analysis.policy import fit_rule
from fragility.audits import BaselineComparison
from fragility.base.errors import DataError
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.report.inputs import count_found
from fragility.report.summary import AuditNumbers


@pytest.fixture(scope="module", params=[2, 3], ids=["two classes", "three classes"])
def certs(request) -> fg.Certificates:
    return small_audit(300, classes=request.param)


def numbers(certs, **given) -> AuditNumbers:
    return fg.Report.of(certs, **given).summary.audits[0]


def test_flip_budgets_are_counted_for_all_and_for_the_confident(certs) -> None:
    found = numbers(certs)
    for part, chosen in ((found.everything, list(certs)), (found.confident, [c for c in certs if c.confidence >= 0.9])):
        assert part.rows == len(chosen)
        expected = Counter(cert.flip_budget for cert in chosen if cert.flipped)
        assert part.flips_at == tuple(expected[k] for k in range(1, certs.protocol.depth + 1))
        assert part.never == sum(not cert.flipped for cert in chosen)
        assert part.flips_early.count == expected[1] + expected[2]
        assert part.mean_exposure == pytest.approx(np.mean([cert.exposure for cert in chosen]))


def test_groups_and_pairs_are_those_of_the_paths(certs) -> None:
    found = numbers(certs).confident
    chosen = [cert for cert in certs if cert.confidence >= 0.9]
    first = Counter(cert.path[0] for cert in chosen)
    alone = Counter(cert.path[0] for cert in chosen if cert.flip_budget == 1)
    inside = Counter(name for cert in chosen for name in cert.failing_groups)
    for group in found.groups:
        assert (group.first, group.alone, group.in_set) == (first[group.name], alone[group.name], inside[group.name])
        share = [min(max(c.one_step_drop[group.name] / (abs(c.margin) + 1e-8), 0.0), 1.0) for c in chosen]
        assert group.carried == pytest.approx(np.mean(share))
    assert [group.in_set for group in found.groups] == sorted((g.in_set for g in found.groups), reverse=True)
    pairs = Counter(frozenset(cert.path[:2]) for cert in chosen if cert.flipped and cert.flip_budget == 2)
    assert {frozenset((pair.first, pair.second)): pair.rows for pair in found.pairs}.items() <= pairs.items()
    assert found.distinct_pairs == len(pairs) and len(found.pairs) == min(10, len(pairs))


def test_quantiles_are_those_of_the_values_to_the_histograms_step(certs) -> None:
    found = numbers(certs).confident
    chosen = [cert for cert in certs if cert.confidence >= 0.9]
    assert found.collapse is not None and found.exposure is not None
    for step, quartiles in enumerate(found.collapse):
        values = np.sort([cert.path_collapse[step] for cert in chosen])
        exact = np.quantile(values, [0.25, 0.5, 0.75], method="inverted_cdf")
        assert np.abs(np.array([quartiles.lower, quartiles.median, quartiles.upper]) - exact).max() < 0.0011
    exact = np.quantile([cert.exposure for cert in chosen], 0.5, method="inverted_cdf")
    assert abs(found.exposure.median - exact) < 0.00011


def test_the_four_ways_are_counted_alone_and_together(certs) -> None:
    found = numbers(certs).confident
    chosen = [cert for cert in certs if cert.confidence >= 0.9]
    halves = [tuple(v >= 0.5 for v in (c.rcma, c.independent_loss, c.random_loss, c.common_loss)) for c in chosen]
    assert [loss.half for loss in found.losses] == [sum(column) for column in zip(*halves, strict=True)]
    ways = ("targeted", "independent", "random", "common")
    expected = Counter(tuple(w for w, half in zip(ways, row, strict=True) if half) for row in halves)
    assert {one.ways: one.rows for one in found.combinations if one.rows} == dict(expected)
    assert all(sum(loss.histogram) == len(chosen) for loss in found.losses)
    for one in found.degradations:
        thresholds = [cert.thresholds[one.operator] for cert in chosen]
        assert one.flips == sum(value is not None for value in thresholds)
        assert one.first_flips == tuple(thresholds.count(severity) for severity in certs.protocol.severities)
    for one in found.class_losses:
        mine = [cert for cert in chosen if str(cert.predicted) == one.predicted]
        assert (one.rows, one.flips_early.count) == (len(mine), sum(c.flipped and c.flip_budget <= 2 for c in mine))


def test_the_cases_are_the_most_fragile_confident_ones(certs) -> None:
    cases = numbers(certs).confident.cases
    worst = list(certs.most_fragile(20))
    assert [case.id for case in cases] == [str(cert.id) for cert in worst]
    for case, cert in zip(cases, worst, strict=True):
        assert (case.path, case.margins, case.flip_budget) == (cert.path, cert.path_margin, cert.flip_budget)
        assert case.flips_to == (None if cert.flips_to is None else str(cert.flips_to))


def test_the_brittle_corner_holds_the_most_exposed_fifth(certs) -> None:
    density = numbers(certs).density
    exposure = np.array([cert.exposure for cert in certs if cert.confidence >= 0.9])
    assert density.corner == math.ceil(len(exposure) / 5) <= int((exposure >= density.threshold - 1e-9).sum())
    assert int((exposure >= density.threshold + 1e-4).sum()) < np.ceil(len(exposure) / 5)
    assert sum(count for _, _, count in density.cells) == len(certs)


@pytest.mark.parametrize("rows", [1, 7, 299])
def test_the_cuts_between_pieces_do_not_show(certs, rows: int) -> None:
    labels = small_labels(certs)
    whole, parts = (fg.Report.of(audit, labels=labels) for audit in (certs, InParts(certs, rows)))
    assert whole.to_dict() == parts.to_dict()
    assert whole.to_html() == parts.to_html()


def test_an_audit_without_steps_is_reported_without_curves(certs) -> None:
    lists = ["path_margin", "path_predicted", "path_collapse", "fade_margin", "one_step_drop"]
    lists.append("one_step_confidence_drop")
    summary_only = fg.Certificates(certs.table.drop_columns(lists), certs.protocol, certs.manifest)
    report = fg.Report.of(InParts(summary_only, 50, (("claims", "summary"),)))
    found, full = report.summary.audits[0], numbers(certs)
    assert found.confident.collapse is None and not found.detailed
    assert found.confident.flips_at == full.confident.flips_at and found.density == full.density
    assert [case.id for case in found.confident.cases] == [case.id for case in full.confident.cases]
    assert "no curve" in report.to_html() and "no curve" in report.to_markdown()


def searched(certs: fg.Certificates, *, exact: bool) -> fg.Certificates:
    """The same certificates with a lattice block: each row's first group alone is a smallest set, but for row 0."""
    first = [cert.path[:1] if cert.id else () for cert in certs]
    columns = {
        "smallest_state": pa.array(["minimum" if names else "not decided" for names in first]),
        "smallest_size": pa.array([1 if names else None for names in first], type=pa.int32()),
        "smallest_set": pa.array(first, type=pa.list_(pa.string())),
        "smallest_count": pa.array([2 if names else None for names in first], type=pa.int64()),
        "failure_probability": pa.array([0.125] * len(certs)),
        "failure_low": pa.array([0.1] * len(certs)),
        "failure_high": pa.array([0.15] * len(certs)),
        "failure_exact": pa.array([exact] * len(certs)),
    }
    table = certs.table
    for name, values in columns.items():
        table = table.append_column(name, values)
    rates = {name: 0.05 for name in certs.protocol.group_names}
    declared = LatticeDeclaration(engine="trees", max_size=3, budget=10_000, width=8, rates=rates)
    return fg.Certificates(table, certs.protocol, declare(certs.manifest, "lattice", declared))


@pytest.mark.parametrize("exact", [True, False])
def test_smaller_sets_and_failure_probabilities_are_told_where_the_audit_has_them(certs, exact: bool) -> None:
    report = fg.Report.of(searched(certs, exact=exact))
    found = report.summary.audits[0].everything.lattice
    assert found is not None and found.by_size == ((1, 299),) and (found.minimum, found.none_found) == (299, 1)
    assert found.fewer == sum(not c.flipped or c.flip_budget > 1 for c in certs if c.id)
    assert found.expected_lost == pytest.approx(300 / 8)
    assert "If each field is missing 5% of the time, about" in report.to_markdown()
    assert "The decision is lost in 1 of 8 cases if each field" in report.to_markdown()
    assert ("(95% interval 10.00% to 15.00%)" in report.to_markdown()) is not exact
    assert "Smallest failing set: " in report.to_html() and "no smaller set flips it" in report.to_html()
    assert numbers(certs).confident.lattice is None


def test_no_confident_prediction_makes_the_report_speak_of_all(certs) -> None:
    found = numbers(certs, min_confidence=1.0)
    assert found.confident.rows == 0 and found.focus is found.everything and len(found.focus.cases) == 20
    report = fg.Report.of(certs, min_confidence=1.0)
    assert "None of 300 predictions is at least 100% confident" in report.to_markdown()


def test_one_row_is_enough(certs) -> None:
    report = fg.Report.of(certs[:1], labels=small_labels(certs))
    assert report.summary.audits[0].everything.rows == 1
    assert "Too few" in report.to_markdown() and report.to_html().count("<article") == 1


def test_a_protocol_without_fading_has_three_ways() -> None:
    certs = small_audit(operators=())
    found = numbers(certs)
    assert [loss.way for loss in found.confident.losses] == ["targeted", "independent", "random"]
    assert found.confident.degradations == ()
    assert "common failure is left out" in fg.Report.of(certs).to_markdown()


def test_a_declared_threshold_is_told() -> None:
    told = fg.Report.of(small_audit(decision=0.75)).to_markdown()
    assert "where its probability is at least 0.75" in told


# --- labels -------------------------------------------------------------------------------------------------


def test_accuracy_counts_right_predictions_and_compares_fifths(certs) -> None:
    labels = small_labels(certs)
    found = numbers(certs, labels=labels).accuracy
    assert found is not None
    wrong = np.array([str(cert.predicted) != labels[cert.id] for cert in certs])
    confident = np.array([cert.confidence >= 0.9 for cert in certs])
    assert (found.right.count, found.right.rows) == (int((~wrong).sum()), 300)
    assert (found.right_in_focus.count, found.right_in_focus.rows) == (
        int((~wrong & confident).sum()),
        int(confident.sum()),
    )
    assert sum(rate.count for rate in found.wrong_by_fifth) == int((wrong & confident).sum())
    assert found.wrong_exposed == found.wrong_by_fifth[-1]
    assert found.wrong_rest.count == sum(rate.count for rate in found.wrong_by_fifth[:-1])


def test_a_review_finds_what_lies_in_its_first_rows() -> None:
    rng = np.random.default_rng(0)
    score, bad = rng.normal(size=200), rng.random(200) < 0.2
    found = count_found(score, bad)
    order = sorted(range(200), key=lambda place: -score[place])
    assert found == tuple(sum(bad[place] for place in order[: math.ceil(share * 200 / 100)]) for share in range(101))


def test_the_policy_is_that_of_the_same_rows(certs) -> None:
    labels = small_labels(certs)
    view = numbers(certs, labels=labels, risk=0.5).reviews[0]
    table = certs.table.select(["id", "confidence"])
    wrong = [str(cert.predicted) != labels[cert.id] for cert in certs]
    confident = [cert.confidence >= 0.9 for cert in certs]
    table = table.append_column("high_confidence", pa.array(confident)).append_column("brittle", pa.array(wrong))
    policy = fg.ReviewPolicy.fit(certs, table, risk=0.5, confidence=1 - 0.05 / len(view.tried))
    assert view.policy["state"] == policy.state == "attained" and view.by == "exposure"
    assert (view.policy["bound"], view.policy["review_share"]) == pytest.approx((policy.bound, policy.review_share))
    both = fg.Report.of(certs, labels=labels, brittle=table)
    assert [each.defect for each in both.summary.audits[0].reviews] == ["wrong", "brittle"]


def test_labels_must_cover_the_rows_and_be_classes(certs) -> None:
    labels = small_labels(certs)
    with pytest.raises(DataError, match=r"1 of the 300 audited rows have no label \(first: 5"):
        fg.Report.of(certs, labels={own: label for own, label in labels.items() if own != 5})
    with pytest.raises(DataError, match=r"ids of the audit: 0 to 299; ids of the labels: 'x0' to 'x99'"):
        fg.Report.of(certs, labels={f"x{own}": label for own, label in labels.items()})
    with pytest.raises(DataError, match=r"no label is one of the model's classes; an example is '17'"):
        fg.Report.of(certs, labels={own: 17 for own in labels})
    as_text = {str(own): label for own, label in labels.items()}
    assert fg.Report.of(certs, labels=as_text).to_dict() == fg.Report.of(certs, labels=labels).to_dict()


# --- other baselines ----------------------------------------------------------------------------------------


def with_baselines(early: dict[str, int | None], rows: int = 100) -> fg.Certificates:
    """A small audit and a comparison in which so many rows flip early under each other baseline; None: the same."""
    certs = small_audit(rows)
    model, X = declared_model(), whole_numbers(rows, 1).to_numpy()
    found = fg.compare_baselines(model, X, certs.protocol, certificates=certs)
    table = found.table
    for name, count in early.items():
        budgets = np.where(np.arange(len(table)) < (count or 0), 2, found.depth + 1)
        budgets = found.flip_budgets("typical") if count is None else budgets
        column = f"flip_budget_{name}"
        place = table.column_names.index(column)
        table = table.set_column(place, column, pa.array(budgets, type=pa.int32()))
    return put_block(certs, BaselineComparison(table, found.baselines, found.depth))


def test_the_finding_under_other_baselines_is_told() -> None:
    plain = small_audit(100)
    assert "depend on the baseline?" not in fg.Report.of(plain).to_markdown()
    assert fg.Report.of(plain).summary.audits[0].dependence is None
    few = fg.Report.of(with_baselines({}, rows=40)).to_markdown()
    assert "## Does the finding depend on the baseline?" in few
    assert "Too few rows to tell whether the finding depends on the baseline: " in few and "are needed" in few
    alike = with_baselines({"median": None, "mean": None}, rows=400)
    told = fg.Report.of(alike).to_markdown()
    assert "The finding is stable across baselines: of" in told and "within two groups under all 3 baselines" in told
    other = with_baselines({"mean": 0}, rows=400)
    report = fg.Report.of(other)
    assert "The finding depends on the baseline, in number: of" in report.to_markdown()
    assert "but 0% under mean" in report.to_markdown() and "dispute" not in report.to_markdown()
    assert "| typical (declared) |" in report.to_markdown() and 'id="baselines"' in report.to_html()
    dependence = report.summary.audits[0].dependence
    assert dependence.verdict == "depends" and "in number under mean" in dependence.short
    assert dependence.under_all == () and report.to_dict()["audits"][0]["dependence"]["rows"] == dependence.rows
    headline = report.to_markdown().split("## ")[1]
    assert "depends on the baseline" in headline


def test_what_to_make_reliable_first_is_told() -> None:
    certs, X = small_audit(100), whole_numbers(100, 1).to_numpy()
    assert "reliable first" not in fg.Report.of(certs).to_markdown()
    found = fg.assess_reliability(declared_model(), X, certs.protocol, 0.1)
    report = fg.Report.of(certs, reliability=found)
    first = found.groups()["group"][0]
    assert (
        "## What to make reliable first" in report.to_markdown()
        and f"Make {first} reliable first: " in report.to_markdown()
    )
    assert "The rates were declared, not measured" in report.to_markdown() and 'id="reliable"' in report.to_html()
    document = report.to_dict()["audits"][0]["reliability"]
    assert document["lost"] == found.lost and document["kept"][0][0] == first and not document["recorded"]
    assert (
        "Make"
        not in fg.Report.of(
            certs, reliability=replace(found, p_flip=0 * found.p_flip, kept=0 * found.kept)
        ).to_markdown()
    )
    with pytest.raises(DataError, match=r"the failure probabilities are of other rows than the audit; make them with"):
        fg.Report.of(certs[:50], reliability=found)
    with pytest.raises(DataError, match=r"failure probabilities belong to one model"):
        fg.Report.of({"a": certs, "b": certs}, reliability=found)


# --- several audits -----------------------------------------------------------------------------------------


def test_several_audits_are_matched_by_id() -> None:
    one, other = small_audit(200), small_audit(150, depth=2)
    report = fg.Report.of({"first": one, "second": other})
    (pair,) = report.summary.paired
    assert [one.setting for one in pair.differences] == ["depth"] and pair.comparable
    assert pair.shared == 150 == pair.same_class
    both = [(a, other.by_id(a.id)) for a in one if a.id in range(150)]
    sure = [(a, b) for a, b in both if a.confidence >= 0.9 and b.confidence >= 0.9]
    flips = [(a.flipped and a.flip_budget <= 2, b.flipped and b.flip_budget <= 2) for a, b in sure]
    assert pair.both_confident == len(sure)
    assert (pair.flip_in_both, pair.flip_in_first_only) == (flips.count((True, True)), flips.count((True, False)))
    assert "The comparison" in report.to_html() and "The comparison" in report.to_markdown()
    assert "second has another protocol than first: depth (6 against 2). RCMA, FDS" in report.to_markdown()
    apart = fg.Report.of({"first": one, "second": replace_ids(other)})
    assert apart.summary.paired[0].shared == 0 and "share no row" in apart.to_markdown()


def test_one_model_under_two_baselines_is_not_told_as_two_models() -> None:
    report = fg.Report.of({"first": small_audit(200), "second": small_audit(200, baseline="zero")})
    assert "second and first are not comparable: their protocols differ" in report.to_markdown()
    assert "flips early less" not in report.to_markdown() and "flips early more" not in report.to_markdown()
    assert (
        "Not comparable: second has another protocol" in report.to_markdown()
        and " against zero)" in report.to_markdown()
    )


def replace_ids(certs: fg.Certificates) -> fg.Certificates:
    ids = pa.array([1000 + own for own in certs.table.column("id").to_pylist()], type=pa.int64())
    return fg.Certificates(certs.table.set_column(0, "id", ids), certs.protocol, certs.manifest)


def test_what_cannot_be_reported_is_refused(certs) -> None:
    with pytest.raises(DataError, match=r"the audit audit contains no certificates"):
        fg.Report.of(certs[:0])
    with pytest.raises(DataError, match=r"at least one audit"):
        fg.Report.of({})
    with pytest.raises(DataError, match=r"min_confidence must lie between 0 and 1, got 90"):
        fg.Report.of(certs, min_confidence=90)
    with pytest.raises(DataError, match=r"risk must lie between 0 and 1, such as 0.02, got 0"):
        fg.Report.of(certs, risk=0)
    with pytest.raises(DataError, match=r"stress labels belong to one model"):
        fg.Report.of({"a": certs, "b": certs}, brittle=certs.table)
    with pytest.raises(DataError, match=r"one command to verify each of 1 audits was expected, got 2"):
        fg.Report.of(certs, verify=["a", "b"])


def test_the_summary_is_plain_json(certs) -> None:
    document = fg.Report.of(certs, labels=small_labels(certs)).to_dict()
    assert document["format"] == "fragility-report/1"
    assert json.loads(json.dumps(document, allow_nan=False)) == json.loads(json.dumps(document))
    audit = document["audits"][0]
    assert audit["facts"]["rows"] == 300 and audit["confident"]["rows"] == sum(c.confidence >= 0.9 for c in certs)


def test_the_summary_cannot_be_changed(certs) -> None:
    found = numbers(certs)
    with pytest.raises(AttributeError):
        found.min_confidence = 0.5  # type: ignore[misc]
    assert replace(found, min_confidence=0.5).min_confidence == 0.5


def test_a_review_that_exposure_does_not_attain_is_sought_by_other_scores() -> None:
    """Where the least confident are the wrong ones, a policy by confidence exists and one by exposure does not."""
    certs = small_audit(1500, seed=4)
    sure = [cert for cert in certs if cert.confidence >= 0.7]
    cut = np.quantile([cert.confidence for cert in sure], 0.3)
    truth = {}
    for cert in certs:
        other = next(str(label) for label in certs.classes if str(label) != str(cert.predicted))
        truth[cert.id] = other if cert.confidence < cut else str(cert.predicted)
    report = fg.Report.of(certs, labels=truth, min_confidence=0.7, risk=0.02)
    (view,) = report.summary.audits[0].reviews
    assert view.by == "confidence" and view.policy["state"] == "attained"
    assert view.tried == ("exposure", "confidence", "FDS", "RCMA")
    score, wrong = np.array([-cert.confidence for cert in sure]), np.array([cert.confidence < cut for cert in sure])
    rule, _ = fit_rule(None, score, wrong, 0.02, 1 - 0.05 / 5 / 4)
    assert (view.policy["threshold"], view.policy["bound"]) == (rule.threshold, rule.bound)
    assert f"with a confidence of at most {-rule.threshold:.4g}" in report.to_markdown()
    assert "exposure, confidence, FDS and RCMA were tried as scores" in report.to_markdown()
    hopeless = fg.Report.of(certs, labels=truth, min_confidence=0.7, risk=0.0001).to_markdown()
    assert (
        "ranked by exposure, a rate of at most 0% wrong" in hopeless
        or "ranked by exposure, a rate of at most 0.0%" in hopeless
    )
    assert "Nor is it ranked by confidence, FDS and RCMA" in hopeless


def test_a_fifth_is_the_same_number_of_rows_throughout() -> None:
    certs = small_audit(119)
    found = numbers(certs, labels=small_labels(certs), risk=0.5)
    rows = found.confident.rows
    assert rows % 5 and found.accuracy is not None
    fifth = math.ceil(rows / 5)
    assert found.density.corner == found.accuracy.wrong_exposed.rows == fifth
    assert sum(part.rows for part in found.accuracy.wrong_by_fifth) == rows
    assert f"20% ({fifth:,})" in fg.Report.of(certs, labels=small_labels(certs), risk=0.5).to_markdown()
