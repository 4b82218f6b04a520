"""audit: a model, rows and a protocol in; certificates out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.arrays import DEFAULT_BYTE_BUDGET
from fragility.auditing.lattice import declare_lattice, lattice_of_rows, search_most_exposed
from fragility.canonical import Texts, combine_digests, row_digests
from fragility.certificates import (
    CLAIM,
    FORMAT,
    LIMITS,
    PART_ROWS,
    AuditedModel,
    AuditedRows,
    Certificates,
    Claims,
    EngineUse,
    Extent,
    Manifest,
    Tolerance,
    context_digest,
    derived_claims,
    most_exposed,
    table_of,
)
from fragility.certificates import row_digests as claim_digests
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.choice import NativeEngine, choose_native
from fragility.engines.doubts import trace_checked
from fragility.engines.trace import HandedOver, Progress, Trace
from fragility.errors import Advice, EngineError, ModelError
from fragility.evidence import EvidenceRows
from fragility.evidence.rows import Rows
from fragility.libraries import library_versions
from fragility.merkle import hashed_leaves
from fragility.models import Model
from fragility.progress import progress_bar
from fragility.protocol import Protocol, bind

LEAST_PART_ROWS = 8192
PARTS_AT_LEAST = 8  # of large audits


def audit(
    model: Any,
    X: Any,
    protocol: Protocol,
    *,
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Progress | None = None,
    lattice: bool | None = None,
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
    lattice : bool, optional
        Whose smallest failing set to search, as :func:`find_failing_sets` does: True for every row, exactly for tree
        ensembles and linear models, elsewhere by asking the model for up to 10,000 states per row; False for none. By
        default the 1,000 most exposed confident rows of tree ensembles and linear models are searched, and the others
        say ``not searched``.
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
    auditor = Auditor.of(rows, protocol, engine, byte_budget)
    with progress_bar("auditing", progress) as report:
        certs = _certified_in_parts(auditor, rows, report)
    declared = declare_lattice(rows, protocol, engine, rates, lattice)
    if declared is None:
        return certs
    if declared.most_exposed is None:
        return certs.with_lattice(lattice_of_rows(rows, protocol, declared, byte_budget, progress), declared)
    chosen = rows.take(most_exposed(certs.table, declared.most_exposed).tolist())
    found = search_most_exposed(chosen, protocol, declared, byte_budget)
    return certs if found is None else certs.with_lattice(found, declared)


def _certified_in_parts(auditor: Auditor, rows: EvidenceRows, report: Progress | None) -> Certificates:
    """Return the certificates of all rows: while some are traced, the input and the rows traced before are hashed."""
    context, size = auditor.context, _part_size(len(rows))
    parts = [rows.between(start, start + size) for start in range(0, len(rows), size)]
    with _one_thread_beside() as beside:
        inputs = [beside.submit(input_row_digests, part) for part in parts]
        input_digest = beside.submit(_combined_later, inputs)
        made: list[Future[tuple[CertifiedPart, bytes]]] = []
        for place, part in enumerate(parts):
            trace = auditor.trace(part, _counting_from(place * size, len(rows), report))
            made.append(beside.submit(_certified_beside, trace, part, auditor.protocol, context))
    return _bound_together([part.result() for part in made], auditor, input_digest.result())


@contextmanager
def _one_thread_beside() -> Iterator[ThreadPoolExecutor]:
    """Give a thread beside this one, and wait for its work; where something fails here, what waits is left undone."""
    with ThreadPoolExecutor(1) as beside:
        try:
            yield beside
        except BaseException:
            beside.shutdown(wait=False, cancel_futures=True)
            raise


def _certified_beside(
    trace: Trace, rows: EvidenceRows, protocol: Protocol, context: bytes
) -> tuple[CertifiedPart, bytes]:
    """Return the certificates of a part, and its leaves of the tree over all rows."""
    part = certified(trace, rows, protocol, context)
    return part, hashed_leaves(part.digests)


def _combined_later(digests: Sequence[Future[list[bytes]]]) -> str:
    return combine_digests(chain.from_iterable(part.result() for part in digests))


def _part_size(n: int) -> int:
    """Return how many rows are traced before another thread goes on with them: so few that little is left at last."""
    return min(PART_ROWS, max(LEAST_PART_ROWS, -(-n // PARTS_AT_LEAST)))


def _bound_together(made: Sequence[tuple[CertifiedPart, bytes]], auditor: Auditor, input_digest: str) -> Certificates:
    """Return the certificates of all parts, with the digest over all of them."""
    parts, leaves = [part for part, _ in made], b"".join(hashed for _, hashed in made)
    table = pa.concat_tables([part.table for part in parts])
    root, n = combine_digests(chain.from_iterable(part.digests for part in parts), leaves), len(table)
    evaluations = sum(part.evaluations for part in parts)
    handed_over = HandedOver.joined(part.handed_over for part in parts)
    handed_over.warn(auditor.engine, n)
    manifest = manifest_of(
        auditor.model,
        auditor.protocol,
        auditor.engine,
        evaluations,
        handed_over.rows,
        AuditedRows(input_digest, n),
        root,
    )
    return Certificates(table, auditor.protocol, manifest)


def _counting_from(start: int, total: int, report: Progress | None) -> Progress | None:
    def further(done: int, _: int) -> None:
        assert report is not None
        report(start + done, total)

    return None if report is None else further


@dataclass(frozen=True, eq=False)
class Auditor:
    """A model and a protocol made ready once; rows are then audited part by part, whatever the parts.

    What would otherwise be decided anew for each part, and could turn out differently, is decided on the first rows:
    how the model's output becomes probabilities, and which engine is used.
    """

    model: Model  # as confirmed on the first rows
    protocol: Protocol
    native: NativeEngine | None  # None: the black box
    byte_budget: int = DEFAULT_BYTE_BUDGET

    @classmethod
    def of(
        cls, rows: EvidenceRows, protocol: Protocol, engine: str = "auto", byte_budget: int = DEFAULT_BYTE_BUDGET
    ) -> Auditor:
        """Return an auditor made ready on the first of the rows to audit."""
        return cls(rows.model, protocol, choose_native(rows, protocol, engine, byte_budget), byte_budget)

    @property
    def context(self) -> bytes:
        """What binds a row's digest to protocol and model."""
        return context_digest(self.protocol.digest, self.model.fingerprint, self.model.classes)

    @property
    def engine(self) -> str:
        return BLACKBOX if self.native is None else self.native.name

    def bind(self, X: Any, ids: Any = None) -> EvidenceRows:
        """Return further rows, bound; refuse rows for which the first decisions do not hold."""
        rows = bind(self.model, X, self.protocol, ids)
        if rows.model.link != self.model.link:
            raise ModelError(
                f"{self.model.kind}: {self.model.link} gives the probabilities of the first rows, but not those of the "
                f"rows from {rows.ids[0]!r} on; give a model whose predict_proba follows one rule"
            )
        reason = None if self.native is None else self.native.refusal(rows)
        if reason is not None:
            raise EngineError(
                f"the {self.engine} engine audited the first rows, but not those from {rows.ids[0]!r} on: {reason}; "
                "use ",
                Advice.argument("engine", "blackbox"),
            )
        return rows

    def trace(self, rows: EvidenceRows, progress: Progress | None = None) -> Trace:
        """Return the trace of rows bound to this model and protocol; a native engine is believed row by row."""
        if self.native is None:
            return trace_blackbox(rows, self.protocol, byte_budget=self.byte_budget, progress=progress)
        return trace_checked(self.native, rows, self.protocol, self.byte_budget, progress)


