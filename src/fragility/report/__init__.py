"""The report on one or several audits: a summary of plain numbers, and its renderings as HTML, Markdown and JSON.

summary    every number that a report shows, typed
gathering  from audits to the summary
tally      what a set of predictions adds up to
inputs     the audited rows and labels that a user gives beyond the audit
sections   the report as sections of blocks, in the order in which they are read
chapters   the longer ones: several audits, failure modes, the deployed model
sentences  what only a report says
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
