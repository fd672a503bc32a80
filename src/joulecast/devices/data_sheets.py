"""Read data sheets from TOML, find the one that a name means, and make profiles of them.

    devices.toml, and a user's own TOML files ──▶ DataSheet ──▶ Profile without observations

Every error of a file is one line. A device is found by its name, its title or an alias, whatever
their spelling: ``rtx-4090``, ``RTX 4090`` and ``NVIDIA GeForce RTX 4090`` are the same. If none
matches, a part of a name that only one device has will do. Files that a user adds are in
``~/.config/joulecast/devices``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from joulecast.records import DATASHEET, DataSheet, Device, Profile
from joulecast.records.codec import Range
from joulecast.records.data_sheet import BYTES_PER_S, CLOCK_HZ, PEAK_FLOPS, PEAK_PRECISIONS, POWER_W
from joulecast.system.errors import FileError, InputError
from joulecast.system.files import MOST_TOML_BYTES, read_limited, read_toml, write_atomically
from joulecast.system.toml_tables import Json, list_tables, parse_table, parse_text

ALL = "all"
"""Means every device, so that none can be called like that."""
NEEDED = ("name", "units", "clock_mhz", "bandwidth_gb_s", "memory_gib", "power_limit_w")
"""Keys without which nothing can be estimated; so is ``tflops.fp32``."""

_GIB, _MIB = 2**30, 2**20
_MEMORY_BYTES = Range(2**26, 2**44)
_CACHE_BYTES = Range(2**14, 2**40)


def read_data_sheet(path: str | os.PathLike[str]) -> DataSheet:
    """Return the data sheet in a user's TOML file."""
    where = os.fspath(path)
    return parse_data_sheet(where, read_toml(Path(where)), f"given in {Path(where).name}")


def parse_data_sheet(where: str, table: Mapping[str, Any], source: str) -> DataSheet:
    """Return the data sheet in a TOML table; ``source`` is that of figures that name none."""
    missing = [key for key in NEEDED if key not in table]
    if not isinstance(table.get("tflops"), dict) or "fp32" not in table["tflops"]:
        missing.append("tflops.fp32")
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        others = ", ".join(f"tflops.{one}" for one in PEAK_PRECISIONS if one != "fp32")
        raise InputError(
            f"{where}: {', '.join(missing)} {verb} missing: estimates in every precision need "
            f"{', '.join(NEEDED)} and tflops.fp32; those in another need its peak too ({others})"
        )
    values = parse_table(where, table, _PARSERS)
    figures = {_FIELDS.get(key, key): value for key, value in values.items()}
    parse_peak = partial(_parse_figure, scale=1e12, limits=PEAK_FLOPS)
    parsers = dict.fromkeys(PEAK_PRECISIONS, parse_peak)
    peaks = parse_table(f"{where}: tflops", figures.pop("tflops"), parsers)
    keys = [key for key in table if key in _FIGURES]
    known = dict.fromkeys([*keys, "tflops", *peaks], parse_text)
    named = parse_table(f"{where}: sources", figures.pop("sources", {}), known)
    usual = figures.pop("source", source)
    sources = {_FIELDS.get(key, key): named.get(key, usual) for key in keys}
    sources |= {key: named.get(key, named.get("tflops", usual)) for key in peaks}
    figures.setdefault("title", figures["name"])
    try:
        return DataSheet(flops_per_s=peaks, sources=sources, **figures)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


# ---------------------------------------------------------------------------------------------
# Parsers of single values


def _parse_figure(value: Any, scale: float, limits: Range) -> float:
    """Return a figure in SI units."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Also false for NaN.
    if not is_number or not limits.least <= value * scale <= limits.most:
        least, most = limits.least / scale, limits.most / scale
        raise InputError(f"give a number from {least:g} to {most:g}, without a unit")
    # 66.9 * 1e12 is 66900000000000.01.
    return float(f"{value * scale:.12g}")


def _parse_size(value: Any, scale: int, limits: Range) -> int:
    return round(_parse_figure(value, scale, limits))


def _parse_whole(value: Any, limits: Range) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError("give a whole number")
    return int(_parse_figure(value, 1, limits))


def _parse_name(value: Any) -> str:
    """Return a name that can be typed, and that is no file and not ``all``."""
    name = parse_text(value)
    is_file = name.endswith((".json", ".toml"))
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,79}", name) or is_file or name == ALL:
        raise InputError("give lower-case letters, digits and dashes, like my-card")
    return name


def _parse_object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise InputError("give a table of keys and values")
    return value


def _parse_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError("give a list of texts")
    return tuple(map(parse_text, value))


_power = partial(_parse_figure, scale=1.0, limits=POWER_W)
_bandwidth = partial(_parse_figure, scale=1e9, limits=BYTES_PER_S)
_FIGURES: dict[str, Callable[[Any], Any]] = {
    "units": partial(_parse_whole, limits=Range(1, 100_000)),
    "clock_mhz": partial(_parse_figure, scale=1e6, limits=CLOCK_HZ),
    "bandwidth_gb_s": _bandwidth,
    "memory_gib": partial(_parse_size, scale=_GIB, limits=_MEMORY_BYTES),
    "l2_mib": partial(_parse_size, scale=_MIB, limits=_CACHE_BYTES),
    "power_limit_w": _power,
    "idle_w": _power,
    "process_nm": partial(_parse_whole, limits=Range(1, 1000)),
    "link_gb_s": _bandwidth,
}
_PARSERS: dict[str, Callable[[Any], Any]] = {
    "name": _parse_name,
    **dict.fromkeys(("title", "vendor", "architecture", "memory_type", "covers"), parse_text),
    "year": partial(_parse_whole, limits=Range(1990, 2100)),
    **_FIGURES,
    "tflops": _parse_object,
    "aliases": _parse_texts,
    "source": parse_text,
    "sources": _parse_object,
}
_FIELDS = {
    "clock_mhz": "clock_hz",
    "bandwidth_gb_s": "bytes_per_s",
    "memory_gib": "memory_bytes",
    "l2_mib": "l2_bytes",
    "link_gb_s": "link_bytes_per_s",
}


def find_user_folder() -> Path:
    """Return the folder of a user's own data sheets, which may not exist."""
    home = Path(os.environ.get("HOME", "/"))
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "joulecast" / "devices"


