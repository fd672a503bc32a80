"""Read power over time from CSV files of instruments, whose columns are known by name and unit.

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

import csv
import io
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joulecast.meters.sampling import GAP_PERIODS
from joulecast.system.errors import FileError, InputError
from joulecast.system.files import first_line, read_limited, show_value

Floats = npt.NDArray[np.float64]
_LEAST_SAMPLES = 100


@dataclass(frozen=True)
class PowerTrace:
    """Power over time on the clock of an instrument; ``make_trace`` checks the samples.

    Attributes:
        times_s: Increasing times.
        powers_w: Power at each of them.
    """

    times_s: Floats
    powers_w: Floats

    @cached_property
    def interval_s(self) -> float:
        """Median time between two samples."""
        return float(np.median(np.diff(self.times_s)))

    @cached_property
    def noise_w(self) -> float:
        """Standard deviation of a sample, from the differences of neighbours."""
        # The median distance of two draws is 0.9539 standard deviations of one.
        return float(np.median(np.abs(np.diff(self.powers_w)))) / 0.9539

    @cached_property
    def energies_j(self) -> Floats:
        """Energy since the first sample, at each sample."""
        means_w = (self.powers_w[1:] + self.powers_w[:-1]) / 2
        return np.concatenate(([0.0], np.cumsum(means_w * np.diff(self.times_s))))

    def find_energy(self, times_s: npt.ArrayLike) -> Floats:
        """Return the energy since the first sample at any times inside the trace."""
        return np.asarray(np.interp(np.asarray(times_s), self.times_s, self.energies_j))

    def find_power(self, starts_s: npt.ArrayLike, ends_s: npt.ArrayLike) -> Floats:
        """Return the mean power between starts and ends."""
        starts, ends = np.asarray(starts_s, float), np.asarray(ends_s, float)
        return np.asarray((self.find_energy(ends) - self.find_energy(starts)) / (ends - starts))

    def covers(self, start_s: float, end_s: float) -> bool:
        """Return whether a window lies inside the trace."""
        return bool(self.times_s[0] <= start_s and end_s <= self.times_s[-1])

    def find_gap(self, start_s: float, end_s: float) -> float:
        """Return the longest time without a sample in a window; 0 if no sample is missing."""
        first = max(int(np.searchsorted(self.times_s, start_s)) - 1, 0)
        last = int(np.searchsorted(self.times_s, end_s)) + 1
        widest_s = float(np.max(np.diff(self.times_s[first:last]), initial=0.0))
        return widest_s if widest_s > GAP_PERIODS * self.interval_s else 0.0


def make_trace(times_s: npt.ArrayLike, powers_w: npt.ArrayLike) -> PowerTrace:
    """Return a trace; samples at the same time become their mean.

    Raises:
        InputError: There are too few samples, one is not finite, or time goes back.
    """
    times, powers = np.asarray(times_s, float), np.asarray(powers_w, float)
    if not (np.isfinite(times).all() and np.isfinite(powers).all()):
        raise InputError("a time or a power is not a finite number")
    steps = np.diff(times)
    if (steps < 0).any():
        place = int(np.argmax(steps < 0)) + 2
        raise InputError(f"time goes back at sample {place}: give one recording")
    # Instruments that send packets give all samples of a packet one time.
    starts = np.flatnonzero(np.concatenate(([True], steps > 0)))
    counts = np.diff(np.append(starts, len(times)))
    if len(starts) < _LEAST_SAMPLES:
        raise InputError(f"it has only {len(starts)} samples: record while the campaign runs")
    return PowerTrace(times[starts], np.add.reduceat(powers, starts) / counts)


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


MOST_TRACE_BYTES = 256 * 2**20
"""Size of a CSV file: half an hour of an instrument that samples 5,000 times a second."""
# Spreadsheets of many countries write semicolons, because their decimal sign is a comma.
_DELIMITERS = ",;\t"


@dataclass(frozen=True)
class CsvTable:
    """A CSV file with a header.

    Attributes:
        path: The file, for messages.
        columns: Names in the header, without blanks around them.
    """

    path: Path
    columns: tuple[str, ...]
    _text: str
    _delimiter: str

    def read_rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of each line after the header, and its cells; empty lines are skipped.

        Raises:
            FileError: A line is not CSV.
        """
        reader = csv.reader(io.StringIO(self._text), delimiter=self._delimiter)
        try:
            next(reader)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
        except csv.Error as error:
            reason = first_line(error)
            raise FileError(f"{self.path}: line {reader.line_num} is not CSV ({reason})") from error


def read_csv(path: Path) -> CsvTable:
    """Return a CSV file.

    Raises:
        FileError: The file is missing, empty, too large or no text.
    """
    content = read_limited(path, MOST_TRACE_BYTES)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is no text: give a CSV file") from error
    if "\0" in text:
        raise FileError(f"{path} is no text: give a CSV file")
    header = text.split("\n", 1)[0].rstrip("\r")
    if not header.strip():
        raise FileError(f"{path} has no header: its first line must name the columns")
    delimiter = max(_DELIMITERS, key=header.count)
    try:
        names = next(csv.reader([header], delimiter=delimiter))
    except csv.Error as error:
        raise FileError(f"{path}: the header is not CSV ({first_line(error)})") from error
    return CsvTable(path, tuple(name.strip() for name in names), text, delimiter)
