"""Measure NVIDIA GPUs with their energy counter, which covers the whole board.

        counter            ┌───┐
                       ┌───┘   └ …        the counter updates every 100 ms and is constant between;
                   ┌───┘                  only the time of an edge (an update) is known well
        ────────┬──┴───┴───┴──┬──────
                t0  first…last t1         power = (last - first) / (time between them)

Energy is power x (t1 - t0): reading the counter at t0 and t1 would be wrong by up to one update
interval at each end. An edge that the poller saw late, because it was not scheduled, may have
happened at any time since the poll before; power is not computed from it.

``nvml_poller`` polls the counter in a separate process and ``pollers`` collects its edges. These
checks find edges that cannot be true:

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
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, TypeVar

from joulecast.meters.base import (
    OTHER_LOAD,
    POWER_LIMIT,
    SECOND_SENSOR,
    MeterInfo,
    Reading,
    UnavailableError,
)
from joulecast.meters.pollers import Listener, PolledMeter, Poller, PollerProcess
from joulecast.system.errors import InputError, MeasurementError

_PERIOD_S = 0.1
_RESOLUTION_J = 0.001
_GPU = re.compile("[0-9]{1,4}|GPU-.+")
_CHECK_GPU = "check that nvidia-smi works, then try again"
_NO_GPU = "check that nvidia-smi lists it, or use another meter"


def start_nvml_poller(gpu: str) -> PollerProcess:
    """Start the poller of a GPU."""
    return PollerProcess("joulecast.meters.nvml_poller", gpu)


class NvmlMeter(PolledMeter["Edge"]):
    """The energy counter of one NVIDIA GPU, polled by a separate process."""

    name = "nvml"
    covers = "gpu"
    window_s = 0.6
    update_interval_s = _PERIOD_S

    def __init__(
        self,
        gpu: str = "0",
        now: Callable[[], float] = time.monotonic,
        start: Callable[[str], Poller] = start_nvml_poller,
        limit_s: float = 10.0,  # longest time without a line from the poller
        processes: Path = Path("/proc"),
        limit_w: float | None = None,  # that of the first window by default
    ) -> None:
        super().__init__(
            gpu,
            now,
            start,
            lambda poller: Listener(poller, parse_edge, "NVML poller", _CHECK_GPU),
            limit_s,
        )
        self.edges: tuple[Edge, ...] = ()
        self._processes = processes
        self._limit_w = limit_w

    def _read_events(self, events: tuple[Edge, ...], end_s: float, source: str) -> Reading:
        self.edges = events
        reading = read_edges(events, self._begun_s, end_s, self.update_interval_s)
        # Read in every window: a campaign takes hours, and its device is known by its limit.
        if self._limit_w is None:
            self._limit_w = find_limit(events)
        faults = list(reading.faults)
        if self._limit_w is not None:
            faults += find_changed_limit(events, self._limit_w)
        others = find_other_processes(events, os.getpid(), self._processes)
        faults += [f"other load: {other}" for other in others]
        unchecked = reading.unchecked
        if source == "sensor" and SECOND_SENSOR not in unchecked:
            unchecked = (*unchecked, SECOND_SENSOR)
        return replace(reading, faults=tuple(faults), unchecked=unchecked)


# ---------------------------------------------------------------------------------------------
# Other programs on the GPU


def find_other_processes(edges: tuple[Edge, ...], own: int, processes: Path) -> list[str]:
    """Describe processes on the GPU that are neither this one nor its descendants.

    In a container NVML may list process ids of the host. If none of them is ours, they cannot be
    compared, and the list is ignored.
    """
    pids: set[int] = set()
    for edge in edges:
        pids.update(edge.pids or ())
    ours = {pid for pid in pids if _is_descendant(pid, own, processes)}
    return [_describe_process(pid, processes) for pid in sorted(pids - ours)] if ours else []


def _is_descendant(pid: int, ancestor: int, processes: Path) -> bool:
    seen: set[int] = set()
    while pid > 0 and pid not in seen:
        if pid == ancestor:
            return True
        seen.add(pid)
        pid = _find_parent(pid, processes)
    return False


def _find_parent(pid: int, processes: Path) -> int:
    """Return the parent's pid; 0 if it is unknown."""
    try:
        stat = (processes / str(pid) / "stat").read_text(errors="replace")
        # pid (name) state parent …; the name may contain spaces and brackets.
        return int(stat.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _describe_process(pid: int, processes: Path) -> str:
    try:
        return f"pid {pid} ({(processes / str(pid) / 'comm').read_text(errors='replace').strip()})"
    except OSError:
        return f"pid {pid}"


# ---------------------------------------------------------------------------------------------
# Make and detect


def make_nvml(argument: str, gpu: str | None) -> NvmlMeter:
    """Return the meter of ``nvml`` (the GPU that runs the load) or ``nvml:1`` (NVML's index)."""
    if argument and not _GPU.fullmatch(argument):
        raise InputError(f"nvml:{argument} is not a GPU: give its index or UUID, like nvml:0")
    with open_nvml() as nvml:
        opened = Gpu(nvml, argument or gpu or "0")
        return NvmlMeter(opened.uuid, limit_w=opened.limit_w())


def find_uuid(gpu: str) -> str:
    """Return the UUID of a GPU that is given by its index or UUID."""
    with open_nvml() as nvml:
        return Gpu(nvml, gpu).uuid


def detect_nvml() -> tuple[MeterInfo, ...]:
    """Return one row per GPU, or one that says why there is none."""
    try:
        with open_nvml() as nvml:
            rows = tuple(_describe_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        if not rows:
            raise UnavailableError("NVML lists no GPU", _NO_GPU)
    except UnavailableError as error:
        return (error.to_info(NvmlMeter.name, NvmlMeter.covers),)
    except MeasurementError as error:
        failed = UnavailableError(str(error), _NO_GPU)
        return (failed.to_info(NvmlMeter.name, NvmlMeter.covers),)
    return rows


def _describe_gpu(nvml: object, index: int) -> MeterInfo:
    name = f"nvml:{index}"
    try:
        gpu = Gpu(nvml, str(index))
    except UnavailableError as error:
        return error.to_info(name, NvmlMeter.covers)
    how = "energy counter" if gpu.has_counter else "no energy counter: power is integrated"
    return MeterInfo(
        name,
        True,
        f"{gpu.name}, {how}",
        covers=NvmlMeter.covers,
        update_interval_s=_PERIOD_S,
        resolution_j=_RESOLUTION_J if gpu.has_counter else None,
        idle_power_w=gpu.sensor_power_w(),
    )


T = TypeVar("T")

_CHECK_DRIVER = "install the NVIDIA driver and check that nvidia-smi works, or use another meter"


@contextmanager
def open_nvml() -> Iterator[Any]:
    """Yield the initialised pynvml module."""
    try:
        import pynvml
    except ImportError as error:
        reason = "the package nvidia-ml-py is not installed"
        raise UnavailableError(reason, "run: pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnavailableError(f"NVML cannot be initialised ({error})", _CHECK_DRIVER) from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise MeasurementError(f"NVML failed ({error}): check nvidia-smi") from error
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class Gpu:
    """One GPU, read through NVML."""

    def __init__(self, nvml: Any, gpu: str) -> None:
        self._nvml = nvml
        find = nvml.nvmlDeviceGetHandleByUUID
        if gpu.isdigit():
            find = nvml.nvmlDeviceGetHandleByIndex
        try:
            self._handle: Any = find(int(gpu) if gpu.isdigit() else gpu)
        except nvml.NVMLError as error:
            reason = f"NVML has no GPU {gpu} ({error})"
            raise UnavailableError(reason, "`joulecast detect` lists all GPUs") from error

    @property
    def name(self) -> str:
        """The product name."""
        name: Any = self._try(self._nvml.nvmlDeviceGetName, "NVIDIA GPU")
        # Bindings from before 2022 return bytes.
        return name.decode() if isinstance(name, bytes) else str(name)

    @property
    def uuid(self) -> str:
        """The UUID, which identifies the GPU whatever its index."""
        uuid: Any = self._nvml.nvmlDeviceGetUUID(self._handle)
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)

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

    def sensor_power_w(self) -> float | None:
        """Return the current power; None if it cannot be read."""
        return _from_milli(self._try(self._nvml.nvmlDeviceGetPowerUsage, None))

    def limit_w(self) -> float | None:
        """Return the power limit that is in force; None if it cannot be read."""
        return _from_milli(self._try(self._nvml.nvmlDeviceGetEnforcedPowerLimit, None)) or None

    def busy_share(self) -> float | None:
        """Return in which share of up to a second kernels ran; None on a GPU split into slices."""
        rates: Any = self._try(self._nvml.nvmlDeviceGetUtilizationRates, None)
        return None if rates is None else rates.gpu / 100

    def temperature_c(self) -> float:
        """Return the temperature of the GPU; 0 if it cannot be read."""
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        return float(self._try(self._nvml.nvmlDeviceGetTemperature, 0, sensor))

    def clock_hz(self) -> float:
        """Return the clock of the multiprocessors; 0 if it cannot be read."""
        return 1e6 * self._try(self._nvml.nvmlDeviceGetClockInfo, 0, self._nvml.NVML_CLOCK_SM)

    def throttle_bits(self) -> int:
        """Return NVML's reasons for lowered clocks as bits; 0 if they cannot be read."""
        # Drivers from before 2023 know the call only by its older name.
        older: Callable[[Any], int] = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        newer = getattr(self._nvml, "nvmlDeviceGetCurrentClocksEventReasons", older)
        bits = self._try(newer, None)
        return int(self._try(older, 0) if bits is None else bits)

    def pids(self) -> tuple[int, ...] | None:
        """Return the processes with a compute context; None if they cannot be listed."""
        running = self._try(self._nvml.nvmlDeviceGetComputeRunningProcesses, None)
        return None if running is None else tuple(sorted(process.pid for process in running))

    def _try(self, call: Callable[..., T], otherwise: T, *args: Any) -> T:
        try:
            return call(self._handle, *args)
        except self._nvml.NVMLError:
            return otherwise


def _from_milli(value: int | None) -> float | None:
    return None if value is None else value / 1e3


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
    temperature_c: float = 0.0
    clock_hz: float = 0.0
    throttle_bits: int = 0
    sensor_w: float | None = None
    limit_w: float | None = None
    busy_share: float | None = None
    pids: tuple[int, ...] | None = None

    @property
    def estimated_s(self) -> float:
        """Estimated time of the update: halfway between the two polls around it."""
        return self.time_s - self.late_s / 2


def format_edge(edge: Edge) -> str:
    """Return an edge as one line of text, for ``parse_edge``."""
    pids = "-" if edge.pids is None else ",".join(map(str, edge.pids)) or "none"
    values = ("-" if value is None else repr(value) for value in edge[:-1])
    return " ".join(["edge", *values, pids])


def parse_edge(line: str) -> Edge:
    """Return the edge that ``format_edge`` wrote.

    Raises:
        ValueError: The line is not an edge.
    """
    word, time_s, energy_j, late_s, temperature_c, clock_hz, bits, *optional, pids = line.split()
    if word != "edge":
        raise ValueError(f"not an edge: {line!r}")
    sensor_w, limit_w, busy_share = map(_parse_optional, optional)
    listed = () if pids == "none" else tuple(map(int, pids.split(","))) if pids != "-" else None
    return Edge(
        float(time_s),
        float(energy_j),
        float(late_s),
        float(temperature_c),
        float(clock_hz),
        int(bits),
        sensor_w,
        limit_w,
        busy_share,
        listed,
    )


def _parse_optional(text: str) -> float | None:
    return None if text == "-" else float(text)


def read_edges(
    edges: Sequence[Edge], start_s: float, end_s: float, update_interval_s: float
) -> Reading:
    """Return the energy of a window from the edges strictly inside it, with their faults."""
    inside = [e for e in edges if start_s < e.time_s - e.late_s and e.time_s < end_s]
    precise = [e for e in inside if e.late_s <= PRECISE_S]
    duration_s = end_s - start_s
    power_w = _mean_power_w(precise)
    found = chain(
        _find_resets(inside),
        _find_gaps(inside, precise, (start_s, end_s), update_interval_s),
        find_implausible(inside, start_s, power_w),
        _find_throttles(inside),
    )
    return Reading(
        power_w * duration_s,
        duration_s,
        tuple(found),
        min((e.busy_share for e in inside if e.busy_share is not None), default=None),
        list_unchecked(inside),
    )


def _mean_power_w(edges: Sequence[Edge]) -> float:
    """Return the mean power between the first and the last edge; 0 for fewer than two."""
    if len(edges) < 2:
        return 0.0
    rise_j = edges[-1].energy_j - edges[0].energy_j
    return max(rise_j, 0.0) / (edges[-1].estimated_s - edges[0].estimated_s)


def _find_resets(edges: Sequence[Edge]) -> list[str]:
    falls = [(a, b) for a, b in pairwise(edges) if b.energy_j < a.energy_j]
    return [f"reset: the counter fell from {a.energy_j} to {b.energy_j} J" for a, b in falls[:1]]


def _find_gaps(
    inside: Sequence[Edge],
    precise: Sequence[Edge],
    window_s: tuple[float, float],
    update_interval_s: float,
) -> list[str]:
    """Report a counter that did not update for too long, or too few updates."""
    times = [edge.time_s for edge in inside]
    steps = [after - before for before, after in pairwise(times)]
    limit_s = GAP_PERIODS * max([update_interval_s, *([median(steps)] if steps else [])])
    first_s, last_s = (times[0], times[-1]) if times else (window_s[1], window_s[0])
    rest_s = max(first_s - window_s[0], window_s[1] - last_s)
    faults = []
    if rest_s > limit_s:
        faults.append(f"stuck: the counter did not change for {rest_s:.3g} s")
    if max(steps, default=0.0) > limit_s:
        faults.append(f"gap: {max(steps):.3g} s between two updates of the counter")
    if len(precise) < MIN_EDGES and not faults:
        duration_s = window_s[1] - window_s[0]
        faults.append(f"too short: {len(precise)} clear updates in {duration_s:.3g} s")
    return faults


def _find_throttles(edges: Sequence[Edge]) -> list[str]:
    bits = 0
    for edge in edges:
        bits |= edge.throttle_bits
    return [f"throttled: {name}" for bit, name in THROTTLES.items() if bits & bit]


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


def find_implausible(edges: Sequence[Edge], start_s: float, power_w: float) -> Iterator[str]:
    """Yield what contradicts the power of a window that began at ``start_s``."""
    limit_w = find_limit(edges)
    if limit_w is not None:
        yield from _check_limit(edges, power_w, limit_w)
    if power_w > 0:
        yield from _check_sensor(edges, start_s, power_w, limit_w)


def find_limit(edges: Sequence[Edge]) -> float | None:
    """Return the highest power limit that was in force; None if it is unknown."""
    return max((edge.limit_w for edge in edges if edge.limit_w is not None), default=None)


def find_changed_limit(edges: Sequence[Edge], before_w: float) -> list[str]:
    """Report a power limit that is no longer what it was when the device was detected."""
    limits_w = [edge.limit_w for edge in edges if edge.limit_w is not None]
    changed = [now for now in limits_w if abs(now - before_w) > SAME_LIMIT_SHARE * before_w]
    return [f"limit changed: {before_w:.0f} W before, {now:.0f} W now" for now in changed[-1:]]


def list_unchecked(edges: Sequence[Edge]) -> tuple[str, ...]:
    """Return the checks that edges without some values do not allow."""
    known = {
        OTHER_LOAD: any(edge.busy_share is not None for edge in edges),
        POWER_LIMIT: any(edge.limit_w is not None for edge in edges),
        SECOND_SENSOR: any(edge.sensor_w is not None for edge in edges),
    }
    return tuple(check for check, is_known in known.items() if not is_known)


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
