"""What a certificate costs on this machine: `fragility bench`."""

from fragility_paper.bench.costs import Bench, Cost, cost_of
from fragility_paper.bench.models import MODELS

__all__ = ["MODELS", "Bench", "Cost", "cost_of"]
