"""Results say what they are in a line or two, and do not flood a notebook."""

from __future__ import annotations

import numpy as np
import pytest
from block_tables import put_block
from sklearn.tree import DecisionTreeClassifier

import fragility as fg
from fragility.audits.comparison import compare_audits
from fragility.base.text import BriefRepr, describe_value

LONGEST = 400


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One real result of every public kind, by how it is made."""
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "installment_commitment", "credit_amount"]]
    y = (X["age"] > 35) ^ (y == "good")
    train, rows, truth = X[:700], X[700:], y[700:]
    model = DecisionTreeClassifier(max_depth=6, random_state=0).fit(train, y[:700])
    protocol = fg.Protocol.fit(model, train)
    certs = fg.audit(model, rows, protocol, rates=0.1, modes=True, intervals=True)
    labels = fg.label_brittle(model, rows, protocol)
    compared = fg.compare_baselines(model, rows, protocol, certificates=certs)
    certs = put_block(certs, compared)
    folder = certs.save(tmp_path_factory.mktemp("reprs") / "audit")
    gate = fg.Gate((fg.Rule(measure="exposure", at_most=0.9),))
    lost = fg.assess_reliability(model, rows, protocol, 0.1)
    guard = fg.Guard(model, protocol)
    modes = fg.assess_modes(model, rows, protocol)
    intervals = fg.find_stability_intervals(model, rows, protocol)
    without = fg.evaluate_missing(model, rows, protocol)
    return {
        "audit": certs,
        "open_audit": fg.open_audit(folder),
        "protocol": protocol,
        "modes of a protocol": protocol.modes,
        "manifest": certs.manifest,
        "claims": certs.claims,
        "claims of the modes": certs.modes,
        "claims of the intervals": certs.intervals,
        "claims of the lattice": certs.lattice,
        "summary": certs.summary(),
        "label_brittle": labels,
        "its run": labels.run,
        "its stress": labels.stress,
        "compare_baselines": compared,
        "evaluate": fg.evaluate(certs, model, rows, truth),
        "evaluate_missing": without,
        "its picture": without.plot(),
        "failure_probability": lost,
        "its other picture": lost.plot(),
        "find_failing_sets": fg.find_failing_sets(model, rows, protocol),
        "assess_modes": modes,
        "one mode": modes["lost"],
        "find_stability_intervals": intervals,
        "check_parity": fg.check_parity(model, model, rows, protocol),
        "share_by": fg.share_by(certs, rows, "age:q3"),
        "compare": compare_audits(certs, certs, 0.9),
        "gate": gate,
        "its verdicts": gate.check(certs),
        "verify": fg.verify(certs, model, rows),
        "auditor": fg.Auditor(model, protocol),
        "guard": guard,
        "check": guard.check(rows.iloc[0].to_dict()),
        "check_rows": guard.check_rows(rows),
        "report": fg.Report.of(certs),
        "its numbers": fg.Report.of(certs).summary,
        "map": fg.FragilityMapDisplay.from_certificates(certs),
        "collapse": fg.CollapseDisplay.from_certificates(certs),
        "model": fg.Model.wrap(model),
    }


def test_every_result_is_shown_in_a_line_or_two(results):
    import matplotlib.pyplot as plt

    plt.close("all")
    shown = {name: repr(result) for name, result in results.items()}
    long = {name: len(text) for name, text in shown.items() if len(text) > LONGEST or text.count("\n") > 1}
    assert not long
    assert not [name for name, text in shown.items() if " object at 0x" in text]
    assert shown["guard"] == "Guard(DecisionTreeClassifier, 4 groups, engine trees, without a policy)"
    assert shown["label_brittle"].startswith("BrittleLabels(id=<ndarray 300>, predicted=<ndarray 300>, ")
    for name, result in results.items():
        if isinstance(result, BriefRepr) and type(result).__str__ is not object.__str__:
            assert result._repr_html_().startswith(("<pre>", "<style>")), name  # all of its text, or its page


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((3, 4)), "<ndarray 3 x 4>"), (np.float64(0.5), "np.float64(0.5)"), (0.25, "0.25"), (None, "None"),
        ("ab", "'ab'"), ("a" * 100, "'" + "a" * 58 + "\u2026"), ((1, 2), "(1, 2)"), (range(10), "<10 entries>"),
        (["x"] * 9, "<9 entries>"), ({"a": 1}, "<1 entry>"), ((), "()"), (fg.Stress(), "Stress"),
    ],
)  # fmt: skip
def test_values_are_described_in_few_characters(value, words):
    assert describe_value(value) == words
