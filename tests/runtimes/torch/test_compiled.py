"""torch.compile as a runtime: the contract, results that equal eager ones, and clear errors."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from joulecast.errors import NetError
from joulecast.kinds import make_layer, make_op
from joulecast.records import Device, Execution, Input, Network, Setup, Trial
from joulecast.runtimes import find_hardware, name_framework
from joulecast.runtimes.installed import find_installed_runtime
from joulecast.runtimes.torch.build import build_seeded
from joulecast.runtimes.torch.compiled import CompiledRuntime, compile_module
from joulecast.testing.runtimes import RuntimeContract

pytestmark = [
    pytest.mark.skipif(
        shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a processor"
    ),
    # PyTorch's own modules use what it calls deprecated.
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]
LINEAR = replace(make_layer("linear", cin=16, cout=8), name="fc", input_grad=False)
SETUP = Setup(batch=4, threads=1)
SMALL = Trial(Network((LINEAR,), Input((16,))), SETUP)


def make_runtime() -> CompiledRuntime:
    return CompiledRuntime("cpu", Device("board"))


class TestCompiledRuntime(RuntimeContract):
    # Compiling a larger network takes seconds in every test.
    small = SMALL

    def make_runtime(self) -> CompiledRuntime:
        return make_runtime()


def test_compiled_module_computes_what_the_eager_one_does() -> None:
    tail = (make_op("batch_norm"), make_op("elementwise", fn="relu"), make_op("flatten"))
    conv = make_layer("conv2d", tail, cin=3, cout=4, space=(6, 6), kernel=3, padding=1)
    fc = make_layer("linear", cin=4 * 6 * 6, cout=5)
    net = build_seeded(Network((conv, fc), Input((3, 6, 6))), 0).eval()
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        assert torch.allclose(compile_module(net)(x), net(x), atol=1e-5)


def test_copies_of_inference_are_compiled_together() -> None:
    # The host's time for a call would otherwise count once for each copy.
    counters = torch._dynamo.utils.counters
    counters.clear()
    setup = Setup(batch=4, phase="inference", threads=1)
    make_runtime().prepare(Trial(SMALL.network, setup, Execution(copies=3))).close()
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["stats"]["calls_captured"] >= 3


def test_many_networks_are_compiled_one_after_another() -> None:
    runtime, setup = make_runtime(), Setup(batch=4, phase="inference", threads=1)
    counters = torch._dynamo.utils.counters
    counters.clear()
    # Beyond its limit, PyTorch would only log that it runs further networks eagerly.
    with torch._dynamo.config.patch(recompile_limit=1):
        for width in (16, 24, 32):
            layer = make_layer("linear", cin=width, cout=8)
            runtime.prepare(Trial(Network((layer,), Input((width,))), setup)).close()
    assert counters["stats"]["unique_graphs"] == 3


def test_compile_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("/missing/g++",))
    gelu = make_layer("elementwise", fn="gelu", shape=(7,))
    trial = Trial(Network((gelu,), Input((7,))), Setup(batch=3, phase="inference"))
    with pytest.raises(NetError, match=r"No working C\+\+ compiler.*: install g\+\+") as error:
        make_runtime().prepare(trial)
    assert "\n" not in str(error.value) and "TORCHDYNAMO" not in str(error.value)


def test_runtime_is_named_apart_from_eager_pytorch() -> None:
    runtime = make_runtime()
    assert runtime.name == "torch_compile-" + torch.__version__.split("+")[0]
    assert find_installed_runtime(runtime.name) == runtime.name
    assert name_framework("torch_compile:cpu") == "torch_compile"
    assert find_hardware("torch_compile") == "cpu"
    assert find_hardware("torch_compile:cuda:1") == "cuda:1"
