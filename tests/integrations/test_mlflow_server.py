"""A tracking server with SQLite, started on loopback: metrics and artefacts travel over HTTP and come back whole."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import run

import fragility as fg

NEEDED = ("flask", "flask_cors", "graphene", "aiohttp")
SECONDS_TO_START = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """The address of a server of its own, which is stopped at the end, its workers included."""
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        pytest.skip(f"a tracking server needs {', '.join(lacking)}")
    home = tmp_path_factory.mktemp("server")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{home}/mlflow.db", "--artifacts-destination", str(home / "artefacts")]
    environment = {
        **os.environ,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *words], stdout=log, stderr=log, cwd=home, env=environment,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, home / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # its own session: the server and its workers
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < end and process.poll() is None:
        try:
            with opener.open(address, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


@pytest.mark.slow
def test_an_evaluation_on_a_tracking_server(server, tracking, case, tmp_path, monkeypatch) -> None:
    import mlflow.sklearn
    from mlflow.models import MetricThreshold
    from mlflow.models.evaluation.validation import ModelValidationFailedException

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID")
    tracking.set_tracking_uri(server)
    experiment = tracking.MlflowClient().create_experiment("served")
    gate = fg.Gate((fg.Rule(measure="flips_early", at_most=1.0),), min_confidence=0.8)
    with tracking.start_run(experiment_id=experiment) as active:
        address = mlflow.sklearn.log_model(case.model, name="model", pip_requirements=[]).model_uri
        for _ in range(2):  # again: the same audit
            result = tracking.models.evaluate(
                address, case.data, targets="risk", model_type="classifier", evaluators=["default", "fragility"],
                evaluator_config={
                    "default": {"log_model_explainability": False},
                    "fragility": {"train": case.train, "min_confidence": 0.8, "rules": gate},
                },
            )  # fmt: skip
    data = tracking.get_run(active.info.run_id).data
    assert {key: value for key, value in data.metrics.items() if key.startswith("fragility/")} == {
        key: float(value) for key, value in result.metrics.items() if key.startswith("fragility/")
    }
    assert data.tags["fragility/gate"] == "pass" and data.metrics["accuracy_score"] > 0.5
    listed = {each.path for each in tracking.MlflowClient().list_artifacts(active.info.run_id, "fragility")}
    names = ("certificates", "gate.json", "gate.md", "protocol.json", "report.html")
    assert listed == {f"fragility/{name}" for name in names}
    home = tracking.artifacts.download_artifacts(
        run_id=active.info.run_id, artifact_path="fragility", dst_path=str(tmp_path)
    )
    case.data.to_parquet(tmp_path / "rows.parquet")
    words = ["--model", address, "--data", tmp_path / "rows.parquet", "--target", "risk"]
    done = run("verify", Path(home) / "certificates", *words)
    assert done.code == 0 and "every claim of all 200 certificates holds" in done.out, done.err
    limits = {"fragility/gate_failed": MetricThreshold(threshold=0, greater_is_better=False)}
    tracking.validate_evaluation_results(limits, result)
    limits = {"fragility/flips_early_high": MetricThreshold(threshold=1e-9, greater_is_better=False)}
    with pytest.raises(ModelValidationFailedException, match="fragility/flips_early_high value threshold check failed"):
        tracking.validate_evaluation_results(limits, result)

    folder = fg.audit(case.model, case.rows, case.protocol, progress=False).save(tmp_path / "audit")
    with tracking.start_run(experiment_id=experiment) as other:
        assert fg.log_audit(folder, min_confidence=0.8) == other.info.run_id
    shares = tracking.get_run(other.info.run_id).data.metrics
    assert shares["fragility/flips_early"] == data.metrics["fragility/flips_early"]
    back = tracking.artifacts.download_artifacts(
        run_id=other.info.run_id, artifact_path="fragility/certificates", dst_path=str(tmp_path / "back")
    )
    assert fg.verify(back, case.model, case.rows)
    found = tracking.search_runs([experiment], filter_string="tags.`fragility/gate` = 'pass'")
    assert found["run_id"].tolist() == [active.info.run_id]
