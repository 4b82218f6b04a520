"""Evidence: what a model is handed, in groups that can be lost.

fields        what each raw field is, and columns made to fit that; dates
rows          rows as users bring them, checked, in the model's column order; their digests
origins       which raw fields each column comes from, as claimed and as tried
groups        which columns fail together
states        stressed copies of rows: what each moves toward the baseline, and how far; what is missing stays
bound         the evidence space of a protocol, and rows in it as a matrix that can be stressed
codec         values as cells and back, as raw fields and as the final estimator takes them
fitting       the training rows in the evidence space; means, spreads and medians in any order of rows
agreement     does the model agree with itself on these rows?
form          how raw rows become cells, learned once from a model, a space and the first rows; binds all others
baselines     the values that lost evidence takes, and the other baselines that a model admits
modes         the failure modes of a protocol, and the values that it knows of each field
domains       which values each raw field may take at all
replacements  what each raw field becomes when it is lost
"""

from fragility.evidence.bound import CellForm, EvidenceRows
from fragility.evidence.states import STEP, Spared, States, blend

__all__ = ["STEP", "CellForm", "EvidenceRows", "Spared", "States", "blend"]
