"""The report on one or several audits: a summary of plain numbers, and its renderings as HTML, Markdown and JSON.

summary    every number that a report shows, typed
gathering  making the summary from audits
tally      counts over a set of predictions
inputs     the audited rows and labels, which the user may give in addition to the audit
sections   the report as sections of blocks, in their order
chapters   the longer sections: several audits, failure modes, the deployed model
sentences  sentences that only reports use
figures    its pictures
document   `Report`
"""

from fragility.audits import Audit
from fragility.report.document import REPORT_FILE, Report, is_report, save_beside, verify_command
from fragility.report.inputs import ShownRows
from fragility.report.summary import ReportSummary

__all__ = [
    "REPORT_FILE",
    "Audit",
    "Report",
    "ReportSummary",
    "ShownRows",
    "is_report",
    "save_beside",
    "verify_command",
]
