"""The guard: a model and a protocol made ready once, for decisions as they are made.

What a decision hangs on, its smallest failing sets and how likely it is lost at declared rates, has the same answers as
`find_failing_sets` and `assess_reliability` where the lattice of the model is read: it is read and compared with the
model once, and then serves every row that comes in the same form. Other rows are asked by size, up to a budget that a
service can afford; beyond it the path of the certificate is an upper bound.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fragility.analysis.policy import ReviewPolicy
from fragility.auditing.auditor import Auditor
from fragility.audits import Certificate, Certificates
from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Floats, Integers
from fragility.base.errors import DataError, ProtocolError
from fragility.deciding.changing import DecisionChange
from fragility.deciding.decisions import Decider, Names
from fragility.deciding.outcome import Check, Checks
from fragility.deciding.values import DEFAULT_DRAWS, check_draws, make_neighbours
from fragility.engines.lattice.whole import Block, WholeLattice, Workers, find_lattice
from fragility.engines.oracle import Oracle
from fragility.evidence import EvidenceRows
from fragility.models import ClassLabel, Model
from fragility.pages.terms import MINIMUM, NONE_AT_ALL, UNDECIDED, UPPER_BOUND
from fragility.pages.wording import describe_events, describe_mode_rates, describe_rates
from fragility.protocol import Protocol
from fragility.questions.modes.intervals import intervals_of_rows
from fragility.questions.modes.losses import losses_of_rows
from fragility.questions.reliability.failure import DEFAULT_DRAWS as RELIABILITY_DRAWS
from fragility.questions.reliability.failure import declared_failures, failure_of_rows
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.questions.reliability.rates import EventSets, ModeRates, has_modes, mode_rates
from fragility.questions.search.blackbox import search_by_asking
from fragility.questions.search.found import Answers, name_groups
from fragility.questions.stress.declaration import Stress
from fragility.questions.stress.labels import label_rows, rehearse_rows
from fragility.questions.stress.stressors import Layout
from fragility.scores import REHEARSAL

# --- what a decision hangs on ---------------------------------------------------------------------------------

MOST_TABULATED = 18  # live groups of a row whose subsets are all looked at: 2^18 of them take about 2 ms
BUDGET = 500  # states per row that are asked for otherwise: all single groups and pairs of 31 groups
MOST_SETS = 20
KEPT = 4  # lattices, one for each form in which rows come: as many as an auditor holds ready


class Hanging(NamedTuple):
    """What one decision hangs on."""

    sets: tuple[tuple[str, ...], ...]  # the smallest failing sets, at most 20
    state: str  # how far that is proved
    loss: float | None  # how likely the decision is lost; None if no rates are declared, or it is not exact here

    @property
    def exact(self) -> bool:
        """Whether the question is answered: a proved minimum, or proved absence."""
        return self.state not in (UPPER_BOUND, UNDECIDED)


class HangingFinder:
    """Finds what decisions hang on, for rows of a model and a protocol; the lattice is read once per form of rows."""

    def __init__(self, protocol: Protocol, engine: str) -> None:
        self.protocol, self.engine = protocol, engine
        # By the baseline of bound rows, which is the same array for all rows of a form. Threads share them without a
        # lock, which a fork in the middle of a check would leave held: they are replaced as a whole.
        self._kept: tuple[tuple[Any, WholeLattice | None], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {"protocol": self.protocol, "engine": self.engine, "_kept": ()}

    def find(
        self,
        oracle: Oracle,
        original: Integers,
        certificates: Sequence[Certificate],
        rates: Floats | None,
    ) -> list[Hanging]:
        """Return what each decision hangs on.

        oracle: of the rows. original: (n,) the decisions. rates: (G,) how often each group fails.
        """
        answers: list[Hanging | None] = [None] * len(oracle.rows)
        self._read_lattice(oracle, original, rates, answers)
        left = [i for i, one in enumerate(answers) if one is None]
        for i, one in zip(left, self._ask(oracle, left, certificates), strict=True):
            answers[i] = one
        return [one for one in answers if one is not None]

    def _read_lattice(
        self,
        oracle: Oracle,
        original: Integers,
        rates: Floats | None,
        answers: list[Hanging | None],
    ) -> None:
        bound = oracle.rows
        kept = self._find_lattice(bound)
        if kept is None:
            return
        lattice = replace(kept, rows=bound, model=kept.model.rebind(bound))
        x = bound.dense()
        lattice.model.begin(0, len(x))
        live = lattice.model.live(x, Workers(1))
        most = min(MOST_TABULATED, lattice.model.most_live)
        block = Block(0, x, original, live, oracle.asks_model(x), bound.spared(), most)
        names = self.protocol.group_names
        for subsets in lattice.subsets(block) if rates is not None else lattice.smallest(block, len(names)):
            sizes = subsets.sizes()
            loss = None if rates is None else np.clip(subsets.probabilities(rates)[0], 0.0, 1.0)
            for i, place in enumerate(subsets.place.tolist()):
                own_loss = None if loss is None else float(loss[i])
                if not sizes[i].any():
                    answers[place] = Hanging((), NONE_AT_ALL, own_loss)
                    continue
                smallest = int(np.flatnonzero(sizes[i])[0])
                sets = subsets.list_sets(i, smallest, smallest, min(MOST_SETS, int(sizes[i, smallest])))
                answers[place] = Hanging(tuple(name_groups(gone, names) for gone in sets), MINIMUM, own_loss)

    def _find_lattice(self, bound: EvidenceRows) -> WholeLattice | None:
        for baseline, lattice in self._kept:
            if baseline is bound.baseline:
                return lattice
        read = find_lattice(bound, self.protocol, self.engine, DEFAULT_BYTE_BUDGET)
        self._kept = ((bound.baseline, read), *self._kept)[:KEPT]
        return read

    def _ask(self, oracle: Oracle, places: list[int], certificates: Sequence[Certificate]) -> list[Hanging]:
        """Ask about single groups, pairs and so on, as far as the budget goes."""
        if not places:
            return []
        asked = oracle.take(places)
        answers = Answers(asked.rows, self.protocol, asked.rows.n_groups)
        search_by_asking(answers, asked, np.arange(len(places)), "exact", 1, BUDGET, DEFAULT_BYTE_BUDGET, None)
        sets, results = answers.finish(), []
        for i, place in enumerate(places):
            path = certificates[place].failing_groups
            state, groups = sets.state[i], sets.groups(i)
            if not groups and path:  # the path is one way to lose it
                groups = tuple(name for name in self.protocol.group_names if name in path)
                state = MINIMUM if int(sets.searched_size[i]) >= len(path) - 1 else UPPER_BOUND
            results.append(Hanging((groups,) if groups else (), state, None))
        return results


# --- the guard ------------------------------------------------------------------------------------------------

FEW_ROWS = 8  # up to so many rows are asked about all values of a failure mode in one call


class Guard:
    """Checks decisions at the moment they are made, also where fields are missing or stale.

    Made ready once for a model and a protocol; :meth:`check` takes one row and :meth:`check_rows` many. A row's check
    depends on no other row.

    The decision is the model's own on the row as it arrives: a missing field stays missing, and the model's imputer or
    its own rule for missing values answers. Only where the model cannot answer without a field does the protocol's
    baseline stand in for it, in raw units; ``stand_ins`` of the check says so. A stale field keeps its value.
    ``p_change`` is the probability that knowing these fields would change the decision, over the values that the
    protocol's catalogue lists for them.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    protocol : Protocol
        Its groups, baseline, decision and failure modes; its catalogue says what unknown fields may hold.
    policy : ReviewPolicy, optional
        Says which decisions go to review.
    rates : float, mapping or Outages, optional
        How often evidence fails, as in :func:`assess_reliability`.
    training : table, optional
        Training rows, for ``conditional``.
    conditional : bool, default=False
        Take what unknown fields may hold from the 24 training rows that are nearest in the known fields, instead of
        the catalogue.
    draws : int, default=1024
        The most states of several unknown fields that are tried: all of them where there are no more, else so many
        quasi-random ones. A power of two of at least 16.
    engine : str, default="auto"
        Who answers for changed rows, as in :func:`audit`.

    See Also
    --------
    evaluate_missing : How far ``p_change`` can be relied on, measured on rows whose fields are known.
    assess_reliability : How likely decisions are lost before any field has failed.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X[:700], y[:700])
    >>> guard = fg.Guard(model, fg.Protocol.fit(model, X[:700]))
    >>> check = guard.check({"duration": 36, "age": 24, "installment_commitment": 4}, missing=["duration"])
    >>> check.decision, round(check.p_change, 3), check.changes_to
    ('good', 0.083, 'bad')
    """

    def __init__(
        self,
        model: Any,
        protocol: Protocol,
        policy: ReviewPolicy | None = None,
        rates: Any = None,
        *,
        training: Any = None,
        conditional: bool = False,
        draws: int = DEFAULT_DRAWS,
        engine: str = "auto",
    ) -> None:
        if not isinstance(protocol, Protocol):
            raise ProtocolError(f"a Protocol was expected, got {type(protocol).__name__}; make one with Protocol.fit")
        check_draws(draws)
        self.auditor = Auditor(model, protocol, engine=engine)
        self.policy, self.rates = policy, rates
        if policy is not None:
            if not isinstance(policy, ReviewPolicy):
                raise DataError(
                    f"policy must be a ReviewPolicy, got {type(policy).__name__}; make one with ReviewPolicy.fit or "
                    "read one with ReviewPolicy.load"
                )
            policy.check_made_for(protocol.digest, self.model.fingerprint)
            if policy.segmented_by == "declared":
                raise DataError(
                    "the policy has rules for declared segments, which a row at decision time does not name; fit one "
                    "without segments, or by predicted class"
                )
            if policy.by == REHEARSAL:
                _check_rehearsable(policy)
        self._engine = engine
        self._hanging = HangingFinder(protocol, engine)
        self._failures: Floats | EventSets | ModeRates | None = None
        self._decider = Decider(self.auditor, int(draws), None)
        self._decider.neighbours = make_neighbours(self._decider.read, training, conditional, protocol)

    def __repr__(self) -> str:
        with_policy = "without a policy" if self.policy is None else "with a policy"
        groups = len(self.protocol.groups)
        return f"Guard({self.model.kind}, {groups} groups, engine {self.auditor.engine}, {with_policy})"

    @property
    def model(self) -> Model:
        """The model, wrapped."""
        return self.auditor.model

    @property
    def protocol(self) -> Protocol:
        """The protocol."""
        return self.auditor.protocol

    # --- checks -------------------------------------------------------------------------------------------------

    def check(
        self,
        row: Any,
        missing: Names | None = None,
        stale: Names = (),
        *,
        id: Hashable | None = None,
        intervals: bool = False,
    ) -> Check:
        """Check one decision.

        Parameters
        ----------
        row : mapping, Series, or table of one row
            The raw values by field. A missing field may be absent; what it holds is not looked at.
        missing : collection of str or None, default=None
            The fields whose values are missing; None: those that are null or absent in the row. A null that is not
            named is a value like any other.
        stale : collection of str, default=()
            The fields whose values are older than they should be; the model decides on them.
        id : int or str, optional
            The row's id; by default 0, the index of a table, or the name of a Series.
        intervals : bool, default=False
            Whether to find the stability intervals of all fields.

        Returns
        -------
        Check
            The decision, what it hangs on, and what the missing and stale fields would have changed.

        Raises
        ------
        FragilityError
            A field is not known, the protocol does not say what it may hold, or the row does not fit the model.
        """
        if isinstance(row, pd.Series):
            row, id = row.to_dict(), row.name if id is None else id
        shape: Any = (len(row), None) if isinstance(row, (list, tuple)) else getattr(row, "shape", ())
        if not isinstance(row, Mapping) and (len(shape) != 2 or shape[0] != 1):
            got = f"{shape[0]} rows; use check_rows" if len(shape) == 2 else f"{type(row).__name__}; give a dict"
            raise DataError(f"check takes a mapping from fields to values, or a table of one row, got {got}")
        ids = None if id is None else [id]
        lost, aged = ([names] if isinstance(names, str) else names for names in (missing, stale))
        return self.check_rows(row, [lost], [() if aged is None else aged], ids=ids, intervals=intervals)[0]

    def check_rows(
        self,
        rows: Any,
        missing: Sequence[Names | None] | None = None,
        stale: Sequence[Names] | None = None,
        *,
        ids: Any = None,
        intervals: bool = False,
    ) -> Checks:
        """Check many decisions at once.

        Parameters
        ----------
        rows : table, or sequence of mappings
            The raw rows, as the model takes them, or one mapping from fields to values per row.
        missing : sequence of collections of str, optional
            The missing fields of each row; None, for a row or for all of them: those that are null or absent. A null
            that is not named is a value like any other.
        stale : sequence of collections of str, optional
            The stale fields of each row; by default none.
        ids : sequence, optional
            One distinct id per row; by default the index of a pandas table, else 0, 1, ...
        intervals : bool, default=False
            Whether to find the stability intervals of all fields.

        Returns
        -------
        Checks
            One check per row, in order, with the certificates and the rows as they were decided.

        Raises
        ------
        FragilityError
            A field is not known, the protocol does not say what it may hold, or the rows do not fit the model.
        """
        decided = self._decider.decide(rows, missing, stale, ids)
        oracle, bound = decided.oracle, decided.oracle.rows
        certificates = self.auditor.certify(bound)
        every = list(certificates)
        exposure = self._find_exposure(oracle, every)
        declared = self._declare_failures(bound)
        rates = declared if isinstance(declared, np.ndarray) else None
        hanging = self._hanging.find(oracle, decided.predicted, every, rates)
        failures: FailureProbability | None = None
        if declared is not None and any(one.loss is None for one in hanging):
            # recorded events, rates per mode, or a lattice that is too large
            failures = failure_of_rows(
                bound, self.protocol, declared, RELIABILITY_DRAWS, 0, self._engine, DEFAULT_BYTE_BUDGET, None
            )
        stability = (
            intervals_of_rows(bound, self.protocol, None, self._engine, DEFAULT_BYTE_BUDGET) if intervals else None
        )
        review = self._mark_review(certificates, exposure, oracle)
        checks = []
        for i, certificate in enumerate(every):
            checks.append(
                Check(
                    id=certificate.id,
                    decision=certificate.predicted,
                    confidence=certificate.confidence,
                    certificate=certificate,
                    failing_sets=hanging[i].sets,
                    failing_sets_state=hanging[i].state,
                    failing_sets_exact=hanging[i].exact,
                    exposure={mode: float(values[i]) for mode, values in exposure.items()},
                    **self._plain_failure(i, hanging[i].loss, failures, declared),
                    missing=decided.missing[i],
                    stand_ins={n: v for n, v in decided.stand_ins.items() if n in decided.missing[i]},
                    stale=decided.stale[i],
                    review=None if review is None else bool(review[i]),
                    intervals=None
                    if stability is None
                    else {name: stability.interval(i, name) for name in stability.by_field},
                    **_plain_change(decided.changes[i], bound.model.classes),
                )
            )
        frame = bound.source.frame
        assert frame is not None
        return Checks(certificates, frame.set_axis(list(bound.ids), axis=0), tuple(checks))

    def _find_exposure(self, oracle: Oracle, certificates: Sequence[Certificate]) -> dict[str, Floats]:
        """Return the exposure of each row to each declared mode; that to lost evidence is in the certificates."""
        lost = np.asarray(-np.expm1([-one.independent_loss for one in certificates]))
        modes = [mode for mode in self.protocol.modes.declared if mode not in ("lost", "stale")]
        if not modes:
            return {"lost": lost}
        few = len(oracle.rows) <= FEW_ROWS
        cells = self._decider.find_cells(oracle.rows).cells if "wrong" in modes else None
        losses = losses_of_rows(
            oracle, self.protocol, modes, byte_budget=DEFAULT_BYTE_BUDGET, catalogue=cells, at_once=few
        )
        return {"lost": lost, **{mode: losses[mode].exposure for mode in modes}}

    def _declare_failures(self, bound: EvidenceRows) -> Floats | EventSets | ModeRates | None:
        """Return how evidence fails, as the user declared it; the same for all rows of a model."""
        if self.rates is not None and self._failures is None:
            protocol, rates = self.protocol, self.rates
            self._failures = (
                mode_rates(rates, protocol, Layout.of(protocol, bound))
                if has_modes(rates)
                else declared_failures(rates, bound, protocol)
            )
        return self._failures

    def _plain_failure(
        self,
        row: int,
        loss: float | None,
        failures: FailureProbability | None,
        declared: Floats | EventSets | ModeRates | None,
    ) -> dict[str, Any]:
        """Return how likely a decision is lost: from its lattice, else from the search of the row."""
        if declared is None:
            return {}
        interval = None
        if loss is None:
            assert failures is not None
            loss = float(failures.p_flip[row])
            interval = None if failures.exact[row] else (float(failures.low[row]), float(failures.high[row]))
        condition = self._describe_failures(declared)
        return {"failure_probability": loss, "failure_interval": interval, "failure_condition": condition}

    def _describe_failures(self, declared: Floats | EventSets | ModeRates) -> str:
        if isinstance(declared, EventSets):
            return describe_events(declared.events)
        if isinstance(declared, ModeRates):
            return describe_mode_rates(declared.lost.tolist(), declared.wrong.tolist(), self.protocol.group_thing)
        return describe_rates(declared.tolist(), self.protocol.group_thing)

    def _mark_review(self, certificates: Certificates, exposure: dict[str, Floats], oracle: Oracle) -> Any:
        if self.policy is None:
            return None
        by = self.policy.by
        if by == REHEARSAL:
            stress = Stress.from_dict(self.policy.stress or {})
            scores = label_rows(rehearse_rows(oracle, self.protocol, stress), stress).statistic
        else:
            scores = exposure[by] if by in exposure else certificates.score(by)
        return self.policy.mark_rows(certificates, scores)


def _check_rehearsable(policy: ReviewPolicy) -> None:
    """Refuse a policy by rehearsal whose stress cannot be rehearsed on a row at decision time."""
    kinds = None if policy.stress is None else [entry["kind"] for entry in policy.stress["stressors"]]
    if kinds is None or "donor" in kinds:
        why = "does not say which stress" if kinds is None else "needs training rows, for the stressor donor"
        raise DataError(
            f"the policy ranks by the rehearsal of its stress and {why}; at decision time use a policy by another score"
        )


def _plain_change(change: DecisionChange | None, classes: Sequence[ClassLabel]) -> dict[str, Any]:
    if change is None:
        return {}
    return {
        "p_change": change.probability,
        "p_change_low": change.low,
        "p_change_high": change.high,
        "p_change_exact": change.exact,
        "changes_to": None if change.changes_to is None else classes[change.changes_to],
        "acquire": change.acquire,
    }
