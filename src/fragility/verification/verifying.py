"""verify: do the claims of an audit hold?

Checks, in this order, each reported whether or not an earlier one failed:

1. format        the files are the ones the manifest names, every column has its type, no claim contradicts another,
                 and no word of manifest and protocol contradicts the values or the format
2. digests       every row's digest and the root digest are those of the claims
3. protocol      the protocol is the one the manifest names
4. model         the model given is the one audited, and described as it is; where the protocol names baselines that it
                 does not admit, it is asked
5. input         the rows given are the ones audited; where a block covers rows drawn by their content, it covers these
6. recomputation every claim, or those of a random sample of rows, recomputed through the black-box engine
7. each block    where the audit has it, recomputed for the same rows as the block says; of the lattice every set is put
                 to the model, for modes the model is asked for every value of every unit, for intervals the whole
                 pipeline about raw rows at both ends and inside, for baselines every row under each of them
8. training      where training rows are given: everything that the protocol fits, fitted again

Integers and names must be equal; floats may differ by the tolerance that follows from the protocol.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.audits import Audit, StoredAudit
from fragility.audits.integrity import (
    LoadedAudit,
    blocks_of_chosen_rows,
    check_digests,
    check_equality,
    check_protocol,
    load_audit,
)
from fragility.audits.parts import PART_ROWS
from fragility.base.arrays import Booleans, Integers
from fragility.base.canonical import packed_root
from fragility.base.errors import Advice, FragilityError, ProtocolError, VerificationError
from fragility.base.ids import IdSpan, id_text, say_other_rows
from fragility.base.progress import Report, progress_bar
from fragility.blocks.checks import Check, Difference
from fragility.blocks.choice import compare_ids, with_content
from fragility.blocks.claims import digest_text
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import never_reads
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import OtherBatches, with_ties_settled
from fragility.evidence.baselines import find_admitted
from fragility.evidence.rows import content_keys, input_row_digests
from fragility.models import Model
from fragility.pages.wording import join_names
from fragility.protocol import Protocol, bind
from fragility.tables.sources import RowSource
from fragility.verification.outcome import NOT_FITTED, Outcome, Verification
from fragility.verification.recomputing import ClaimRecheck
from fragility.verification.training import check_training
from fragility.verification.values import find_unreal


def verify(
    audit: str | os.PathLike[str] | Audit,
    model: Any,
    X: Any,
    *,
    ids: Any = None,
    sample: int | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    train: Any = None,
) -> Verification:
    """Check the certificates of a folder (or in memory) against the model and the rows they speak of.

    Nothing in the folder is believed: format, digests, protocol, model and rows are checked, then every claim is
    recomputed through the black-box engine, whatever engine made it.

    Parameters
    ----------
    audit : path, StoredAudit or Certificates
        The folder that :meth:`Certificates.save` or :func:`audit_files` wrote, which is read part by part, or
        certificates in memory.
    model : estimator, pipeline, booster or Model
        The model that was audited.
    X : array or table of shape (n, d)
        The raw rows that were audited; there may be more of them.
    ids : sequence, optional
        Ids of the rows of ``X``, as in :func:`audit`.
    sample : int, optional
        Recompute only this many rows, chosen at random; the other checks always cover everything.
    seed : int, optional
        Of that choice, to repeat it. Without one the choice cannot be foreseen, which is what makes a sample worth
        something: whoever knows which rows will be recomputed can forge the others.
    progress : bool, optional
        A bar on the terminal; by default if there is one.
    train : array or table, optional
        The rows that the protocol was fitted on: its baselines, catalogue, ranges and spreads are then fitted again.
        Without them nobody can tell that they come from the training rows, and the result says so.

    Returns
    -------
    Verification
        False if a check failed. ``complete`` says whether every row was checked.

    Raises
    ------
    VerificationError
        A check could not be made at all.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X, y)
    >>> certs = fg.audit(model, X[:100], fg.Protocol.fit(model, X))
    >>> fg.verify(certs, model, X[:100]).verdict
    'verified: every claim of all 100 certificates holds; not checked: that the protocol is fitted on training rows'
    >>> fg.verify(certs, model, X[:100], train=X).verdict
    'verified: every claim of all 100 certificates holds, and the protocol is fitted on the training rows given'
    >>> fg.verify(certs[:5], model, X[:100]).complete
    False
    """
    if sample is not None and sample < 1:
        raise VerificationError(f"sample must be at least 1 row, got {sample}")
    loaded, first = load_audit(audit)
    if loaded is None:
        return Verification((first,))
    try:
        given = GivenRows(Model.wrap(model), X, loaded.audit.protocol, ids)
    except FragilityError as error:
        raise VerificationError("the model cannot be used: ", error) from error
    checks = [first, check_digests(loaded), check_protocol(loaded)]
    counts: dict[str, Any] = {"rows_audited": loaded.audit.manifest.input.rows, "rows_present": len(loaded)}
    found = Recomputation(loaded)
    try:
        with progress_bar("recomputing", progress) as report:
            found.run(given, _choose_rows(len(loaded), sample, seed), report)
    except ProtocolError as error:
        checks += [_check_model(loaded, given.model), Check("input", False, str(error))]
        return Verification(tuple(checks), **counts)
    except FragilityError as error:
        if given.model.fingerprint != loaded.audit.manifest.model.fingerprint:  # of another model nothing more is said
            return Verification((*checks, _check_model(loaded, given.model)), **counts)
        raise VerificationError("the rows cannot be audited: ", error) from error
    checks += [_check_model(loaded, given.model, found.impossible)]
    checks += [_check_refused(found.admitted)] if found.admitted else []
    checks += [_check_values(found.unreal)] if found.unreal else []
    if all(check.passed for check in checks) and not found.matched.all():
        raise VerificationError(*_say_other_rows(loaded, found))
    checks += [_check_input(loaded, found)]
    checks += [found.content.check()] if found.content.blocks else []
    checks += [found.claims.check()]
    if found.claims.rows:
        checks += [recheck.check() for recheck in found.blocks.values()]
    checks += [check_training(given.model, train, loaded.audit.protocol)] if train is not None else []
    counts |= {"rows_given": found.rows_given, "rows_recomputed": found.claims.rows}
    counts["unsearched"] = {name: recheck.unsearched for name, recheck in found.blocks.items() if recheck.unsearched}
    partial = tuple(loaded.audit.manifest.model.partial)
    return Verification(tuple(checks), **counts, assumed=_list_assumed(found, partial, fitted=train is not None))


def _list_assumed(found: Recomputation, partial: Sequence[str], *, fitted: bool) -> tuple[str, ...]:
    """Return what no check of these has shown, whatever their outcome."""
    told = [] if fitted else [NOT_FITTED]
    told += ["that these are the rows the model was trained on"] if fitted else []
    unknown = [name for name, answers in found.admitted.items() if answers is None]
    told += [f"that the model has no answer under the baselines {', '.join(unknown)}"] if unknown else []
    told += [f"what the fingerprint does not cover: {'; '.join(partial)}"] if partial else []
    if isinstance(audit := found.loaded.audit, StoredAudit):
        pages = sorted(path.name for path in audit.folder.glob("*.html"))
        told += [f"what {', '.join(pages)} in the folder says: make it again from the certificates"] if pages else []
    engine = found.loaded.audit.manifest.engine
    record = ["engine.evaluations", *(["engine.blackbox_rows"] if engine.name != BLACKBOX else []), "versions"]
    told += [f"what the manifest states of the run: {join_names(record)}"]
    return (*told, "that the rows audited are like those the model will see")


@dataclass(eq=False)
class GivenRows:
    """The rows given, bound part by part to the model."""

    model: Model
    X: Any
    protocol: Protocol
    ids: Any

    def __iter__(self) -> Iterator[EvidenceRows]:
        if not isinstance(self.X, RowSource):
            rows = bind(self.model, self.X, self.protocol, self.ids)
            self.model = rows.model
            for start in range(0, len(rows), PART_ROWS):
                yield rows.between(start, start + PART_ROWS)
            return
        fields = [own.name for own in self.protocol.fields]
        for part in self.X.parts(PART_ROWS):
            # A label beside the fields is set aside; where a field is lacking, binding says so.
            frame = part.frame[fields] if set(fields) <= set(part.frame.columns) else part.frame
            rows = bind(self.model, frame, self.protocol, part.ids)
            self.model = rows.model
            yield rows


def _choose_rows(n: int, sample: int | None, seed: int | None) -> Booleans:
    """Return which certificates to recompute."""
    if sample is None or sample >= n:
        return np.ones(n, dtype=bool)
    entropy = secrets.randbits(128) if seed is None else seed
    chosen = np.zeros(n, dtype=bool)
    chosen[np.random.default_rng(entropy).choice(n, size=sample, replace=False)] = True
    return chosen


class Recomputation:
    """The rows given, gone through once, and what came of recomputing the chosen certificates among them."""

    def __init__(self, loaded: LoadedAudit) -> None:
        self.loaded, audit = loaded, loaded.audit
        self.matched: Booleans = np.zeros(len(loaded), dtype=bool)  # certificates whose row is among those given
        self.ids_given, self.input_digests, self.rows_given = IdSpan(), bytearray(), 0
        self.impossible: str | None = None  # why the engine that the manifest names can never have read the model
        self.admitted: dict[str, bool | None] = {}  # of the baselines said to be refused; None where it cannot be told
        self.unreal: list[Difference] | None = None  # baselines that are no value of their field, though said to be
        self.claims = ClaimRecheck(audit)
        self.blocks = {name: own.make_recheck(audit) for name, own in audit.blocks.items()}
        self.content = ContentRecheck(loaded)

    def run(self, given: GivenRows, chosen: Booleans, report: Report | None) -> None:
        """Recompute the chosen certificates, part by part."""
        loaded, protocol, total = self.loaded, self.loaded.audit.protocol, int(chosen.sum())
        starts = np.asarray(loaded.audit.part_starts)
        for rows in given:
            self.impossible = self.impossible or never_reads(loaded.audit.manifest.engine.name, rows)
            if protocol.refused and not self.admitted:
                self.admitted = find_admitted(
                    protocol.refused, rows.model, rows.source, protocol.evidence, protocol.grouping
                )
            if self.unreal is None:
                self.unreal = find_unreal(rows, protocol)
            positions = loaded.positions(rows.ids)
            known = positions >= 0
            self.ids_given.add(rows.ids)
            if self.matched[positions[known]].any():
                raise VerificationError("the rows given name an id twice; every row needs its own")
            self.matched[positions[known]] = True
            self.content.add(rows, positions)
            digests = input_row_digests(rows.source)
            self.input_digests += b"".join(
                digest
                for digest, counts in zip(digests, known, strict=True)
                if counts or loaded.audit.manifest.is_selection
            )
            wanted = np.flatnonzero(known & chosen[positions])
            places = np.searchsorted(starts, positions[wanted], side="right") - 1
            asked = OtherBatches.bind(rows, secrets.randbits(128)) if len(wanted) else rows
            for place in np.unique(places):
                those = wanted[places == place]
                self._recompute(int(place), asked.take(those.tolist()), positions[those] - starts[place])
                if report is not None:
                    report(self.claims.rows, total)
            self.rows_given += len(rows)

    def _recompute(self, place: int, rows: EvidenceRows, positions: Integers) -> None:
        """Recompute the claims of rows whose certificates stand at these positions of a part."""
        audit = self.loaded.audit
        table = audit.part(place).take(pa.array(positions))
        claims = audit.read_claims(table)
        mine = with_ties_settled(rows, claims.predicted, audit.protocol.resolution)
        self.claims.confirm(table, claims, mine)
        for recheck in self.blocks.values():
            recheck.confirm(table, claims, mine)


class ContentRecheck:
    """The rows that blocks must cover where content decides, chosen again among the rows given."""

    def __init__(self, loaded: LoadedAudit) -> None:
        self.loaded, audit = loaded, loaded.audit
        partial = {} if audit.manifest.is_selection else blocks_of_chosen_rows(audit)  # else it is not known any more
        self.blocks = {name: own for name, own in partial.items() if own.kind.by == "content"}
        self.rows: dict[str, pa.Table] = {}

    def add(self, rows: EvidenceRows, positions: Integers) -> None:
        """Choose among further rows, too; positions: where their certificates stand, -1 for none."""
        if not self.blocks:
            return
        known = np.flatnonzero(positions >= 0)
        few = rows.take(known.tolist())
        # Whole numbers and texts would be different types in parts of one table.
        ids, confidence = pa.array(map(id_text, few.ids), type=pa.string()), self.loaded.confidence[positions[known]]
        table = pa.table({"id": ids, "confidence": confidence, "exposure": np.zeros(len(known))})
        table = with_content(table, content_keys(few.source))
        for name, own in self.blocks.items():
            assert own.choice is not None
            known_rows = pa.concat_tables([self.rows[name], table]) if name in self.rows else table
            self.rows[name] = known_rows.take(pa.array(own.choice.choose(known_rows)))

    def check(self) -> Check:
        """Return the outcome, when all rows were given."""
        audit = self.loaded.audit
        for name, own in self.blocks.items():
            expected = self.rows[name].column("id").to_pylist() if name in self.rows else []
            fault = compare_ids([id_text(own_id) for own_id in audit.ids_of_block(name)], expected)
            if fault is not None:
                return Check("choice", False, f"{own.describe_choice()}: {fault}")
        return Check("choice", True, f"content chooses the rows of: {', '.join(self.blocks)}")


def _check_values(unreal: Sequence[Difference]) -> Check:
    told = f"{unreal[0].field} ({unreal[0].claimed}) is {unreal[0].recomputed}"
    return Check("protocol", False, told, differences=tuple(unreal))


def _check_model(loaded: LoadedAudit, model: Model, impossible: str | None = None) -> Check:
    """Compare the model with its description; impossible: why the engine named can never have read it."""
    stated, engine = asdict(loaded.audit.manifest.model), loaded.audit.manifest.engine.name
    actual = {
        "fingerprint": model.fingerprint,
        "kind": model.kind,
        "classes": tuple(model.classes),
        "probabilities": model.link,
        "partial": tuple(model.fingerprint_partial),
    }
    check = check_equality(
        "model", f"the model ({model.kind})", {name: (stated[name], actual[name]) for name in actual}
    )
    if check.passed and impossible is not None:
        wrong = Difference("all", "engine.name", engine, f"cannot be: {impossible}")
        return Check("model", False, f"the {engine} engine can never have read this model", differences=(wrong,))
    if check.passed and stated["partial"]:
        seen = f"{check.detail}; its fingerprint does not cover {'; '.join(stated['partial'])}"
        return Check("model", True, seen)
    return check


def _check_refused(admitted: dict[str, bool | None]) -> Check:
    """Compare the baselines that the protocol calls refused with the model's own answers."""
    wrong = tuple(
        Difference("all", "protocol.refused", name, "the model admits it")
        for name, answers in admitted.items()
        if answers
    )
    if wrong:
        return Check("refused", False, "the protocol leaves out baselines that the model admits", differences=wrong)
    told = [f"{name} is refused by the model" for name, answers in admitted.items() if answers is False]
    told += [f"whether the model admits {name} cannot be told" for name, answers in admitted.items() if answers is None]
    return Check("refused", True, "; ".join(told))