@dataclass(frozen=True, eq=False)
class CertifiedPart:
    """The certificates of some rows, and what the manifest needs to know of them."""

    table: pa.Table  # in the format's columns, digests included
    digests: list[bytes]  # of each row's claims
    evaluations: int
    handed_over: HandedOver


def certified(
    trace: Trace, rows: EvidenceRows, protocol: Protocol, context: bytes, extent: Extent = "full"
) -> CertifiedPart:
    """Return the certificates of traced rows: no model is asked, so it can run beside the next rows' trace."""
    claims = claims_from(trace, rows, protocol)
    digests = claim_digests(claims, context, protocol.resolution)
    table = table_of(claims, digests, protocol, rows.model.classes, extent=extent)
    return CertifiedPart(table, digests, trace.evaluations, HandedOver.of(trace, rows.ids))


def claims_from(trace: Trace, rows: EvidenceRows, protocol: Protocol) -> Claims:
    """Return the claims that a trace supports: pure scores over its arrays."""
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


def manifest_of(
    model: Model,
    protocol: Protocol,
    engine: str,
    evaluations: int,
    handed_over: int,
    rows: AuditedRows,
    root_digest: str,
    extent: Extent = "full",
) -> Manifest:
    """Return the manifest of an audit; handed_over: rows for which the model was asked instead of a native engine."""
    return Manifest(
        format=FORMAT,
        claim=CLAIM,
        limits=LIMITS,
        protocol_digest=protocol.digest,
        training_digest=protocol.training_digest,
        model=AuditedModel(
            model.kind, model.fingerprint, tuple(model.classes), model.link, tuple(model.fingerprint_partial)
        ),
        input=rows,
        engine=EngineUse(
            name=engine,
            evaluations=evaluations,
            paper_evaluations=rows.rows * protocol.states_per_row,
            blackbox_rows=rows.rows if engine == BLACKBOX else handed_over,
        ),
        tolerance=Tolerance.of(protocol),
        versions=library_versions(),
        rows=rows.rows,
        root_digest=root_digest,
        claims=extent,
    )


def input_row_digests(rows: EvidenceRows | Rows) -> list[bytes]:
    """Return one digest a row over its id and raw columns."""
    source = rows.source if isinstance(rows, EvidenceRows) else rows
    return row_digests({**source.columns(), "id\x00": Texts(map(str, source.ids))})
