"""The pipeline of every audit: parts are read, bound, traced, hashed and handed to a sink; ``audit`` runs it in memory.

At the same time the next part is read, a part is traced on all cores, and the part before it is hashed and handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa

from fragility.auditing.certifying import CertifiedPart, PartAuditor, TracedRows
from fragility.audits import Certificates
from fragility.audits.manifest import AuditedRows
from fragility.audits.parts import PART_ROWS
from fragility.base.arrays import DEFAULT_BYTE_BUDGET
from fragility.base.canonical import combine_digests, hashed_leaves
from fragility.base.errors import ProtocolError
from fragility.base.progress import progress_bar
from fragility.blocks.choice import Wanted, with_content
from fragility.engines.engine import Engine
from fragility.engines.trace import HandedOver, Progress
from fragility.evidence import EvidenceRows
from fragility.evidence.rows import content_keys, input_row_digests
from fragility.models import Model
from fragility.protocol import Protocol, bind

LEAST_PART_ROWS = 8192  # of audits in memory
PARTS_AT_LEAST = 8  # of large audits in memory
FEW_ROWS = 512  # are audited in the calling thread: more threads would cost more than they save

Part = TypeVar("Part")
Traced = TypeVar("Traced")
Finished = TypeVar("Finished")


def run_pipeline(
    parts: Iterable[Part], trace: Callable[[Part], Traced], finish: Callable[[Part, Traced], Finished]
) -> Generator[Finished, None, None]:
    """Yield ``finish(part, trace(part))`` for each part, in order.

    ``trace`` runs in the calling thread. Meanwhile one thread takes the next part from ``parts``, and another finishes
    the part before; no part is traced before the one two places earlier is finished, so at most three are in memory.
    """
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as finisher:
        source, end = iter(parts), object()
        upcoming: Future[Any] = reader.submit(next, source, end)
        finishing: Future[Finished] | None = None
        while (part := upcoming.result()) is not end:
            upcoming = reader.submit(next, source, end)
            traced = trace(part)
            if finishing is not None:
                yield finishing.result()
            finishing = finisher.submit(finish, part, traced)
            del part, traced  # the finisher alone holds them, and releases them before the next part is traced
        if finishing is not None:
            yield finishing.result()


def audit(
    model: Any,
    X: Any,
    protocol: Protocol | None = None,
    *,
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Progress | None = None,
    lattice: bool | None = None,
    rates: Any = None,
    modes: Wanted = None,
    intervals: Wanted = None,
    any_value: bool | int | None = None,
    baselines: bool | None = False,
) -> Certificates:
    """Return one certificate for each row of ``X`` under ``protocol``.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    X : array or table of shape (n, d)
        The raw rows, as the model takes them.
    protocol : Protocol
        What is removed and degraded, and how the result is read; :meth:`Protocol.fit` makes one of training rows.
    ids : sequence, optional
        One distinct id per row; by default the index of a pandas frame, else 0, 1, ...
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
        How often evidence fails, as in :func:`assess_reliability`: also say how likely each decision is lost. Implies
        ``lattice``.
    modes : bool, int or sequence of str, optional
        Which failure modes to assess, as :func:`assess_modes` does: True for all that the protocol declares, or some of
        them by name, for every row; a whole number for all modes of at most so many confident rows, drawn by a hash of
        their content. By default none, since they cost several times as much as the rest; ``stale`` is never among
        them.
    intervals : bool, int or sequence of str, optional
        Which stability intervals to find, as :func:`find_stability_intervals` does: True for those of all fields, or of
        some by name, for every row; a whole number for all fields of at most so many confident rows, the most exposed
        ones. By default none. The certificates then hold the values of these fields.
    any_value : bool or int, optional
        How many groups must change, to any values, before a decision flips, as :func:`find_any_value_budgets` finds it:
        True for every row; a whole number for at most so many confident rows, the most exposed ones. By default none.
    baselines : bool, optional
        Whether to compute the finding again under other baselines, as :func:`compare_baselines` does and at its cost;
        None if that can be done. By default it is not.

    Returns
    -------
    Certificates
        One certificate per row, in the order of ``X``.

    Raises
    ------
    FragilityError
        The model, the rows and the protocol do not belong together, or the model contradicts itself.

    See Also
    --------
    Protocol.fit : Declare the protocol.
    verify : Recompute what an audit claims.
    find_failing_sets : The search behind ``lattice``, with all its options.
    assess_modes : What ``modes`` adds, without certificates.
    find_stability_intervals : What ``intervals`` adds, without certificates.
    find_any_value_budgets : What ``any_value`` adds, without certificates.
    assess_reliability : What ``rates`` adds, and what each field has to do with it.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X[:700], y[:700])
    >>> certs = fg.audit(model, X[700:], fg.Protocol.fit(model, X[:700]))
    >>> len(certs), certs[0].path[:2]
    (300, ('duration', 'age'))
    """
    if protocol is None:
        raise ProtocolError(
            "an audit needs a protocol, which says what stands in for lost evidence: fit one on the training rows, "
            "protocol = Protocol.fit(model, X_train), and call audit(model, X, protocol)"
        )
    rows = bind(Model.wrap(model), X, protocol, ids)
    wanted = {"lattice": lattice, "rates": rates, "modes": modes, "intervals": intervals, "any_value": any_value}
    wanted["baselines"] = baselines
    auditor = PartAuditor.of(rows, protocol, engine, byte_budget).with_blocks(wanted, rows, engine)
    return add_blocks(certify_rows(auditor, rows, progress), auditor, rows, progress)


# --- the pipeline in memory ---------------------------------------------------------------------------------


def certify_rows(
    auditor: PartAuditor,
    rows: EvidenceRows,
    progress: bool | Progress | None = None,
    engine: Engine | None = None,
) -> Certificates:
    """Return the certificates of bound rows, without blocks; engine: made ready before, for rows of their form."""
    engine, n = engine or auditor.make_ready(rows), len(rows)
    with progress_bar("auditing", progress) as report:
        size = min(
            PART_ROWS, max(LEAST_PART_ROWS, -(-n // PARTS_AT_LEAST))
        )  # small parts leave little to hash at the end
        if n <= min(size, FEW_ROWS):
            return finish_few(auditor, TracedRows(rows, auditor.trace(rows, report, engine)))
        starts = range(0, n, size)
        beside = ThreadPoolExecutor(1)  # hashes the input, which needs no model and need not wait for a trace
        try:
            inputs = [beside.submit(input_row_digests, rows.source.between(start, start + size)) for start in starts]
            hashing = beside.submit(lambda: combine_digests(chain.from_iterable(part.result() for part in inputs)))

            def trace(start: int) -> TracedRows:
                part = rows.between(start, start + size)
                progress = None if report is None else (lambda done, _: report(start + done, n))
                return TracedRows(part, auditor.trace(part, progress, engine, len(starts)))

            def certify(_: int, traced: TracedRows) -> tuple[CertifiedPart, bytes]:
                part = auditor.certify(traced)
                return part, hashed_leaves([part.digests])

            parts, leaves = zip(*run_pipeline(starts, trace, certify), strict=True)
            input_digest = hashing.result()
        finally:
            beside.shutdown(cancel_futures=True)
    return _join_parts(auditor, parts, b"".join(leaves), AuditedRows(input_digest, n))


def finish_few(auditor: PartAuditor, traced: TracedRows) -> Certificates:
    """Return the certificates of few traced rows, made in this thread."""
    part, rows = auditor.certify(traced), traced.rows
    audited = AuditedRows(combine_digests(input_row_digests(rows.source)), len(rows))
    return _join_parts(auditor, [part], hashed_leaves([part.digests]), audited)


def _join_parts(
    auditor: PartAuditor, parts: Sequence[CertifiedPart], leaves: bytes, audited: AuditedRows
) -> Certificates:
    handed_over = HandedOver.join(part.handed_over for part in parts)
    handed_over.warn(auditor.engine, audited.rows)
    root = combine_digests((part.digests for part in parts), leaves)
    table = parts[0].table if len(parts) == 1 else pa.concat_tables([part.table for part in parts])
    evaluations = sum(part.evaluations for part in parts)
    return Certificates(table, auditor.protocol, auditor.manifest(audited, root, evaluations, handed_over.rows))


def add_blocks(
    certs: Certificates, auditor: PartAuditor, rows: EvidenceRows, progress: bool | Progress | None = None
) -> Certificates:
    """Return certificates of bound rows with the blocks of their auditor."""
    content: pa.Table | None = None
    for name, block in auditor.blocks.items():
        claims, choice = certs.table, block.choice
        take: Callable[[], EvidenceRows] = lambda: rows  # noqa: E731
        if choice is not None:
            if choice.by == "content" and content is None:
                content = with_content(certs.table, content_keys(rows.source))
            places = choice.choose(content if content is not None and choice.by == "content" else certs.table)
            claims, take = claims.take(pa.array(places)), partial(rows.take, places.tolist())
        made = auditor.make_block(name, claims, take, progress)
        certs = certs if made is None else certs.put_block(block, made)
    return certs
