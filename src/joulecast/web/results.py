"""Pages of results: evaluations, plans, prunings and scores.

A page shows results of the results folder and of the store, and one that is dropped on it, which is
data only: it is parsed, checked, shown and forgotten. A client chooses a result by its key from a
list that the server made: nothing that a client sends becomes a path.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, Query, Request
from fastapi.responses import HTMLResponse

from joulecast.features.report import read_result, recognise_result, report_result
from joulecast.features.score import score
from joulecast.records import Json
from joulecast.store import open_store
from joulecast.system.errors import FileError, JoulecastError, MissingError
from joulecast.views.report import Report
from joulecast.web.answers import DashboardPage, render
from joulecast.web.dashboard import Dashboard, Here, computed

Key = Annotated[str, Query(max_length=300, description="Key of a result of the list.")]
Dropped = Annotated[Any, Body(description="A result that the command wrote with --out.")]


@dataclass(frozen=True)
class ResultSummary:
    """A result that can be shown.

    Attributes:
        key: Identifies it in addresses: the name of a file, or ``store:…``.
        origin: ``file``, ``store`` or ``published``.
    """

    key: str
    origin: str
    title: str


@dataclass(frozen=True)
class ResultSource(ResultSummary):
    """A result that can be shown, and a function that returns it as JSON values."""

    load: Callable[[], Json]


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


class ResultPage(DashboardPage):
    """A page of results of one kind, those of a command; ``list_stored`` returns other than files.

    Besides the page and its JSON version, it reports results that are sent to it.
    """

    def __init__(
        self,
        kind: str,
        path: str,
        title: str,
        summary: str,
        command: str,
        list_stored: Callable[[Dashboard], Iterable[ResultSource]] = lambda _: (),
    ) -> None:
        super().__init__(path, title, summary)
        self.kind, self.command, self._list_stored = kind, command, list_stored
        self.html(computed(self.show))
        self.json(f"{title}: the list, and the chosen result")(computed(self.list_results))
        post, report = self.router.post, f"Report a result of `{command}`"
        post(f"/api{path}", summary=report)(computed(self.report_dropped))
        post(f"{path}/preview", include_in_schema=False, response_class=HTMLResponse)(
            computed(self.preview_dropped)
        )

    def show(self, request: Request, here: Here, result: Key = "") -> HTMLResponse:
        """Show the list, and the chosen result."""
        sources = self._list_sources(here)
        chosen = choose_source(sources, result)
        report = None if chosen is None else report_result(chosen.load(), chosen.title)
        names: dict[str, Any] = {"page": self, "sources": sources, "chosen": chosen}
        return render(request, "results.html", report=report, **names)

    def list_results(self, request: Request, here: Here, result: Key = "") -> ResultList:
        """Return all results, and the chosen one as a report and as its command wrote it."""
        sources = self._list_sources(here)
        chosen = choose_source(sources, result)
        if chosen is None:
            return ResultList(tuple(sources))
        data = chosen.load()
        report = ReportData(**report_result(data, chosen.title).to_dict())
        return ResultList(tuple(sources), chosen.key, report, data)

    def report_dropped(self, request: Request, dropped: Dropped) -> ReportData:
        """Return a result in words and numbers; it is not kept."""
        return ReportData(**self._report(dropped).to_dict())

    def preview_dropped(self, request: Request, dropped: Dropped) -> HTMLResponse:
        """Show a result that was dropped on the page."""
        return render(request, "fragment.html", report=self._report(dropped))

    def _list_sources(self, here: Dashboard) -> list[ResultSource]:
        files = list_result_files(here.settings.results, self.kind)
        return [*files, *self._list_stored(here)]

    def _report(self, data: Any) -> Report:
        kind = recognise_result(data)
        if kind and kind != self.kind:
            raise FileError(f"this is the result of another command: give one of `{self.command}`")
        if not kind:
            raise FileError(
                f"this is not a result of `{self.command}`: give the JSON that it wrote"
            )
        return report_result(data, "the result")


# ---------------------------------------------------------------------------------------------
# Where results come from

# A folder with more files is searched no further.
_MOST_FILES = 500


def list_result_files(folder: Path | None, kind: str) -> list[ResultSource]:
    """Return the results of a kind in a folder, the latest first."""
    found = []
    with suppress(OSError):
        for path in folder.resolve().iterdir() if folder is not None else ():
            # A link may lead anywhere.
            with suppress(OSError):
                facts = path.lstat()
                if path.suffix == ".json" and stat.S_ISREG(facts.st_mode):
                    found.append((facts.st_mtime_ns, path, facts.st_size))
    return [
        ResultSource(path.name, "file", path.name, partial(_load, path))
        for changed_ns, path, size_bytes in sorted(found, reverse=True)[:_MOST_FILES]
        if _find_kind(path, changed_ns, size_bytes) == kind
    ]


def choose_source(sources: Sequence[ResultSource], key: str) -> ResultSource | None:
    """Return the source with a key; the first one where the key is empty, None if there is none.

    Raises:
        MissingError: There is no source with this key.
    """
    for source in sources:
        if key in ("", source.key):
            return source
    if key:
        raise MissingError("there is no such result: choose one that the page lists")
    return None


# Scanning more files than are kept would forget each of them before it is asked for again.
@lru_cache(maxsize=4 * _MOST_FILES)
def _find_kind(path: Path, changed_ns: int, size_bytes: int) -> str:
    """Return the kind of a file; empty if it is no result. Its time and size name a version."""
    try:
        return recognise_result(read_result(path))
    except FileError:
        return ""


def _load(path: Path) -> Json:
    """Return the values of a file; the message of an error does not tell where it is."""
    try:
        data: Json = read_result(path)
    except FileError as error:
        raise MissingError(
            f"{path.name} was changed or removed meanwhile: load the page again"
        ) from error
    return data


def list_evaluations(here: Dashboard) -> Iterable[ResultSource]:
    """Yield the evaluations of the store, the latest first."""
    with open_store(here.settings.store, create=False) as opened:
        stored = opened.evaluations.list_all() if opened.exists else ()
    for one in stored:
        data = one.payload
        device = data.get("device", {}).get("name")
        title = f"{data.get('family')} on {device}, {data.get('date')}"
        yield ResultSource(f"store:{one.name}", "store", title, partial(dict, data))


def list_scores(here: Dashboard) -> Iterable[ResultSource]:
    """Yield the scores of devices with stored observations, then those that were published."""
    for one in here.service.list_profiles():
        # A single profile that cannot be read does not hide all others.
        with suppress(JoulecastError):
            if here.read_details(one).iecs is not None:
                load = partial(_score, devices=(one.key,), store=here.settings.store)
                yield ResultSource(f"store:{one.key}", "store", str(one), load)
    load = partial(_score, published=True)
    yield ResultSource("published", "published", "DeepEn2023: eight phones", load)


def _score(**options: Any) -> Json:
    return score(**options).to_dict()


PAGES = (
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