def _check_input(loaded: LoadedAudit, found: Recomputation) -> Check:
    claimed, n_audited = loaded.audit.manifest.input.digest, loaded.audit.manifest.input.rows
    if n_audited != len(loaded):  # a selection, such as the most fragile: the digest is over all rows audited
        if found.rows_given != n_audited:
            return Check(
                "input",
                False,
                f"these {len(loaded)} certificates were selected from an audit of {n_audited} rows; "
                f"give those rows, got {found.rows_given}",
            )
    elif not found.matched.all():
        lacking = len(loaded) - int(found.matched.sum())
        told = f"{lacking} of the {len(loaded)} audited rows are not among the rows given"
        return Check("input", False, told)
    digest = digest_text(packed_root(found.input_digests))
    return check_equality("input", "the data", {"digest": (claimed, digest)})


def _say_other_rows(loaded: LoadedAudit, found: Recomputation) -> tuple[str, Advice]:
    """Return the message about audited rows that are not among those given."""
    name, span = loaded.audit.row(int(np.argmin(found.matched))).column("id")[0].as_py(), IdSpan()
    for batch in loaded.audit.batches(["id"]):
        span.add(batch.column("id").to_pylist())
    lacking = len(loaded) - int(found.matched.sum())
    return say_other_rows(lacking, len(loaded), name, span, found.ids_given)


# --- a protocol by itself -----------------------------------------------------------------------------------


def verify_protocol(
    protocol: Protocol, model: Model, X: Any, *, ids: Sequence[Hashable] | None = None, train: Any = None
) -> Outcome:
    """Check that a protocol fits a model and rows, and with ``train`` that it is fitted on these training rows.

    A model or rows that it does not fit are refused with an error, as an audit would refuse them.
    """
    rows = bind(model, X, protocol, ids=ids)
    columns, groups = len(protocol.columns), len(protocol.groups)
    checks = [Check("rows", True, f"it fits {len(rows.ids)} rows: {columns} columns, {groups} groups")]
    checks += [check_training(model, train, protocol)] if train is not None else []
    rest = "" if train is not None else f"; not checked: {NOT_FITTED}"
    return Outcome(tuple(checks), f"verified: the protocol {protocol.digest} fits the model and the rows{rest}")
