"""Failure modes in the report: the block's own numbers, counted another way here, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest
from small_audits import InParts, declared_model, small_audit, whole_numbers

import fragility as fg
from fragility.base.shares import share_of
from fragility.report.summary import ModesNumbers

MODES = ("lost", "wrong", "noisy")


@pytest.fixture(scope="module")
def certs() -> fg.Certificates:
    return small_audit(150, modes=True)


def modes_of(report: fg.Report) -> ModesNumbers:
    found = report.summary.audits[0].focus.modes
    assert found is not None
    return found


def test_every_number_is_that_of_the_certificates(certs) -> None:
    found = modes_of(fg.Report.of(certs))
    chosen = [cert for cert in certs if cert.confidence >= 0.9]
    assert (found.rows, found.most_confident) == (len(chosen), None)
    assert tuple(one.mode for one in found.modes) == MODES
    for one in found.modes:
        costs = [(cert, cert.modes[one.mode]) for cert in chosen]
        exposures = [cost.exposure for _, cost in costs]
        median = np.quantile(exposures, 0.5, method="inverted_cdf")
        assert one.exposure.median == pytest.approx(median, abs=1.1e-4)
        assert sum(one.histogram) == len(chosen)
        assert one.histogram[0] == sum(value < 0.05 for value in exposures)
        likely = sum(max(cost.flip_chance.values()) > 0.5 for _, cost in costs)
        assert one.flips == share_of(likely, len(chosen))
        assert {unit.name for unit in one.units} == set(costs[0][1].drop)
        for unit in one.units:
            lost = [min(max(cost.drop[unit.name] / (abs(cert.margin) + 1e-8), 0.0), 1.0) for cert, cost in costs]
            chance = [cost.flip_chance[unit.name] for _, cost in costs]
            assert unit.lost == pytest.approx(np.mean(lost), abs=1e-9)
            assert unit.flip_chance == pytest.approx(np.mean(chance), abs=1e-9)
            assert unit.flips == sum(value > 0.5 for value in chance)
        assert [unit.flip_chance for unit in one.units] == sorted((u.flip_chance for u in one.units), reverse=True)


@pytest.mark.parametrize("rows", [1, 7, 149])
def test_the_cuts_between_pieces_do_not_show(certs, rows: int) -> None:
    assert fg.Report.of(InParts(certs, rows)).to_html() == fg.Report.of(certs).to_html()


def test_a_case_says_what_each_mode_costs_it(certs) -> None:
    report = fg.Report.of(certs)
    html, markdown = report.to_html(), report.to_markdown()
    for case in report.summary.audits[0].confident.cases:
        cert = certs.by_id(int(case.id))
        assert case.modes is not None
        assert [(one.mode, one.exposure, one.weakest) for one in case.modes] == [
            (mode, round(cost.exposure, 9), cost.weakest) for mode, cost in cert.modes.items()
        ]
        told = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in cert.mode_sentences()]
        assert len(told) == 3
        for sentence in told:
            assert f"<li>{sentence}</li>" in html and f"- {sentence}" in markdown


@pytest.mark.parametrize("extent", [True, 10])
def test_a_case_says_how_far_its_values_may_move(extent) -> None:
    model, given = declared_model(), whole_numbers(60, 1).to_numpy()
    protocol = fg.Protocol.fit(model, whole_numbers(50, 0).to_numpy())
    certs = fg.audit(model, given, protocol, progress=False, lattice=False, intervals=extent)
    report = fg.Report.of(certs)
    html, markdown, known = report.to_html(), report.to_markdown(), 0
    for case in report.summary.audits[0].confident.cases:
        cert = certs.by_id(int(case.id))
        assert (case.intervals is None) == (cert.intervals is None)
        known += case.intervals is not None
        for sentence in cert.interval_sentences():
            told = f"{sentence[0].upper()}{sentence[1:]}."
            assert f"<li>{told}</li>" in html and f"- {told}" in markdown
    assert known == 20 if extent is True else 0 < known <= 10
    shown = report.to_dict()["audits"][0]["confident"]["cases"]
    assert any(case["intervals"] for case in shown)


def test_it_says_how_the_assessed_rows_were_chosen(certs) -> None:
    every = fg.Report.of(certs)
    total = every.summary.audits[0].confident.rows
    assert f"Assessed: all {total} confident predictions.\n" in every.to_markdown()
    some = fg.Report.of(small_audit(150, modes=30))
    assert modes_of(some).rows == 30
    assert (
        f"Assessed: 30 of {total} confident predictions. This audit assesses at most 30 predictions"
        in some.to_markdown()
    )
    assert "drawn by a hash of their content" in some.to_html()
    shown = [case for case in some.summary.audits[0].confident.cases if case.modes is not None]
    assert 0 < len(shown) < 20  # a case that was not assessed says nothing of modes


def test_none_assessed_is_said() -> None:
    rows = whole_numbers(40, 1).to_numpy() * 0.05  # nobody is confident
    model = declared_model()
    certs = fg.audit(
        model, rows, fg.Protocol.fit(model, whole_numbers(50, 0).to_numpy()), progress=False, lattice=False, modes=5
    )
    report = fg.Report.of(certs)
    assert modes_of(report).modes == () and "Assessed: none of 40 predictions." in report.to_markdown()


def test_a_mode_that_flips_nothing_and_one_without_units(certs) -> None:
    text = fg.Report.of(certs, min_confidence=0.999).to_markdown()
    assert "No single unit flips any of" in text
    frame = whole_numbers(60, 1, ("income", "debt", "age", "tenure", "visits", "region"))
    model = declared_model()
    protocol = fg.Protocol.fit(model, frame.to_numpy(), modes=("lost",))
    lost = fg.Report.of(fg.audit(model, frame.to_numpy(), protocol, progress=False, lattice=False, modes=True))
    assert [one.mode for one in modes_of(lost).modes] == ["lost"] and "Noisy values" not in lost.to_html()


def test_an_audit_without_a_block_has_no_section() -> None:
    report = fg.Report.of(small_audit(60))
    assert report.summary.audits[0].focus.modes is None
    assert "Evidence that is wrong, not only lost" not in report.to_html()


def test_two_audits_stand_side_by_side_where_both_have_modes(certs) -> None:
    other = small_audit(150, seed=2, modes=20)
    both = fg.Report.of({"old": certs, "new": other})
    first, second = (numbers.confident.modes.modes[1] for numbers in both.summary.audits)
    line = next(line for line in both.to_markdown().splitlines() if line.startswith("| wrong values: median exposure"))
    assert line == (f"| wrong values: median exposure | {first.exposure.median:.2f} | {second.exposure.median:.2f} |")
    assert "Failure modes, of" in both.to_markdown() and "20 of new" in both.to_markdown()
    assert "Failure modes, of" not in fg.Report.of({"old": certs, "new": small_audit(150)}).to_markdown()
