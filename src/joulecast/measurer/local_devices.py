"""Open a measurer of a device of this machine: a runtime on the device, under a meter.

cpu, cuda:0      PyTorch on that device, under the requested meter
mnn:cpu          MNN on the processor, under the requested meter
onnx:cpu         ONNX Runtime on the processor, under the requested meter; inference only
simulated:7      a simulated device with its own meter and clock, drawn from a seed
NAME, NAME:...   a runtime that a plug-in adds under NAME
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from joulecast.devices.detect import find_gpu, parse_on
from joulecast.measurer.base import make_run
from joulecast.measurer.measurer import Measurer
from joulecast.measurer.windows import MeasureLimits
from joulecast.meters import Meter, make_meter
from joulecast.meters.base import MeasureClock
from joulecast.runtimes import find_hardware, is_simulated, open_runtime
from joulecast.system.errors import InputError, arg

if TYPE_CHECKING:
    from joulecast.simulation.runtime import SimulatedRuntime

NOT_LATER = (
    "--meter later records windows for `joulecast profile NET` and `joulecast measure NET` only: "
    "give a meter of `joulecast detect` that reads energy now"
)


def open_local_measurer(
    on: str,
    meter: str = "auto",
    *,
    rounds: int = 3,
    device_name: str = "",
    allows_later: bool = False,
    limits: MeasureLimits | None = None,
) -> Measurer:
    """Return a measurer; use it in a ``with`` statement.

    Args:
        on: ``cpu``, ``cuda:0``, ``mnn:cpu``, ``simulated:SEED``, or the name of a plug-in.
        meter: Name of a meter; a simulated device has its own.
        rounds: Valid windows per trial.
        device_name: Name to record for the device instead of the detected one.
        allows_later: Whether the caller stores observations whose energy comes later.
        limits: Warm-ups and windows; the usual ones by default.

    Raises:
        InputError: The device or meter does not exist, or several devices are given.
        MissingError: The device, the meter or the framework is not available.
    """
    runtime, clock = open_runtime(on, device_name), MeasureClock()
    if is_simulated(on):
        from joulecast.meters.file import LaterMeter
        from joulecast.meters.simulated import SimulatedMeter

        device = cast("SimulatedRuntime", runtime).simulated
        clock = MeasureClock(device.now, device.sleep)
        found: Meter = SimulatedMeter(device)
        if meter == "later":
            found = LaterMeter(found.covers, found.provenance, clock)
        elif meter != "auto":
            raise InputError(
                f"a simulated device has its own meter: leave {arg('meter', meter)} out"
            )
    else:
        found = find_meter(meter, on, allows_later=True)
    if found.is_recorder and not allows_later:
        raise InputError(NOT_LATER)
    limits = limits or MeasureLimits()
    return Measurer(runtime, found, rounds, make_run(), limits=limits, clock=clock)


def find_meter(name: str, on: str, *, allows_later: bool = False) -> Meter:
    """Return the meter of a name for the device that runs the load.

    Raises:
        InputError: The energy is needed now, and the meter only records windows.
    """
    # A GPU is looked up only where the meter needs to know which one it is.
    hardware = find_hardware(on)
    is_gpu = hardware is not None and parse_on(hardware)[1] is not None
    meter = make_meter(name, hardware or on, find_gpu(hardware or on) if is_gpu else None)
    if meter.is_recorder and not allows_later:
        raise InputError(NOT_LATER)
    return meter


def name_lock(on: str) -> str | None:
    """Return the name of a device's lock (``hold_device``); simulated ones have none."""
    hardware = find_hardware(on)
    return None if hardware is None else find_gpu(hardware) or "cpu"
