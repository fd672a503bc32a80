"""``joulecast report WHAT``: a profile or a result as one HTML file, and as SVG for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from joulecast.cli import options
from joulecast.cli.option_types import OutputFileType
from joulecast.cli.progress import show_activity
from joulecast.cli.terminal import label_provenance, make_console, print_json
from joulecast.features.report import make_report
from joulecast.reports import Report

DEFAULT_NAME = "report.html"


class ReportFileType(OutputFileType):
    """An HTML file."""

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Return the path."""
        if Path(str(value)).suffix.lower() not in (".html", ".htm"):
            self.fail(f"{value!r}: give a file that ends in .html", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("what")
@click.option(
    "--out",
    type=ReportFileType(),
    metavar="FILE.html",
    help=f"File to write.  [default: {DEFAULT_NAME}, or none with --svg]",
)
@click.option("--svg", metavar="FOLDER", help="Write every plot as SVG into a folder, for papers.")
@options.store
@options.json
def report(what: str, out: str | None, svg: str | None, store: str | None, json: bool) -> None:
    """Report a profile, an evaluation, a pruning, a plan or a score, with tables and plots.

    WHAT is a device with a profile, a profile's file, or the JSON that evaluate, prune, plan and
    score write with --out. The HTML file needs no other file and no network.
    """
    from joulecast.reports.report_page import save_report, save_report_pictures

    with show_activity("preparing the report"):
        made = make_report(what, store)
        written = [] if svg is None else save_report_pictures(made, svg)
        if out is not None or svg is None:
            written.append(save_report(made, out or DEFAULT_NAME))
    if json:
        files = list(map(str, written))
        print_json({"title": made.title, "provenance": made.provenance, "files": files})
    else:
        _print(made, written)


def _print(made: Report, written: list[Path]) -> None:
    console = make_console()
    console.print(made.title + label_provenance(made.provenance), style="bold")
    console.print(made.lead)
    console.print()
    for path in written:
        console.print(f"Wrote {path}", soft_wrap=True)
