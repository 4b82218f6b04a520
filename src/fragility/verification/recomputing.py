"""What is recomputed of certificates: claims, lattice block and comparison of baselines, each as its own check.

Claims are recomputed through the black-box engine, whatever engine made them. The lattice block is searched again as it
declares, every set is put to the model, and the model is asked about smaller sets as far as that is affordable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.arrays import Floats
from fragility.auditing.auditor import Auditor, claims_from
from fragility.auditing.baselines import bound_under
from fragility.certificates import Audit, Claims, LatticeDeclaration
from fragility.certificates.claims import PER_STEP, digest_text, row_digests
from fragility.certificates.lattice import lattice_claims_of
from fragility.certificates.manifest import Tolerance
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import with_ties_settled
from fragility.protocol import Protocol
from fragility.scores import EPSILON
from fragility.verification.integrity import audit_context
from fragility.verification.lattice import confirm_lattice
from fragility.verification.outcome import MAX_KEPT, Check, Difference
from fragility.wording import join_names

EXACT = ("predicted", "flip_budget", "flipped", "thresholds", "path", "path_predicted")


@dataclass(eq=False)
class Recheck:
    """What came of recomputing some claims of an audit, part by part."""

    audit: Audit
    rows: int = 0
    bad_rows: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def tolerance(self) -> float:
        """How far a recomputed margin may lie."""
        return Tolerance.of(self.audit.protocol).margin

    @property
    def told(self) -> str:
        """Whether the claims hold, in words."""
        return f"{self.bad_rows} rows do not hold" if self.bad_rows else "every claim holds"

    def note(self, rows: int, differences: list[Difference]) -> None:
        """Count the rows recomputed and those that do not hold; of the differences only so many are kept."""
        self.rows += rows
        self.bad_rows += len({difference.row for difference in differences})
        self.differences += differences[: MAX_KEPT - len(self.differences)]


class ClaimRecheck(Recheck):
    """The claims of rows, recomputed."""

    def confirm(self, table: pa.Table, claims: Claims, rows: EvidenceRows) -> None:
        """Recompute the claims of a table's rows, which are given in the same order."""
        protocol = self.audit.protocol
        fresh = claims_from(trace_blackbox(rows, protocol), rows, protocol)
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
            claims = claims_from(Auditor.of(few, protocol, audit.engine).trace(few), few, protocol)
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
        detail = f"{which} {total} rows recomputed, {self.told} (margins within {self.tolerance:g})"
        return Check("recomputation", not self.bad_rows, detail, self.tolerance, tuple(self.differences))


@dataclass(eq=False)
class LatticeRecheck(Recheck):
    """The lattice block of rows, searched again."""

    asked: int = 0  # rows for which the model itself was asked about every smaller set
    unsearched: int = 0  # rows with a claim that was not recomputed
    never: str | None = None  # why the declared engine can never have searched them
    unread: str | None = None  # why the declared engine cannot read the model here

    def confirm(self, table: pa.Table, rows: EvidenceRows) -> None:
        """Search the block of a table's rows again, where there is one."""
        audit, declared = self.audit, self.audit.lattice_declaration
        if declared is None:
            return
        claimed = lattice_claims_of(table, declared, audit.protocol)
        if declared.is_partial:
            searched = np.flatnonzero(claimed.searched(declared)).tolist()
            claimed, rows = claimed.take(searched), rows.take(searched)
        if not len(rows):
            return
        confirmed = confirm_lattice(claimed, rows, audit.protocol, declared, self.tolerance, False)
        self.asked += confirmed.asked
        self.unsearched += len(rows) - int(confirmed.searched.sum())
        self.never, self.unread = self.never or confirmed.never, self.unread or confirmed.unread
        self.note(len(rows), [Difference(*dispute) for dispute in confirmed.disputed])

    def check(self) -> Check:
        """Return the outcome, when all rows were given."""
        declared, differences = self.audit.lattice_declaration, list(self.differences)
        assert declared is not None
        if self.never is not None:
            differences.insert(0, Difference("all", "lattice.engine", declared.engine, f"cannot be: {self.never}"))
        told = "every claim recomputed holds" if self.unsearched and not self.bad_rows else self.told
        detail = f"{self._how_searched(declared)}, {told}"
        return Check("lattice", not differences, detail, self.tolerance, tuple(differences))

    def _how_searched(self, declared: LatticeDeclaration) -> str:
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
            other = with_ties_settled(bound_under(few, protocol), claims.predicted[mine], protocol.resolution)
            fresh = claims_from(trace_blackbox(other, protocol), other, protocol)
            tolerance = claim_tolerances(fresh, protocol, Tolerance.of(protocol).margin)["exposure"]
            budgets, exposures = comparison.flip_budgets(name)[places], comparison.exposures(name)[places]
            pairs = {
                f"flip_budget_{name}": (budgets, fresh.flip_budget, budgets != fresh.flip_budget),
                f"exposure_{name}": (exposures, fresh.exposure, np.abs(exposures - fresh.exposure) > tolerance),
            }
            for column, (claimed, own, differs) in pairs.items():
                wrong = np.flatnonzero(differs)
                differences += [Difference(few.ids[i], column, claimed[i].item(), own[i].item()) for i in wrong]
        self.note(len(mine), differences)

    def check(self) -> Check:
        """Return the outcome, when all rows were given."""
        comparison = self.audit.baselines
        assert comparison is not None
        others = join_names(list(comparison.baselines[1:]))
        detail = f"{self.rows} of {len(comparison)} rows recomputed under {others}, {self.told}"
        return Check("baselines", not self.bad_rows, detail, self.tolerance, tuple(self.differences))


def compare_claims(
    claimed: Claims, fresh: Claims, protocol: Protocol, tolerance: float, classes: Sequence[Any]
) -> list[Difference]:
    """Return every claim that differs: exact ones at all, floats by more than their tolerance.

    Lists that a summary does not claim are not compared.
    """
    allowed = claim_tolerances(fresh, protocol, tolerance)
    names = {"path": protocol.group_names, "predicted": classes, "path_predicted": classes}
    summary = claimed.path_margin.shape[1] == 0
    out: list[Difference] = []
    for name in Claims.__dataclass_fields__:
        if name == "ids" or (summary and name in PER_STEP):
            continue
        a, b = getattr(claimed, name), getattr(fresh, name)
        if name in EXACT:
            differs = a != b
        else:
            with np.errstate(invalid="ignore"):
                differs = ~((np.abs(a - b) <= _shaped(allowed[name], a)) | (np.isnan(a) & np.isnan(b)))
        rows = np.flatnonzero(differs if differs.ndim == 1 else differs.any(axis=1))
        out += [
            Difference(claimed.ids[i], name, _shown(a[i], names.get(name)), _shown(b[i], names.get(name))) for i in rows
        ]
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


def _shaped(tolerance: Floats, like: Floats) -> Floats:
    return tolerance if like.ndim == 1 else tolerance[:, None]


def _shown(value: Any, names: Sequence[Any] | None) -> Any:
    if names is None:
        return value.tolist() if isinstance(value, np.ndarray) else value.item()
    return [names[i] for i in value] if isinstance(value, np.ndarray) else names[int(value)]
