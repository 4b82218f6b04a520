"""The first screen: the finding with its intervals and the worst segment, and the comparison of several audits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from small_audits import small_audit, small_labels, whole_numbers

import fragility as fg
from fragility.base.shares import difference_of, paired_difference, share_of
from fragility.report.gathering import find_worst


def counts() -> st.SearchStrategy[tuple[int, int]]:
    return st.integers(0, 60).flatmap(lambda rows: st.tuples(st.integers(0, rows), st.just(rows)))


@given(st.lists(st.lists(counts(), min_size=1, max_size=5), min_size=1, max_size=3))
def test_the_worst_segment_is_the_clearest_of_those_looked_at(tables) -> None:
    """Twin: every segment against the rest, at the level that Bonferroni leaves to each."""
    cuts = [(f"c{i}", [(f"s{j}", share_of(*one)) for j, one in enumerate(table)]) for i, table in enumerate(tables)]
    cuts = [(*cut, {name for name, _ in cut[1]}) for cut in cuts]
    found = find_worst(cuts)
    looked = [(i, j) for i, table in enumerate(tables) for j in range(len(table)) if len(table) > 1]
    bounds = {}
    for i, j in looked:
        z = norm.ppf(1 - 0.05 / len(looked) / 2)
        count, rows = tables[i][j]
        rest = [one for k, one in enumerate(tables[i]) if k != j]
        others = sum(one[0] for one in rest), sum(one[1] for one in rest)
        if rows and others[1]:
            bounds[i, j] = difference_of(share_of(count, rows, z), share_of(*others, z)).lower
    clear = {key: bound for key, bound in bounds.items() if bound > 1e-9}
    if found is None:
        assert not clear
    elif clear:
        best = max(clear.values())
        key = int(found.column[1:]), int(found.name[1:])
        assert clear[key] == pytest.approx(best, abs=1e-9)
        assert found.difference.lower > 0 and (found.rest_name is not None) == (len(tables[key[0]]) == 2)


def with_flips(certs: fg.Certificates, early: set[object]) -> fg.Certificates:
    """The same audit, but only these rows flip, after one group; the others never do."""
    ids = certs.table.column("id").to_pylist()
    flipped = [own in early for own in ids]
    budget = pa.array([1 if flips else certs.protocol.depth + 1 for flips in flipped], type=pa.int64())
    table = certs.table
    for name, values in (("flipped", pa.array(flipped)), ("flip_budget", budget)):
        place = table.column_names.index(name)
        table = table.set_column(place, name, values.cast(table.schema.field(name).type))
    return fg.Certificates(table, certs.protocol, certs.manifest)


def test_the_finding_comes_first_and_names_the_class_that_flips_early_most() -> None:
    """7 of 8 confident predictions of one class, and hardly any of the other: the share over both hides it."""
    certs = small_audit(300)
    rare = [cert.id for cert in certs if cert.confidence >= 0.9 and cert.predicted == "defaulted"][:8]
    common = [cert.id for cert in certs if cert.confidence >= 0.9 and cert.predicted == "repaid"]
    kept = certs.take([own in {*rare, *common} for own in certs.table.column("id").to_pylist()])
    report = fg.Report.of(with_flips(kept, {*rare[:7], *common[:2]}))
    share = share_of(2, len(common), unsettled=len(common) - 2)  # no sets were searched: the path may miss some
    opening = report.to_markdown().split("## What was audited")[0]
    assert opening.startswith("# Fragility report: audit\n\n## The finding")
    assert f"9 of {8 + len(common)} confident predictions flip early, " in opening
    assert "**At least 7 of 8 confident 'defaulted' predictions flip early, 88% (95% interval 53% to 100%), " in opening
    assert f"against at least {share.value:.1%} ({share.lower:.1%} to {share.upper:.0%}) of 'repaid'." in opening
    html = report.to_html()
    assert html.index('id="finding"') < html.index("<svg") < html.index("<nav") < html.index('id="audited"')


def test_a_class_mix_is_not_called_a_difference_of_segments() -> None:
    """Shop "south" has more predictions of the class that always flips; within a class the shops do not differ."""
    certs = small_audit(300)
    label = {cert.id: str(cert.predicted) for cert in certs}
    flipped = with_flips(certs, {own for own, name in label.items() if name == "defaulted"})
    rows = whole_numbers(300, 1)
    rng = np.random.default_rng(0)
    rows.index = pd.Index([int(cert.id) for cert in certs])
    often = np.array([0.85 if label[own] == "defaulted" else 0.15 for own in rows.index])
    rows["shop"] = np.where(rng.random(300) < often, "south", "north")
    found = fg.share_by(flipped, rows, by="shop")
    south, north = sorted(found.segments, key=lambda one: one.name, reverse=True)
    assert south.confident.differs and not south.confident.differs_within_class
    assert south.confident.standardised == pytest.approx(north.confident.standardised)
    crude = [share_of(own.count, own.rows) for own in (south.confident.flips_early, north.confident.flips_early)]
    assert crude[0].lower > crude[1].upper  # what was called a disparity
    assert [share.value for share in south.confident.by_class] == [1.0, 0.0]


def test_every_headline_share_has_its_interval() -> None:
    certs = small_audit(200)
    report = fg.Report.of(certs, labels=small_labels(certs))
    found = report.summary.audits[0].confident
    early = [cert for cert in certs if cert.confidence >= 0.9 and cert.flipped and cert.flip_budget <= 2]
    sure = sum(cert.confidence >= 0.9 for cert in certs)
    assert found.flips_early == share_of(len(early), sure, unsettled=found.flips_early.unsettled)
    assert found.flips_after_one == share_of(sum(cert.flip_budget == 1 for cert in early), sure)
    for share in (found.flips_early, found.flips_after_one, report.summary.audits[0].accuracy.right):
        assert (
            f"({share.lower:.0%} to {share.upper:.0%})" in report.to_markdown()
            or f"{share.lower:.1%}" in report.to_markdown()
        )
    document = report.to_dict()["audits"][0]["confident"]["flips_early"]
    assert set(document) == {"count", "rows", "lower", "upper", "unsettled"}


def test_several_audits_open_with_their_difference() -> None:
    one = small_audit(300)
    sure = [cert.id for cert in one if cert.confidence >= 0.9]
    before, after = with_flips(one, set(sure[:40])), with_flips(one, set(sure[30:44]))
    report = fg.Report.of({"old": before, "new": after})
    (pair,) = report.summary.paired
    found = {compared.measure: compared for compared in pair.compared}
    assert found["early"].difference == paired_difference(4, 30, len(sure))
    assert found["confident_early"].difference == paired_difference(4, 30, 300)
    assert found["confident"].difference == paired_difference(0, 0, 300)
    assert (found["early"].first.count, found["early"].second.count) == (40, 14)
    opening = report.to_markdown().split("## The audits side by side")[0]
    assert opening.startswith("# Fragility report: old and new\n\n## The comparison")
    assert f"**new flips early less often than old. Of {len(sure)} rows confident in both, " in opening
    back = fg.Report.of({"new": after, "old": before})
    assert "**old flips early more often than new." in back.to_markdown()
    same = fg.Report.of({"old": before, "copy": before})
    assert "**copy and old do not clearly differ. Of" in same.to_markdown()


def test_audits_under_different_protocols_are_marked_at_the_top() -> None:
    one, other = small_audit(100, baseline="zero"), small_audit(100, depth=3)
    told = "Not comparable: b has another protocol than a: baseline (zero against typical) and depth (6 against 3)."
    html = fg.Report.of({"a": one, "b": other}).to_html()
    assert told in html and html.index(told) < html.index("<nav")
    assert told in fg.Report.of({"a": one, "b": other}).to_markdown()
    assert "has another protocol" not in fg.Report.of({"a": one, "b": one}).to_html()


def test_audits_without_confident_predictions_say_so() -> None:
    certs = small_audit(40)
    report = fg.Report.of({"a": certs, "b": certs}, min_confidence=1.0)
    assert "b and a have no confident predictions to compare." in report.to_markdown()
    assert np.isnan(report.summary.paired[0].compared[0].difference.value)
