"""Neural engine (being built): refuses every model, so that the black box audits it."""

from __future__ import annotations

from fragility.engines.trace import Progress, Trace
from fragility.errors import EngineError
from fragility.evidence import EvidenceRows
from fragility.protocol import Protocol


def refusal(rows: EvidenceRows) -> str | None:
    """Return why this engine cannot audit these rows, or None if it can."""
    return "the neural engine does not know it"


def trace(rows: EvidenceRows, protocol: Protocol, progress: Progress | None = None) -> Trace:
    """Return the trace of every row."""
    raise EngineError(f"the neural engine does not know {rows.model.kind}; use engine='auto'")
