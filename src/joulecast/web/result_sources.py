"""Find results that pages show: JSON files of one folder, and what the store has.

A client chooses a result by its key from a list that the server made: nothing that a client sends
becomes a path.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from joulecast.errors import FileError, MissingError
from joulecast.records import Json
from joulecast.reports.result_files import read_result, recognise_result

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
