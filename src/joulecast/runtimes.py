"""Open the runtime that runs trials on a device.

    cpu, cuda:0      PyTorch
    mnn, mnn:cpu     MNN on the processor
    onnx, onnx:cpu   ONNX Runtime on the processor: inference only
    simulated:7      a simulated device, drawn from a seed
    NAME, NAME:...   a runtime that a plug-in adds under NAME (entry points ``joulecast.runtimes``)

The entry point of a plug-in names a callable that takes the whole text (``NAME:...``) and returns a
``Runtime``. Frameworks are imported when one of their devices is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from joulecast.records import Device
from joulecast.records.runtime import Runtime
from joulecast.system.errors import InputError, MissingError, arg


def open_runtime(on: str, device_name: str = "") -> Runtime:
    """Return the runtime of a device."""
    if is_plugin(on):
        runtime: Runtime = _load_plugins()[_name_of(on)](on)
        runtime.device = _rename(runtime.device, device_name)
        return runtime
    # PyTorch's devices include the unknown ones: detecting them fails with the right message.
    return BUILT_IN.get(_name_of(on), _open_framework)(on, device_name)


def is_plugin(on: str) -> bool:
    """Return whether a plug-in provides the runtime of a device."""
    return _name_of(on) in _load_plugins()


def is_simulated(on: str) -> bool:
    """Return whether a device is simulated."""
    return _name_of(on) == "simulated"


def find_hardware(on: str) -> str | None:
    """Return the device of this machine that is used: ``mnn:cpu`` → ``cpu``.

    It is None for simulated devices and for those of plug-ins.
    """
    if is_simulated(on) or is_plugin(on):
        return None
    name = _name_of(on)
    if name not in _FRAMEWORKS:
        return on
    if on not in (name, f"{name}:cpu"):
        raise InputError(
            f"{_FRAMEWORKS[name][0]} runs on the processor only, not on {on!r}: give {name}:cpu"
        )
    return "cpu"


def name_framework(on: str) -> str:
    """Return the framework that runs on a device, as profiles name it: ``cuda:0`` → ``torch``."""
    if is_plugin(on):
        return open_runtime(on).name.partition("-")[0]
    name = _name_of(on)
    return PROFILE_NAMES.get(name, name) if name in _OTHER_FRAMEWORKS else "torch"


def join_runtime(runtime: str, on: str = "") -> str:
    """Return a device of a framework as ``--on`` names it: ``mnn`` and ``cpu`` → ``mnn:cpu``."""
    others = (*_OTHER_FRAMEWORKS, *_load_plugins())
    if _name_of(runtime) not in ("torch", *others):
        names = ", ".join(("torch", *others))
        raise InputError(f"there is no runtime {runtime!r}: choose from {names}")
    if "://" in on:
        raise InputError(f"the agent at {on} has its own framework: leave {arg('runtime')} out")
    if runtime != "torch":
        return on if _name_of(on) == runtime else f"{runtime}:{on}".rstrip(":")
    if _name_of(on) in others:
        raise InputError(f"{on!r} is not a device of PyTorch: give cpu or cuda:0")
    return on or "cpu"


def _open_framework(on: str, device_name: str) -> Runtime:
    from joulecast.devices.detect import detect_device

    name = _name_of(on)
    device = _rename(detect_device(find_hardware(on) or "cpu"), device_name)
    title, extra, packages = _FRAMEWORKS.get(name, ("PyTorch", "torch", ("torch",)))
    try:
        if name == "mnn":
            from joulecast.mnn.runtime import MnnRuntime

            return MnnRuntime(device)
        if name == "onnx":
            from joulecast.onnx_nets.ort_runtime import OnnxRuntime

            return OnnxRuntime(device)
        from joulecast.torch_nets.runtime import TorchRuntime

        return TorchRuntime(on, device)
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise MissingError(
            f"measuring on {on} needs {title}: run pip install 'joulecast[{extra}]'"
        ) from error


def _open_simulated(on: str, device_name: str) -> Runtime:
    from joulecast.simulation import make_simulated_device
    from joulecast.simulation.runtime import SimulatedRuntime

    _, colon, seed = on.partition(":")
    if colon and not seed.isdigit():
        raise InputError(f"{on!r} is not a simulated device: give its seed, like simulated:7")
    return SimulatedRuntime(make_simulated_device(int(seed or 0), device_name))


BUILT_IN: dict[str, Callable[[str, str], Runtime]] = {
    **dict.fromkeys(("cpu", "cuda", "mnn", "onnx"), _open_framework),
    "simulated": _open_simulated,
}

PROFILE_NAMES = {"onnx": "onnxruntime"}
"""Frameworks that profiles name otherwise than ``--on`` does."""

_OTHER_FRAMEWORKS = ("mnn", "onnx", "simulated")
# Frameworks that run on processors only: name, extra and packages.
_FRAMEWORKS = {
    "mnn": ("MNN", "mnn", ("MNN", "_mnncengine")),
    "onnx": ("ONNX Runtime", "onnx", ("onnx", "onnxruntime")),
}


def _load_plugins() -> Mapping[str, Any]:
    from joulecast.system.plugins import RUNTIME_GROUP, load_plugins

    # With torch: a plug-in of that name could not be told from PyTorch.
    return load_plugins(RUNTIME_GROUP, frozenset((*BUILT_IN, "torch")))


def _name_of(on: str) -> str:
    name, _, device = on.partition(":")
    if name == "torch_compile":
        raise InputError(
            "torch.compile is an option, not a runtime: give "
            f"{arg('on', device or 'cpu')} and {arg('compiled', True)}"
        )
    return name


def _rename(device: Device, name: str) -> Device:
    return replace(device, name=name) if name else device


# Profiles of earlier versions name torch.compile as a runtime.
_PACKAGES = {"torch_compile": "torch"}


def find_installed_runtime(runtime: str) -> str:
    """Return framework and version as installed here: ``torch-2.11.0`` → ``torch-2.13.0``.

    It is empty if the framework is not installed, or if the given name has no version.
    """
    framework, dash, _ = runtime.partition("-")
    if not dash:
        return ""
    try:
        # Without the build: 2.13.0+cpu.
        package = _PACKAGES.get(framework, framework)
        return f"{framework}-{version(package).partition('+')[0]}"
    except PackageNotFoundError:
        return ""


def explain_runtime_difference(runtime: str) -> str:
    """Return a sentence on the installed version if it differs; empty if it does not."""
    installed = find_installed_runtime(runtime)
    if installed in ("", runtime):
        return ""
    old, new = (one.replace("-", " ", 1) for one in (runtime, installed))
    text = f"The profile was made with {old}, but {new} is installed here"
    return f"{text}, which may run other kernels."
