"""`softorder report`: one page from the JSON lines alone."""

from softorder_experiments.report.page import Report, write_report

__all__ = ["Report", "write_report"]
