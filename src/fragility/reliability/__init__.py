"""Given how often fields fail, how likely is each decision to be lost, and which feed should be made reliable first?

rates     what the user declares, as one rate a group
outcomes  FailureProbability, the answer
pictures  ReliabilityDisplay, which feed to make reliable first
sampling  quasi-random subsets, where the lattice cannot be tabulated
events    recorded outages, taken as they co-occurred
failure   which of them for which row
"""

from fragility.drawing.figure import ReliabilityDisplay
from fragility.reliability.failure import failure_probability
from fragility.reliability.outcomes import FailureProbability

__all__ = ["FailureProbability", "ReliabilityDisplay", "failure_probability"]
