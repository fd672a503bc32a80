"""Read power that another instrument writes to a file: a line ``time,watts`` for each sample.

    time,watts                      an optional header
    1700000000.25,41.7              seconds since 1970, or 2023-11-14T22:13:20.25Z
    …                               (without a time zone: local time of this machine)

The file may grow while it is read, or contain a whole day: only its end, back to the start of the
window, is read. A last line without its newline is still being written and is skipped.

``later`` reads no energy: it notes the start and the end of each window, for a power monitor whose
file somebody copies afterwards (`joulecast data attach`). Until then a reading has the energy of a
constant power, so that a campaign is guided by time: the relative uncertainty of such an energy is
that of the duration. Nothing of it is stored.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from joulecast.meters.base import (
    GuardedMeter,
    MeasureClock,
    MeterRequest,
    Reading,
    UnavailableError,
)
from joulecast.meters.sampling import GAP_PERIODS, Sample, integrate, median_interval_s
from joulecast.system.errors import FileError

_BLOCK_BYTES = 1 << 16
_POLL_S = 0.1
_WINDOW_PERIODS = 10
# Seconds since 1970 stay below this for some thousand years; milliseconds do not.
_LATEST_S = 1e11
_STARTS_SAMPLE = re.compile(r"\s*[-+]?[0-9]")


class FileMeter(GuardedMeter):
    """A CSV file of time and watts that another instrument writes."""

    name = "file"
    window_s = 1.0

    def __init__(
        self,
        path: Path,
        covers: str = "board",
        limit_s: float = 5.0,  # longest wait until the file reaches the end of a window
    ) -> None:
        self.covers = covers
        self.instrument = str(path.resolve())
        self._path = path
        self._limit_s = limit_s
        self._begun_s = 0.0

    def _connect(self) -> None:
        samples = read_samples(self._path, math.inf)
        self.update_interval_s = median_interval_s(samples)
        self.window_s = max(FileMeter.window_s, _WINDOW_PERIODS * self.update_interval_s)
        self._limit_s = max(self._limit_s, GAP_PERIODS * self.update_interval_s)

    def _start(self) -> None:
        self._begun_s = self.clock.wall_time()

    def _stop(self) -> Reading:
        end_s = self.clock.wall_time()
        samples = self._await(end_s)
        reading = integrate(samples, self._begun_s, end_s)
        if samples and samples[-1].time_s >= end_s:
            return reading
        last = f"{end_s - samples[-1].time_s:.3g} s before" if samples else "without a sample by"
        fault = f"gap: the file ends {last} the end of the window"
        return replace(reading, faults=(*reading.faults, fault))

    def _await(self, end_s: float) -> list[Sample]:
        """Return the samples since the start, once the file has reached the end or time is up."""
        for _ in range(int(self._limit_s / _POLL_S)):
            samples = read_samples(self._path, self._begun_s)
            if samples and samples[-1].time_s >= end_s:
                return samples
            self.clock.sleep(_POLL_S)
        return read_samples(self._path, self._begun_s)


def read_samples(path: Path, since_s: float) -> list[Sample]:
    """Return the last samples of a file, back to a moment or a little before."""
    try:
        with path.open("rb") as file:
            size = start = file.seek(0, 2)
            samples: list[Sample] = []
            while start > 0 and (not samples or samples[0].time_s >= since_s):
                # Twice as far back each time, so that a long file is not read many times.
                start = max(0, min(start, size - 2 * (size - start)) - _BLOCK_BYTES)
                file.seek(start)
                samples = _parse(file.read(size - start), start == 0, path)
            return samples
    except OSError as error:
        reason = f"{path} cannot be read ({error.strerror})"
        raise UnavailableError(reason, "start the instrument that writes it") from error


def _parse(data: bytes, is_whole: bool, path: Path) -> list[Sample]:
    lines = data.decode("utf-8-sig", errors="replace").split("\n")[:-1]
    # A block from the middle starts within a line; a whole file may start with a header.
    if lines and (not is_whole or not _STARTS_SAMPLE.match(lines[0])):
        lines = lines[1:]
    return [parse_sample(line, path) for line in lines if line.strip()]


def parse_sample(line: str, path: Path) -> Sample:
    """Return the sample of a line; columns after time and watts are ignored."""
    try:
        moment, power = line.split(",")[:2]
        sample = Sample(_parse_time(moment.strip()), float(power))
    except ValueError as error:
        raise FileError(f"{path}: the line {line.strip()!r} is not time,watts") from error
    if not (math.isfinite(sample.power_w) and abs(sample.time_s) < _LATEST_S):
        raise FileError(
            f"{path}: the line {line.strip()!r} needs finite watts and a time in seconds since 1970"
        )
    return sample


def _parse_time(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # Python before 3.11 does not parse Z.
        zoned = text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text
        return datetime.fromisoformat(zoned).timestamp()


def make_file(request: MeterRequest) -> FileMeter:
    """Return the meter of ``file:PATH``."""
    path = Path(request.argument)
    # Without an argument, the path is a folder.
    if not path.is_file():
        reason = f"there is no file {request.argument!r} to read power from"
        advice = "start the instrument that writes it, and give its path: file:power.csv"
        raise UnavailableError(reason, advice)
    return FileMeter(path, covers=f"board by {path.name}")


STAND_IN_W = 1.0
"""The constant power of readings until a trace is attached."""


class LaterMeter(GuardedMeter):
    """A recorder of windows, whose energy a power trace provides later."""

    name = "later"
    is_recorder = True

    def __init__(
        self,
        covers: str = "board",
        provenance: str = "measured",
        clock: MeasureClock | None = None,
    ) -> None:
        self.covers = covers
        self.provenance = provenance
        self.clock = clock or self.clock
        # Read once: whoever sets the clock of the system must not move windows.
        self._origin_s = self.clock.wall_time() - self.clock.now()
        self._begun_s = 0.0

    def _start(self) -> None:
        self._begun_s = self.clock.now()

    def _stop(self) -> Reading:
        end_s = self.clock.now()
        duration_s = end_s - self._begun_s
        span_s = (self._origin_s + self._begun_s, self._origin_s + end_s)
        return Reading(STAND_IN_W * duration_s, duration_s, span_s=span_s)


def make_later(request: MeterRequest) -> LaterMeter:
    """Return the meter of ``later`` or ``later:COVERS``."""
    return LaterMeter(request.argument or "board")
