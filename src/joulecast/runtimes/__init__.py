"""Open the runtime that runs trials on a device.

    cpu, cuda:0      PyTorch
    simulated:7      a simulated device, drawn from a seed
    NAME, NAME:...   a runtime that a plug-in adds under NAME (entry points ``joulecast.runtimes``)

The entry point of a plug-in names a callable that takes the whole text (``NAME:...``) and returns a
``Runtime``. Frameworks are imported when one of their devices is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from joulecast.devices import detect_device
from joulecast.errors import InputError, MissingError
from joulecast.plugins import RUNTIME_GROUP, Plugins, load_plugins
from joulecast.records import Device
from joulecast.runtimes.base import Runtime, Step

__all__ = ["BUILT_IN", "Runtime", "Step", "is_plugin", "is_simulated", "open_runtime"]


def open_runtime(on: str, device_name: str = "") -> Runtime:
    """Return the runtime of a device.

    Args:
        on: ``cpu``, ``cuda:0``, ``simulated:SEED``, or the name of a plug-in.
        device_name: Name to record for the device instead of the detected one.

    Raises:
        InputError: There is no such device, or several are named.
        MissingError: The device, its framework or the plug-in is not available.
    """
    if is_plugin(on):
        runtime: Runtime = _load_plugins()[_name_of(on)](on)
        runtime.device = _rename(runtime.device, device_name)
        return runtime
    # PyTorch's devices include the unknown ones: detecting them fails with the right message.
    return BUILT_IN.get(_name_of(on), _open_torch)(on, device_name)


def is_plugin(on: str) -> bool:
    """Return whether a plug-in provides the runtime of a device."""
    return _name_of(on) in _load_plugins()


def is_simulated(on: str) -> bool:
    """Return whether a device is simulated."""
    return _name_of(on) == "simulated"


def _open_torch(on: str, device_name: str) -> Runtime:
    device = _rename(detect_device(on), device_name)
    try:
        from joulecast.runtimes.torch.runtime import TorchRuntime
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingError(
            f"measuring on {on} needs PyTorch: run pip install 'joulecast[torch]'"
        ) from error
    return TorchRuntime(on, device)


def _open_simulated(on: str, device_name: str) -> Runtime:
    from joulecast.runtimes.simulated import SimulatedRuntime
    from joulecast.simulation import make_simulated_device

    _, colon, seed = on.partition(":")
    if colon and not seed.isdigit():
        raise InputError(f"{on!r} is not a simulated device: give its seed, like simulated:7")
    return SimulatedRuntime(make_simulated_device(int(seed or 0), device_name))


BUILT_IN: dict[str, Callable[[str, str], Runtime]] = {
    "cpu": _open_torch,
    "cuda": _open_torch,
    "simulated": _open_simulated,
}


def _load_plugins() -> Plugins:
    return load_plugins(RUNTIME_GROUP, frozenset(BUILT_IN))


def _name_of(on: str) -> str:
    return on.partition(":")[0]


def _rename(device: Device, name: str) -> Device:
    return replace(device, name=name) if name else device
