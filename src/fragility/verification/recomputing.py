"""What is recomputed of certificates: claims, blocks and comparison of baselines, each as its own check.

Claims are recomputed through the black-box engine, whatever engine made them. The lattice block is searched again as it
declares, every set is put to the model, and the model is asked about smaller sets as far as that is affordable. For the
modes block the model is asked for every value of every unit.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.auditing.baselines import bound_under
from fragility.auditing.certifying import PartAuditor
from fragility.audits import Claims, LatticeDeclaration
from fragility.audits.integrity import audit_context
from fragility.audits.manifest import Tolerance
from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats
from fragility.base.errors import EngineError
from fragility.base.libraries import say_lacking
from fragility.blocks.checks import Check, Difference, Recheck, find_differences
from fragility.blocks.claims import PER_STEP, claims_from, digest_text, field_names, row_digests
from fragility.blocks.lattice.making import add_chances, claims_of_sets, failures_of, lattice_of_rows
from fragility.blocks.lattice.values import FAILURE_FIELDS, LatticeClaims, lattice_claims_of
from fragility.blocks.modes import modes_claims_of
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.checking import check_steady_states
from fragility.engines.choice import never_reads, refusal
from fragility.engines.lattice.additive import FlipRule
from fragility.engines.lattice.whole import find_lattice, never_searches, row_blocks
from fragility.engines.oracle import ModelOracle
from fragility.evidence import EvidenceRows, States
from fragility.evidence.agreement import OtherBatches, with_ties_settled
from fragility.pages.terms import MINIMUM, NONE_AT_ALL, none_up_to
from fragility.pages.wording import join_names
from fragility.protocol import Protocol
from fragility.questions.modes.losses import ModeLosses, losses_of_rows
from fragility.questions.reliability.failure import failure_of_rows
from fragility.questions.search import failing_sets_of_rows
from fragility.questions.search.blackbox import live_groups
from fragility.scores import EPSILON

EXACT = ("predicted", "flip_budget", "flipped", "thresholds", "path", "path_predicted", "already_missing")
ASKED_ALONE = 32  # states that the model is asked about one by one
ASKED_STATES = 1024  # per row: how often the model itself is asked about what an engine claims
DISAGREEMENT = 1e-9  # of probabilities: sums of the same terms in another order
SEARCHED = ("smallest_state", "smallest_size", "smallest_set", "smallest_count")
CHANCES = FAILURE_FIELDS[:3]


class ClaimRecheck(Recheck):
    """The claims of rows, recomputed."""

    def confirm(self, table: pa.Table, claims: Claims, rows: EvidenceRows) -> None:
        """Recompute the claims of a table's rows, which are given in the same order."""
        protocol = self.audit.protocol
        trace = trace_blackbox(rows, protocol)
        check_steady_states(trace, rows, protocol, secrets.randbits(128), ASKED_ALONE)
        fresh = claims_from(trace, rows, protocol)
        differences = compare_claims(claims, fresh, protocol, self.tolerance, self.audit.classes)
        if self.audit.extent == "summary":
            differences += self._digest_differences(table, rows, fresh)
        self.note(len(rows), differences)

    def _digest_differences(self, table: pa.Table, rows: EvidenceRows, fresh: Claims) -> list[Difference]:
        """Return where digests of a summary are not those of the recomputed rows.

        Two engines may round a number to different sides of a unit. Such a row is recomputed once more, by the engine
        that the manifest names.
        """
        audit, protocol = self.audit, self.audit.protocol
        stated = table.column("digest").to_pylist()
        digests = [digest_text(d) for d in row_digests(fresh, audit_context(audit), protocol.resolution)]
        doubtful = [i for i, (claimed, own) in enumerate(zip(stated, digests, strict=True)) if claimed != own]
        if doubtful and audit.engine != BLACKBOX:
            few = rows.take(doubtful)
            claims = claims_from(PartAuditor.of(few, protocol, audit.engine).trace(few), few, protocol)
            again = row_digests(claims, audit_context(audit), protocol.resolution)
            for i, digest in zip(doubtful, again, strict=True):
                digests[i] = digest_text(digest)
        return [Difference(rows.ids[i], "digest", stated[i], digests[i]) for i in doubtful if stated[i] != digests[i]]

    def check(self) -> Check:
        """Return the outcome, when all rows were given."""
        if not self.rows:
            return Check("recomputation", False, "none of the audited rows is among the rows given")
        total = self.audit.manifest.rows
        which = "all" if self.rows == total else f"{self.rows} of"
        detail = f"{which} {total} rows recomputed, {self.result} (margins within {self.tolerance:g})"
        return Check("recomputation", not self.bad_rows, detail, self.tolerance, tuple(self.differences))


