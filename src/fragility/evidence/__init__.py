"""Evidence: what a model is handed, in groups that can be lost.

rows        rows as users bring them, checked, in the model's column order
fields      what each raw field is, and rows made to fit that
space       the evidence space of a protocol: columns, groups, baseline values
tracing     from transformed columns back to raw fields
groups      which columns fail together
moments     sums that do not depend on the order of rows
averages    what stands in for lost values, by rule
baselines   the values a protocol holds, by rule or given
fitting     the training rows in the evidence space
forms       how the cells of a raw column are handed to a model
codec       raw fields as a matrix and back, types kept
handover    what the final estimator is handed, as a matrix and back
categories  which columns a model itself treats as categories
row_states  stressed copies of rows, each row with its own, by what they move
bound       rows as a matrix that can be stressed
agreement   does the model agree with itself on these rows?
binding     an evidence space applied to a model and rows
"""

from fragility.evidence.bound import STEP, EvidenceRows, OwnRows, blend
from fragility.evidence.forms import CellForm
from fragility.evidence.row_states import RowStates

__all__ = ["STEP", "CellForm", "EvidenceRows", "OwnRows", "RowStates", "blend"]
