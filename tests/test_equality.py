"""Reports with undefined figures equal themselves, on every version of Python."""

from dataclasses import fields, replace

import pytest

import fragility.analysis.ranking.comparison
import fragility.analysis.ranking.metrics
import fragility.audits
from fragility.pages.results import NanEqual

REPORTS = list({report.__name__: report for report in NanEqual.__subclasses__()}.values())


def undefined(report: type) -> NanEqual:
    """A report all of whose figures are undefined, each NaN an object of its own."""
    return report(*(float("nan") if "float" in str(each.type) else 0 for each in fields(report)))


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.__name__)
def test_undefined_figures_are_the_same_answer(report):
    first, second = undefined(report), undefined(report)
    assert first == second and hash(first) == hash(second)
    figure = next(each.name for each in fields(report) if "float" in str(each.type))
    assert replace(first, **{figure: 0.5}) != second
    assert first != tuple(getattr(first, each.name) for each in fields(report))


def test_the_classes_that_can_hold_undefined_figures_are_among_them():
    names = {report.__name__ for report in REPORTS}
    assert {"ScoreResult", "Comparison", "Ceiling", "PredictiveMetrics", "Average"} <= names
    assert fragility.analysis.ranking.comparison.ScoreResult in REPORTS
