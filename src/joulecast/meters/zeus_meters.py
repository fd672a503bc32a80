"""Measure AMD GPUs and Apple processors with Zeus, whose readings come in mJ and mW.

    amd, amd:1        an AMD GPU: the one that runs the load, or one by HIP's index
    apple             an Apple processor: its cores, GPU, neural engine and memory

Zeus is installed by ``joulecast[zeus]`` and imported when one of its meters is made. It also reads
NVIDIA GPUs and the processors of other makers, for ``cross_check``: Joulecast's own meters for them
check more, and need nothing to be installed.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from joulecast.meters.base import MeterInfo, MeterRequest, UnavailableError, explain_missing
from joulecast.meters.sampling import SampledMeter
from joulecast.system.errors import InputError, MeasurementError, arg

_INSTALL = "run: pip install 'joulecast[zeus]'"
_CHECK = "run python -m zeus.show_env, which lists what it finds"
_WINDOW_S = 2.0
# Zeus does not say how often counters update. A tenth of a second is that of NVIDIA's.
_INTERVAL_S = 0.1
_RESOLUTION_J = 0.001
# What an Apple processor counts; clusters and single cores are parts of cpu_total_mj.
_APPLE_PARTS = {
    "cpu": ("cpu_total_mj",),
    "gpu": ("gpu_mj", "gpu_sram_mj"),
    "dram": ("dram_mj",),
    "ane": ("ane_mj",),
}


class ZeusMeter(SampledMeter):
    """An energy counter (J) that Zeus reads, or a power (W) that is polled and integrated."""

    window_s = _WINDOW_S
    update_interval_s = _INTERVAL_S

    def __init__(
        self,
        name: str,
        covers: str,
        instrument: str,
        unit: str,
        read_milli: Callable[[], float],  # returns mJ or mW
    ) -> None:
        self.name = name
        self.covers = covers
        self.instrument = instrument
        self.unit = unit
        self.tick_s = _INTERVAL_S if unit == "W" else 0.0
        self._read_milli = read_milli

    def _read(self) -> float:
        try:
            return self._read_milli() / 1e3
        except Exception as error:
            # Of Zeus, or of a vendor's library.
            raise MeasurementError(
                f"Zeus can no longer read {self.name} ({error}): {_CHECK}"
            ) from error


# ---------------------------------------------------------------------------------------------
# What Zeus reads


def open_amd(index: int) -> ZeusMeter:
    """Return the counter of an AMD GPU, or its power where Zeus found the counter to be wrong.

    The index is HIP's, which is that of ``cuda:1`` in PyTorch.
    """
    gpus = _list_amd_gpus()
    if index >= len(gpus.gpus):
        raise UnavailableError(
            f"there is no AMD GPU {index}", f"choose from 0 to {len(gpus.gpus) - 1}"
        )
    unit, read = "J", gpus.get_total_energy_consumption
    if not gpus.supports_get_total_energy_consumption(index):
        unit, read = "W", _find_amd_power(gpus, index)
    return ZeusMeter("amd", "gpu", f"amd {index}", unit, lambda: read(index))


def open_apple() -> ZeusMeter:
    """Return the counters of an Apple processor, added up."""
    if platform.system() != "Darwin":
        raise UnavailableError("this machine is not a Mac", "use another meter")
    apple = _import_zeus("zeus.device.soc.apple")
    if not apple.apple_silicon_is_available():
        raise UnavailableError("Zeus finds no Apple processor", f"on a Mac with one, {_INSTALL}")
    with _explain_opening("the counters of the Apple processor"):
        monitor = apple.AppleSilicon()
        available = monitor.get_available_metrics()
    parts = {part: available & set(names) for part, names in _APPLE_PARTS.items()}
    covers = "+".join(part for part, names in parts.items() if names)

    def read_mj() -> float:
        counts = monitor.get_total_energy_consumption()
        return float(sum(getattr(counts, name) for names in parts.values() for name in names))

    return ZeusMeter("apple", covers, "apple", "J", read_mj)


def open_nvidia(index: int) -> ZeusMeter:
    """Return the counter of an NVIDIA GPU by NVML's index."""
    nvidia = _import_zeus("zeus.device.gpu.nvidia")
    with _explain_opening("NVIDIA GPUs"):
        gpus = nvidia.NVIDIAGPUs()
    # Zeus numbers the GPUs that CUDA_VISIBLE_DEVICES shows.
    indices = [gpu.gpu_index for gpu in gpus.gpus]
    if index not in indices:
        raise UnavailableError(
            f"Zeus does not see GPU {index}", "check CUDA_VISIBLE_DEVICES, which hides it"
        )
    number = indices.index(index)
    read_mj = gpus.get_total_energy_consumption
    return ZeusMeter(f"nvml:{index}", "gpu", f"nvidia {index}", "J", lambda: read_mj(number))


