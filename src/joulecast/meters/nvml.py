"""Measure NVIDIA GPUs with their energy counter.

    t0 = begin() ──── load ──── t1 = end() ──▶ wait until the poller has reported up to t1
                                               ──▶ edges inside (t0, t1) ──▶ power ──▶ joules

Readings cover the whole board. ``nvml_poller`` polls the counter in its own process,
``pollers`` collects its edges, ``nvml_edges`` converts them to energy, and ``nvml_checks``
finds what cannot be true. This module adds which other programs used the GPU, and whether its power
limit was changed. ``devices.find_gpu`` knows which GPU is ``cuda:1``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from joulecast.errors import InputError, MeasurementError
from joulecast.meters.base import SECOND_SENSOR, MeterInfo, Reading, UnavailableError
from joulecast.meters.guarded import GuardedMeter
from joulecast.meters.nvml_checks import find_changed_limit, find_limit
from joulecast.meters.nvml_edges import Edge, parse_edge, read_edges
from joulecast.meters.nvml_gpu import Gpu, open_nvml
from joulecast.meters.pollers import Listener, Poller, PollerProcess

_PERIOD_S = 0.1
_RESOLUTION_J = 0.001
_GPU = re.compile("[0-9]{1,4}|GPU-.+")
_CHECK_GPU = "check that nvidia-smi works, then try again"
_NO_GPU = "check that nvidia-smi lists it, or use another meter"


def start_nvml_poller(gpu: str) -> PollerProcess:
    """Start the poller of a GPU."""
    return PollerProcess("joulecast.meters.nvml_poller", gpu)


class NvmlMeter(GuardedMeter):
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
        limit_s: float = 10.0,
        processes: Path = Path("/proc"),
        limit_w: float | None = None,
    ) -> None:
        """Make the meter.

        Args:
            gpu: NVML's index of the GPU, or its UUID.
            now: The clock of the poller's edges.
            start: Starts a poller.
            limit_s: Longest time without a line from the poller.
            processes: Folder in which Linux describes processes.
            limit_w: The power limit of the GPU; that of the first window by default.
        """
        self.gpu = self.instrument = gpu
        self.edges: tuple[Edge, ...] = ()
        self._now = now
        self._start_poller = start
        self._limit_s = limit_s
        self._processes = processes
        self._limit_w = limit_w
        self._listener: Listener[Edge] | None = None
        self._begun_s = 0.0

    def _connect(self) -> None:
        poller = self._start_poller(self.gpu)
        self._listener = Listener(poller, parse_edge, "NVML poller", _CHECK_GPU)
        try:
            self.update_interval_s = self._listener.wait_ready(self._limit_s)
        except UnavailableError:
            self._release()
            raise

    def _release(self) -> None:
        if self._listener is not None:
            self._listener.stop()
            self._listener = None

    def _start(self) -> None:
        self._get_listener().record()
        self._begun_s = self._now()

    def _stop(self) -> Reading:
        end_s = self._now()
        self.edges = self._get_listener().take(end_s, self._limit_s)
        reading = read_edges(self.edges, self._begun_s, end_s, self.update_interval_s)
        others = find_other_processes(self.edges, os.getpid(), self._processes)
        faults = [*reading.faults, *self._find_changed_limit()]
        faults.extend(f"other load: {other}" for other in others)
        unchecked = reading.unchecked
        if self._get_listener().source == "sensor" and SECOND_SENSOR not in unchecked:
            unchecked = (*unchecked, SECOND_SENSOR)
        return replace(reading, faults=tuple(faults), unchecked=unchecked)

    def _find_changed_limit(self) -> list[str]:
        # Read in every window: a campaign takes hours, and its device is known by its limit.
        if self._limit_w is None:
            self._limit_w = find_limit(self.edges)
        return [] if self._limit_w is None else find_changed_limit(self.edges, self._limit_w)

    def _get_listener(self) -> Listener[Edge]:
        assert self._listener is not None, "only called on an open meter"
        return self._listener


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
    return [_describe(pid, processes) for pid in sorted(pids - ours)] if ours else []


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


def _describe(pid: int, processes: Path) -> str:
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
