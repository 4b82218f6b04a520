"""compare_baselines: does what an audit found depend on the value that replaces lost evidence?"""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from fragility.auditing.certifying import PartAuditor
from fragility.audits import BaselineComparison, Certificates
from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Floats, Integers
from fragility.base.errors import CertificateError, FragilityError, FragilityWarning, ProtocolError
from fragility.base.ids import places_by_id
from fragility.blocks.baselines.comparison import COMPARED_CLAIMS, choose_compared, comparison_table
from fragility.blocks.choice import with_content
from fragility.blocks.claims import claims_from, id_array
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import BATCH_ROWS, original_class
from fragility.evidence.rows import content_keys
from fragility.models import Model
from fragility.protocol import Protocol, bind

OneBaseline: TypeAlias = tuple[Integers, Floats]  # (n,) flip budgets and exposures


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
        :meth:`Certificates.with_baselines` then keeps the comparison with them.
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
        used, own = _claims_under(few, protocol, engine, byte_budget)
        return compare_rows(few, protocol, own, used, byte_budget)
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
    return compare_rows(few, protocol, stated_claims(table), certificates.engine, byte_budget)


def _choose_rows(table: pa.Table, protocol: Protocol) -> list[int]:
    chosen = choose_compared(protocol).choose(table).tolist()
    if not chosen:
        raise CertificateError("no prediction is confident, so there is no finding to compare across baselines")
    return list(chosen)


def stated_claims(table: pa.Table) -> OneBaseline:
    """Return what certificates say of their own baseline."""
    budgets, exposures = (table.column(name).to_numpy() for name in ("flip_budget", "exposure"))
    return np.asarray(budgets, dtype=np.int64), np.asarray(exposures, dtype=np.float64)


def compare_rows(
    rows: EvidenceRows, protocol: Protocol, own: OneBaseline, engine: str, byte_budget: int
) -> BaselineComparison:
    """Compare rows that are bound under the declared baseline; own: their claims under it, made by ``engine``."""
    others = engine if engine == BLACKBOX else "auto"  # another baseline may be in a space that this engine cannot read
    claims = [(protocol.baseline, *own)]
    for name in protocol.alternatives:
        other = protocol.with_baseline(name)
        where = f" where the finding is compared under the baseline {name!r}, and only there"
        claims.append((name, *_claims_under(bound_under(rows, protocol, other), other, others, byte_budget, where)[1]))
    baselines = tuple(name for name, *_ in claims)
    return BaselineComparison(comparison_table(rows.ids, claims), baselines, protocol.depth)


def bound_under(rows: EvidenceRows, declared: Protocol, other: Protocol) -> EvidenceRows:
    """Return raw rows that are bound under one protocol, bound under the same with another baseline."""
    tried = other.space == declared.space
    return bind(rows.model, rows.source.native, other, rows.ids, tried=tried)


def _claims_under(
    rows: EvidenceRows, protocol: Protocol, engine: str, byte_budget: int, where: str = ""
) -> tuple[str, OneBaseline]:
    """Return the engine that was used, and what it found; where: of which baseline a warning speaks."""
    auditor = PartAuditor.of(rows, protocol, engine, byte_budget, where)
    claims = claims_from(auditor.trace(rows), rows, protocol)
    return auditor.engine, (claims.flip_budget, claims.exposure)


def compare_if_possible(
    rows: EvidenceRows, protocol: Protocol, own: OneBaseline, engine: str, byte_budget: int
) -> BaselineComparison | None:
    """Compare rows of an audit whose user did not ask for it; None, with a warning, if another baseline fails."""
    try:
        return compare_rows(rows, protocol, own, engine, byte_budget)
    except FragilityError as error:
        warnings.warn(FragilityWarning("the finding was not compared under other baselines: ", error), stacklevel=4)
        return None
