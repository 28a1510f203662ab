"""The report of a run, made from its ledger alone."""

from eerl_launch.report.write import FORMATS, ReportError, ReportPaths, write_report

__all__ = ["FORMATS", "ReportError", "ReportPaths", "write_report"]
