"""compare_baselines: does what an audit found depend on the value that replaces lost evidence?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from fragility.audits import BaselineComparison, Certificates
from fragility.base.arrays import DEFAULT_BYTE_BUDGET
from fragility.base.errors import CertificateError, ProtocolError
from fragility.base.ids import places_by_id
from fragility.blocks.baselines.block import claims_under, compare_rows
from fragility.blocks.baselines.comparison import COMPARED_CLAIMS, COMPARED_ROWS
from fragility.blocks.choice import RowChoice, with_content
from fragility.blocks.claims import id_array
from fragility.evidence.agreement import BATCH_ROWS, original_class
from fragility.evidence.rows import content_keys
from fragility.models import Model
from fragility.protocol import Protocol, bind


def compare_baselines(
    model: Any,
    X: Any,
    protocol: Protocol,
    *,
    certificates: Certificates | None = None,
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
) -> BaselineComparison:
    """Compute the headline figures of an audit again under every other baseline that the model admits.

    At most 500 confident rows are taken, drawn by a hash of their content. Each further baseline costs a trace of these
    rows: for a model that can only be asked, up to 500 times ``protocol.states_per_row`` evaluations.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    X : array or table of shape (n, d)
        The raw rows, as the model takes them.
    protocol : Protocol
        The declared baseline, and the others: ``protocol.alternatives``, among ``typical``, ``median``, ``missing`` and
        ``mean``.
    certificates : Certificates, optional
        The audit of these rows under ``protocol``, so that they are not traced again under the declared baseline;
        with ``audit(..., baselines=True)`` the comparison is kept with the certificates.
    ids, engine, byte_budget
        As in :func:`audit`.

    Returns
    -------
    BaselineComparison
        The figures under each baseline, the rows that flip within two groups under all of them, and whether the finding
        is stable or depends on the baseline.

    Raises
    ------
    FragilityError
        The protocol has no other baseline, no row is confident, or the certificates are of other rows.

    See Also
    --------
    Protocol.with_baseline : The same protocol under another baseline.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X[:700], y[:700])
    >>> found = fg.compare_baselines(model, X[700:], fg.Protocol.fit(model, X[:700]))
    >>> found.baselines, found.verdict.value
    (('typical', 'median', 'mean'), 'too_few_rows')
    """
    if not protocol.alternatives:
        raise ProtocolError("the protocol stores no other baseline that the model admits, so there is none to compare")
    rows = bind(Model.wrap(model), X, protocol, ids)
    if certificates is None:
        sure = []
        for start in range(0, len(rows), BATCH_ROWS):
            p = rows.predict(rows.dense(start, start + BATCH_ROWS))
            predicted = original_class(rows, p, protocol.resolution, slice(start, start + len(p)))
            sure.append(p[np.arange(len(p)), predicted])
        confidence = np.concatenate(sure)
        known = pa.table({"id": id_array(rows.ids), "confidence": confidence, "exposure": np.zeros(len(rows))})
        few = rows.take(_choose_rows(with_content(known, content_keys(rows.source)), protocol))
        used, claims = claims_under(few, protocol, engine, byte_budget)
        return compare_rows(few, protocol, claims, used, byte_budget)
    if certificates.protocol.digest != protocol.digest:
        raise CertificateError("the certificates were made under another protocol; give the protocol of the audit")
    if certificates.manifest.model.fingerprint != rows.model.fingerprint:
        raise CertificateError("the certificates are of another model; give the model of the audit")
    table = certificates.table.select(list(COMPARED_CLAIMS))
    places, missing = places_by_id(table.column("id").to_pylist(), rows.ids)
    if missing:
        raise CertificateError(f"row {missing[0]!r} of the certificates is not among the rows given")
    chosen = _choose_rows(with_content(table, content_keys(rows.source.take(places.tolist()))), protocol)
    table, few = table.take(pa.array(chosen)), rows.take(places[chosen].tolist())
    claims = table.column("flip_budget").to_numpy().astype(np.int64), table.column("exposure").to_numpy()
    return compare_rows(few, protocol, claims, certificates.engine, byte_budget)


def _choose_rows(table: pa.Table, protocol: Protocol) -> list[int]:
    chosen = RowChoice(COMPARED_ROWS, "content", protocol.min_confidence).choose(table).tolist()
    if not chosen:
        raise CertificateError("no prediction is confident, so there is no finding to compare across baselines")
    return list(chosen)
