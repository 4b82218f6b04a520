"""The evaluator ``fragility`` of ``mlflow.models.evaluate``: an audit of the model on the evaluation rows.

MLflow loads this module through its entry point when a model is first evaluated, and passes a loaded function. If the
function wraps a model of a known library, that model is audited, as :func:`load_model` would load it from the model's
folder, so that the certificates can be verified with the folder. Nothing is unpickled again. Any other function is
audited as a black box.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models.evaluation import EvaluationArtifact, EvaluationResult, ModelEvaluator
from mlflow.models.evaluation.artifacts import JsonEvaluationArtifact, TextEvaluationArtifact

from fragility.auditing.pipeline import audit
from fragility.audits import Audit, Certificates
from fragility.base.arrays import is_number
from fragility.base.errors import DataError, FragilityError, FragilityWarning, ModelError, ProtocolError, name_error
from fragility.gate import Gate, GateResult
from fragility.integrations.mlflow_logging import CERTIFICATES, GATE, NAME, PROTOCOL, REPORT, check_name, prepare_audit
from fragility.models import ClassLabel, Model
from fragility.models.loading import load_model
from fragility.models.mlflow_models import (
    PYFUNC,
    ModelSignature,
    PyfuncModel,
    digest_files,
    fetch_model,
    name_answers,
    read_answers,
    read_signature,
)
from fragility.protocol import Protocol
from fragility.questions.stress.declaration import Stress
from fragility.questions.stress.labels import label_brittle
from fragility.questions.stress.stressors import Donor
from fragility.report import Report, verify_command
from fragility.tables.sources import open_source

CLASSIFIER = "classifier"
UNWRAPPED = ("mlflow.sklearn", "mlflow.lightgbm", "mlflow.xgboost", "mlflow.catboost", "mlflow.pytorch")
EXAMPLE = "evaluator_config={'fragility': {'protocol': 'protocol.json'}}"


@dataclass(frozen=True, kw_only=True)
class EvaluatorSettings:
    """The settings of the evaluator, as ``evaluator_config`` has them."""

    protocol: Any = None  # a Protocol, its plain form or its file
    train: Any = None  # training rows or their file, to fit a protocol with its defaults
    name: str = NAME
    classes: Sequence[ClassLabel] | None = None
    output: Any = None  # what a torch module returns
    ids: Sequence[Any] | None = None
    engine: str = "auto"
    lattice: bool | None = None
    rates: Any = None
    modes: Any = None
    intervals: Any = None
    any_value: Any = None
    stress: Any = None  # True, a severity, a Stress or its plain form
    rules: Any = None  # a Gate or its file
    against: Any = None  # an earlier audit, or those of several retrained models, for rules with an allowance
    min_confidence: float | None = None  # where confident begins; by default as the protocol declares
    by: Any = ()  # columns to cut predictions by, in the report
    show_values: bool = False  # of the most fragile cases, in the report

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> EvaluatorSettings:
        """Return the settings; refuse unknown ones, and refuse both or neither of 'protocol' and 'train'."""
        names = [setting.name for setting in fields(cls)]
        if unknown := [key for key in config if key not in names]:
            raise DataError(f"the evaluator 'fragility' has no setting {unknown[0]!r:.80}; it has {', '.join(names)}")
        settings = cls(**config)
        check_name(settings.name)
        for name, kind in (("rules", Gate), ("against", Audit)):
            value = getattr(settings, name)
            for item in value if name == "against" and isinstance(value, (list, tuple)) else [value]:
                if item is not None and not isinstance(item, (kind, str, os.PathLike)):
                    raise DataError(f"{name!r} must be a path or of type {kind.__name__}, got {type(item).__name__}")
        least = settings.min_confidence
        if least is not None and (not is_number(least) or not 0.0 <= least <= 1.0):
            raise DataError(f"'min_confidence' must lie within 0 and 1, got {least!r:.80}")
        if (settings.protocol is None) == (settings.train is None):
            number = "neither" if settings.protocol is None else "both"
            raise DataError(
                "the evaluator 'fragility' needs either 'protocol' (a protocol or its file) or 'train' (training rows, "
                f"to fit one), got {number}; for example {EXAMPLE}"
            )
        return settings

    def declare_protocol(self, model: Model, target: str | None) -> Protocol:
        """Return the protocol given, or one fitted on the training rows."""
        protocol = self.protocol
        if isinstance(protocol, Protocol):
            return protocol
        if isinstance(protocol, Mapping):
            return Protocol.from_dict(protocol)
        if isinstance(protocol, (str, os.PathLike)):
            return Protocol.load(protocol)
        if protocol is not None:
            kind = type(protocol).__name__
            raise ProtocolError(f"'protocol' must be a Protocol, its plain form or its file, got {kind}")
        return Protocol.fit(model, self.read_training(target))

    def read_training(self, target: str | None) -> Any:
        """Return the training rows without the targets."""
        rows = self.train
        if isinstance(rows, (str, os.PathLike)):
            rows = open_source(rows).read_all().frame
        if isinstance(rows, pd.DataFrame) and target in rows.columns:
            rows = rows.drop(columns=target)
        return rows

    def declare_stress(self) -> Stress | None:
        """Return the held-out stress; None if the settings declare none."""
        if self.stress is None or self.stress is False:
            return None
        if isinstance(self.stress, Stress):
            return self.stress
        if self.stress is True or is_number(self.stress):
            declared = Stress() if self.stress is True else Stress.at(self.stress)
            return replace(declared, tau_confidence=self.min_confidence)
        try:
            return Stress.from_dict(self.stress)
        except FragilityError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"'stress' must be True, a severity, a Stress or its plain form: {name_error(error)}"
            ) from error

    def declare_gate(self) -> Gate | None:
        """Return the gate; None if no rules are given."""
        return self.rules if self.rules is None or isinstance(self.rules, Gate) else Gate.load(self.rules)


class FragilityEvaluator(ModelEvaluator):
    """Audits a classifier for ``mlflow.models.evaluate``; MLflow knows it as ``fragility``."""

    @classmethod
    def can_evaluate(cls, *, model_type: str | None, evaluator_config: Mapping[str, Any] | None, **_: Any) -> bool:
        """Return whether the model is a classifier and at least one setting belongs to this evaluator.

        If the user names no evaluator, MLflow calls every installed one with the same settings. An evaluator that
        finds none of its settings there must therefore warn and return False instead of raising.
        """
        if model_type != CLASSIFIER:
            return False
        if {setting.name for setting in fields(EvaluatorSettings)}.isdisjoint(evaluator_config or ()):
            warnings.warn(
                FragilityWarning(
                    "the evaluator 'fragility' is skipped, because neither 'protocol' nor 'train' is set; give "
                    f"{EXAMPLE}, or name the evaluators to use, such as evaluators='default'"
                ),
                stacklevel=2,
            )
            return False
        return True

    def evaluate(
        self,
        *,
        dataset: Any,
        run_id: str,
        evaluator_config: Mapping[str, Any],
        model: Any = None,
        model_id: str | None = None,
        **_: Any,
    ) -> EvaluationResult:
        """Audit the model on the rows of a dataset, log the audit to a run and return its metrics and artefacts.

        model_id: in MLflow 3, the logged model that the metrics are about.
        """
        settings = EvaluatorSettings.read(evaluator_config)
        if model is None:
            raise DataError(
                "the evaluator 'fragility' predicts modified rows, so it needs the model and not only predictions; "
                "pass the model to mlflow.models.evaluate"
            )
        gate = settings.declare_gate()
        stress = settings.declare_stress()  # an invalid declaration fails before the model is opened
        address = find_address(getattr(model, "metadata", None))
        wrapped = unwrap_model(model, address, settings.classes, settings.output)
        protocol = settings.declare_protocol(wrapped, dataset.targets_name)
        rows, ids = _take_rows(dataset, settings.ids)
        certs = audit(
            wrapped, rows, protocol, ids=ids, engine=settings.engine, lattice=settings.lattice, rates=settings.rates,
            modes=settings.modes, intervals=settings.intervals, any_value=settings.any_value,
        )  # fmt: skip
        labels = _take_labels(certs, dataset.labels_data)
        brittle = verdicts = None
        if stress is not None:
            needs_donors = any(isinstance(stressor, Donor) for stressor in stress.stressors)
            donors = settings.read_training(dataset.targets_name) if needs_donors else None
            brittle = label_brittle(wrapped, rows, protocol, stress, donors=donors, ids=ids, engine=settings.engine)
        if gate is not None:
            table = rows if isinstance(rows, pd.DataFrame) else None
            verdicts = gate.check(certs, settings.against, rows=table, labels=labels, stress=brittle)
        with_rows = settings.show_values or bool(settings.by)
        report = Report.of(
            certs,
            labels=labels,
            brittle=brittle,
            min_confidence=settings.min_confidence,
            verify=verify_command(CERTIFICATES, "--model", address or "MODEL", "--data", "DATA"),
            rows=rows if with_rows else None,
            ids=ids if with_rows else None,
            by=settings.by,
            model=wrapped if with_rows else None,
        )
        with prepare_audit(certs, settings.name, report, verdicts, brittle) as prepared:
            prepared.log(run_id, _tie_metrics(run_id, model_id, dataset))
        artifacts = _list_artifacts(run_id, settings.name, certs, report, verdicts)
        return EvaluationResult(metrics=dict(prepared.metrics), artifacts=artifacts, run_id=run_id)


# --- the model --------------------------------------------------------------------------------------------------


def find_address(metadata: Any) -> str | None:
    """Return where the store keeps a loaded model; None if it was not logged."""
    if model_id := getattr(metadata, "model_id", None):
        return f"models:/{model_id}"
    run_id, path = getattr(metadata, "run_id", None), getattr(metadata, "artifact_path", None)
    return f"runs:/{run_id}/{path}" if run_id and path else None


def unwrap_model(
    loaded: Any, address: str | None, classes: Sequence[ClassLabel] | None = None, output: Any = None
) -> Model:
    """Return the model behind an MLflow function, with the fingerprint of its folder."""
    metadata = getattr(loaded, "metadata", None)
    loader = None if metadata is None else (metadata.flavors.get(PYFUNC) or {}).get("loader_module")
    if loader == "mlflow.onnx" and address is not None:
        return load_model(address, classes=classes, output=output)  # the graph itself; loading it runs no code
    inputs, outputs = _read_signatures(metadata)
    if loader in UNWRAPPED and hasattr(loaded, "get_raw_model"):
        raw = loaded.get_raw_model()
        if loader == "mlflow.xgboost" and hasattr(raw, "get_booster"):
            raw = raw.get_booster()  # what the folder holds
        model = Model.wrap(raw, classes=classes, output=output)
    else:
        labels = name_answers(outputs, classes)
        if labels is None:
            raise ModelError(
                "MLflow passes the model as a function, which does not name the classes of its probabilities; declare "
                "them in column order with the evaluator's setting 'classes', such as {'classes': [0, 1]}"
            )
        model = Model.wrap(_ask_function(loaded, address, labels), classes=labels)
    return model if inputs is None else model.with_signature(inputs)


def _read_signatures(metadata: Any) -> tuple[ModelSignature | None, ModelSignature | None]:
    declared = None if metadata is None or metadata.signature is None else metadata.signature.to_dict()
    if declared is None:
        return None, None
    outputs = None
    with suppress(ModelError):  # outputs may have any shape
        outputs = read_signature(declared["outputs"]) if declared.get("outputs") else None
    return read_signature(declared["inputs"]) if declared.get("inputs") else None, outputs


def _ask_function(loaded: Any, address: str | None, labels: tuple[ClassLabel, ...]) -> Any:
    """Return a callable from rows to probabilities, with the digest of the model's folder if the store has one."""
    if address is not None:
        with suppress(ModelError), fetch_model(address) as folder:
            return PyfuncModel(loaded.predict, digest_files(folder), labels)
    return lambda rows: read_answers(loaded.predict(rows), labels)


