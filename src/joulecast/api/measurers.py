"""Open a measurer: a runtime on a device, under a meter.

cpu, cuda:0      PyTorch on that device, under the requested meter
simulated:7      a simulated device with its own meter and clock, drawn from a seed
NAME, NAME:...   a runtime that a plug-in adds under NAME (entry points ``joulecast.runtimes``)
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulecast.api.nets import require_torch
from joulecast.api.options import MeasureOptions
from joulecast.devices import detect_device, find_gpu, parse_on
from joulecast.errors import InputError
from joulecast.measurer import Measurer, make_measurer
from joulecast.meters import Meter, make_meter
from joulecast.plugins import RUNTIME_GROUP, load_plugins
from joulecast.records import Device, Trial
from joulecast.runtimes.base import Runtime, Step

if TYPE_CHECKING:
    from joulecast.runtimes.torch.load import LoadedNet
    from joulecast.runtimes.torch.runtime import TorchRuntime

_BUILT_IN = ("cpu", "cuda", "simulated")


def open_measurer(
    options: MeasureOptions | None = None, loaded: LoadedNet | None = None
) -> Measurer:
    """Return a measurer; use it in a ``with`` statement.

    Args:
        options: Device, meter and number of rounds.
        loaded: A user's own net, which runs in place of the network that a trial describes.

    Raises:
        InputError: The device or meter does not exist, or several devices are given.
        MissingError: The device, the meter or PyTorch is not available.
    """
    options = options or MeasureOptions()
    run = uuid.uuid4().hex[:12]
    if is_simulated(options.on):
        return _open_simulated(options, run)
    plugin = _find_plugin(options.on)
    if plugin is not None:
        runtime = _rename_device(plugin(options.on), options.device_name)
        meter = make_meter(options.meter, options.on, None)
        return make_measurer(runtime, meter, rounds=options.rounds, run=run)
    device = detect_device(options.on)
    if options.device_name:
        device = replace(device, name=options.device_name)
    meter = find_meter(options.meter, options.on)
    runtime = _make_torch(options.on, device, loaded)
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


def find_meter(name: str, on: str) -> Meter:
    """Return the meter of a name for the device that runs the load."""
    if _find_plugin(on) is not None:
        return make_meter(name, on, None)
    # A GPU is looked up only where the meter needs to know which one it is.
    is_gpu = parse_on(on)[1] is not None
    return make_meter(name, on, find_gpu(on) if is_gpu else None)


def is_simulated(on: str) -> bool:
    """Return whether a device is simulated."""
    return on.partition(":")[0] == "simulated"


def _find_plugin(on: str) -> Callable[[str], Runtime] | None:
    found: Callable[[str], Runtime] | None = load_plugins(RUNTIME_GROUP, _BUILT_IN).get(
        on.partition(":")[0]
    )
    return found


def _rename_device(runtime: Runtime, name: str) -> Runtime:
    if name:
        device: Device = replace(runtime.device, name=name)
        runtime.device = device
    return runtime


def _make_torch(on: str, device: Device, loaded: LoadedNet | None) -> Runtime:
    require_torch(f"measuring on {on}")
    from joulecast.runtimes.torch.runtime import TorchRuntime

    runtime = TorchRuntime(on, device)
    return OwnNetRuntime(runtime, loaded) if loaded else runtime


def _open_simulated(options: MeasureOptions, run: str) -> Measurer:
    from joulecast.meters.simulated import SimulatedMeter
    from joulecast.runtimes.simulated import SimulatedRuntime
    from joulecast.simulation import make_simulated_device

    _, colon, seed = options.on.partition(":")
    if not seed.isdigit() and colon:
        raise InputError(
            f"{options.on!r} is not a simulated device: give its seed, like simulated:7"
        )
    if options.meter != "auto":
        raise InputError(f"a simulated device has its own meter: leave --meter {options.meter} out")
    device = make_simulated_device(int(seed or 0), options.device_name)
    clock: Any = {"now": device.now, "sleep": device.sleep}
    return make_measurer(
        SimulatedRuntime(device), SimulatedMeter(device), rounds=options.rounds, run=run, **clock
    )
