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
from collections.abc import Iterator
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
    """Power at increasing times on the clock of an instrument; ``make_trace`` checks them."""

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
        """Energy since the first sample, at each sample, by the trapezoidal rule."""
        means_w = (self.powers_w[1:] + self.powers_w[:-1]) / 2
        return np.concatenate(([0.0], np.cumsum(means_w * np.diff(self.times_s))))

    def find_energy(self, starts_s: npt.ArrayLike, ends_s: npt.ArrayLike) -> Floats:
        """Return the energy between times inside the trace."""
        ends, starts = np.asarray(ends_s, float), np.asarray(starts_s, float)
        at_end, at_start = (np.interp(one, self.times_s, self.energies_j) for one in (ends, starts))
        return np.asarray(at_end - at_start)

    def find_power(self, starts_s: npt.ArrayLike, ends_s: npt.ArrayLike) -> Floats:
        """Return the mean power between times inside the trace."""
        return np.asarray(self.find_energy(starts_s, ends_s) / np.subtract(ends_s, starts_s))

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
_UNIT_WORDS = {
    "watts": ("power", 1.0), "watt": ("power", 1.0), "milliwatts": ("power", 1e-3),
    "amps": ("current", 1.0), "volts": ("voltage", 1.0), "seconds": ("time", 1.0),
}  # fmt: skip
_MONSOON_TIME = "Time(ms)"
# A Monsoon samples 5,000 times a second: more per unit of time can only be seconds.
_MONSOON_MOST_PER_MS = 10.0


def read_trace(path: str | Path) -> PowerTrace:
    """Return the power trace in a CSV file.

    Raises:
        FileError: The file cannot be read, has no columns of time and power, or a cell is not a
            number.
    """
    rows = read_csv(Path(path))
    _, columns = next(rows)
    # The first column of each quantity counts.
    found: dict[str, tuple[int, float]] = {}
    for place, name in enumerate(columns):
        quantity, scale = _identify_column(name)
        found.setdefault(quantity, (place, scale))
    wanted = ("time", "power") if "power" in found else ("time", "current", "voltage")
    if not found.keys() >= set(wanted):
        names = ", ".join(filter(None, columns))
        raise FileError(
            f"{path} has no columns of time and power, only {show_value(names)}: name them "
            "like time,watts or Time (s),Current (mA),Voltage (V)"
        )
    (time_place, _), *others = (found[name] for name in wanted)
    values = array("d")
    for line, cells in rows:
        try:
            values.append(_parse_time(cells[time_place]))
            values.extend([float(cells[place]) for place, _ in others])
        except (ValueError, IndexError):
            raise FileError(
                f"{path}: line {line} is {show_value(','.join(cells))}: give a number for "
                "the time and the power of each line"
            ) from None
    samples = np.array(values).reshape(-1, len(wanted)) * [found[name][1] for name in wanted]
    times = samples[:, 0]
    if columns[0] == _MONSOON_TIME and len(times) > 1:
        # PyMonsoon writes seconds.
        span_ms = 1e3 * float(times[-1] - times[0])
        times = times * (1e3 if len(times) > _MONSOON_MOST_PER_MS * span_ms else 1.0)
    try:
        return make_trace(times, samples[:, 1:].prod(axis=1))
    except InputError as error:
        raise FileError(f"{path} is not a power trace: {error}") from error


def _identify_column(name: str) -> tuple[str, float]:
    """Return the quantity of a column and the size of its unit; no quantity for other columns."""
    word = name.lower()
    # Monsoon's other channels and energies must not be taken for the power of the device.
    if re.search("usb|aux|energy", word):
        return "", 1.0
    unit = _UNIT.search(name)
    if unit is not None:
        return _BASES[unit[2].lower()], _SCALES[unit[1]]
    # Times may have no unit, like "timestamp" and "Wall-clock time (UTC)".
    is_time = re.search(r"\btime(stamp)?\b", word) is not None
    return _UNIT_WORDS.get(word, ("time" if is_time else "", 1.0))


def _parse_time(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text.strip().upper()).timestamp()


MOST_TRACE_BYTES = 256 * 2**20
"""Size of a CSV file: half an hour of an instrument that samples 5,000 times a second."""
# Spreadsheets of many countries write semicolons, because their decimal sign is a comma.
_DELIMITERS = ",;\t"


def read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the cells of each row, the header first; empty lines are skipped.

    Raises:
        FileError: The file is missing, empty, too large or not a text, or a line is not CSV.
    """
    content = read_limited(path, MOST_TRACE_BYTES)
    try:
        text = content.decode("utf-8-sig")
        if "\0" in text:
            raise ValueError
    except ValueError as error:
        raise FileError(f"{path} is not a text: give a CSV file") from error
    header = text.split("\n", 1)[0]
    if not header.strip():
        raise FileError(f"{path} has no header: its first line must name the columns")
    reader = csv.reader(io.StringIO(text), delimiter=max(_DELIMITERS, key=header.count))
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        reason = first_line(error)
        raise FileError(f"{path}: line {reader.line_num} is not CSV ({reason})") from error
