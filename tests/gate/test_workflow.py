"""The workflow and the pytest lines of the guide's page "In CI" do what they say."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from sklearn.linear_model import LogisticRegression
from skops.io import dump

import fragility as fg

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "in-ci.md").read_text(encoding="utf-8")
FIELDS = ["duration", "credit_amount", "age", "installment_commitment", "residence_since"]


def take_block(beginning: str) -> str:
    (found,) = re.findall(rf"^```\w+\n({re.escape(beginning)}.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def repository(tmp_path, credit):
    """A repository with a model, its rows, rules and the audit of the last good model."""
    X, y = credit
    X = X[FIELDS] / [10, 1000, 10, 1, 1]
    model = LogisticRegression(max_iter=3000).fit(X[:700], y[:700])
    dump(model, tmp_path / "model.skops")
    X[:700].assign(**{"class": y[:700]}).to_parquet(tmp_path / "train.parquet")
    X[700:].assign(**{"class": y[700:]}).to_parquet(tmp_path / "test.parquet")
    good = LogisticRegression(max_iter=3000).fit(X[:650], y[:650])
    protocol = fg.Protocol.fit(model, X[:700])
    fg.audit(good, X[700:], protocol, progress=False).save(tmp_path / "last-good-audit")
    return tmp_path


def run_steps(repository: Path, steps: list[dict]) -> list[int]:
    """Run the steps as GitHub does: after a failure only those that always run."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(repository / "summary.md"),
    }
    codes: list[int] = []
    for step in steps:
        command = step.get("run", "")
        if not command or command.startswith("pip install") or (any(codes) and step.get("if") != "always()"):
            continue
        codes.append(subprocess.run(["bash", "-e", "-c", command], cwd=repository, env=environment).returncode)
    return codes


@pytest.mark.parametrize(("allowance", "codes"), [(0.5, [0, 0, 0]), (0.0, [0, 1, 0])])
def test_the_workflow_of_the_guide_runs(repository, allowance, codes):
    yaml = pytest.importorskip("yaml")
    fg.Gate((fg.Rule(measure="exposure", allowance=allowance),), min_confidence=0.7).save(repository / "gate.toml")
    job = yaml.safe_load(take_block("jobs:"))["jobs"]["gate"]
    assert run_steps(repository, job["steps"]) == codes
    assert "Evidence gate" in (repository / "summary.md").read_text()
    assert (repository / "gate.xml").exists()


def test_the_pytest_lines_of_the_guide_run(repository):
    fg.Gate((fg.Rule(measure="exposure", allowance=0.5),), min_confidence=0.7).save(repository / "gate.toml")
    (repository / "last-good-audit").rename(repository / "audit")
    fg.Certificates.load(repository / "audit").save(repository / "last-good-audit")
    (repository / "test_gate.py").write_text(take_block("def test_the_new_model"))
    known = [found.value for found in entry_points(group="pytest11")]
    plugin = [] if "fragility.integrations.pytest_plugin" in known else ["-p", "fragility.integrations.pytest_plugin"]
    words = [sys.executable, "-m", "pytest", "-q", *plugin, "test_gate.py"]
    run = subprocess.run(words, cwd=repository, capture_output=True, text=True)
    assert "1 passed" in run.stdout, run.stdout