def open_rapl() -> ZeusMeter:
    """Return the counters of all processors and of their memory."""
    rapl = _import_zeus("zeus.device.cpu.rapl")
    with _explain_opening("RAPL counters"):
        # Zeus lists the board (psys), which includes the processors, as one more of them.
        cpus = [cpu for cpu in rapl.RAPLCPUs().cpus if _is_package(cpu)]
    has_memory = any(cpu.supports_get_dram_energy_consumption() for cpu in cpus)

    def read_mj() -> float:
        counts = [cpu.get_total_energy_consumption() for cpu in cpus]
        return float(sum(count.cpu_mj + (count.dram_mj or 0.0) for count in counts))

    return ZeusMeter("rapl", "cpu+dram" if has_memory else "cpu", "rapl", "J", read_mj)


def _is_package(cpu: Any) -> bool:
    # A processor that Zeus's daemon reads has no file.
    file = getattr(cpu, "rapl_file", None)
    return file is None or file.name.startswith("package")


def _list_amd_gpus() -> Any:
    amd = _import_zeus("zeus.device.gpu.amd")
    if not amd.amdsmi_is_available():
        raise UnavailableError(
            "no AMD GPU responds", "install ROCm 6.2 or later and check that amd-smi works"
        )
    with _explain_opening("AMD GPUs"):
        gpus = amd.AMDGPUs()
    if not gpus.gpus:
        raise UnavailableError("ROCm lists no GPU", "check that amd-smi works")
    return gpus


def _find_amd_power(gpus: Any, index: int) -> Callable[[int], int]:
    """Return the function that reads the power of a GPU in mW."""
    from zeus.device.gpu.common import ZeusGPUNotSupportedError

    for read in (gpus.get_average_power_usage, gpus.get_instant_power_usage):
        try:
            read(index)
        except ZeusGPUNotSupportedError as error:
            reason = str(error).splitlines()[0]
        else:
            found: Callable[[int], int] = read
            return found
    raise UnavailableError(reason, "use another GPU or meter")


def _import_zeus(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UnavailableError(f"Zeus cannot be imported ({error})", _INSTALL) from error


@contextmanager
def _explain_opening(what: str) -> Iterator[None]:
    """Turn errors of Zeus and of a vendor's library into UnavailableError."""
    try:
        yield
    except Exception as error:
        raise UnavailableError(f"Zeus cannot read {what} ({error})", _CHECK) from error


# ---------------------------------------------------------------------------------------------
# Make and detect


def make_amd(request: MeterRequest) -> ZeusMeter:
    """Return the meter of ``amd`` (the GPU that runs the load) or ``amd:1`` (HIP's index)."""
    argument, on = request.argument, request.on
    if argument and not argument.isdigit():
        raise InputError(f"amd:{argument} is not a GPU: give its index, like amd:0")
    loaded = int(on.partition(":")[2] or 0) if request.is_gpu else None
    index = int(argument or loaded or 0)
    if loaded not in (None, index):
        raise InputError(
            f"{arg('meter', f'amd:{argument}')} does not read the GPU behind {arg('on', on)}: give "
            f"{arg('meter', 'amd')}"
        )
    return open_amd(index)


def make_apple(request: MeterRequest) -> ZeusMeter:
    """Return the meter of ``apple``."""
    return open_apple()


def detect_amd() -> tuple[MeterInfo, ...]:
    """Return one row per AMD GPU."""
    gpus = _list_amd_gpus()
    return tuple(_describe_amd(gpus, index) for index in range(len(gpus.gpus)))


def _describe_amd(gpus: Any, index: int) -> MeterInfo:
    has_counter = gpus.supports_get_total_energy_consumption(index)
    how = "energy counter" if has_counter else "no reliable energy counter: power is integrated"
    try:
        power_w = _find_amd_power(gpus, index)(index) / 1e3
    except UnavailableError as error:
        if not has_counter:
            return explain_missing(f"amd:{index}", "gpu", error)
        power_w = None
    meter = ZeusMeter(f"amd:{index}", "gpu", f"amd {index}", "", lambda: 0.0)
    resolution_j = _RESOLUTION_J if has_counter else None
    return meter.to_info(f"{gpus.get_name(index)}, {how}", resolution_j, power_w)


def detect_apple() -> tuple[MeterInfo, ...]:
    """Return the processor of a Mac."""
    meter = open_apple()
    return (meter.to_info(f"counters of {meter.covers}", _RESOLUTION_J),)
