"""Find and keep the data sheets that a user adds: TOML files in ``~/.config/joulecast/devices``."""

from __future__ import annotations

import os
from pathlib import Path

from joulecast.catalogue.sheet_files import read_data_sheet
from joulecast.errors import InputError
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
