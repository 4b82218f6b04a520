"""Tables whose columns have unusual names."""

from __future__ import annotations

import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fragility as fg


@pytest.mark.parametrize("names", (["parts", "hash_rows", "column_names"], ["dtype", "values", "schema"]))
def test_columns_named_like_attributes_of_our_own_containers(names):
    """The columns of a pandas table are attributes of it, whatever they are called."""
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "installment_commitment"]].set_axis(names, axis=1)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    audit = fg.audit(model, X[:30], protocol)
    assert fg.verify(audit, model, X[:30])
    assert fg.Auditor(model, protocol).certify(X[:30]).claims.ids == audit.claims.ids
    assert len(fg.share_by(audit, X[:30], f"{names[0]}:q2").segments) == 2
    assert fg.Report.of(audit, model=model, rows=X[:30], by=f"{names[0]}:q2").to_html()
    gate = fg.Gate((fg.Rule(measure="exposure", at_most=0.99, by=f"{names[0]}:q2"),))
    assert gate.check(audit, rows=X[:30]).verdicts
