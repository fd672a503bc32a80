"""Measure NVIDIA GPUs with their energy counter, which covers the whole board.

        counter            ┌───┐
                       ┌───┘   └ …        the counter updates every 100 ms and is constant between;
                   ┌───┘                  only the time of an edge (an update) is known well
        ────────┬──┴───┴───┴──┬──────
                t0  first…last t1         power = (last - first) / (time between them)

Energy is power x (t1 - t0): reading the counter at t0 and t1 would be wrong by up to one update
interval at each end. An edge that the poller saw late, because it was not scheduled, may have
happened at any time since the poll before; power is not computed from it.

``python -m joulecast.meters.nvml GPU`` polls the counter about every millisecond in a separate
process (``pollers``). These checks find edges that cannot be true:

    power of the window          at most 1.25 times the power limit
    rise between two edges       at most what twice the limit would give
    power of the window          within a factor of two of what the power sensor shows

The margins are wide, because a wrong alarm costs a valid measurement. On H200s at their limit of
700 W, windows of up to 761 W were measured. From Ampere on the sensor averages over a second, and
on some GPUs it samples only a quarter of the time, so it may be far off where the load varies.

A GPU is named ``"0"`` (NVML's index) or ``"GPU-…"`` (its UUID); ``devices.find_gpu`` knows which
GPU is ``cuda:1``.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, TypeVar

from joulecast.devices.detect import decode_name, open_nvml
from joulecast.meters.base import (
    OTHER_LOAD,
    POWER_LIMIT,
    SECOND_SENSOR,
    MeterInfo,
    MeterRequest,
    Reading,
    UnavailableError,
    explain_missing,
)
from joulecast.meters.pollers import PolledMeter, run_poller
from joulecast.system.errors import InputError

_PERIOD_S = 0.1
_RESOLUTION_J = 0.001
# The source of a GPU without an energy counter.
SENSOR = "sensor"
_GPU = re.compile("[0-9]{1,4}|GPU-.+")


class Edge(NamedTuple):
    """An update of the counter.

    Attributes:
        time_s: When the poller saw it, by time.monotonic, which all processes share.
        late_s: How long before that it may have happened.
        sensor_w: What the power sensor shows, which may average over the last second.
        limit_w: The power limit that is in force.
        busy_share: In which share of up to a second any program ran kernels.
        pids: Processes on the GPU; None if they were not listed this time.
    """

    time_s: float
    energy_j: float
    late_s: float = 0.0
    throttle_bits: int = 0
    sensor_w: float | None = None
    limit_w: float | None = None
    busy_share: float | None = None
    pids: Sequence[int] | None = None

    @property
    def estimated_s(self) -> float:
        """Estimated time of the update: halfway between the two polls around it."""
        return self.time_s - self.late_s / 2


class NvmlMeter(PolledMeter[Edge]):
    """The energy counter of one NVIDIA GPU, polled by a separate process."""

    name = "nvml"
    covers = "gpu"
    window_s = 0.6
    update_interval_s = _PERIOD_S
    module = "joulecast.meters.nvml"
    make_event = Edge
    advice = "check that nvidia-smi works, then try again"

    def __init__(
        self,
        gpu: str = "0",
        limit_w: float | None = None,  # that of the first window by default
        processes: Path = Path("/proc"),
    ) -> None:
        super().__init__(gpu)
        self._processes = processes
        self._limit_w = limit_w

    def _read_events(self, events: tuple[Edge, ...], end_s: float) -> Reading:
        reading = read_edges(events, self._begun_s, end_s, self.update_interval_s)
        faults = list(reading.faults)
        # Read in every window: a campaign takes hours, and its device is known by its limit.
        limits_w = [edge.limit_w for edge in events if edge.limit_w is not None]
        before_w = self._limit_w = self._limit_w or max(limits_w, default=None)
        if before_w is not None:
            changed = [now for now in limits_w if abs(now - before_w) > SAME_LIMIT_SHARE * before_w]
            faults += [
                f"limit changed: {before_w:.0f} W before, {w:.0f} W now" for w in changed[-1:]
            ]
        others = find_other_processes(events, os.getpid(), self._processes)
        faults += [f"other load: {other}" for other in others]
        unchecked = reading.unchecked
        if self.source == SENSOR and SECOND_SENSOR not in unchecked:
            unchecked = (*unchecked, SECOND_SENSOR)
        return replace(reading, faults=tuple(faults), unchecked=unchecked)


# ---------------------------------------------------------------------------------------------
# Make and detect


def make_nvml(request: MeterRequest) -> NvmlMeter:
    """Return the meter of ``nvml`` (the GPU that runs the load) or ``nvml:1`` (NVML's index)."""
    argument, on = request.argument, request.on
    if argument and not _GPU.fullmatch(argument):
        raise InputError(f"nvml:{argument} is not a GPU: give its index or UUID, like nvml:0")
    # cuda:1 may not be NVML's GPU 1: guessing would measure the wrong GPU.
    if request.is_gpu and request.gpu is None and not argument:
        raise InputError(
            f"the meter needs to know which GPU is {on}: give gpu=devices.find_gpu({on!r}), or "
            "nvml:INDEX"
        )
    with open_nvml() as nvml:
        gpu = Gpu(nvml, argument or request.gpu or "0")
        return NvmlMeter(gpu.uuid, gpu.limit_w())


def find_uuid(gpu: str) -> str:
    """Return the UUID of a GPU that is given by its index or UUID."""
    with open_nvml() as nvml:
        return Gpu(nvml, gpu).uuid


def detect_nvml() -> tuple[MeterInfo, ...]:
    """Return one row per GPU."""
    with open_nvml() as nvml:
        rows = tuple(_describe_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    if not rows:
        advice = "check that nvidia-smi lists it, or use another meter"
        raise UnavailableError("NVML lists no GPU", advice)
    return rows


def _describe_gpu(nvml: object, index: int) -> MeterInfo:
    name = f"nvml:{index}"
    try:
        gpu = Gpu(nvml, str(index))
    except UnavailableError as error:
        return explain_missing(name, NvmlMeter.covers, error)
    how = "energy counter" if gpu.has_counter else "no energy counter: power is integrated"
    meter = NvmlMeter(str(index))
    meter.name = name
    resolution_j = _RESOLUTION_J if gpu.has_counter else None
    return meter.to_info(f"{gpu.name}, {how}", resolution_j, gpu.sensor_w())


# ---------------------------------------------------------------------------------------------
# NVML

T = TypeVar("T")


class Gpu:
    """One GPU, read through NVML."""

    def __init__(self, nvml: Any, gpu: str) -> None:
        self._nvml = nvml
        try:
            self._handle: Any = (
                nvml.nvmlDeviceGetHandleByIndex(int(gpu))
                if gpu.isdigit()
                # Bytes, because bindings from before 2022 take no text.
                else nvml.nvmlDeviceGetHandleByUUID(gpu.encode())
            )
        except nvml.NVMLError as error:
            reason = f"NVML has no GPU {gpu} ({error})"
            raise UnavailableError(reason, "`joulecast detect` lists all GPUs") from error

    @property
    def name(self) -> str:
        """The product name."""
        return decode_name(self._try(self._nvml.nvmlDeviceGetName, "NVIDIA GPU"))

    @property
    def uuid(self) -> str:
        """The UUID, which identifies the GPU whatever its index."""
        return decode_name(self._nvml.nvmlDeviceGetUUID(self._handle))

    @property
    def has_counter(self) -> bool:
        """Whether it has an energy counter; GPUs before Volta do not."""
        return self._try(self._nvml.nvmlDeviceGetTotalEnergyConsumption, None) is not None

    def energy_j(self) -> float:
        """Return the energy since the driver was loaded."""
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3

    def power_w(self) -> float:
        """Return the current power, as the driver averages it."""
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1e3

    def sensor_w(self) -> float | None:
        """Return the current power; None if it cannot be read."""
        power_mw = self._try(self._nvml.nvmlDeviceGetPowerUsage, None)
        return None if power_mw is None else power_mw / 1e3

    def limit_w(self) -> float | None:
        """Return the power limit that is in force; None if it cannot be read."""
        return self._try(self._nvml.nvmlDeviceGetEnforcedPowerLimit, 0) / 1e3 or None

    def read_state(self) -> tuple[int, float | None, float | None, float | None]:
        """Return throttle bits, sensor, limit and busy share of an edge; 0 or None if unknown."""
        # Drivers from before 2023 know the call only by its older name.
        older: Callable[[Any], int] = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        newer = getattr(self._nvml, "nvmlDeviceGetCurrentClocksEventReasons", older)
        bits = self._try(newer, None)
        # A GPU split into slices does not tell how busy it is.
        rates: Any = self._try(self._nvml.nvmlDeviceGetUtilizationRates, None)
        return (
            int(self._try(older, 0) if bits is None else bits),
            self.sensor_w(),
            self.limit_w(),
            None if rates is None else rates.gpu / 100,
        )

    def pids(self) -> tuple[int, ...] | None:
        """Return the processes with a compute context; None if they cannot be listed."""
        running = self._try(self._nvml.nvmlDeviceGetComputeRunningProcesses, None)
        return None if running is None else tuple(sorted(process.pid for process in running))

    def _try(self, call: Callable[[Any], T], otherwise: T) -> T:
        try:
            return call(self._handle)
        except self._nvml.NVMLError:
            return otherwise


def find_other_processes(edges: Sequence[Edge], own: int, processes: Path) -> list[str]:
    """Describe processes on the GPU that are neither this one nor its descendants.

    In a container NVML may list process ids of the host. If none of them is ours, they cannot be
    compared, and the list is ignored.
    """

    def is_ours(pid: int) -> bool:
        seen: set[int] = set()
        while pid > 0 and pid not in seen:
            if pid == own:
                return True
            seen.add(pid)
            try:
                stat = (processes / str(pid) / "stat").read_text(errors="replace")
                # pid (name) state parent …; the name may contain spaces and brackets.
                pid = int(stat.rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                return False
        return False

    def describe(pid: int) -> str:
        try:
            name = (processes / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return f"pid {pid}"
        return f"pid {pid} ({name})"

    pids = {pid for edge in edges for pid in edge.pids or ()}
    ours = set(filter(is_ours, pids))
    return [describe(pid) for pid in sorted(pids - ours)] if ours else []


# ---------------------------------------------------------------------------------------------
# Energy of a window, and what is wrong with it

MIN_EDGES = 3
# The time of an edge must be known this well to compute power from it.
PRECISE_S = 0.015
# A counter without an update for this many intervals is stuck, or updates were missed.
GAP_PERIODS = 5.0

# Reasons for lowered clocks that make a measurement invalid. The software power cap is not among
# them: a large GPU at its power limit works as designed.
THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}

LIMIT_FACTOR = 1.25
RISE_FACTOR = 2.0
SENSOR_FACTOR = 2.0
# In a short window, beyond what the average over a longer time explains.
LAG_FACTOR = 1.5
# Over which time the sensor may average.
SENSOR_S = 1.0
# A limit that changed by less is the same one.
SAME_LIMIT_SHARE = 0.05
_MIN_SAMPLES = 3
# Below, the sensor shows more of what was before the window than of the window.
_MIN_SHARE = 0.3


def read_edges(
    edges: Sequence[Edge], start_s: float, end_s: float, update_interval_s: float
) -> Reading:
    """Return the energy of a window from the edges strictly inside it, with their faults."""
    inside = [e for e in edges if start_s < e.time_s - e.late_s and e.time_s < end_s]
    precise = [e for e in inside if e.late_s <= PRECISE_S]
    duration_s, power_w = end_s - start_s, 0.0
    if len(precise) > 1:
        rise_j = precise[-1].energy_j - precise[0].energy_j
        power_w = max(rise_j, 0.0) / (precise[-1].estimated_s - precise[0].estimated_s)
    limit_w = max((e.limit_w for e in inside if e.limit_w is not None), default=None)
    busy_share = min((e.busy_share for e in inside if e.busy_share is not None), default=None)
    found = chain(
        _check_updates(inside, len(precise), (start_s, end_s), update_interval_s),
        () if limit_w is None else _check_limit(inside, power_w, limit_w),
        _check_sensor(inside, start_s, power_w, limit_w) if power_w > 0 else (),
    )
    bits = reduce(int.__or__, (e.throttle_bits for e in inside), 0)
    throttled = (f"throttled: {name}" for bit, name in THROTTLES.items() if bits & bit)
    known = {
        OTHER_LOAD: busy_share is not None,
        POWER_LIMIT: limit_w is not None,
        SECOND_SENSOR: any(e.sensor_w is not None for e in inside),
    }
    unchecked = tuple(check for check, is_known in known.items() if not is_known)
    return Reading(power_w * duration_s, duration_s, (*found, *throttled), busy_share, unchecked)


def _check_updates(
    inside: Sequence[Edge], precise: int, window_s: tuple[float, float], update_interval_s: float
) -> Iterator[str]:
    """Yield a counter that fell, or did not update for too long, or too few updates."""
    falls = [(a.energy_j, b.energy_j) for a, b in pairwise(inside) if b.energy_j < a.energy_j]
    yield from (f"reset: the counter fell from {a} to {b} J" for a, b in falls[:1])
    times = [edge.time_s for edge in inside]
    steps = [after - before for before, after in pairwise(times)]
    limit_s = GAP_PERIODS * max([update_interval_s, *([median(steps)] if steps else [])])
    first_s, last_s = (times[0], times[-1]) if times else (window_s[1], window_s[0])
    rest_s = max(first_s - window_s[0], window_s[1] - last_s)
    widest_s = max(steps, default=0.0)
    if rest_s > limit_s:
        yield f"stuck: the counter did not change for {rest_s:.3g} s"
    if widest_s > limit_s:
        yield f"gap: {widest_s:.3g} s between two updates of the counter"
    if precise < MIN_EDGES and max(rest_s, widest_s) <= limit_s:
        yield f"too short: {precise} clear updates in {window_s[1] - window_s[0]:.3g} s"


def _check_limit(edges: Sequence[Edge], power_w: float, limit_w: float) -> Iterator[str]:
    above = f"although the power limit is {limit_w:.0f} W"
    if power_w > LIMIT_FACTOR * limit_w:
        yield f"implausible: {power_w:.0f} W, {above}"
        return
    for before, after in pairwise(edges):
        # The longest that it can have taken: an edge may have happened before it was seen.
        passed_s = after.time_s - before.time_s + before.late_s
        rise_j = after.energy_j - before.energy_j
        if rise_j > RISE_FACTOR * limit_w * passed_s:
            yield f"implausible: the counter rose by {rise_j:.3g} J in {passed_s:.2g} s, {above}"
            return


def _check_sensor(
    edges: Sequence[Edge], start_s: float, power_w: float, limit_w: float | None
) -> Iterator[str]:
    """Compare with the sensor, whose first samples also average over what was before the window."""
    samples = [
        (min((edge.time_s - start_s) / SENSOR_S, 1.0), edge.sensor_w)
        for edge in edges
        if edge.sensor_w is not None
    ]
    settled = [sample for sample in samples if sample[0] == 1.0]
    used = settled if len(settled) >= _MIN_SAMPLES else samples[-_MIN_SAMPLES:]
    if len(used) < _MIN_SAMPLES:
        return
    share, sensor_w = (fmean(values) for values in zip(*used, strict=True))
    if share < _MIN_SHARE:
        return
    # The rest averages over a time before the window, with any power from none to the limit.
    before_w = float("inf") if limit_w is None else LIMIT_FACTOR * limit_w
    lowest_w = sensor_w if share == 1.0 else (sensor_w - (1 - share) * before_w) / share
    highest_w = sensor_w / share
    above = max(SENSOR_FACTOR * sensor_w, LAG_FACTOR * highest_w)
    below = min(sensor_w / SENSOR_FACTOR, lowest_w / LAG_FACTOR)
    if not below <= power_w <= above:
        yield f"implausible: {power_w:.0f} W by the counter, {sensor_w:.0f} W by the power sensor"


# ---------------------------------------------------------------------------------------------
# In the poller's process

# Listing processes is slow, so do it rarely, and right after an edge, when no edge can be missed.
LIST_S = 0.5


class GpuSource:
    """The energy counter of a GPU, which updates every 100 ms, or the integral of its power."""

    def __init__(self, gpu: Gpu, now: Callable[[], float] = time.monotonic) -> None:
        self._gpu = gpu
        self._now = now
        self.has_counter = gpu.has_counter
        self.name = "counter" if self.has_counter else SENSOR
        self.poll_s = 0.001 if self.has_counter else 0.02
        self.update_interval_s = _PERIOD_S if self.has_counter else self.poll_s
        self._polled_s, self._energy_j, self._power_w = now(), 0.0, 0.0
        self._listed_s = self._polled_s - LIST_S
        self._read()

    def poll(self) -> Edge | None:
        """Return an update of the energy since the last poll, if there was one."""
        before_s, before_j = self._polled_s, self._energy_j
        self._read()
        if self._energy_j == before_j:
            return None
        late_s = self._polled_s - before_s if self.has_counter else 0.0
        pids = None
        if self._polled_s - self._listed_s >= LIST_S:
            pids, self._listed_s = self._gpu.pids(), self._polled_s
        return Edge(self._polled_s, self._energy_j, late_s, *self._gpu.read_state(), pids)

    def _read(self) -> None:
        """Read the counter, or add the energy since the last poll, with power linear between."""
        if self.has_counter:
            self._energy_j, self._polled_s = self._gpu.energy_j(), self._now()
            return
        before_s, before_w = self._polled_s, self._power_w
        self._polled_s, self._power_w = self._now(), self._gpu.power_w()
        self._energy_j += (self._polled_s - before_s) * (self._power_w + before_w) / 2


@contextmanager
def open_gpu(gpu: str) -> Iterator[GpuSource]:
    """Poll a GPU by its index or UUID."""
    with open_nvml() as nvml:
        yield GpuSource(Gpu(nvml, gpu))


if __name__ == "__main__":
    sys.exit(run_poller(open_gpu, sys.argv[1]))
