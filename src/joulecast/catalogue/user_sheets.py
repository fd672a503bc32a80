"""Find and keep the data sheets that a user adds: TOML files in ``~/.config/joulecast/devices``."""

from __future__ import annotations

import os
from pathlib import Path

from joulecast.catalogue.sheet_files import read_data_sheet
from joulecast.errors import FileError, InputError
from joulecast.files import write_atomically
from joulecast.input_files import MOST_TOML_BYTES, read_limited
from joulecast.records import DataSheet


def find_user_folder() -> Path:
    """Return the folder of a user's own data sheets, which may not exist."""
    home = Path(os.environ.get("HOME", "/"))
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "joulecast" / "devices"


def read_user_sheets() -> dict[Path, DataSheet]:
    """Return the data sheet in every TOML file of the user's folder.

    Raises:
        InputError: A file cannot be used, or two describe devices of one name.
    """
    sheets: dict[Path, DataSheet] = {}
    for path in sorted(find_user_folder().glob("*.toml")):
        sheet = read_data_sheet(path)
        for other, known in sheets.items():
            if known.name == sheet.name:
                raise InputError(
                    f"{path} and {other} both describe {sheet.name!r}: rename one, or remove it"
                )
        sheets[path] = sheet
    return sheets


def keep_user_sheet(name: str, source: Path) -> Path:
    """Copy a TOML file into the user's folder, in place of one that describes the same device.

    Raises:
        FileError: The folder cannot be written.
    """
    folder = find_user_folder()
    content = read_limited(source, MOST_TOML_BYTES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{folder} cannot be created ({error.strerror}): allow it, or set XDG_CONFIG_HOME"
        ) from error
    earlier = [path for path, sheet in read_user_sheets().items() if sheet.name == name]
    path = earlier[0] if earlier else folder / f"{name}.toml"
    write_atomically(content, path)
    return path
