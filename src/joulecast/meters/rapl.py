"""The processor's own energy counters, as Linux shows them under powercap (Intel, AMD since Zen).

    intel-rapl:0            package-0 ┐
    intel-rapl:1            package-1 ├ added up: the processors
    intel-rapl:0:2          dram      ┘ and their memory, where it is counted
    intel-rapl:0:0          core        part of the package: left out
    intel-rapl:2            psys        the whole board, the packages within: left out
    intel-rapl-mmio:0       package-0   the same package by another door: left out

Takes the folder, gives Readings of everything that ran on the processors, not this process alone. A
counter wraps at ``max_energy_range_uj``, on a busy server within minutes, so it is also read while
a long window is open.
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
_MOMENT_S = 0.2
# Seldom enough to cost nothing, often enough that no counter wraps twice in between.
_TICK_S = 20.0
# More than any package draws: a counter that seems to was set back, and did not wrap.
_MOST_W = 3000.0


def read_text(path: Path) -> str:
    """What a file of the system says."""
    return path.read_text().strip()


class Zone:
    """One counter of the tree, unrolled: its joules never wrap."""

    def __init__(self, path: Path, read: ReadText = read_text) -> None:
        self.path = path
        self.name = read(path / "name")
        self._read = read
        self._range_uj = int(read(path / "max_energy_range_uj"))
        self._last_uj = self._count()
        self._unrolled_uj = 0

    def energy_j(self) -> float:
        """Joules since the zone was opened; to be read at least once for each turn."""
        count_uj = self._count()
        step_uj = count_uj - self._last_uj
        self._last_uj = count_uj
        self._unrolled_uj += step_uj if step_uj >= 0 else step_uj + self._range_uj
        return self._unrolled_uj / 1e6

    def _count(self) -> int:
        return int(self._read(self.path / "energy_uj"))


def find_zones(root: Path = POWERCAP, read: ReadText = read_text) -> tuple[Zone, ...]:
    """The packages and their memory.

    Raises:
        UnavailableError: There is none, or they may not be read.
    """
    # One zone for each name and parent: a package may show up again under another number.
    packages: dict[str, Path] = {}
    memories: list[Path] = []
    for path in sorted(root.glob("intel-rapl:*")):
        name = _name_of(path, read)
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


def _name_of(path: Path, read: ReadText) -> str:
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
            f"ask an administrator for: chmod a+r {root}/intel-rapl:*/energy_uj "
            "(until the next start; a udev rule or systemd-tmpfiles line keeps it)"
        )
        raise UnavailableError(reason, advice) from error
    except (OSError, ValueError) as error:
        reason = f"the RAPL counters cannot be read ({error})"
        raise UnavailableError(reason, "use another meter") from error


def _open_memories(paths: list[Path], read: ReadText) -> list[Zone]:
    """Memory that cannot be read is left out, and ``covers`` then does not name it."""
    try:
        return [Zone(path, read) for path in paths]
    except (OSError, ValueError):
        return []


class RaplMeter(GuardedMeter):
    """The processors' energy counters, memory included where it is counted."""

    name = "rapl"
    covers = "cpu"
    window_s = 0.5
    period_s = 0.001

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
            cpus: Where the system counts how often a package was too hot.
            now: The clock.
            read: Reads a file.
            ticker: Makes what reads the counters while a window is open.
        """
        self._zones = find_zones(root, read)
        self._cpus = cpus
        self._now = now
        self._read = read
        self._ticker = ticker(_TICK_S, self._look)
        self._begun_s = 0.0
        self._begun_j: tuple[float, ...] = ()
        self._begun_hot = 0
        if any(zone.name == "dram" for zone in self._zones):
            self.covers = "cpu+dram"

    def _start(self) -> None:
        self._begun_hot = self._count_hot()
        self._ticker.start()
        self._begun_j = self._look()
        self._begun_s = self._now()

    def _stop(self) -> Reading:
        end_s = self._now()
        self._ticker.stop()
        passed_j = [end - begin for begin, end in zip(self._begun_j, self._look(), strict=False)]
        duration_s = end_s - self._begun_s
        return Reading(sum(passed_j), duration_s, tuple(self._find_faults(passed_j, duration_s)))

    def _release(self) -> None:
        self._ticker.stop()

    def _look(self) -> tuple[float, ...]:
        try:
            return tuple(zone.energy_j() for zone in self._zones)
        except (OSError, ValueError) as error:
            raise MeasurementError(f"a RAPL counter can no longer be read ({error})") from error

    def _find_faults(self, passed_j: list[float], duration_s: float) -> list[str]:
        faults = []
        if duration_s < 10 * self.period_s:
            return [f"too short: {duration_s:.3g} s"]
        for zone, energy_j in zip(self._zones, passed_j, strict=False):
            if energy_j == 0 and zone.name != "dram":
                faults.append(f"stuck: {zone.name} counted nothing in {duration_s:.3g} s")
            if energy_j > _MOST_W * duration_s:
                faults.append(f"reset: {zone.name} seems to draw {energy_j / duration_s:.0f} W")
        hot = self._count_hot() - self._begun_hot
        if hot > 0:
            faults.append(f"throttled: a processor was too hot {hot} times")
        return faults

    def _count_hot(self) -> int:
        """How often packages were too hot since the machine started; 0 where nobody counts."""
        try:
            paths = self._cpus.glob("cpu[0-9]*/thermal_throttle/package_throttle_count")
            return sum(int(self._read(path)) for path in paths)
        except (OSError, ValueError):
            return 0


def make_rapl(argument: str) -> RaplMeter:
    """The meter of ``rapl``, or of a powercap folder elsewhere (``rapl:/path``)."""
    return RaplMeter(Path(argument) if argument else POWERCAP)


def detect_rapl(
    root: Path = POWERCAP, sleep: Callable[[float], None] = time.sleep
) -> tuple[MeterInfo, ...]:
    """Whether the counters are there and may be read, and what flows now."""
    try:
        meter = RaplMeter(root)
    except UnavailableError as error:
        return (error.to_info(RaplMeter.name, "cpu"),)
    with meter:
        meter.begin()
        sleep(_MOMENT_S)
        reading = meter.end()
    row = MeterInfo(
        meter.name,
        True,
        f"counters of {meter.covers} under {root}",
        covers=meter.covers,
        period_s=meter.period_s,
        resolution_j=_RESOLUTION_J,
        idle_power_w=reading.energy_j / reading.duration_s if reading.duration_s else None,
    )
    return (row,)