class BaselineRecheck(Recheck):
    """The comparison of baselines, recomputed."""

    def confirm(self, claims: Claims, rows: EvidenceRows) -> None:
        """Recompute those of the rows that were compared, where any were."""
        comparison = self.audit.baselines
        if comparison is None:
            return
        place_of = {own_id: place for place, own_id in enumerate(comparison.ids)}
        mine = [i for i, own_id in enumerate(claims.ids) if own_id in place_of]
        if not mine:
            return
        places, few = [place_of[claims.ids[i]] for i in mine], rows.take(mine)
        differences: list[Difference] = []
        for name in comparison.baselines[1:]:
            protocol = self.audit.protocol.with_baseline(name)
            bound = OtherBatches.bind(bound_under(few, self.audit.protocol, protocol), secrets.randbits(128))
            other = with_ties_settled(bound, claims.predicted[mine], protocol.resolution)
            fresh = claims_from(trace_blackbox(other, protocol), other, protocol)
            tolerance = claim_tolerances(fresh, protocol, Tolerance.of(protocol).margin)["exposure"]
            budgets, exposures = comparison.flip_budgets(name)[places], comparison.exposures(name)[places]
            differences += find_differences(few.ids, f"flip_budget_{name}", budgets, fresh.flip_budget)
            differences += find_differences(few.ids, f"exposure_{name}", exposures, fresh.exposure, tolerance)
        self.note(len(mine), differences)

    def check(self) -> Check:
        """Return the outcome, when all rows were given."""
        comparison = self.audit.baselines
        assert comparison is not None
        others = join_names(list(comparison.baselines[1:]))
        detail = f"{self.rows} of {len(comparison)} rows recomputed under {others}, {self.result}"
        return Check("baselines", not self.bad_rows, detail, self.tolerance, tuple(self.differences))


def compare_claims(
    claimed: Claims, fresh: Claims, protocol: Protocol, tolerance: float, classes: Sequence[Any]
) -> list[Difference]:
    """Return every claim that differs: exact ones at all, floats by more than their tolerance.

    Lists that a summary does not claim are not compared.
    """
    allowed = claim_tolerances(fresh, protocol, tolerance)
    names = {"path": protocol.group_names, "predicted": classes, "path_predicted": classes}
    fields = field_names(protocol)
    summary = claimed.path_margin.shape[1] == 0
    out: list[Difference] = []
    for name in Claims.__dataclass_fields__:
        if name == "ids" or (summary and name in PER_STEP):
            continue
        a, b = getattr(claimed, name), getattr(fresh, name)
        limit = None if name in EXACT else allowed[name] if a.ndim == 1 else allowed[name][:, None]
        show: Callable[[Any], Any] | None = partial(_names_at, names[name]) if name in names else None
        if name == "already_missing":
            show = lambda marked: [fields[f] for f in np.flatnonzero(marked)]  # noqa: E731
        out += find_differences(claimed.ids, name, a, b, limit, show)
    return out


def claim_tolerances(fresh: Claims, protocol: Protocol, tolerance: float) -> dict[str, Floats]:
    """Return each float claim's tolerance: margins as declared, the rest by how margins enter them."""
    n = len(fresh)
    scale = 1.0 + np.abs(fresh.path_margin).max(axis=1) * 1e-3
    margin = np.full(n, tolerance) * scale
    # c_k = (m - m_k) / (|m| + epsilon): near a tie a rounding error of the margin is large beside m.
    ratio = margin * (2.0 + fresh.path_collapse.max(axis=1)) / (np.abs(fresh.margin) + EPSILON)
    ratio = np.minimum(ratio, 1.0) if protocol.reading == "support" else ratio
    # a sum over groups of drops, each of two margins, over |m|
    own = margin * (2.0 * len(protocol.groups) + fresh.independent_loss) / (np.abs(fresh.margin) + EPSILON)
    v1, v2, v3 = protocol.exposure_weights
    # without attenuate_all the other two share its weight
    summed = ratio * (v1 + v3) + own * v2
    if protocol.fading is None:
        summed = (ratio * v1 + own * v2) * (v1 + v2 + v3) / (v1 + v2)
    return {
        "confidence": margin,
        "margin": margin,
        "path_margin": margin,
        "one_step_drop": 2 * margin,
        "one_step_confidence_drop": 2 * margin,
        "path_collapse": ratio + 1e-12,
        "rcma": ratio + 1e-12,
        "fds": ratio * protocol.weights[0] + 1e-12,
        "fade_margin": margin,
        "independent_loss": own + 1e-12,
        "common_loss": np.minimum(ratio, 1.0) + 1e-12,
        "exposure": np.minimum(summed, 1.0) + 1e-12,
    }


