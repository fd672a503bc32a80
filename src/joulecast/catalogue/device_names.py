"""Find the data sheet that a name means.

A device is found by its name, its title or an alias, whatever their spelling: ``rtx-4090``,
``RTX 4090`` and ``NVIDIA GeForce RTX 4090`` are the same. If none matches, a part of a name that
only one device has will do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path

from joulecast.catalogue.sheet_files import read_data_sheet, read_data_sheets
from joulecast.catalogue.user_sheets import keep_user_sheet, read_user_sheets
from joulecast.errors import InputError
from joulecast.records import DataSheet

SHIPPED = Path(__file__).parent / "devices.toml"

# Words that makers add to a name and that identify nothing.
_NOISE = {"nvidia", "amd", "geforce", "instinct", "tesla", "radeon", "gpu", "graphics"}
_MOST_NEAR = 5
_LEAST_SIMILAR = 0.6


def list_data_sheets() -> tuple[DataSheet, ...]:
    """Return the shipped data sheets, then those that the user added.

    Raises:
        InputError: A file of the user cannot be used.
    """
    own = read_user_sheets()
    for path, sheet in own.items():
        _refuse_shipped_name(str(path), sheet)
    return (*_read_shipped(), *own.values())


def add_data_sheet(path: str | os.PathLike[str]) -> tuple[DataSheet, Path]:
    """Add the device in a TOML file to the user's own; return its data sheet and where it is kept.

    An earlier file of the same device is replaced.

    Raises:
        InputError: The file cannot be used, or the catalogue has a device of this name.
    """
    sheet = read_data_sheet(path)
    _refuse_shipped_name(os.fspath(path), sheet)
    return sheet, keep_user_sheet(sheet.name, Path(path))


def find_data_sheet(name: str) -> DataSheet:
    """Return the data sheet of a device.

    Args:
        name: The device's name, title or alias, what its driver calls it, or a part of its name.

    Raises:
        InputError: No device, or several, have this name; the message lists those that come near.
    """
    found = match_data_sheet(name)
    if found is not None:
        return found
    matches = search_data_sheets(name)
    if len(matches) == 1:
        return matches[0]
    if matches:
        listed = ", ".join(one.name for one in matches[:_MOST_NEAR])
        others = " or another" if len(matches) > _MOST_NEAR else ""
        raise InputError(
            f"{len(matches)} devices of the catalogue match {name!r}: choose one of "
            f"{listed}{others}"
        )
    raise InputError(f"the catalogue has no device {name!r}: {suggest_devices(name)}")


def match_data_sheet(name: str) -> DataSheet | None:
    """Return the data sheet with this very name, title or alias; None if there is none."""
    # A broken file of the user concerns only those who may mean it.
    shipped = _match_exactly(name, _read_shipped())
    return _match_exactly(name, list_data_sheets()) if shipped is None else shipped


def is_named(sheet: DataSheet, name: str) -> bool:
    """Return whether a device's name is one of those in a data sheet, whatever its spelling."""
    return _simplify(name) in _list_spellings(sheet)


def search_data_sheets(name: str) -> list[DataSheet]:
    """Return the devices of the catalogue with words in their names that begin like a text."""
    wanted = _simplify(name)
    return [one for one in list_data_sheets() if wanted and _has_part(one, wanted)]


def suggest_devices(name: str) -> str:
    """Return what to do about a name that no device has, with those that come near."""
    near = _list_near_names(name, list_data_sheets())
    listed = f"did you mean {', '.join(near)}? " if near else ""
    return f"{listed}`joulecast devices` lists all, and a TOML file can describe yours"


def _list_near_names(name: str, known: Iterable[DataSheet]) -> list[str]:
    wanted = _simplify(name)
    scores = {
        one.name: max(
            SequenceMatcher(None, wanted, spelling).ratio() for spelling in _list_spellings(one)
        )
        for one in known
    }
    near = sorted(scores, key=lambda one: -scores[one])[:_MOST_NEAR]
    return [one for one in near if scores[one] >= _LEAST_SIMILAR]


def _refuse_shipped_name(where: str, sheet: DataSheet) -> None:
    known = _match_exactly(sheet.name, _read_shipped())
    if known is not None:
        raise InputError(
            f"{where}: the catalogue already has {known.name}: give {sheet.name!r} another name"
        )


@lru_cache(maxsize=1)
def _read_shipped() -> tuple[DataSheet, ...]:
    return tuple(read_data_sheets(SHIPPED))


def _match_exactly(name: str, known: Iterable[DataSheet]) -> DataSheet | None:
    return next((one for one in known if is_named(one, name)), None)


def _list_spellings(sheet: DataSheet) -> set[str]:
    return {_simplify(one) for one in (sheet.name, sheet.title, *sheet.aliases)}


def _has_part(sheet: DataSheet, wanted: str) -> bool:
    words = _list_words(sheet.name)
    return any("".join(words[at:]).startswith(wanted) for at in range(len(words)))


def _simplify(name: str) -> str:
    """Return a name without punctuation and without words that identify nothing."""
    return "".join(_list_words(name))


def _list_words(name: str) -> list[str]:
    return [one for one in re.findall(r"[a-z0-9]+", name.lower()) if one not in _NOISE]
