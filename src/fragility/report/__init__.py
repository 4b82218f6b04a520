"""The report on one or several audits: a summary of plain numbers, and its renderings as HTML, Markdown and JSON."""

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
