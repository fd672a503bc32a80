"""Open a measurer: a runtime on a device, under a meter.

    cpu, cuda:0      PyTorch on that device, under the requested meter
    mnn:cpu          MNN on the processor, under the requested meter
    simulated:7      a simulated device with its own meter and clock, drawn from a seed
    NAME, NAME:...   a runtime that a plug-in adds under NAME

Plug-ins register runtimes as entry points ``joulecast.runtimes``.
"""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

from joulecast.api.options import MeasureOptions
from joulecast.devices import find_gpu, parse_on
from joulecast.errors import InputError
from joulecast.measurer import MeasureClock, Measurer, make_measurer
from joulecast.meters import Meter, make_meter
from joulecast.records import Trial
from joulecast.runtimes import (
    Step,
    find_hardware,
    is_plugin,
    is_simulated,
    name_framework,
    open_runtime,
)

if TYPE_CHECKING:
    from joulecast.runtimes.torch.load import LoadedNet
    from joulecast.runtimes.torch.runtime import TorchRuntime

_NOT_LATER = (
    "--meter later records windows for `joulecast profile NET` and `joulecast measure NET` only: "
    "give a meter of `joulecast detect` that reads energy now"
)


def open_measurer(
    options: MeasureOptions | None = None,
    loaded: LoadedNet | None = None,
    *,
    allows_later: bool = False,
) -> Measurer:
    """Return a measurer; use it in a ``with`` statement.

    Args:
        options: Device, meter and number of rounds.
        loaded: A user's own net, which runs in place of the network that a trial describes.
        allows_later: Whether the caller stores observations whose energy comes later.

    Raises:
        InputError: The device or meter does not exist, or several devices are given.
        MissingError: The device, the meter or the framework is not available.
    """
    options = options or MeasureOptions()
    run = uuid.uuid4().hex[:12]
    if is_simulated(options.on):
        return _open_simulated(options, run, allows_later)
    meter = find_meter(options.meter, options.on, allows_later=allows_later)
    runtime = open_runtime(options.on, options.device_name)
    if loaded is not None:
        runtime = OwnNetRuntime(cast("TorchRuntime", runtime), loaded)
    return make_measurer(runtime, meter, rounds=options.rounds, run=run)


class OwnNetRuntime:
    """PyTorch that runs a user's own net, whatever network a trial describes."""

    def __init__(self, runtime: TorchRuntime, loaded: LoadedNet) -> None:
        self.name = runtime.name
        self.device = runtime.device
        self.modes = runtime.modes
        self._runtime = runtime
        self._loaded = loaded

    def prepare(self, trial: Trial) -> Step:
        """Return the user's net as a step, trained as the trial says."""
        net = self._loaded
        return self._runtime.prepare_net(
            net.net, net.inputs, net.loss, trial.setup, trial.execution
        )


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
        raise InputError(_NOT_LATER)
    return meter


def runs_modules(on: str) -> bool:
    """Return whether a device can run the user's own module, not only a Network."""
    return not is_plugin(on) and name_framework(on) == "torch"


def lock_device(on: str) -> AbstractContextManager[int | None]:
    """Return the lock of a device, so that only one campaign runs on it; simulated ones have none.

    Raises:
        MeasurementError: On entering: another campaign runs on the device.
    """
    hardware = find_hardware(on)
    if hardware is None:
        return nullcontext()
    from joulecast.campaign.device_lock import hold_device

    return hold_device(find_gpu(hardware) or "cpu", on)


def _open_simulated(options: MeasureOptions, run: str, allows_later: bool) -> Measurer:
    from joulecast.meters.later import LaterMeter
    from joulecast.meters.simulated import SimulatedMeter
    from joulecast.runtimes.simulated import SimulatedRuntime

    if options.meter == "later" and not allows_later:
        raise InputError(_NOT_LATER)
    if options.meter not in ("auto", "later"):
        raise InputError(f"a simulated device has its own meter: leave --meter {options.meter} out")
    runtime = cast(SimulatedRuntime, open_runtime(options.on, options.device_name))
    device = runtime.simulated
    clock = MeasureClock(device.now, device.sleep)
    meter: Meter = SimulatedMeter(device)
    if options.meter == "later":
        meter = LaterMeter(meter.covers, meter.provenance, now=device.now)
    return make_measurer(runtime, meter, rounds=options.rounds, run=run, clock=clock)
