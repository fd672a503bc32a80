"""Opening the runtime of a device."""

import subprocess
import sys

import pytest

from joulecast.errors import InputError
from joulecast.runtimes import (
    BUILT_IN,
    find_hardware,
    is_plugin,
    join_runtime,
    name_framework,
    open_runtime,
)
from joulecast.runtimes.simulated import SimulatedRuntime


def test_simulated_device_is_drawn_from_its_seed():
    runtime = open_runtime("simulated:7")
    assert isinstance(runtime, SimulatedRuntime)
    assert runtime.device.name == "simulated-7"
    assert open_runtime("simulated").device.name == "simulated-0"


def test_device_can_be_renamed():
    assert open_runtime("simulated:7", "mine").device.name == "mine"


@pytest.mark.parametrize("on", ["simulated:", "simulated:x", "simulated:-1", "simulated:1.5"])
def test_seed_must_be_a_whole_number(on):
    with pytest.raises(InputError, match="like simulated:7"):
        open_runtime(on)


@pytest.mark.parametrize("on", ["", "gpu", "cpu:0", "cuda:x"])
def test_unknown_device_is_refused(on):
    with pytest.raises(InputError, match="give cpu or cuda:0"):
        open_runtime(on)


def test_several_devices_are_refused():
    with pytest.raises(InputError, match="one device at a time"):
        open_runtime("cuda:0,1")


def test_missing_torch_is_named():
    script = "import sys; sys.modules['torch'] = None; " + (
        "from joulecast.runtimes import open_runtime; open_runtime('cpu')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "MissingError: measuring on cpu needs PyTorch" in done.stderr
    assert "joulecast[torch]" in done.stderr


def test_built_in_devices_are_not_plugins():
    assert not any(map(is_plugin, BUILT_IN))


@pytest.mark.parametrize(
    ("on", "hardware", "framework"),
    [
        ("cpu", "cpu", "torch"),
        ("cuda:1", "cuda:1", "torch"),
        ("mnn", "cpu", "mnn"),
        ("mnn:cpu", "cpu", "mnn"),
        ("onnx", "cpu", "onnxruntime"),
        ("onnx:cpu", "cpu", "onnxruntime"),
        ("simulated:7", None, "simulated"),
    ],
)
def test_device_has_hardware_and_framework(on, hardware, framework):
    assert find_hardware(on) == hardware
    assert name_framework(on) == framework


@pytest.mark.parametrize("on", ["mnn:cuda:0", "mnn:", "mnn:gpu", "onnx:cuda:0", "onnx:"])
def test_some_frameworks_run_on_the_processor_only(on):
    with pytest.raises(InputError, match=f"processor only.*give {on.partition(':')[0]}:cpu"):
        open_runtime(on)


@pytest.mark.parametrize(
    ("runtime", "on", "joined"),
    [
        ("mnn", "", "mnn"),
        ("mnn", "cpu", "mnn:cpu"),
        ("mnn", "mnn:cpu", "mnn:cpu"),
        ("onnx", "", "onnx"),
        ("onnx", "cpu", "onnx:cpu"),
        ("torch", "", "cpu"),
        ("torch", "cuda:1", "cuda:1"),
        ("simulated", "7", "simulated:7"),
    ],
)
def test_runtime_and_device_are_joined(runtime, on, joined):
    assert join_runtime(runtime, on) == joined


@pytest.mark.parametrize("on", ["mnn:cpu", "simulated:7"])
def test_device_of_another_framework_is_refused(on):
    with pytest.raises(InputError, match="is not a device of PyTorch: give cpu or cuda:0"):
        join_runtime("torch", on)


def test_unknown_runtime_lists_all():
    with pytest.raises(
        InputError, match=r"no runtime 'tf': choose from torch, mnn, onnx, simulated"
    ):
        join_runtime("tf")


@pytest.mark.parametrize("runtime", ["torch", "mnn"])
def test_agent_has_its_own_framework(runtime):
    with pytest.raises(InputError, match="leave --runtime out"):
        join_runtime(runtime, "http://board:8377")


def test_torch_compile_is_an_option_of_pytorch() -> None:
    for ask in (open_runtime, find_hardware, name_framework, is_plugin):
        with pytest.raises(InputError, match=r"not a runtime: give --on cuda:1 --compile"):
            ask("torch_compile:cuda:1")
    with pytest.raises(InputError, match=r"not a runtime: give --on cpu --compile"):
        join_runtime("torch_compile")
