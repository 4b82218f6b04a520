"""The claims of certificates, recomputed through the black-box engine, whatever engine made them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.auditing.certifying import PartAuditor
from fragility.audits import Claims
from fragility.audits.integrity import audit_context
from fragility.blocks.checks import Check, Difference, Recheck, find_differences
from fragility.blocks.claims import PER_STEP, claims_from, digest_text, field_names, row_digests
from fragility.blocks.tolerances import claim_tolerances
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.checking import check_steady_states
from fragility.evidence import EvidenceRows
from fragility.pages.wording import write_count
from fragility.protocol import Protocol

EXACT = ("predicted", "flip_budget", "flipped", "thresholds", "path", "path_predicted", "already_missing")
ASKED_ALONE = 32  # states that the model is asked about one by one


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
        detail = f"{which} {write_count(total, 'row')} recomputed, {self.result} (margins within {self.tolerance:g})"
        return Check("recomputation", not self.bad_rows, detail, self.tolerance, tuple(self.differences))


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


def _names_at(names: Sequence[Any], places: Any) -> Any:
    return [names[i] for i in places] if places.ndim else names[int(places)]
