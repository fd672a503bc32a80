"""NVIDIA GPUs, through their energy counter.

    t0 = begin() ──── load ──── t1 = end() ──▶ wait until the poller has told everything up to t1
                                               ──▶ edges inside (t0, t1) ──▶ power ──▶ joules

Takes the GPU as NVML names it (an index or a uuid: which GPU ``cuda:1`` is, devices.py knows),
gives Readings of the whole board. nvml_poller.py watches, nvml_listener.py keeps what it tells,
nvml_edges.py turns it into joules; this file adds which other programs were on the GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from joulecast.errors import InputError, MeasurementError
from joulecast.meters.base import MeterInfo, Reading, UnavailableError
from joulecast.meters.guarded import GuardedMeter
from joulecast.meters.nvml_edges import Edge, read_edges
from joulecast.meters.nvml_gpu import Gpu, open_nvml
from joulecast.meters.nvml_listener import Listener, Poller, PollerProcess

_PERIOD_S = 0.1
_RESOLUTION_J = 0.001
_NO_GPU = "see that nvidia-smi lists it, or use another meter"


class NvmlMeter(GuardedMeter):
    """The energy counter of one NVIDIA GPU, polled by a process of its own."""

    name = "nvml"
    covers = "gpu"
    window_s = 0.6
    period_s = _PERIOD_S

    def __init__(
        self,
        gpu: str = "0",
        now: Callable[[], float] = time.monotonic,
        start: Callable[[str], Poller] = PollerProcess,
        limit_s: float = 10.0,
        processes: Path = Path("/proc"),
    ) -> None:
        """Make the meter.

        Args:
            gpu: NVML's index of the GPU, or its uuid.
            now: The clock, the one that the poller stamps its edges with.
            start: Starts a poller.
            limit_s: How long the poller may be silent.
            processes: Where the system tells who is whose parent.
        """
        self.gpu = gpu
        self.edges: tuple[Edge, ...] = ()
        self._now = now
        self._start_poller = start
        self._limit_s = limit_s
        self._processes = processes
        self._listener: Listener | None = None
        self._begun_s = 0.0

    def _connect(self) -> None:
        self._listener = Listener(self._start_poller(self.gpu))
        try:
            self.period_s = self._listener.wait_ready(self._limit_s)
        except UnavailableError:
            self._release()
            raise

    def _release(self) -> None:
        if self._listener is not None:
            self._listener.stop()
            self._listener = None

    def _start(self) -> None:
        self._listening().record()
        self._begun_s = self._now()

    def _stop(self) -> Reading:
        end_s = self._now()
        self.edges = self._listening().take(end_s, self._limit_s)
        reading = read_edges(self.edges, self._begun_s, end_s, self.period_s)
        others = find_others(self.edges, os.getpid(), self._processes)
        faults = tuple(f"other load: {other}" for other in others)
        return Reading(reading.energy_j, reading.duration_s, reading.faults + faults)

    def _listening(self) -> Listener:
        assert self._listener is not None, "guarded: only an open meter gets here"
        return self._listener


# ---------------------------------------------------------------------------------------------
# Other programs on the GPU


def find_others(edges: tuple[Edge, ...], own: int, processes: Path) -> list[str]:
    """Processes that shared the GPU and are neither ours nor our children, in words.

    In a container NVML may list the pids of the machine outside. So where none of the pids is ours,
    the list is not believed: it says nothing about who they are.
    """
    pids: set[int] = set()
    for edge in edges:
        pids.update(edge.pids or ())
    ours = {pid for pid in pids if _descends(pid, own, processes)}
    return [_describe(pid, processes) for pid in sorted(pids - ours)] if ours else []


def _descends(pid: int, ancestor: int, processes: Path) -> bool:
    seen: set[int] = set()
    while pid > 0 and pid not in seen:
        if pid == ancestor:
            return True
        seen.add(pid)
        pid = _parent_of(pid, processes)
    return False


def _parent_of(pid: int, processes: Path) -> int:
    """The parent's pid; 0 where it cannot be told."""
    try:
        stat = (processes / str(pid) / "stat").read_text(errors="replace")
        # pid (name) state parent …; the name may hold spaces and brackets of its own.
        return int(stat.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _describe(pid: int, processes: Path) -> str:
    try:
        return f"pid {pid} ({(processes / str(pid) / 'comm').read_text(errors='replace').strip()})"
    except OSError:
        return f"pid {pid}"


# ---------------------------------------------------------------------------------------------
# Asking for it


def make_nvml(argument: str, gpu: str | None) -> NvmlMeter:
    """The meter of ``nvml`` (the GPU that runs the load) or ``nvml:1`` (NVML's own index)."""
    if argument and not (argument.isdigit() or argument.startswith("GPU-")):
        raise InputError(f"nvml:{argument} names no GPU: give its index or uuid, like nvml:0")
    meter = NvmlMeter(argument or gpu or "0")
    with open_nvml() as nvml:
        Gpu(nvml, meter.gpu)
    return meter


def detect_nvml() -> tuple[MeterInfo, ...]:
    """One row for each GPU; one that says why where there is none."""
    try:
        with open_nvml() as nvml:
            rows = tuple(_inform(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        if not rows:
            raise UnavailableError("NVML sees no GPU", _NO_GPU)
    except UnavailableError as error:
        return (error.to_info(NvmlMeter.name, NvmlMeter.covers),)
    except MeasurementError as error:
        failed = UnavailableError(str(error), _NO_GPU)
        return (failed.to_info(NvmlMeter.name, NvmlMeter.covers),)
    return rows


def _inform(nvml: object, index: int) -> MeterInfo:
    name = f"nvml:{index}"
    try:
        gpu = Gpu(nvml, str(index))
    except UnavailableError as error:
        return error.to_info(name, NvmlMeter.covers)
    how = "energy counter" if gpu.has_counter else "no energy counter: power is added up"
    return MeterInfo(
        name,
        True,
        f"{gpu.name}, {how}",
        covers=NvmlMeter.covers,
        period_s=_PERIOD_S,
        resolution_j=_RESOLUTION_J if gpu.has_counter else None,
        idle_power_w=gpu.idle_power_w(),
    )