def _names_at(names: Sequence[Any], places: Any) -> Any:
    return [names[i] for i in places] if places.ndim else names[int(places)]


# --- the modes block ------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ModesRecheck(Recheck):
    """The modes block of rows, recomputed by asking the model itself for every value."""

    never: str | None = None  # why the declared engine can never have answered for them

    def confirm(self, table: pa.Table, rows: EvidenceRows) -> None:
        """Recompute the block of those of a table's rows that have one."""
        declared = self.audit.modes_declaration
        if declared is None:
            return
        covered = declared.form.covered(table)
        if not covered.any():
            return
        claimed = modes_claims_of(table.filter(pa.array(covered)), declared)
        mine = rows.take(np.flatnonzero(covered).tolist())
        self.never = self.never or never_reads(declared.engine, mine)
        fresh, differences = losses_of_rows(ModelOracle(mine), self.audit.protocol, declared.modes), list[Difference]()
        for mode in declared.units:
            own, again, allowed = claimed[mode], fresh[mode], mode_tolerances(fresh, mode, self.tolerance)
            differences += find_differences(claimed.ids, f"exposure_{mode}", own.exposure, again.exposure, allowed[1])
            differences += find_differences(claimed.ids, f"mode_drop_{mode}", own.drop, again.drop, allowed[0][:, None])
            differences += find_differences(
                claimed.ids, f"flip_chance_{mode}", own.flip_chance, again.flip_chance, DISAGREEMENT
            )
        self.note(len(mine), differences)

    def check(self) -> Check:
        """Return the outcome, when all rows were given."""
        declared, differences = self.audit.modes_declaration, list(self.differences)
        assert declared is not None
        told = f"{self.rows} rows recomputed by asking the model for every value, {self.result}"
        if not self.rows:
            told = "none of these rows has a modes block"
        if self.never is not None:
            told = f"the {declared.engine} engine can never have read this model"
            differences.insert(0, Difference("all", "modes.engine", declared.engine, f"cannot be: {self.never}"))
        return Check("modes", not differences, told, self.tolerance, tuple(differences))


def mode_tolerances(fresh: ModeLosses, mode: str, tolerance: float) -> tuple[Floats, Floats]:
    """Return how far the drops and the exposure of each row may lie, by how margins enter them."""
    one, own = fresh[mode], np.abs(fresh.margin)
    margin = tolerance * (1.0 + (own + np.abs(one.drop).max(axis=1, initial=0.0)) * 1e-3)
    # a sum over units of drops, each of two margins, over |m|
    return 2.0 * margin, np.minimum(margin * (2.0 * len(one.units) + one.loss) / (own + EPSILON), 1.0) + 1e-12


