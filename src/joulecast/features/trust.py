"""Remember the folders whose files may name code to run.

A settings file or a list of jobs looks like data, and comes with a folder that somebody else may
have written. Python code and programs that such a file names run only if the user trusts the
folder: ``joulecast --trust FOLDER``, once. Folders below it are trusted as well.

The list is a text file in the user's data folder, one path per line; a line that is removed is no
longer trusted.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from joulecast.system.errors import FileError, InputError

_FILE_NAME = "trusted-folders.txt"


def trust_folder(folder: str | os.PathLike[str]) -> Path:
    """Trust the files of a folder from now on; return its full path."""
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise InputError(f"there is no folder {path}: give one to trust")
    if path.stat().st_mode & stat.S_IWOTH:
        raise InputError(f"everybody can write to {path}: trust a folder that only you can change")
    if "\n" in str(path):
        raise InputError(f"the name of {path} has a line break: rename the folder")
    if path not in _list_trusted():
        _append_line(os.fsencode(path))
    return path


def check_trusted(*places: str | os.PathLike[str]) -> None:
    """Raise InputError unless files and folders, links followed, are all in trusted folders.

    Relative names in a trusted file depend on the current folder, so what they stand for has to be
    checked as well.
    """
    trusted = _list_trusted()
    for place in places:
        path = Path(place).resolve()
        if not any(path.is_relative_to(folder) for folder in trusted):
            folder = path if path.is_dir() else path.parent
            command = f"joulecast --trust {shlex.quote(str(folder))}"
            raise InputError(f"if you trust everything in {folder}, run `{command}` once")


def find_trust_file() -> Path:
    """Return the list of trusted folders."""
    # Slow to import, and seldom needed.
    from joulecast.store.places import find_default_file

    return find_default_file().with_name(_FILE_NAME)


def _list_trusted() -> list[Path]:
    # Read as bytes: paths need not be valid text, and text has other line breaks than this one.
    try:
        lines = find_trust_file().read_bytes().split(b"\n")
    except OSError:
        return []
    return [Path(os.fsdecode(line)) for line in lines if line.startswith(b"/")]


def _append_line(line: bytes) -> None:
    file = find_trust_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as opened:
            # The line before may have been edited by hand, and not ended.
            opened.write(b"\n%b\n" % line if opened.tell() else b"%b\n" % line)
    except OSError as error:
        raise FileError(
            f"cannot write {file} ({error.strerror}): allow writing, or set XDG_DATA_HOME"
        ) from error
