"""Pages of results: evaluations, plans, prunings and scores.

A page shows results of the results folder and of the store, and one that is dropped on it, which is
data only: it is parsed, checked, shown and forgotten. A client chooses a result by its key from a
list that the server made: nothing that a client sends becomes a path.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import HTMLResponse

from joulecast.features.report import read_result, recognise_result, report_result
from joulecast.features.score import score
from joulecast.records import Json
from joulecast.store import ProfileSummary, open_store
from joulecast.system.errors import FileError, JoulecastError, MissingError, StoreError
from joulecast.views.report import Report
from joulecast.web.answers import DashboardPage, document_problems, render
from joulecast.web.settings import find_settings
from joulecast.web.work import DataRoute, answer_json, find_work_queue

ListSources = Callable[[Request], "Sequence[ResultSource]"]
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
class ReportData:
    """A report in words and numbers.

    Attributes:
        provenance: Where its energies come from: measured, imported, modelled, datasheet
            or simulated.
        blocks: Headings, texts with their role, and tables, in order.
    """

    kind: str
    title: str
    provenance: str
    blocks: list[dict[str, Any]]


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
        return await answer_json(request, lambda: _convert(_report_dropped(page, dropped)))

    @router.post(f"{page.path}/preview", include_in_schema=False, response_class=HTMLResponse)
    async def preview_dropped(request: Request, dropped: Dropped) -> HTMLResponse:
        return await find_work_queue(request).run(
            lambda: render(request, "fragment.html", report=_report_dropped(page, dropped))
        )

    return DashboardPage(page.path, page.title, page.summary, router)


def _convert(report: Report) -> ReportData:
    return ReportData(**report.to_dict())


def _list_sources(page: ResultPage, request: Request) -> list[ResultSource]:
    files = list_result_files(find_settings(request).results, page.kind)
    return [*files, *page.list_stored(request)]


def _render_results(page: ResultPage, request: Request, key: str) -> HTMLResponse:
    sources = _list_sources(page, request)
    chosen = choose_source(sources, key)
    report = None if chosen is None else report_result(chosen.load(), chosen.title)
    context: dict[str, Any] = {"page": page, "sources": sources, "chosen": chosen, "report": report}
    return render(request, "results.html", **context)


def _list_results(page: ResultPage, request: Request, key: str) -> ResultList:
    sources = _list_sources(page, request)
    chosen = choose_source(sources, key)
    listed = tuple(ResultSummary(one.key, one.origin, one.title) for one in sources)
    if chosen is None:
        return ResultList(listed)
    data = chosen.load()
    report = _convert(report_result(data, chosen.title))
    return ResultList(listed, chosen.key, report, data)


def _report_dropped(page: ResultPage, data: Any) -> Report:
    """Return the report of a result that was dropped on a page."""
    kind = recognise_result(data)
    if kind and kind != page.kind:
        raise FileError(f"this is the result of another command: give one of `{page.command}`")
    if not kind:
        raise FileError(f"this is not a result of `{page.command}`: give the JSON that it wrote")
    return report_result(data, "the result")


# ---------------------------------------------------------------------------------------------
# Where results come from

# A folder with more files is searched no further.
_MOST_FILES = 500


@dataclass(frozen=True)
class ResultSource:
    """A result that can be shown.

    Attributes:
        key: Identifies it in addresses: the name of a file, or ``store:…``.
        origin: ``file``, ``store`` or ``published``.
        title: How lists call it.
        load: Returns the result as JSON values.
    """

    key: str
    origin: str
    title: str
    load: Callable[[], Json]


def list_result_files(folder: Path | None, kind: str) -> list[ResultSource]:
    """Return the results of a kind in a folder, the latest first.

    Args:
        folder: The folder; None for none.
        kind: One of ``RESULT_KINDS``.
    """
    if folder is None:
        return []
    return [
        ResultSource(path.name, "file", path.name, partial(_load, path))
        for changed_ns, path, size_bytes in _list_files(folder)
        if _find_kind(path, changed_ns, size_bytes) == kind
    ]


def keep_result(data: Json) -> Callable[[], Json]:
    """Return a function that returns a result which was read already."""
    return lambda: data


def choose_source(sources: Sequence[ResultSource], key: str) -> ResultSource | None:
    """Return the source with a key; the first one where the key is empty, None if there is none.

    Raises:
        MissingError: There is no source with this key.
    """
    if not key:
        return sources[0] if sources else None
    for source in sources:
        if source.key == key:
            return source
    raise MissingError("there is no such result: choose one that the page lists")


def _list_files(folder: Path) -> list[tuple[int, Path, int]]:
    """Return JSON files with the time of their last change and their size, the latest first."""
    try:
        paths = [path for path in folder.resolve().iterdir() if path.suffix == ".json"]
    except OSError:
        return []
    found = []
    for path in paths:
        try:
            facts = path.lstat()
        except OSError:
            continue
        # A link may lead anywhere.
        if stat.S_ISREG(facts.st_mode):
            found.append((facts.st_mtime_ns, path, facts.st_size))
    return sorted(found, reverse=True)[:_MOST_FILES]


# Scanning more files than are kept would forget each of them before it is asked for again.
@lru_cache(maxsize=4 * _MOST_FILES)
def _find_kind(path: Path, changed_ns: int, size_bytes: int) -> str:
    """Return the kind of a file; empty if it is no result. Its time and size name a version."""
    try:
        return recognise_result(read_result(path))
    except FileError:
        return ""


def _load(path: Path) -> Json:
    """Return the values of a file.

    Raises:
        MissingError: It cannot be read any more; the message does not tell where it is.
    """
    try:
        data: Json = read_result(path)
    except FileError as error:
        raise MissingError(
            f"{path.name} was changed or removed meanwhile: load the page again"
        ) from error
    return data


def list_evaluations(request: Request) -> Sequence[ResultSource]:
    """Return the evaluations of the store, the latest first."""
    with open_store(find_settings(request).store, create=False) as opened:
        stored = opened.evaluations.list_all() if opened.exists else ()
    return [
        ResultSource(
            f"store:{one.name}",
            "store",
            f"{one.payload.get('family')} on {one.payload.get('device', {}).get('name')}, "
            f"{one.payload.get('date')}",
            keep_result(one.payload),
        )
        for one in stored
    ]


_KEPT_SCORES = 64


def list_scores(request: Request) -> Sequence[ResultSource]:
    """Return the scores of devices with stored observations, then those that were published."""
    store = find_settings(request).store
    with open_store(store, create=False) as opened:
        profiles = opened.list_profiles()
    found = [(one, _find_score(store, one)) for one in profiles]
    own = [
        ResultSource(f"store:{one.key}", "store", str(one), keep_result(data))
        for one, data in found
        if data
    ]
    return [*own, ResultSource("published", "published", "DeepEn2023: eight phones", load_phones)]


@lru_cache(maxsize=_KEPT_SCORES)
def score_profile(store: str | None, profile: ProfileSummary) -> Json | None:
    """Return the score of a profile; None if the reference applications were not observed.

    Raises:
        StoreError: The store cannot be read; it is tried again the next time.
    """
    try:
        return score(devices=(profile.key,), store=store).to_dict()
    except StoreError:
        raise
    except JoulecastError:
        return None


def load_phones() -> Json:
    """Return the scores of the phones of DeepEn2023."""
    return score(published=True).to_dict()


def _find_score(store: str | None, profile: ProfileSummary) -> Json | None:
    try:
        return score_profile(store, profile)
    except StoreError:
        # A single profile that cannot be read does not hide all others.
        return None


# ---------------------------------------------------------------------------------------------
# The pages

PAGES = tuple(
    make_result_page(page)
    for page in (
        ResultPage(
            "evaluation",
            "/evaluations",
            "Evaluations",
            "How far estimates are from measurements of networks that no estimator has seen.",
            "joulecast evaluate FAMILY --out evaluation.json",
            list_evaluations,
        ),
        ResultPage(
            "plan",
            "/plans",
            "Plans",
            "Which job runs when on which device, and the charge of batteries.",
            "joulecast plan jobs.toml --out plan.json",
        ),
        ResultPage(
            "pruning",
            "/pruning",
            "Pruning",
            "Networks before and after pruning, by layer.",
            "joulecast prune NET --budget 50% --out pruning.json",
        ),
        ResultPage(
            "score",
            "/scores",
            "Scores",
            "Labels of devices from A to G, by the energy and power of inferences.",
            "joulecast score --out score.json",
            list_scores,
        ),
    )
)