# --- the lattice block ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class LatticeRecheck(Recheck):
    """The lattice block of rows, searched again."""

    asked: int = 0  # rows for which the model itself was asked about every smaller set
    unsearched: int = 0  # rows with a claim that was not recomputed
    never: str | None = None  # why the declared engine can never have searched them
    unread: str | None = None  # why the declared engine cannot read the model here

    def confirm(self, table: pa.Table, rows: EvidenceRows) -> None:
        """Search the block of a table's rows again, where there is one.

        The model is asked about every claimed set. The declared search is repeated, and if it was an engine's, the
        model itself is asked about all smaller sets as far as ``ASKED_STATES`` go.
        """
        audit, declared = self.audit, self.audit.lattice_declaration
        if declared is None:
            return
        claimed = lattice_claims_of(table, declared, audit.protocol)
        if declared.is_partial:
            searched = np.flatnonzero(claimed.searched(declared)).tolist()
            claimed, rows = claimed.take(searched), rows.take(searched)
        if not len(rows):
            return
        protocol, engine = audit.protocol, declared.engine
        disputed = _find_false_sets(claimed, rows, protocol)
        never = never_searches(engine, rows, protocol)
        fresh, unread = (None, never) if never else _search_again(rows, protocol, declared)
        self.never, self.unread = self.never or never, self.unread or unread
        if fresh is None:
            disputed += self._search_by_asking(claimed, rows, declared)
        else:
            disputed += _compare((*SEARCHED, "failure_exact", *CHANCES), claimed, fresh, declared, protocol)
            disputed += _compare_margins(claimed, fresh, self.tolerance)
            if engine != BLACKBOX:
                denied, settled = _ask_model(claimed, rows, protocol, declared)
                disputed += denied
                self.asked += settled
        first = {(dispute.row, dispute.field): dispute for dispute in reversed(disputed)}
        self.note(len(rows), list(first.values())[::-1])

    def _search_by_asking(
        self, claimed: LatticeClaims, rows: EvidenceRows, declared: LatticeDeclaration
    ) -> list[Difference]:
        """Search as a black box, because the engine is not available; what that cannot settle is not searched."""
        protocol = self.audit.protocol
        asked = lattice_of_rows(rows, protocol, replace(declared, engine=BLACKBOX), progress=False)
        searched = _find_proved(claimed, declared) & _find_proved(asked, declared)
        searched &= (claimed.smallest_count >= 0) & (asked.smallest_count >= 0)
        if claimed.expected_margin is not None and asked.failure_exact is not None:
            searched &= asked.failure_exact & np.isnan(claimed.expected_margin)  # it cannot be asked for
        settled = int(searched.sum())
        self.asked += settled
        self.unsearched += len(rows) - settled
        return _find_denied(claimed, asked, declared, protocol)

    def check(self) -> Check:
        """Return the outcome, when all rows were given."""
        declared, differences = self.audit.lattice_declaration, list(self.differences)
        assert declared is not None
        if self.never is not None:
            differences.insert(0, Difference("all", "lattice.engine", declared.engine, f"cannot be: {self.never}"))
        told = "every claim recomputed holds" if self.unsearched and not self.bad_rows else self.result
        detail = f"{self._describe_search(declared)}, {told}"
        return Check("lattice", not differences, detail, self.tolerance, tuple(differences))

    def _describe_search(self, declared: LatticeDeclaration) -> str:
        if self.never is not None:
            return f"the {declared.engine} engine can never have read this model"
        if self.unread is not None:
            return (
                f"the {declared.engine} engine cannot read the model here ({self.unread}): {self.unsearched} of "
                f"{self.rows} rows were not searched again"
            )
        if not self.rows:
            return "none of these rows was searched"
        if declared.engine == BLACKBOX:
            return f"{self.rows} rows searched again by asking the model"
        return f"{self.rows} rows searched again; for {self.asked} the model itself was asked about every smaller set"


def _find_false_sets(claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol) -> list[Difference]:
    """Return the claimed sets that do not flip the model."""
    rule, out = FlipRule.of(rows, protocol), list[Difference]()
    for start, x, _, original in row_blocks(rows, rule):
        sets = claimed.smallest_set[start : start + len(x)]
        states = States(np.arange(len(x)), sets).sparing(rows.spared(start, start + len(x)), rows.column_group)
        margin = rule.margin(ModelOracle(rows).answer_states(x, states), original)
        flips = (margin < DISAGREEMENT - rule.resolution) | ~sets.any(axis=1)
        for i in np.flatnonzero(~flips):
            found = f"margin {margin[i]:g}, which is no flip"
            out.append(Difference(claimed.ids[start + i], "smallest_set", _list_members(sets[i], protocol), found))
    return out


def _search_again(
    rows: EvidenceRows, protocol: Protocol, declared: LatticeDeclaration
) -> tuple[LatticeClaims | None, str | None]:
    """Return the block by the declared search; or None, and why its engine cannot search these rows here."""
    try:
        if declared.engine != BLACKBOX:
            reason = refusal(declared.engine, rows)
            if reason is None and find_lattice(rows, protocol, declared.engine, DEFAULT_BYTE_BUDGET) is None:
                reason = say_lacking("the exact search of failing sets", "numba") or "its subsets cannot be tabulated"
            if reason is not None:
                return None, reason
        return lattice_of_rows(rows, protocol, declared, progress=False), None
    except EngineError as error:
        return None, str(error)


