"""Measure processors with their RAPL counters, in Linux's powercap tree (Intel, AMD since Zen).

    intel-rapl:0            package-0 ┐
    intel-rapl:1            package-1 ├ added up: the processors
    intel-rapl:0:2          dram      ┘ and their memory, where it is counted
    intel-rapl:0:0          core        part of the package: ignored
    intel-rapl:2            psys        the whole board including packages: ignored
    intel-rapl-mmio:0       package-0   the same package by another interface: ignored

Readings cover everything that runs on the processors, not only this process. A counter wraps around
at ``max_energy_range_uj``, on a busy server within minutes, and starts from 0 when its module is
loaded anew. Both look alike, but only a counter near its end can wrap around: it is read every
second, and what it counted must fit the power limit of its zone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from joulecast.meters.base import (
    METER_CHECKS,
    POWER_LIMIT,
    MeterInfo,
    MeterRequest,
    Reading,
    UnavailableError,
    explain_read_errors,
)
from joulecast.meters.sampling import TickedMeter

POWERCAP = Path("/sys/class/powercap")
CPUS = Path("/sys/devices/system/cpu")

_RESOLUTION_J = 1e-6
_IDLE_S = 0.2
# Rare enough to cost nothing, frequent enough to tell a reset from wrapping around.
_TICK_S = 1.0
# More than any package draws, for zones without a limit.
_MAX_W = 1000.0
# A zone may exceed its power limit for a moment.
_LIMIT_FACTOR = 1.25
# A package counts something in this time, however idle it is.
_STUCK_S = 0.1
# Counters lag behind by an update or two.
_SLACK_S = 0.01


class Zone:
    """One counter of the tree, corrected for wrapping around.

    Attributes:
        limit_w: Highest of its power limits when the window began; None if it has none.
        energy_j: Energy since the window began.
        fault: The first thing that was wrong with it since then; empty if nothing was.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = _read(path / "name")
        self.limit_w: float | None = None
        self.energy_j = 0.0
        self.fault = ""
        self._range_uj = int(_read(path / "max_energy_range_uj"))
        self._last_uj = self._count()
        self._last_s = 0.0

    def start(self, now_s: float) -> None:
        """Begin a window."""
        self.limit_w = self._find_limit()
        self.energy_j, self.fault = 0.0, ""
        self._last_uj, self._last_s = self._count(), now_s

    def update(self, now_s: float) -> None:
        """Add what was counted since the last call."""
        count_uj, passed_s = self._count(), now_s - self._last_s
        step_j = (count_uj - self._last_uj) / 1e6
        has_fallen = step_j < 0
        if has_fallen:
            step_j += self._range_uj / 1e6
        self._last_uj, self._last_s = count_uj, now_s
        self.energy_j += step_j
        self.fault = self.fault or self._find_fault(step_j, passed_s, has_fallen)

    def _find_fault(self, step_j: float, passed_s: float, has_fallen: bool) -> str:
        highest_w = min(_LIMIT_FACTOR * (self.limit_w or _MAX_W), _MAX_W)
        if step_j > highest_w * (passed_s + _SLACK_S):
            if has_fallen:
                return f"reset: the counter of {self.name} started anew"
            power = f"{step_j / max(passed_s, _SLACK_S):.0f} W"
            return f"implausible: {self.name} seems to draw {power}, more than {highest_w:.0f} W"
        # The memory of an idle machine may draw less than its counter resolves.
        if step_j == 0 and passed_s >= _STUCK_S and self.name != "dram":
            return f"stuck: {self.name} counted nothing in {passed_s:.3g} s"
        return ""

    def _find_limit(self) -> float | None:
        """Return the highest limit of the zone, long-term, short-term or peak."""
        try:
            paths = list(self.path.glob("constraint_*_power_limit_uw"))
            limits_w = [int(_read(path)) / 1e6 for path in paths]
            is_on = _read(self.path / "enabled") != "0"
        except (OSError, ValueError):
            return None
        return max(limits_w, default=0.0) or None if is_on else None

    def _count(self) -> int:
        return int(_read(self.path / "energy_uj"))


def _read(path: Path) -> str:
    return path.read_text().strip()


