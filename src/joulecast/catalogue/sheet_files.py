"""Read data sheets from TOML: the shipped ones, and files that users write.

    name = "my-card"          units = 46             bandwidth_gb_s = 448
    memory_gib = 8            clock_mhz = 1725       power_limit_w = 220
    tflops = { fp32 = 20.3, bf16 = 40.6 }            source = "Maker's data sheet, 2024"

Peaks are dense, without sparsity, with sums in fp32. ``source`` is where all figures are from;
a table ``[sources]`` names others by key, ``tflops`` for all peaks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from joulecast.errors import InputError
from joulecast.input_files import read_toml
from joulecast.records.codec import Range
from joulecast.records.data_sheet import (
    BYTES_PER_S,
    CLOCK_HZ,
    PEAK_FLOPS,
    PEAK_PRECISIONS,
    POWER_W,
    DataSheet,
)
from joulecast.toml_tables import Json, list_tables, parse_table, parse_text

ALL = "all"
"""Means every device, so that none can be called like that."""
NEEDED = ("name", "units", "clock_mhz", "bandwidth_gb_s", "memory_gib", "power_limit_w")
"""Keys without which nothing can be estimated; so is ``tflops.fp32``."""

_GIB, _MIB = 2**30, 2**20
_MEMORY_BYTES = Range(2**26, 2**44)
_CACHE_BYTES = Range(2**14, 2**40)


def read_data_sheet(path: str | os.PathLike[str]) -> DataSheet:
    """Return the data sheet in a user's TOML file.

    Raises:
        FileError: The file cannot be read or is not TOML.
        InputError: A figure is missing, unknown or more than physics allows.
    """
    where = os.fspath(path)
    return parse_data_sheet(where, read_toml(Path(where)), f"given in {Path(where).name}")


def read_data_sheets(path: Path) -> list[DataSheet]:
    """Return the data sheets of a file with a table ``[[device]]`` for each."""
    return [
        parse_data_sheet(f"{path}: {where}", row, "")
        for where, row in list_tables(read_toml(path), "device")
    ]


def parse_data_sheet(where: str, table: Mapping[str, Any], source: str) -> DataSheet:
    """Return the data sheet in a TOML table.

    Args:
        where: What messages call the table.
        table: Its keys and values.
        source: Where figures are from if the table does not say it.

    Raises:
        InputError: A figure is missing, unknown or more than physics allows.
    """
    _refuse_missing(where, table)
    values = parse_table(where, table, _PARSERS)
    figures = {_FIELDS.get(key, key): value for key, value in values.items()}
    peaks = _parse_peaks(where, figures.pop("tflops"))
    sources = _find_sources(where, table, figures.pop("source", source), figures.pop("sources", {}))
    figures.setdefault("title", figures["name"])
    try:
        return DataSheet(flops_per_s=peaks, sources=sources, **figures)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _refuse_missing(where: str, table: Mapping[str, Any]) -> None:
    peaks = table.get("tflops")
    missing = [key for key in NEEDED if key not in table]
    if not isinstance(peaks, dict) or "fp32" not in peaks:
        missing.append("tflops.fp32")
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        others = ", ".join(f"tflops.{one}" for one in PEAK_PRECISIONS if one != "fp32")
        raise InputError(
            f"{where}: {', '.join(missing)} {verb} missing: estimates in every precision need "
            f"{', '.join(NEEDED)} and tflops.fp32; those in another need its peak too ({others})"
        )


def _parse_peaks(where: str, table: Json) -> dict[str, float]:
    parse = partial(_parse_figure, scale=1e12, limits=PEAK_FLOPS)
    return parse_table(f"{where}: tflops", table, dict.fromkeys(PEAK_PRECISIONS, parse))


def _find_sources(
    where: str, table: Mapping[str, Any], usual: str, others: Mapping[str, Any]
) -> dict[str, str]:
    """Return the source of every figure that a table gives, by field."""
    keys, peaks = [key for key in table if key in _FIGURES], [*table["tflops"]]
    known = dict.fromkeys([*keys, "tflops", *peaks], parse_text)
    named = parse_table(f"{where}: sources", others, known)
    of_peaks = {"tflops": usual, **named}["tflops"]
    return {
        **{_FIELDS.get(key, key): named.get(key, usual) for key in keys},
        **{key: named.get(key, of_peaks) for key in peaks},
    }


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
