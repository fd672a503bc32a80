"""Find results that pages show: JSON files of one folder, and what the store has.

A client chooses a result by its key from a list that the server made: nothing that a client sends
becomes a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from joulecast.errors import FileError, MissingError
from joulecast.records import Json
from joulecast.reports import Report
from joulecast.reports.result_files import read_result, recognise_result, report_result

# A folder with more files is searched no further.
_MOST_FILES = 500
_KEPT = 64


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

    def report(self) -> Report:
        """Return the report of the result."""
        return report_result(self.load(), self.title)


def list_result_files(folder: Path | None, kind: str) -> list[ResultSource]:
    """Return the results of a kind in a folder, the latest first.

    Args:
        folder: The folder; None for none.
        kind: One of ``RESULT_KINDS``.
    """
    if folder is None:
        return []
    found = []
    for path, changed_ns, size_bytes in _list_files(folder):
        data = _read(path, changed_ns, size_bytes)
        if recognise_result(data) == kind:
            source = ResultSource(path.name, "file", path.name, keep_result(data))
            found.append((changed_ns, source))
    return [source for _, source in sorted(found, key=lambda one: -one[0])]


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


def _list_files(folder: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield JSON files with the time of their last change and their size."""
    try:
        root = folder.resolve()
        paths = sorted(path for path in root.iterdir() if path.suffix == ".json")
    except OSError:
        return
    for path in paths[:_MOST_FILES]:
        try:
            # A link may lead anywhere.
            if path.is_symlink() or not path.is_file():
                continue
            facts = path.stat()
        except OSError:
            continue
        yield path, facts.st_mtime_ns, facts.st_size


@lru_cache(maxsize=_KEPT)
def _read(path: Path, changed_ns: int, size_bytes: int) -> Json:
    """Return the values of a file; empty if it is no result. Its time and size name a version."""
    try:
        data = read_result(path)
    except FileError:
        return {}
    return data if recognise_result(data) else {}