def read_user_sheets() -> dict[Path, DataSheet]:
    """Return the data sheet in every TOML file of the user's folder."""
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


SHIPPED = Path(__file__).parent / "devices.toml"

# Words that makers add to a name and that identify nothing.
_NOISE = {"nvidia", "amd", "geforce", "instinct", "tesla", "radeon", "gpu", "graphics"}
_MOST_NEAR = 5
_LEAST_SIMILAR = 0.6


def list_data_sheets() -> tuple[DataSheet, ...]:
    """Return the shipped data sheets, then those that the user added."""
    own = read_user_sheets()
    for path, sheet in own.items():
        _refuse_shipped_name(str(path), sheet)
    return (*_read_shipped(), *own.values())


def add_data_sheet(path: str | os.PathLike[str]) -> tuple[DataSheet, Path]:
    """Add the device in a TOML file to the user's own; return its data sheet and where it is kept.

    An earlier file of the same device is replaced.
    """
    sheet, folder = read_data_sheet(path), find_user_folder()
    _refuse_shipped_name(os.fspath(path), sheet)
    content = read_limited(Path(path), MOST_TOML_BYTES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{folder} cannot be created ({error.strerror}): allow it, or set XDG_CONFIG_HOME"
        ) from error
    earlier = [kept for kept, one in read_user_sheets().items() if one.name == sheet.name]
    kept = earlier[0] if earlier else folder / f"{sheet.name}.toml"
    write_atomically(content, kept)
    return sheet, kept


def find_data_sheet(name: str) -> DataSheet:
    """Return the data sheet of a device."""
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
    wanted, found = _simplify(name), []
    for sheet in list_data_sheets() if wanted else ():
        words = _list_words(sheet.name)
        if any("".join(words[at:]).startswith(wanted) for at in range(len(words))):
            found.append(sheet)
    return found


def suggest_devices(name: str) -> str:
    """Return what to do about a name that no device has, with those that come near."""
    wanted, scores = _simplify(name), {}
    for one in list_data_sheets():
        ratios = [SequenceMatcher(None, wanted, text).ratio() for text in _list_spellings(one)]
        scores[one.name] = max(ratios)
    near = sorted(scores, key=lambda one: -scores[one])[:_MOST_NEAR]
    near = [one for one in near if scores[one] >= _LEAST_SIMILAR]
    listed = f"did you mean {', '.join(near)}? " if near else ""
    return f"{listed}`joulecast devices` lists all, and a TOML file can describe yours"


def _refuse_shipped_name(where: str, sheet: DataSheet) -> None:
    known = _match_exactly(sheet.name, _read_shipped())
    if known is not None:
        raise InputError(
            f"{where}: the catalogue already has {known.name}: give {sheet.name!r} another name"
        )


@lru_cache(maxsize=1)
def _read_shipped() -> tuple[DataSheet, ...]:
    tables = list_tables(read_toml(SHIPPED), "device")
    return tuple(parse_data_sheet(f"{SHIPPED}: {where}", row, "") for where, row in tables)


def _match_exactly(name: str, known: Iterable[DataSheet]) -> DataSheet | None:
    return next((one for one in known if is_named(one, name)), None)


def _list_spellings(sheet: DataSheet) -> set[str]:
    return {_simplify(one) for one in (sheet.name, sheet.title, *sheet.aliases)}


def _simplify(name: str) -> str:
    """Return a name without punctuation and without words that identify nothing."""
    return "".join(_list_words(name))


def _list_words(name: str) -> list[str]:
    return [one for one in re.findall(r"[a-z0-9]+", name.lower()) if one not in _NOISE]


def make_sheet_profile(sheet: DataSheet) -> Profile:
    """Return a profile that consists of a data sheet; estimates from it are for PyTorch."""
    device = Device(
        sheet.name, sheet.title, sheet.memory_bytes, power_mode=f"limit {sheet.power_limit_w:g}W"
    )
    return Profile(device, "torch", sheet.covers, DATASHEET, data_sheet=sheet)
