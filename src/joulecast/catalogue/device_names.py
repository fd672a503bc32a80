"""Find the data sheet that a name means.

A device is found by its name, its title or an alias, whatever their spelling: ``rtx-4090``,
``RTX 4090`` and ``NVIDIA GeForce RTX 4090`` are the same. If none matches, a part of a name that
only one device has will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path

from joulecast.catalogue.sheet_files import read_data_sheet, read_data_sheets
from joulecast.catalogue.user_sheets import read_user_sheets
from joulecast.errors import InputError
from joulecast.records import DataSheet

SHIPPED = Path(__file__).parent / "devices.toml"

# Words that makers add to a name and that identify nothing.
_NOISE = {"nvidia", "amd", "geforce", "instinct", "tesla", "radeon", "gpu", "graphics"}
_MOST_NEAR = 5
_LEAST_SIMILAR = 0.5


def list_data_sheets() -> tuple[DataSheet, ...]:
    """Return the shipped data sheets, then those that the user added.

    Raises:
        InputError: A file of the user cannot be used.
    """
    shipped = _read_shipped()
    own = read_user_sheets()
    for path, sheet in own.items():
        if any(_simplify(sheet.name) in _list_spellings(one) for one in shipped):
            raise InputError(
                f"{path}: the catalogue already has a device {sheet.name!r}: give it another name"
            )
    return (*shipped, *own.values())


def find_data_sheet(name: str) -> DataSheet:
    """Return the data sheet of a device.

    Args:
        name: The device's name, title or alias, what its driver calls it, a part of its name,
            or a ``.toml`` file that describes it.

    Raises:
        InputError: No device, or several, have this name; the message lists those that come near.
    """
    if name.endswith(".toml"):
        return read_data_sheet(name)
    # A broken file of the user concerns only those who may mean it.
    shipped = _match_exactly(name, _read_shipped())
    if shipped is not None:
        return shipped
    known = list_data_sheets()
    found = _match_exactly(name, known)
    matches = [found] if found is not None else _match_part(name, known)
    if len(matches) == 1:
        return matches[0]
    if matches:
        listed = ", ".join(one.name for one in matches[:_MOST_NEAR])
        others = " or another" if len(matches) > _MOST_NEAR else ""
        raise InputError(
            f"{len(matches)} devices of the catalogue match {name!r}: choose one of "
            f"{listed}{others}"
        )
    near = list_near_names(name, known)
    listed = f"did you mean {', '.join(near)}? " if near else ""
    raise InputError(
        f"the catalogue has no device {name!r}: {listed}`joulecast devices` lists all, and a TOML "
        "file can describe yours"
    )


def has_data_sheet(name: str) -> bool:
    """Return whether a name is that of exactly one device of the catalogue."""
    try:
        find_data_sheet(name)
    except InputError:
        return False
    return True


def list_near_names(name: str, known: Sequence[DataSheet]) -> list[str]:
    """Return the names of the devices that are spelled most like a name, the nearest first."""
    wanted = _simplify(name)
    scores = {
        one.name: max(
            SequenceMatcher(None, wanted, spelling).ratio() for spelling in _list_spellings(one)
        )
        for one in known
    }
    near = sorted(scores, key=lambda one: -scores[one])[:_MOST_NEAR]
    return [one for one in near if scores[one] >= _LEAST_SIMILAR]


@lru_cache(maxsize=1)
def _read_shipped() -> tuple[DataSheet, ...]:
    return tuple(read_data_sheets(SHIPPED))


def _match_exactly(name: str, known: Iterable[DataSheet]) -> DataSheet | None:
    wanted = _simplify(name)
    return next((one for one in known if wanted in _list_spellings(one)), None)


def _match_part(name: str, known: Iterable[DataSheet]) -> list[DataSheet]:
    wanted = _simplify(name)
    return [one for one in known if wanted and wanted in _simplify(one.name)]


def _list_spellings(sheet: DataSheet) -> set[str]:
    return {_simplify(one) for one in (sheet.name, sheet.title, *sheet.aliases)}


def _simplify(name: str) -> str:
    """Return a name without punctuation and without words that identify nothing."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "".join(word for word in words if word not in _NOISE)