def find_zones(root: Path = POWERCAP) -> tuple[Zone, ...]:
    """Return the zones of packages and their memory."""
    # One zone for each name and parent: a package may appear again under another number.
    packages: dict[str, Path] = {}
    memories: list[Path] = []
    for path in sorted(root.glob("intel-rapl:*")):
        with suppress(OSError):
            name = _read(path / "name")
            if name.startswith("package-"):
                packages.setdefault(name, path)
            elif name == "dram":
                memories.append(path)
    if not packages:
        raise UnavailableError(
            f"no RAPL packages under {root}",
            "on bare Linux load the module intel_rapl_msr; in a virtual machine use another meter",
        )
    try:
        zones = [Zone(path) for path in packages.values()]
    except (OSError, ValueError) as error:
        advice = "use another meter"
        if isinstance(error, PermissionError):
            advice = (
                f"ask an administrator to run: chmod a+r {root}/intel-rapl:*/energy_uj "
                "(lost at reboot; a udev rule or systemd-tmpfiles line makes it permanent)"
            )
        raise UnavailableError(f"the RAPL counters cannot be read ({error})", advice) from error
    parents = tuple(f"{path.name}:" for path in packages.values())
    # Without memory that cannot be read, and ``covers`` then says so.
    with suppress(OSError, ValueError):
        zones += [Zone(path) for path in memories if path.name.startswith(parents)]
    return tuple(zones)


class RaplMeter(TickedMeter):
    """The energy counters of the processors, and of their memory where it is counted."""

    name = "rapl"
    covers = "cpu"
    window_s = 0.5
    update_interval_s = 0.001
    tick_s = _TICK_S

    def __init__(self, root: Path = POWERCAP, cpus: Path = CPUS) -> None:
        self.instrument = str(root.resolve())
        self._zones = find_zones(root)
        self._cpus = cpus
        self._begun_throttled = 0
        if any(zone.name == "dram" for zone in self._zones):
            self.covers = "cpu+dram"

    def _begin(self) -> None:
        self._begun_throttled = self._count_throttled()
        self._call_zones(Zone.start)

    def _tick(self) -> None:
        self._call_zones(Zone.update)

    def _call_zones(self, call: Callable[[Zone, float], None]) -> None:
        with explain_read_errors("a RAPL counter", "check its permissions"):
            for zone in self._zones:
                call(zone, self.clock.now())

    def _finish(self, end_s: float) -> Reading:
        self._tick()
        limits_w = [zone.limit_w for zone in self._zones if zone.name != "dram"]
        duration_s = end_s - self._begun_s
        return Reading(
            sum(zone.energy_j for zone in self._zones),
            duration_s,
            tuple(self._find_faults(duration_s)),
            unchecked=tuple(c for c in METER_CHECKS if c != POWER_LIMIT or None in limits_w),
        )

    def _find_faults(self, duration_s: float) -> list[str]:
        if duration_s < 10 * self.update_interval_s:
            return [f"too short: {duration_s:.3g} s"]
        faults = [zone.fault for zone in self._zones if zone.fault]
        throttled = self._count_throttled() - self._begun_throttled
        if throttled > 0:
            faults.append(f"throttled: a processor was too hot {throttled} times")
        return faults

    def _count_throttled(self) -> int:
        """Return how often packages were too hot since boot; 0 if it is not counted."""
        try:
            paths = self._cpus.glob("cpu[0-9]*/thermal_throttle/package_throttle_count")
            return sum(int(_read(path)) for path in paths)
        except (OSError, ValueError):
            return 0


def make_rapl(request: MeterRequest) -> RaplMeter:
    """Return the meter of ``rapl``, or of another powercap folder (``rapl:/path``)."""
    return RaplMeter(Path(request.argument or POWERCAP))


def detect_rapl() -> tuple[MeterInfo, ...]:
    """Return what the counters cover, with the current power."""
    with RaplMeter(POWERCAP) as meter:
        meter.begin()
        meter.clock.sleep(_IDLE_S)
        reading = meter.end()
    reason = f"counters of {meter.covers} under {POWERCAP}"
    return (meter.to_info(reason, _RESOLUTION_J, reading.power_w or None),)
