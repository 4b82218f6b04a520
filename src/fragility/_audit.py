"""audit: a model, rows and a protocol in; certificates out."""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility._lattice import declare_lattice, lattice_of_rows
from fragility.arrays import DEFAULT_BYTE_BUDGET
from fragility.canonical import combine_digests, row_digests
from fragility.certificates import CLAIM, FORMAT, LIMITS, Certificates, Claims, declared_tolerance, derived_claims
from fragility.engines.choice import trace_rows
from fragility.engines.trace import Progress, Trace
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import refuse_contradictions
from fragility.libraries import library_versions
from fragility.models import Model
from fragility.progress import progress_bar
from fragility.protocol import Protocol, bind


def audit(
    model: Any,
    X: Any,
    protocol: Protocol,
    *,
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Progress | None = None,
    lattice: bool = False,
    rates: Any = None,
) -> Certificates:
    """Return one certificate for each row of ``X`` under ``protocol``.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    X : array or table of shape (n, d)
        The raw rows, as the model takes them.
    protocol : Protocol
        What is removed and degraded, and how the result is read.
    ids : sequence, optional
        One distinct id a row; by default the index of a pandas frame, else 0, 1, ...
    engine : str, default="auto"
        ``auto`` takes a native engine where the model is one it knows exactly, else the black box.
    byte_budget : int, default=256 MiB
        Bound on the stressed rows held in memory at a time; it changes nothing in the result.
    progress : bool or callable, optional
        A bar on the terminal (the default if there is one), or a function (rows done, rows in all).
    lattice : bool, default=False
        Also search each row's smallest failing set, as :func:`find_failing_sets` does: exactly for tree ensembles and
        linear models, elsewhere by asking the model for up to 10,000 states a row.
    rates : float, mapping or Outages, optional
        How often evidence fails, as in :func:`failure_probability`: also say how likely each decision is lost. Implies
        ``lattice``.

    Returns
    -------
    Certificates
        One certificate a row, in the order of ``X``.

    Raises
    ------
    FragilityError
        The model, the rows and the protocol do not belong together, or the model contradicts itself.

    See Also
    --------
    Protocol.fit : Declare the protocol.
    verify : Recompute what an audit claims.
    find_failing_sets : The search behind ``lattice``, with all its options.
    failure_probability : What ``rates`` adds, and what each field has to do with it.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = fg.load_credit_g()
    >>> X = X.select_dtypes("number")
    >>> model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[:700], y[:700])
    >>> protocol = fg.Protocol.fit(model, X[:700], depth=5)
    >>> certs = fg.audit(model, X[700:], protocol)
    >>> len(certs), certs[0].path[:2]
    (300, ('duration', 'credit_amount'))
    """
    rows = bind(Model.wrap(model), X, protocol, ids)
    with progress_bar("auditing", progress) as report:
        trace = trace_rows(rows, protocol, engine, byte_budget, report)
    certs = Certificates.build(claims_from(trace, rows, protocol), protocol, _manifest(trace, rows, protocol))
    if not lattice and rates is None:
        return certs
    declared = declare_lattice(rows, protocol, engine, rates)
    return certs.with_lattice(lattice_of_rows(rows, protocol, declared, byte_budget, progress), declared)


def claims_from(trace: Trace, rows: EvidenceRows, protocol: Protocol) -> Claims:
    """Return the claims that a trace supports: pure scores over its arrays."""
    if rows.decided is not None and (trace.path_predicted[:, 0] != trace.predicted).any():
        refuse_contradictions(rows, protocol.resolution)
    path_predicted = np.column_stack([trace.predicted, trace.path_predicted[:, 1:]])
    measured = {
        "predicted": trace.predicted,
        "margin": trace.margin,
        "path_margin": trace.path_margin,
        "path_predicted": path_predicted,
        "thresholds": trace.threshold,
        "fade_margin": trace.fade_margin,
        "one_step_drop": trace.margin[:, None] - trace.one_step_margin,
    }
    return Claims(
        ids=rows.ids,
        # A model's probabilities may add up to a little more than 1; what is claimed is a probability.
        confidence=np.minimum(trace.confidence, 1.0),
        path=trace.order,
        one_step_confidence_drop=trace.confidence[:, None] - trace.one_step_confidence,
        **measured,
        **derived_claims(measured, protocol),
    )


def _manifest(trace: Trace, rows: EvidenceRows, protocol: Protocol) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "claim": CLAIM,
        "limits": LIMITS,
        "protocol_digest": protocol.digest,
        "training_digest": protocol.training_digest,
        "model": {
            "kind": rows.model.kind,
            "fingerprint": rows.model.fingerprint,
            "classes": list(rows.model.classes),
            "probabilities": rows.model.link,
            "partial": list(rows.model.fingerprint_partial),
        },
        "input": {"digest": combine_digests(input_row_digests(rows)), "rows": len(rows)},
        "engine": {
            "name": trace.engine,
            "evaluations": trace.evaluations,
            "paper_evaluations": len(rows) * protocol.states_per_row,
        },
        "tolerance": declared_tolerance(protocol),
        "versions": library_versions(),
    }


def input_row_digests(rows: EvidenceRows) -> list[bytes]:
    """Return one digest a row over its id and raw columns."""
    ids = np.array([str(own_id) for own_id in rows.ids], dtype=object)
    return row_digests({**rows.source.columns(), "id\x00": ids})
