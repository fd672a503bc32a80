"""Reports: what was found about a profile, a result, a campaign or a fleet, in words and pictures.

report           Report, Section, ReportTable, Picture
…_report         a profile, an evaluation, a pruning, a plan, scores, a fleet, a campaign ──▶ Report
result_files     recognises the JSON results of commands
report_page      a Report as one HTML file, or as SVG files

The dashboard shows the same sections with the same templates.
"""

from joulecast.reports.report import Picture, Report, ReportTable, Section

__all__ = ["Picture", "Report", "ReportTable", "Section"]
