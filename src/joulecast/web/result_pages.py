"""Make the pages of results: one each for evaluations, plans, prunings and scores.

A page shows results of the results folder and of the store, and one that is dropped on it, which is
data only: it is parsed, checked, shown and forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import HTMLResponse

from joulecast.errors import FileError
from joulecast.reports import Report
from joulecast.reports.result_files import recognise_result, report_result
from joulecast.web.data_routes import DataRoute
from joulecast.web.problems import document_problems
from joulecast.web.rendering import DashboardPage, render
from joulecast.web.result_sources import ResultSource, choose_source, list_result_files
from joulecast.web.web_settings import find_settings
from joulecast.web.work_queue import answer_json, find_work_queue

ListSources = Callable[[Request], Sequence[ResultSource]]
Key = Annotated[str, Query(max_length=300, description="Key of a result of the list.")]
Dropped = Annotated[Any, Body(description="A result that the command wrote with --out.")]


@dataclass(frozen=True)
class ResultPage:
    """What a page of results is about.

    Attributes:
        kind: Kind of the results.
        path: Where the page is.
        title: Its name in the navigation.
        summary: One sentence on what it shows.
        command: The command that makes such a result.
        list_stored: Returns results that are not files.
    """

    kind: str
    path: str
    title: str
    summary: str
    command: str
    list_stored: ListSources = lambda request: ()


@dataclass(frozen=True)
class ResultSummary:
    """A result that can be shown.

    Attributes:
        origin: ``file``, ``store`` or ``published``.
    """

    key: str
    origin: str
    title: str


@dataclass(frozen=True)
class ReportFact:
    """A short value with its name."""

    name: str
    value: str


@dataclass(frozen=True)
class TableData:
    """A table of a report, as text."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class SectionData:
    """A section of a report."""

    heading: str
    text: tuple[str, ...]
    tables: tuple[TableData, ...]


@dataclass(frozen=True)
class ReportData:
    """A report in words and numbers.

    Attributes:
        provenance: Where its energies come from: measured, imported, modelled, datasheet
            or simulated.
    """

    kind: str
    title: str
    lead: str
    provenance: str
    facts: tuple[ReportFact, ...]
    sections: tuple[SectionData, ...]


@dataclass(frozen=True)
class ResultList:
    """Results that can be shown, and the chosen one.

    Attributes:
        results: All of them, the latest first.
        chosen: Key of the chosen one; empty if there is none.
        report: The chosen one in words and numbers.
        result: The chosen one as its command wrote it.
    """

    results: tuple[ResultSummary, ...]
    chosen: str = ""
    report: ReportData | None = None
    result: dict[str, Any] | None = None


def make_result_page(page: ResultPage) -> DashboardPage:
    """Return a page of results, with its routes."""
    router = APIRouter(tags=[page.title.lower()], route_class=DataRoute)

    @router.get(page.path, include_in_schema=False, response_class=HTMLResponse)
    async def show_results(request: Request, result: Key = "") -> HTMLResponse:
        return await find_work_queue(request).run(_render_results, page, request, result)

    @router.get(
        f"/api{page.path}",
        summary=f"{page.title}: the list, and the chosen result",
        response_model=ResultList,
        responses=document_problems(404, 422),
    )
    async def list_results(request: Request, result: Key = "") -> Response:
        """Return all results, and the chosen one as a report and as its command wrote it."""
        return await answer_json(request, _list_results, page, request, result)

    @router.post(
        f"/api{page.path}",
        summary=f"Report a result of `{page.command}`",
        response_model=ReportData,
        responses=document_problems(413, 415, 422),
    )
    async def report_dropped(request: Request, dropped: Dropped) -> Response:
        """Return a result in words and numbers; it is not kept."""
        return await answer_json(request, _convert_dropped, page, dropped)

    @router.post(f"{page.path}/preview", include_in_schema=False, response_class=HTMLResponse)
    async def preview_dropped(request: Request, dropped: Dropped) -> HTMLResponse:
        return await find_work_queue(request).run(_render_dropped, page, request, dropped)

    return DashboardPage(page.path, page.title, page.summary, router)


def convert_report(report: Report) -> ReportData:
    """Return a report in words and numbers."""
    data = report.to_dict()
    sections = tuple(
        SectionData(
            one["heading"],
            tuple(one["text"]),
            tuple(
                TableData(
                    table["caption"], tuple(table["columns"]), tuple(map(tuple, table["rows"]))
                )
                for table in one["tables"]
            ),
        )
        for one in data["sections"]
    )
    facts = tuple(ReportFact(**one) for one in data["facts"])
    return ReportData(report.kind, report.title, report.lead, report.provenance, facts, sections)


def _list_sources(page: ResultPage, request: Request) -> list[ResultSource]:
    files = list_result_files(find_settings(request).results, page.kind)
    return [*files, *page.list_stored(request)]


def _render_results(page: ResultPage, request: Request, key: str) -> HTMLResponse:
    sources = _list_sources(page, request)
    chosen = choose_source(sources, key)
    report = None if chosen is None else report_result(chosen.load(), chosen.title)
    context = {"page": page, "sources": sources, "chosen": chosen, "report": report}
    return render(request, "results.html", **context)


def _list_results(page: ResultPage, request: Request, key: str) -> ResultList:
    sources = _list_sources(page, request)
    chosen = choose_source(sources, key)
    listed = tuple(ResultSummary(one.key, one.origin, one.title) for one in sources)
    if chosen is None:
        return ResultList(listed)
    data = chosen.load()
    report = convert_report(report_result(data, chosen.title))
    return ResultList(listed, chosen.key, report, data)


def _convert_dropped(page: ResultPage, dropped: Any) -> ReportData:
    return convert_report(_report_dropped(page, dropped))


def _render_dropped(page: ResultPage, request: Request, dropped: Any) -> HTMLResponse:
    return render(request, "result_preview.html", report=_report_dropped(page, dropped))


def _report_dropped(page: ResultPage, data: Any) -> Report:
    """Return the report of a result that was dropped on a page."""
    kind = recognise_result(data)
    if kind and kind != page.kind:
        raise FileError(f"this is the result of another command: give one of `{page.command}`")
    if not kind:
        raise FileError(f"this is not a result of `{page.command}`: give the JSON that it wrote")
    return report_result(data, "the result")
