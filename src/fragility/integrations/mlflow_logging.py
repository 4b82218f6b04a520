"""Audits in MLflow: a run gets metrics with intervals, tags and params, and the files of the audit as artefacts.

Shares refer to the confident predictions and have the report's 95% intervals (Wilson). Means of exposures and of
failure probabilities, which lie within 0 and 1, have bounds at the same level that hold for any distribution (empirical
Bernstein). A metric without rows is not logged, so that a threshold on it fails.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.analysis.policy import LabelledRows
from fragility.audits import Audit, Certificates, StoredAudit, open_audit
from fragility.audits.folder import MANIFEST_FILE, read_manifest
from fragility.audits.measures import BRITTLE
from fragility.base.errors import DataError, first_line
from fragility.base.shares import Share, share_of
from fragility.gate import GateResult
from fragility.gate.estimates import AuditEvidence, Estimate
from fragility.models.mlflow_models import import_mlflow
from fragility.questions.stress.labels import BrittleLabels
from fragility.report import Report, verify_command
from fragility.report.summary import AuditNumbers
from fragility.trust.signing import SIGNATURE_FILE

NAME = "fragility"
SHARES, MEANS = ("flips_after_one", "flips_early", "holds"), ("confident_mean_exposure", "lost")  # measures logged
ONE_SIDED = 0.975  # two such bounds hold together with 95%
LONGEST_PARAM = 250  # characters; stores differ in how many they take
CERTIFICATES, REPORT, PROTOCOL, GATE = "certificates", "report.html", "protocol.json", "gate.json"


def log_audit(
    audit: Audit | str | os.PathLike[str],
    run: Any = None,
    *,
    name: str = NAME,
    report: Report | None = None,
    gate: GateResult | None = None,
    stress: BrittleLabels | pa.Table | None = None,
    min_confidence: float | None = None,
) -> str:
    """Log an audit to an MLflow run.

    The run gets metrics (the shares that flip, exposures, what else the audit holds, each with its interval), params,
    tags with the digests of the model, the protocol and the certificates, and as artefacts ``report.html``,
    ``protocol.json``, the folder ``certificates``, which :func:`verify` takes, and the verdicts of a gate.

    Parameters
    ----------
    audit : Certificates, StoredAudit or path
        The audit.
    run : str or mlflow.entities.Run, optional
        The run or its id; by default the active run, or a new one if none is active.
    name : str, default="fragility"
        What metrics, params and tags begin with, and the folder of the artefacts. A run holds one audit per name.
    report : Report, optional
        A report of the audit to log instead of a plain one; its threshold of confidence then holds for the metrics.
    gate : GateResult, optional
        The verdicts of a gate on this audit, from :meth:`Gate.check`.
    stress : BrittleLabels or table, optional
        Held-out labels of the audit, from :func:`label_brittle`, for the share of brittle predictions.
    min_confidence : float, optional
        Where a prediction counts as confident; by default as the protocol declares.

    Returns
    -------
    str
        The id of the run.

    Raises
    ------
    DataError
        There is no such run, it holds another audit of this name, or ``report``, ``gate`` or ``stress`` belong to
        another audit.
    ModelError
        MLflow is not installed.

    See Also
    --------
    audit : Makes the audit.
    Gate.check : Makes verdicts.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X[:700], y[:700])
    >>> certs = fg.audit(model, X[700:], fg.Protocol.fit(model, X[:700]))
    >>> run_id = fg.log_audit(certs)  # doctest: +SKIP
    """
    import_mlflow("log_audit")
    opened = audit if isinstance(audit, Audit) else open_audit(audit)
    verify = verify_command(CERTIFICATES)
    report_logged = report or Report.of(opened, verify=verify, min_confidence=min_confidence)
    with prepare_audit(opened, name, report_logged, gate, stress) as prepared, _open_run(run) as run_id:
        prepared.log(run_id)
    return run_id


@contextmanager
def _open_run(run: Any) -> Iterator[str]:
    """Yield the id of a run; one that is started here is ended here."""
    mlflow = import_mlflow("log_audit")
    active = mlflow.active_run()
    if run is None and active is None:
        with mlflow.start_run() as started:
            yield started.info.run_id
        return
    yield active.info.run_id if run is None else getattr(getattr(run, "info", None), "run_id", run)


# --- what is logged ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreparedAudit:
    """What is logged to a run, computed and written to files before the run is touched."""

    name: str
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    tags: Mapping[str, str]
    files: Mapping[str, tuple[Path, ...]]  # by the folder among the run's artefacts

    def log(self, run_id: str, linked: Mapping[str, str] = MappingProxyType({})) -> None:
        """Log the audit; refuse a run that holds another audit of this name.

        linked: the fields of a metric that tie it to a logged model and to a dataset, in MLflow 3.
        """
        mlflow = import_mlflow("log_audit")
        client, entities = mlflow.MlflowClient(), mlflow.entities
        try:
            data = client.get_run(run_id).data
        except Exception as error:  # of the client, of the store, of the network
            raise DataError(f"MLflow does not find the run {run_id!r:.200}: {first_line(error)}") from error
        for key, value in [*self.tags.items(), *self.params.items()]:
            logged = data.params.get(key) if key in self.params else data.tags.get(key)
            if logged not in (None, value) and key != f"{self.name}/gate":
                raise DataError(
                    f"the run {run_id} holds another audit as {self.name!r}: its {key} is {logged!r:.100}, not "
                    f"{value!r:.100}; give this one another name, or another run"
                )
        # The tags come first: what an interruption leaves unfinished is then known to be of this audit.
        client.log_batch(run_id, tags=[entities.RunTag(*item) for item in self.tags.items()])
        for folder, paths in self.files.items():
            for path in paths:
                client.log_artifact(run_id, str(path), folder)
        now = time.time_ns() // 1_000_000
        metrics = [entities.Metric(key, value, now, 0, **linked) for key, value in self.metrics.items()]
        client.log_batch(run_id, metrics, [entities.Param(*item) for item in self.params.items()])


@contextmanager
def prepare_audit(
    audit: Audit, name: str, report: Report, gate: GateResult | None, stress: BrittleLabels | pa.Table | None
) -> Iterator[PreparedAudit]:
    """Yield what is logged of an audit; its files exist until the block is left."""
    numbers = _find_numbers(audit, report)
    audited = f"({audit.manifest.model.fingerprint[:23]})"
    if gate is not None and not any(model.endswith(audited) for model in gate.models):
        raise DataError(f"the verdicts are of another model, {gate.models[0]}; check the audit that is logged")
    check_name(name)
    metrics = measure_audit(audit, numbers.min_confidence, stress) | _count_verdicts(gate)
    with tempfile.TemporaryDirectory(prefix="fragility-mlflow-") as temporary:
        home = Path(temporary)
        report.save(home / REPORT)
        audit.protocol.save(home / PROTOCOL)
        files = [home / REPORT, home / PROTOCOL]
        if gate is not None:
            files += [gate.save(home / GATE), gate.save(home / "gate.md")]
        yield PreparedAudit(
            name,
            {f"{name}/{key}": value for key, value in metrics.items()},
            {f"{name}/{key}": value[:LONGEST_PARAM] for key, value in _describe_audit(audit, numbers).items()},
            {f"{name}/{key}": value for key, value in _list_digests(audit, gate).items()},
            {name: tuple(files), f"{name}/{CERTIFICATES}": _list_files(audit, home / CERTIFICATES)},
        )


def check_name(name: str) -> None:
    """Refuse a name that MLflow does not take in metrics and paths."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w. -]*", name, re.ASCII):
        raise DataError(
            f"name must consist of letters, digits, '_', '-', '.' and blanks, got {name!r:.80}; metrics are called "
            "NAME/flips_early"
        )


