"""Read power traces of instruments from CSV files, whose columns are known by name and unit.

    time,watts                                             generic; a time is seconds or ISO 8601
    Time (s),Power (mW)                                    any unit of time, power, current, voltage
    Time(ms),Main(mA),Main Voltage(V),                     Monsoon, as PyMonsoon writes it
    "Wall-clock time (UTC)","Arc Main Current (A)","Arc Main Voltage (V)",…          Otii

Power is a column of power, or else current times voltage. Sources of the formats:

- Monsoon: https://github.com/msoon/PyMonsoon, Monsoon/sampleEngine.py: the names of its channels, a
  comma at the end of each line, and times that are seconds since the start although the header says
  ms. All samples of a packet have one time.
- Otii: the header of an export, quoted in a public script that reads one. No manual of Qoitech that
  lists the columns was found, so any names with these quantities and units are accepted.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from joulecast.errors import FileError, InputError
from joulecast.input_files import show_value
from joulecast.traces.csv_tables import CsvTable, read_csv
from joulecast.traces.power_trace import PowerTrace, make_trace

_SCALES = {"u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9, "m": 1e-3, "k": 1e3, "": 1.0}
_BASES = {"s": "time", "w": "power", "a": "current", "v": "voltage"}
_UNIT = re.compile(r"(?:^|[\s_(\[])([munkµμ]?)([sSwWaAvV])\s*[)\]]?$")
_UNIT_WORDS = {"watts": "power", "watt": "power", "seconds": "time", "amps": "current"}
_UNIT_WORDS |= {"volts": "voltage", "milliwatts": "power"}
# Columns of Monsoon's other channels and of energies must not be taken for those of the device.
_OTHER_CHANNELS = re.compile(r"usb|aux|energy", re.IGNORECASE)
_MONSOON_TIME = "Time(ms)"
# A Monsoon samples 5,000 times a second: more per unit of time can only be seconds.
_MONSOON_MOST_PER_MS = 10.0


@dataclass(frozen=True)
class _Column:
    place: int
    quantity: str
    scale: float


def read_trace(path: str | Path) -> PowerTrace:
    """Return the power trace in a CSV file.

    Raises:
        FileError: The file cannot be read, has no columns of time and power, or a cell is no
            number.
    """
    table = read_csv(Path(path))
    columns = _find_columns(table)
    times, powers = array("d"), array("d")
    parse_moment = _choose_parser(table, columns["time"].place)
    needed = [columns[name] for name in ("power", "current", "voltage") if name in columns]
    most = max(one.place for one in (*needed, columns["time"]))
    scale = 1.0
    for one in needed:
        scale *= one.scale
    for line, cells in table.read_rows():
        try:
            if len(cells) <= most:
                raise ValueError
            value = scale
            for one in needed:
                value *= float(cells[one.place])
            times.append(parse_moment(cells[columns["time"].place]))
            powers.append(value)
        except ValueError:
            raise FileError(
                f"{path}: line {line} is {show_value(','.join(cells))}: give a number for "
                "the time and the power of each line"
            ) from None
    try:
        return make_trace([one * columns["time"].scale for one in _convert(table, times)], powers)
    except InputError as error:
        raise FileError(f"{path} is not a power trace: {error}") from error


def _convert(table: CsvTable, times: array[float]) -> array[float]:
    """Return times in the unit of their column; those of PyMonsoon are seconds in spite of it."""
    if table.columns[0] != _MONSOON_TIME or len(times) < 2:
        return times
    span = times[-1] - times[0]
    is_seconds = span > 0 and len(times) / span > _MONSOON_MOST_PER_MS
    return array("d", (1e3 * one for one in times)) if is_seconds else times


def _find_columns(table: CsvTable) -> dict[str, _Column]:
    found: dict[str, _Column] = {}
    for place, name in enumerate(table.columns):
        column = _read_name(name, place)
        if column is not None:
            found.setdefault(column.quantity, column)
    has_power = "power" in found or {"current", "voltage"} <= set(found)
    if "time" not in found or not has_power:
        names = ", ".join(filter(None, table.columns))
        raise FileError(
            f"{table.path} has no columns of time and power, only {show_value(names)}: name them "
            "like time,watts or Time (s),Current (mA),Voltage (V)"
        )
    if "power" in found:
        found.pop("current", None)
        found.pop("voltage", None)
    return found


def _read_name(name: str, place: int) -> _Column | None:
    """Return the quantity and unit of a column; None for others."""
    if _OTHER_CHANNELS.search(name):
        return None
    word = name.lower()
    if word in _UNIT_WORDS:
        return _Column(place, _UNIT_WORDS[word], 1e-3 if word.startswith("milli") else 1.0)
    # Times without a unit, like "timestamp" and "Wall-clock time (UTC)".
    if re.search(r"\btime(stamp)?\b", word) and not re.search(r"[(\[]\s*[munµμ]?s\s*[)\]]$", word):
        return _Column(place, "time", 1.0)
    match = _UNIT.search(name)
    if match is None:
        return None
    return _Column(place, _BASES[match.group(2).lower()], _SCALES[match.group(1)])


def _choose_parser(table: CsvTable, place: int) -> Callable[[str], float]:
    """Return how times are written: as numbers, or as dates."""
    for _, cells in table.read_rows():
        try:
            float(cells[place])
        except (ValueError, IndexError):
            return _parse_date
        return float
    return float


def _parse_date(text: str) -> float:
    text = text.strip()
    # Python before 3.11 does not parse Z.
    zoned = text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text
    return datetime.fromisoformat(zoned).timestamp()
