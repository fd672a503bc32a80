"""Power over time from CSV files of instruments, and its clock against that of a run.

Columns are known by name and unit:

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
import math
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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


# ---------------------------------------------------------------------------------------------
# Align the clock of an instrument with the clock of a run, by load pulses
#
#     t' = a + (1 + d)·t          a: offset, d: drift (both unknown, |d| ≤ 500 ppm)
#
# 1. Search: for drifts on a grid, the trace is correlated with all pulses at once; the offset with
#    the largest contrast between load and gaps is kept.
# 2. Shift: each group of pulses is moved by itself to where its contrast is largest.
# 3. Edges: where the power rises and falls, found to a fraction of a sample from the area under the
#    trace: the energy around an edge says when the power changed.
# 4. A straight line through all edges, without outliers, gives a and d.
#
# Groups whose edges are not where the line says do not match. A group is the start and end of each
# of its pulses, one row per pulse; there are gaps around and between them.


MOST_DRIFT = 500e-6
"""Largest drift that is searched for: five times that of a cheap crystal."""
SLOWEST_INTERVAL_S = 0.025
"""Longest time between two samples with which pulses can be found."""

_BIN_S = 0.01
# How far a pulse may be from where the grid of drifts puts it.
_SMEAR_S = 0.03
_MOST_DRIFTS = 400
# Groups are shifted by at most this much, in such steps.
_SHIFT_S, _SHIFT_STEP_S = 0.1, 0.002
# Power changes within this time of an edge.
_EDGE_S = 0.04
# Edges further from the line than this belong to something else.
_LARGEST_RESIDUAL_S = 0.02
_LEAST_MATCHED_SHARE = 0.75
# Pulses of a group are the same load: a much smaller step of the power is something else.
_LEAST_STEP_SHARE = 0.3
# Before and after one trial.
_LEAST_GROUPS = 2


@dataclass(frozen=True)
class ClockAlignment:
    """How the time of a trace follows from the time of a run.

    Attributes:
        matched: For each group of pulses: whether it matches; None outside the trace.
    """

    origin_s: float  # a moment of the run near its middle
    offset_s: float  # time of the trace at that moment, minus that moment
    drift: float  # seconds that the clock of the trace gains in a second of the run
    residual_s: float = 0.0  # root mean square distance of edges from the line
    matched: tuple[bool | None, ...] = ()

    def convert(self, times_s: npt.ArrayLike) -> Floats:
        """Return times of the trace for times of the run."""
        times = np.asarray(times_s, float)
        return np.asarray(times + self.offset_s + self.drift * (times - self.origin_s))


def align_clocks(trace: PowerTrace, groups: Sequence[Floats]) -> ClockAlignment:
    """Return the alignment of a trace with the groups of pulses of a run.

    Raises:
        InputError: The samples are too far apart, or the pulses are not in the trace.
    """
    if trace.interval_s > SLOWEST_INTERVAL_S:
        raise InputError(
            f"its samples are {trace.interval_s * 1e3:.0f} ms apart: record at least "
            f"{1 / SLOWEST_INTERVAL_S:.0f} a second, so that load pulses can be found"
        )
    found = _shift_groups(trace, groups, _search(trace, groups))
    for _ in range(2):
        found = _fit_edges(trace, groups, found)
    inside = [one for one in found.matched if one is not None]
    if sum(inside) < max(_LEAST_GROUPS, _LEAST_MATCHED_SHARE * len(inside)):
        raise InputError(
            f"its power does not follow the load pulses of the run ({sum(inside)} of "
            f"{len(groups)} groups match): give the trace that was recorded during this run"
        )
    return found


def _find_gaps(loads_s: Floats) -> Floats:
    """Return start and end of the time without load between two pulses."""
    return np.column_stack([loads_s[:-1, 1], loads_s[1:, 0]])


def _search(trace: PowerTrace, groups: Sequence[Floats]) -> ClockAlignment:
    """Return the offset and drift with the largest contrast between pulses and gaps."""
    edges_s = np.arange(trace.times_s[0], trace.times_s[-1], _BIN_S)
    powers = trace.find_power(edges_s[:-1], edges_s[1:])
    # A few spikes must not decide.
    low, high = np.percentile(powers, [1, 99.5])
    powers = np.clip(powers, low, high) - np.median(powers)
    # The product of these weights with powers is the sum of the contrasts of all groups.
    signed = [pair for loads in groups for pair in ((loads, 1.0), (_find_gaps(loads), -1.0))]
    windows = np.concatenate([one for one, _ in signed])
    weights = [sign * _BIN_S / np.sum(one[:, 1] - one[:, 0]) for one, sign in signed for _ in one]
    origin_s = float(np.mean([loads.mean() for loads in groups]))
    begin_s, span_s = windows.min(), float(np.ptp(windows))
    count = min(_MOST_DRIFTS, 1 + 2 * int(np.ceil(MOST_DRIFT * span_s / (2 * _SMEAR_S))))
    size = int(span_s * (1 + MOST_DRIFT) / _BIN_S) + 2
    length = 1 << (len(powers) + size - 1).bit_length()
    spectrum = np.fft.rfft(powers, length)
    best = (-np.inf, 0.0, 0.0)
    for drift in np.linspace(-MOST_DRIFT, MOST_DRIFT, count) if count > 1 else np.zeros(1):
        first_s = origin_s + (1 + drift) * (begin_s - origin_s)
        moved = origin_s + (1 + drift) * (windows - origin_s) - first_s
        template = np.zeros(size)
        for (start, end), weight in zip(np.rint(moved / _BIN_S).astype(int), weights, strict=True):
            template[start:end] += weight
        scores = np.fft.irfft(spectrum * np.conj(np.fft.rfft(template, length)), length)
        place = int(np.argmax(scores))
        if scores[place] > best[0]:
            # A trace may begin after the run: then the place is negative, which wraps around.
            bins = place if place < len(powers) else place - length
            best = (float(scores[place]), edges_s[0] + bins * _BIN_S - first_s, float(drift))
    return ClockAlignment(origin_s, *best[1:])


def _shift_groups(
    trace: PowerTrace, groups: Sequence[Floats], found: ClockAlignment
) -> ClockAlignment:
    """Move each group to where its contrast is largest, and fit a line through the shifts."""
    shifts = np.arange(-_SHIFT_S, _SHIFT_S + _SHIFT_STEP_S / 2, _SHIFT_STEP_S)

    def find_powers(windows: Floats) -> Floats:
        energies_j = trace.find_energy(windows[:, :1] + shifts, windows[:, 1:] + shifts)
        return np.asarray(energies_j.sum(axis=0) / np.sum(windows[:, 1] - windows[:, 0]))

    middles, moved = [], []
    for group in groups:
        loads = found.convert(group)
        if trace.covers(loads[0, 0] - _SHIFT_S, loads[-1, 1] + _SHIFT_S):
            contrast = find_powers(loads) - find_powers(_find_gaps(loads))
            middles.append(group.mean())
            moved.append(shifts[int(np.argmax(contrast))])
    return _fit_line(found, np.array(middles), np.array(moved))


def _fit_edges(
    trace: PowerTrace, groups: Sequence[Floats], found: ClockAlignment
) -> ClockAlignment:
    """Find all edges near where they are expected, and fit a line through them."""
    matched: list[bool | None] = [None] * len(groups)
    times_s, late_s = {}, {}
    for place, group in enumerate(groups):
        edges_s = found.convert(group).ravel()
        if trace.covers(edges_s[0] - _EDGE_S, edges_s[-1] + _EDGE_S):
            times_s[place], late_s[place] = group.ravel()[1:-1], _find_edges(trace, edges_s)
    if not times_s:
        return replace(found, matched=tuple(matched))
    at, late = np.concatenate([*times_s.values()]), np.concatenate([*late_s.values()])
    good = np.abs(late) < _LARGEST_RESIDUAL_S
    line = _fit_line(found, at[good], late[good])
    # What is left after the line has moved; not a number where there is no edge.
    left = {
        place: late_s[place] - (line.convert(own) - found.convert(own))
        for place, own in times_s.items()
    }
    for place, own in left.items():
        matched[place] = bool(np.mean(np.abs(own) < _LARGEST_RESIDUAL_S) >= _LEAST_MATCHED_SHARE)
    rest = np.concatenate([*left.values()])
    fine = rest[np.abs(rest) < _LARGEST_RESIDUAL_S]
    residual_s = float(np.sqrt(np.mean(fine**2))) if fine.size else 0.0
    return replace(line, residual_s=residual_s, matched=tuple(matched))


def _find_edges(trace: PowerTrace, edges_s: Floats) -> Floats:
    """Return how much later than expected each inner edge is; NaN where there is no such edge.

    The energy from before an edge to after it is that of the power before, up to the edge, and of
    the power after it: the moment of the edge follows from it.
    """
    before, here, after = edges_s[:-2], edges_s[1:-1], edges_s[2:]
    level_before = trace.find_power(before + _EDGE_S, here - _EDGE_S)
    energy_j = trace.find_energy(here - _EDGE_S, here + _EDGE_S)
    rise = trace.find_power(here + _EDGE_S, after - _EDGE_S) - level_before
    # The first inner edge falls, from a pulse to a gap.
    signed = np.where(np.arange(len(here)) % 2 == 0, -rise, rise)
    # Three standard errors of a mean power between two edges.
    noise_w = 3 * trace.noise_w / math.sqrt(max(1.0, _EDGE_S / trace.interval_s))
    is_right = signed > max(_LEAST_STEP_SHARE * float(np.median(signed)), noise_w)
    with np.errstate(divide="ignore", invalid="ignore"):
        late_s = _EDGE_S - (energy_j - level_before * 2 * _EDGE_S) / rise
    return np.where(is_right, late_s, np.nan)


def _fit_line(found: ClockAlignment, times_s: Floats, late_s: Floats) -> ClockAlignment:
    """Return the alignment moved by a line through what it is late by, without outliers."""
    if not len(times_s):
        return found
    at = times_s - found.origin_s
    keep = np.ones(len(at), bool)
    slope = level = 0.0
    for _ in range(3):
        middle = float(at[keep].mean())
        centred = at[keep] - middle
        square = float(centred @ centred)
        # A single moment says nothing about the drift.
        slope = float(centred @ late_s[keep]) / square if square else 0.0
        slope = min(max(slope, -MOST_DRIFT), MOST_DRIFT)
        level = float(late_s[keep].mean()) - slope * middle
        left = late_s - level - slope * at
        keep = np.abs(left) <= 3 * 1.4826 * float(np.median(np.abs(left[keep]))) + 1e-4
    return replace(found, offset_s=found.offset_s + level, drift=found.drift + slope)