def _compare(
    names: Sequence[str],
    claimed: LatticeClaims,
    fresh: LatticeClaims,
    declared: LatticeDeclaration,
    protocol: Protocol,
    chosen: Booleans | None = None,
) -> list[Difference]:
    """Return where claims of the chosen rows differ: chances by more than rounding, all others at all."""
    if chosen is not None:
        claimed, fresh = (block.take(np.flatnonzero(chosen).tolist()) for block in (claimed, fresh))
    show: dict[str, Callable[[Any], Any]] = {
        "smallest_state": lambda state: declared.states()[int(state)],
        "smallest_set": lambda members: _list_members(members, protocol),
        **dict.fromkeys(("smallest_size", "smallest_count"), lambda count: None if count < 0 else int(count)),
    }
    out: list[Difference] = []
    for name in names:
        a, b = getattr(claimed, name), getattr(fresh, name)
        if a is not None:
            allowed = DISAGREEMENT if name in CHANCES else None
            out += find_differences(claimed.ids, name, a, b, allowed, show.get(name))
    return out


def _compare_margins(claimed: LatticeClaims, fresh: LatticeClaims, tolerance: float) -> list[Difference]:
    a, b = claimed.expected_margin, fresh.expected_margin
    if a is None or b is None:
        return []
    allowed = tolerance * (1.0 + 1e-3 * np.abs(np.nan_to_num(b)))
    return find_differences(claimed.ids, "expected_margin", a, b, allowed)


def _ask_model(
    claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol, declared: LatticeDeclaration
) -> tuple[list[Difference], int]:
    """Ask the model itself, by size and within a few states per row; return what it denies and the rows it settled."""
    oracle = ModelOracle(rows)
    found = failing_sets_of_rows(oracle, protocol, method="exact", max_size=declared.max_size, budget=ASKED_STATES)
    out = _find_denied(claimed, claims_of_sets(found, declared), declared, protocol)
    out += _find_denied_chances(claimed, rows, protocol, declared)
    # Every smaller set holds if they were all asked, though the claimed size itself was not.
    smaller_held = found.searched_size >= claimed.smallest_size - 1
    minimum = claimed.smallest_state == declared.states().index(MINIMUM)
    return out, int((found.resolved | (minimum & smaller_held)).sum())


def _find_denied(
    claimed: LatticeClaims, asked: LatticeClaims, declared: LatticeDeclaration, protocol: Protocol
) -> list[Difference]:
    """Return the claims that a search by asking contradicts.

    An upper bound and a search that ended early claim nothing that another search could deny. A set that is one of
    several not counted is a witness, not the first of them.
    """
    proved, decided = (_find_proved(block, declared) for block in (claimed, asked))
    smaller = (asked.smallest_size > 0) & (
        asked.smallest_size < np.where(claimed.smallest_size < 0, np.inf, claimed.smallest_size)
    )
    counted = (claimed.smallest_count >= 0) & (asked.smallest_count >= 0)
    blocks = claimed, asked, declared, protocol
    out = _compare(("smallest_state", "smallest_size"), *blocks, proved & (decided | smaller))
    out += _compare(("smallest_set", "smallest_count"), *blocks, proved & decided & counted)
    if asked.failure_exact is not None:
        out += _compare(("failure_exact", *CHANCES), *blocks, asked.failure_exact)
    return out


def _find_proved(block: LatticeClaims, declared: LatticeDeclaration) -> Booleans:
    words = np.array(declared.states(), dtype=object)[block.smallest_state]
    return np.isin(words, (MINIMUM, NONE_AT_ALL, none_up_to(declared.max_size)))


def _find_denied_chances(
    claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol, declared: LatticeDeclaration
) -> list[Difference]:
    """Enumerate the subsets of rows that have few; return the probabilities that differ."""
    if claimed.failure_exact is None or declared.rates is None:
        return []
    parts = [slice(start, start + 2048) for start in range(0, len(rows), 2048)]
    live = np.concatenate(
        [
            live_groups(rows, rows.dense(part.start, part.stop), rows.spared(part.start, part.stop)).sum(axis=1)
            for part in parts
        ]
    )
    few = np.flatnonzero(((1 << np.minimum(live, 40)) <= ASKED_STATES) & claimed.failure_exact).tolist()
    if not few:
        return []
    rates = failures_of(declared, protocol)
    chances = failure_of_rows(rows.take(few), protocol, rates, ASKED_STATES, 0, BLACKBOX, DEFAULT_BYTE_BUDGET, None)
    those = claimed.take(few)
    return _compare(CHANCES[:1], those, add_chances(those, chances), declared, protocol)


def _list_members(members: Booleans, protocol: Protocol) -> list[str]:
    return [protocol.group_names[g] for g in np.flatnonzero(members)]
