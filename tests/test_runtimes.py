"""Opening the runtime of a device; its version, threads and refusals."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from joulecast.devices.detect import detect_device
from joulecast.operators.setup_checks import count_threads
from joulecast.records import Setup
from joulecast.runtimes import (
    BUILT_IN,
    explain_runtime_difference,
    find_hardware,
    find_installed_runtime,
    is_plugin,
    join_runtime,
    name_framework,
    open_runtime,
)
from joulecast.system.errors import InputError


@pytest.mark.parametrize(
    ("on", "package", "device"),
    [
        ("simulated:7", "", "simulated-7"),
        ("simulated", "", "simulated-0"),
        ("mnn", "MNN", detect_device("cpu").name),
        ("onnx:cpu", "onnxruntime", detect_device("cpu").name),
    ],
)
def test_a_runtime_names_its_version_and_device_which_can_be_renamed(on, package, device):
    if package:
        pytest.importorskip(package)
        assert open_runtime(on).name == f"{package.lower()}-{version(package)}"
    assert open_runtime(on).device.name == device
    assert open_runtime(on, "mine").device.name == "mine"


@pytest.mark.parametrize(
    ("on", "advice"),
    [
        *((f"simulated:{seed}", "like simulated:7") for seed in ("", "x", "-1", "1.5")),
        *((on, "give cpu or cuda:0") for on in ("", "gpu", "cpu:0", "cuda:x")),
        ("cuda:0,1", "one device at a time"),
        *((on, "processor only.*give mnn:cpu") for on in ("mnn:cuda:0", "mnn:", "mnn:gpu")),
        *((on, "processor only.*give onnx:cpu") for on in ("onnx:cuda:0", "onnx:")),
    ],
)
def test_what_is_no_device_is_refused(on, advice):
    with pytest.raises(InputError, match=advice):
        open_runtime(on)


@pytest.mark.parametrize(
    ("on", "module", "title", "extra"),
    [
        ("cpu", "torch", "PyTorch", "torch"),
        ("mnn", "_mnncengine", "MNN", "mnn"),
        ("onnx", "onnxruntime", "ONNX Runtime", "onnx"),
    ],
)
def test_missing_framework_is_named(on, module, title, extra):
    script = f"import sys; sys.modules['{module}'] = None; " + (
        f"from joulecast.runtimes import open_runtime; open_runtime('{on}')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert f"MissingError: measuring on {on} needs {title}" in done.stderr
    assert f"joulecast[{extra}]" in done.stderr


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


@pytest.mark.parametrize(
    ("runtime", "on", "message"),
    [
        *(("torch", on, "not a device of PyTorch: give cpu") for on in ("mnn:cpu", "simulated:7")),
        ("tf", "", "no runtime 'tf': choose from torch, mnn, onnx, simulated"),
        *((one, "http://board:8377", "leave runtime out") for one in ("torch", "mnn")),
    ],
)
def test_runtime_and_device_that_do_not_fit_are_refused(runtime, on, message):
    with pytest.raises(InputError, match=message):
        join_runtime(runtime, on)


def test_torch_compile_is_an_option_of_pytorch() -> None:
    for ask in (open_runtime, find_hardware, name_framework, is_plugin):
        with pytest.raises(InputError, match=r"not a runtime: give on='cuda:1' and compiled=True"):
            ask("torch_compile:cuda:1")
    with pytest.raises(InputError, match=r"not a runtime: give on='cpu' and compiled=True"):
        join_runtime("torch_compile")


TORCH = "torch-" + version("torch").partition("+")[0]


@pytest.mark.parametrize("runtime", ["", "simulated", "unheard-of-2.0", TORCH])
def test_nothing_is_said_about_unknown_or_equal_versions(runtime):
    assert explain_runtime_difference(runtime) == ""


def test_another_version_is_named_with_the_installed_one_without_its_build():
    assert find_installed_runtime("torch-1.0") == TORCH
    said = explain_runtime_difference("torch-1.0")
    assert "made with torch 1.0, but torch " in said and TORCH.removeprefix("torch-") in said


def test_threads_are_those_of_the_setup_or_all_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 5}, raising=False)
    assert [count_threads(Setup(threads=3)), count_threads(Setup())] == [3, 2]


def test_systems_without_affinity_use_all_processors(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert count_threads(Setup()) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_threads(Setup()) == 1