# --- rows, labels and artefacts ---------------------------------------------------------------------------------


def _take_rows(dataset: Any, ids: Sequence[Any] | None) -> tuple[Any, Sequence[Any] | None]:
    """Return the rows of a dataset, and the ids of those that have no index."""
    rows = dataset.features_data
    if ids is None or not isinstance(rows, pd.DataFrame):
        return rows, ids
    if len(ids) != len(rows):
        raise DataError(f"'ids' must have one id per row: {len(rows)} rows, got {len(ids)} ids")
    return rows.set_axis(list(ids), axis=0), None


def _take_labels(certs: Certificates, targets: Any) -> dict[Any, Any] | None:
    """Return the targets by id; None, with a warning, if they are not classes of the model."""
    if targets is None:
        return None
    labels = dict(zip(certs.table.column("id").to_pylist(), pd.Series(targets).tolist(), strict=True))
    classes = {str(label) for label in certs.classes}
    other = next((label for label in labels.values() if str(label) not in classes), None)
    if other is None:
        return labels
    warnings.warn(
        f"the target {other!r:.80} is no class of the model, whose classes are {', '.join(map(repr, certs.classes))}; "
        "the report contains no accuracy",
        stacklevel=3,
    )
    return None


def _tie_metrics(run_id: str, model_id: str | None, dataset: Any) -> dict[str, str]:
    """Return the fields by which MLflow 3 ties a metric to a logged model and to the rows; none in MLflow 2."""
    if model_id is None:
        return {}
    return {"run_id": run_id, "model_id": model_id, "dataset_name": dataset.name, "dataset_digest": dataset.digest}


class CertificatesArtifact(EvaluationArtifact):
    """The certificates among the artefacts of an evaluation; ``content`` is a :class:`Certificates`."""

    def _save(self, output_artifact_path: str) -> None:
        self._content.save(output_artifact_path)

    def _load_content_from_file(self, local_artifact_path: str) -> Certificates:
        self._content = loaded = Certificates.load(Path(local_artifact_path))
        return loaded


def _list_artifacts(
    run_id: str, name: str, certs: Audit, report: Report, verdicts: GateResult | None
) -> dict[str, EvaluationArtifact]:
    def place(file: str) -> str:
        return f"runs:/{run_id}/{name}/{file}"

    artifacts = {
        f"{name}/report": TextEvaluationArtifact(place(REPORT), report.to_html()),
        f"{name}/protocol": JsonEvaluationArtifact(place(PROTOCOL), certs.protocol.to_dict()),
        f"{name}/certificates": CertificatesArtifact(place(CERTIFICATES), certs),
    }
    if verdicts is not None:
        artifacts[f"{name}/gate"] = JsonEvaluationArtifact(place(GATE), verdicts.to_dict())
    return artifacts
