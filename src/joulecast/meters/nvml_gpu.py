"""Read a GPU through NVML, in SI units and with Joulecast's errors.

A GPU is named ``"0"`` (NVML's index) or ``"GPU-…"`` (its UUID). pynvml is imported only here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from joulecast.errors import MeasurementError
from joulecast.meters.base import UnavailableError

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
