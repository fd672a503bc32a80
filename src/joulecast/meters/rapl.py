"""Measure processors with their RAPL counters, in Linux's powercap tree (Intel, AMD since Zen).

    intel-rapl:0            package-0 ┐
    intel-rapl:1            package-1 ├ added up: the processors
    intel-rapl:0:2          dram      ┘ and their memory, where it is counted
    intel-rapl:0:0          core        part of the package: ignored
    intel-rapl:2            psys        the whole board including packages: ignored
    intel-rapl-mmio:0       package-0   the same package by another interface: ignored

Readings cover everything that runs on the processors, not only this process. A counter wraps around
at ``max_energy_range_uj``, on a busy server within minutes, so it is also read during long windows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from joulecast.errors import MeasurementError
from joulecast.meters.base import MeterInfo, Reading, UnavailableError
from joulecast.meters.guarded import GuardedMeter
from joulecast.meters.ticker import MakeTicker, Ticker

POWERCAP = Path("/sys/class/powercap")
CPUS = Path("/sys/devices/system/cpu")

ReadText = Callable[[Path], str]

_RESOLUTION_J = 1e-6
_IDLE_S = 0.2
# Rare enough to cost nothing, frequent enough that no counter wraps around twice in between.
_TICK_S = 20.0
# More than any package draws: a counter that seems to was reset and did not wrap around.
_MAX_W = 3000.0


def read_text(path: Path) -> str:
    """Return the text of a system file."""
    return path.read_text().strip()


class Zone:
    """One counter of the tree, corrected for wrapping around."""

    def __init__(self, path: Path, read: ReadText = read_text) -> None:
        self.path = path
        self.name = read(path / "name")
        self._read = read
        self._range_uj = int(read(path / "max_energy_range_uj"))
        self._last_uj = self._count()
        self._unrolled_uj = 0

    def energy_j(self) -> float:
        """Return the energy since the zone was opened; call it before the counter wraps twice."""
        count_uj = self._count()
        step_uj = count_uj - self._last_uj
        self._last_uj = count_uj
        self._unrolled_uj += step_uj if step_uj >= 0 else step_uj + self._range_uj
        return self._unrolled_uj / 1e6

    def _count(self) -> int:
        return int(self._read(self.path / "energy_uj"))


def find_zones(root: Path = POWERCAP, read: ReadText = read_text) -> tuple[Zone, ...]:
    """Return the zones of packages and their memory.

    Raises:
        UnavailableError: There are none, or they cannot be read.
    """
    # One zone for each name and parent: a package may appear again under another number.
    packages: dict[str, Path] = {}
    memories: list[Path] = []
    for path in sorted(root.glob("intel-rapl:*")):
        name = _read_name(path, read)
        if name.startswith("package-"):
            packages.setdefault(name, path)
        elif name == "dram":
            memories.append(path)
    if not packages:
        reason = f"no RAPL packages under {root}"
        advice = (
            "on bare Linux load the module intel_rapl_msr; in a virtual machine use another meter"
        )
        raise UnavailableError(reason, advice)
    parents = tuple(f"{path.name}:" for path in packages.values())
    memories = [path for path in memories if path.name.startswith(parents)]
    return (*_open_packages(packages, root, read), *_open_memories(memories, read))


def _read_name(path: Path, read: ReadText) -> str:
    try:
        return read(path / "name")
    except OSError:
        return ""


def _open_packages(packages: dict[str, Path], root: Path, read: ReadText) -> list[Zone]:
    try:
        return [Zone(path, read) for path in packages.values()]
    except PermissionError as error:
        reason = f"no permission to read {error.filename or root}"
        advice = (
            f"ask an administrator to run: chmod a+r {root}/intel-rapl:*/energy_uj "
            "(lost at reboot; a udev rule or systemd-tmpfiles line makes it permanent)"
        )
        raise UnavailableError(reason, advice) from error
    except (OSError, ValueError) as error:
        reason = f"the RAPL counters cannot be read ({error})"
        raise UnavailableError(reason, "use another meter") from error


def _open_memories(paths: list[Path], read: ReadText) -> list[Zone]:
    """Return the zones of memory; none if they cannot be read, and ``covers`` then says so."""
    try:
        return [Zone(path, read) for path in paths]
    except (OSError, ValueError):
        return []


class RaplMeter(GuardedMeter):
    """The energy counters of the processors, and of their memory where it is counted."""

    name = "rapl"
    covers = "cpu"
    window_s = 0.5
    update_interval_s = 0.001

    def __init__(
        self,
        root: Path = POWERCAP,
        cpus: Path = CPUS,
        now: Callable[[], float] = time.monotonic,
        read: ReadText = read_text,
        ticker: MakeTicker = Ticker,
    ) -> None:
        """Make the meter.

        Args:
            root: The powercap folder.
            cpus: Folder in which Linux counts thermal throttling.
            now: The clock.
            read: Reads a file.
            ticker: Makes the ticker that reads the counters while a window is open.
        """
        self._zones = find_zones(root, read)
        self._cpus = cpus
        self._now = now
        self._read = read
        self._ticker = ticker(_TICK_S, self._read_zones)
        self._begun_s = 0.0
        self._begun_j: tuple[float, ...] = ()
        self._begun_throttled = 0
        if any(zone.name == "dram" for zone in self._zones):
            self.covers = "cpu+dram"

    def _start(self) -> None:
        self._begun_throttled = self._count_throttled()
        self._ticker.start()
        self._begun_j = self._read_zones()
        self._begun_s = self._now()

    def _stop(self) -> Reading:
        end_s = self._now()
        self._ticker.stop()
        passed_j = [
            end - begin for begin, end in zip(self._begun_j, self._read_zones(), strict=True)
        ]
        duration_s = end_s - self._begun_s
        return Reading(sum(passed_j), duration_s, tuple(self._find_faults(passed_j, duration_s)))

    def _release(self) -> None:
        self._ticker.stop()

    def _read_zones(self) -> tuple[float, ...]:
        try:
            return tuple(zone.energy_j() for zone in self._zones)
        except (OSError, ValueError) as error:
            raise MeasurementError(
                f"a RAPL counter can no longer be read ({error}): check its permissions"
            ) from error

    def _find_faults(self, passed_j: list[float], duration_s: float) -> list[str]:
        faults = []
        if duration_s < 10 * self.update_interval_s:
            return [f"too short: {duration_s:.3g} s"]
        for zone, energy_j in zip(self._zones, passed_j, strict=True):
            if energy_j == 0 and zone.name != "dram":
                faults.append(f"stuck: {zone.name} counted nothing in {duration_s:.3g} s")
            if energy_j > _MAX_W * duration_s:
                faults.append(f"reset: {zone.name} seems to draw {energy_j / duration_s:.0f} W")
        throttled = self._count_throttled() - self._begun_throttled
        if throttled > 0:
            faults.append(f"throttled: a processor was too hot {throttled} times")
        return faults

    def _count_throttled(self) -> int:
        """Return how often packages were too hot since boot; 0 if it is not counted."""
        try:
            paths = self._cpus.glob("cpu[0-9]*/thermal_throttle/package_throttle_count")
            return sum(int(self._read(path)) for path in paths)
        except (OSError, ValueError):
            return 0


def make_rapl(argument: str) -> RaplMeter:
    """Return the meter of ``rapl``, or of another powercap folder (``rapl:/path``)."""
    return RaplMeter(Path(argument) if argument else POWERCAP)


def detect_rapl(
    root: Path = POWERCAP, sleep: Callable[[float], None] = time.sleep
) -> tuple[MeterInfo, ...]:
    """Return whether the counters can be read, with the current power."""
    try:
        meter = RaplMeter(root)
    except UnavailableError as error:
        return (error.to_info(RaplMeter.name, "cpu"),)
    with meter:
        meter.begin()
        sleep(_IDLE_S)
        reading = meter.end()
    row = MeterInfo(
        meter.name,
        True,
        f"counters of {meter.covers} under {root}",
        covers=meter.covers,
        update_interval_s=meter.update_interval_s,
        resolution_j=_RESOLUTION_J,
        idle_power_w=reading.energy_j / reading.duration_s if reading.duration_s else None,
    )
    return (row,)