def _find_numbers(audit: Audit, report: Report) -> AuditNumbers:
    for numbers in report.summary.audits:
        if numbers.facts.root_digest == audit.manifest.root_digest:
            return numbers
    raise DataError("the report is of another audit; make one of the audit that is logged, with Report.of")


def _list_files(audit: Audit, folder: Path) -> tuple[Path, ...]:
    """Return the files of an audit; one in memory is written to ``folder``."""
    if isinstance(audit, StoredAudit):
        folder = audit.folder
        names = [MANIFEST_FILE, *(read_manifest(folder).files or ())]
        names += [SIGNATURE_FILE] if (folder / SIGNATURE_FILE).is_file() else []
        return tuple(folder / path for path in names)
    assert isinstance(audit, Certificates)
    return tuple(sorted(path for path in audit.save(folder).iterdir() if not path.name.startswith(".")))


def _describe_audit(audit: Audit, numbers: AuditNumbers) -> dict[str, str]:
    protocol = numbers.protocol
    return {
        "model": numbers.facts.model,
        "engine": audit.engine,
        "min_confidence": f"{numbers.min_confidence:g}",
        "space": protocol.space,
        "grouping": protocol.grouping,
        "groups": str(len(protocol.groups)),
        "baseline": protocol.baseline,
        "under_other_baselines": "not compared" if numbers.dependence is None else numbers.dependence.short,
        "depth": str(protocol.depth),
    }


def _list_digests(audit: Audit, gate: GateResult | None) -> dict[str, str]:
    manifest = audit.manifest
    digests = {
        "root_digest": manifest.root_digest,
        "model_fingerprint": manifest.model.fingerprint,
        "protocol_digest": manifest.protocol_digest,
        "input_digest": manifest.input.digest,
    }
    return digests if gate is None else {**digests, "gate": gate.outcome}


# --- metrics ----------------------------------------------------------------------------------------------------


def measure_audit(
    audit: Audit, min_confidence: float, stress: BrittleLabels | pa.Table | None = None
) -> dict[str, float]:
    """Return the metrics of an audit by name, each with ``_low`` and ``_high``; metrics without rows are left out."""
    evidence = AuditEvidence(audit, stress=None if stress is None else LabelledRows.of(stress, min_confidence))
    tally, every = audit.tally(min_confidence=min_confidence), np.ones(len(audit), dtype=bool)
    metrics: dict[str, float] = {"rows": tally.rows, "confident_rows": tally.share("confident").count}
    estimates: dict[str, Share | Estimate] = {}
    for name, measure in tally.measures.items():
        if name in SHARES:
            share = estimates[name] = tally.share(name)
            if share.rows and measure.unsettled is not None:  # a share is exact if no row is unsettled
                metrics[f"{name}_unsettled"] = share.unsettled
        elif name.startswith(MEANS):
            estimates[name] = evidence.estimate(measure, min_confidence)(every, ONE_SIDED)
    if stress is not None:
        brittle = evidence.estimate(BRITTLE, min_confidence)(every, ONE_SIDED)
        estimates["brittle"] = share_of(round(brittle.value * brittle.rows) if brittle.rows else 0, brittle.rows)
    for name, estimate in estimates.items():
        if estimate.rows:
            metrics |= {name: estimate.value, f"{name}_low": estimate.lower, f"{name}_high": estimate.upper}
    return metrics


def _count_verdicts(gate: GateResult | None) -> dict[str, float]:
    if gate is None:
        return {}
    outcomes = [verdict.outcome for verdict in gate.verdicts]
    names = {"gate_passed": "pass", "gate_failed": "fail", "gate_inconclusive": "inconclusive"}
    return {name: float(outcomes.count(outcome)) for name, outcome in names.items()}  # type: ignore[arg-type]
