"""What the library makes, the verifier in one file takes: two readings of the format agree."""

from __future__ import annotations

import fragility_check as checker
import pytest
from audited_cases import CASES, EVERYTHING
from lightgbm import LGBMClassifier
from ordinary_tables import read_ordinary
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import fragility as fg


@pytest.mark.parametrize("name", CASES)
def test_an_honest_audit_is_proved(audited, name: str) -> None:
    case = audited(name)
    result = case.check()
    assert result.exit_code == 0, str(result)
    proved = " ".join(result.lists["proved"])
    assert "the flip budgets (24)" in proved and "the training rows (1)" in proved
    for block, topic in (("modes", "drops of modes"), ("intervals", "inside intervals")):
        assert (topic in proved) == bool(CASES[name].blocks.get(block))


def test_whole_numbers_that_reach_the_trees_as_they_are(tmp_path) -> None:
    """Noise keeps the columns whole; under the baseline `missing` these are the fields and no longer the columns."""
    X, y = read_ordinary("mixed")
    nominal = list(X.select_dtypes(exclude="number"))
    encode = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), nominal), remainder="passthrough")
    model = make_pipeline(encode, LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1)).fit(X[:600], y[:600])
    protocol = fg.Protocol.fit(model, X[:600])
    assert protocol.modes.whole and "missing" in protocol.alternatives
    folder = fg.audit(model, X[600:612], protocol, **EVERYTHING, progress=False).save(tmp_path / "a")
    result = checker.check(folder, X[600:612], **checker.take_apart(model), train=X[:600], seed=1)
    assert result.exit_code == 0, str(result)
