"""Opening the runtime of a device; its version, threads and refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version

import pytest

from joulecast.operators import make_layer
from joulecast.operators.setup_checks import (
    count_threads,
    refuse_cuda_graphs,
    refuse_int8,
    refuse_processor,
    refuse_torch_options,
)
from joulecast.records import INT8_PRECISIONS, Network, Setup
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
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.system.errors import InputError


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


TORCH = "torch-" + version("torch").partition("+")[0]


def test_the_installed_version_is_found_without_its_build():
    assert find_installed_runtime("torch-1.0") == TORCH
    assert "+" not in TORCH


@pytest.mark.parametrize("runtime", ["", "simulated", "unheard-of-2.0", TORCH])
def test_nothing_is_said_about_unknown_or_equal_versions(runtime):
    assert explain_runtime_difference(runtime) == ""


def test_another_version_is_named_with_the_installed_one():
    said = explain_runtime_difference("torch-1.0")
    assert "made with torch 1.0, but torch " in said and TORCH.removeprefix("torch-") in said


INFERENCE = Setup(batch=1, phase="inference")


@pytest.mark.parametrize("precision", INT8_PRECISIONS)
def test_int8_is_refused_with_the_runtime_that_has_it(precision: str) -> None:
    with pytest.raises(InputError, match=rf"MNN does not run {precision} .* on='onnx:cpu'"):
        refuse_int8(replace(INFERENCE, precision=precision), "MNN")


def test_processor_and_graphs_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="PyTorch has no processor 'NPU'"):
        refuse_processor(replace(INFERENCE, processor="NPU"), "PyTorch")
    with pytest.raises(InputError, match="MNN has no CUDA graphs: leave cuda_graphs out"):
        refuse_cuda_graphs(replace(INFERENCE, cuda_graphs=True), "MNN")


def test_usual_setups_pass() -> None:
    for refuse in (refuse_int8, refuse_processor, refuse_cuda_graphs):
        refuse(Setup(), "PyTorch")
        refuse(replace(INFERENCE, precision="bf16"), "PyTorch")


@pytest.mark.parametrize(
    ("setup", "recomputed", "option"),
    [
        (Setup(compiled=True), False, "compiled"),
        (Setup(accumulate=2), False, "accumulate"),
        (Setup(), True, "checkpoint"),
    ],
)
def test_options_of_pytorch_are_refused(setup: Setup, recomputed: bool, option: str) -> None:
    layer = replace(make_layer("linear", cin=2, cout=2), recomputed=recomputed)
    with pytest.raises(InputError, match=f"MNN .*: leave {option} out"):
        refuse_torch_options(setup, Network((layer,)), "MNN")
    refuse_torch_options(Setup(), Network((replace(layer, recomputed=False),)), "MNN")


def test_setup_decides():
    assert count_threads(Setup(threads=3)) == 3


def test_default_is_every_processor_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 5}, raising=False)
    assert count_threads(Setup()) == 2


def test_systems_without_affinity_use_all_processors(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert count_threads(Setup()) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_threads(Setup()) == 1
