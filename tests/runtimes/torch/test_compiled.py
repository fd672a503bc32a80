"""Compiled steps: the contract of runtimes, results that equal eager ones, and clear errors."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from joulecast.errors import InputError, NetError
from joulecast.kinds import make_layer, make_op
from joulecast.records import Device, Execution, Input, Network, Setup, Trial
from joulecast.runtimes.torch.build import build_seeded
from joulecast.runtimes.torch.runtime import TorchRuntime
from joulecast.runtimes.torch.training_step import compile_module

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a processor"
)
# PyTorch's own modules use what it calls deprecated.
ignores_jit = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
LINEAR = replace(make_layer("linear", cin=16, cout=8), name="fc", input_grad=False)
LINEAR_16 = make_layer("linear", cin=16, cout=16)
COMPILED = Setup(batch=4, threads=1, compiled=True)
SMALL_COMPILED = Trial(Network((LINEAR,), Input((16,))), COMPILED)


def compile_on_cpu() -> TorchRuntime:
    return TorchRuntime("cpu", Device("board"))


@needs_compiler
@ignores_jit
def test_compiled_module_computes_what_the_eager_one_does() -> None:
    tail = (make_op("batch_norm"), make_op("elementwise", fn="relu"), make_op("flatten"))
    conv = make_layer("conv2d", tail, cin=3, cout=4, space=(6, 6), kernel=3, padding=1)
    fc = make_layer("linear", cin=4 * 6 * 6, cout=5)
    net = build_seeded(Network((conv, fc), Input((3, 6, 6))), 0).eval()
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        assert torch.allclose(compile_module(net)(x), net(x), atol=1e-5)


@needs_compiler
@ignores_jit
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_compiled_step_trains_and_closes(optimizer: str) -> None:
    trial = replace(SMALL_COMPILED, setup=replace(COMPILED, optimizer=optimizer))
    step = compile_on_cpu().prepare(trial)
    before = [weight.detach().clone() for weight in step.weights]
    step.run(2)
    assert not any(torch.equal(a, b) for a, b in zip(before, step.weights, strict=True))
    step.close()
    step.close()
    with pytest.raises(InputError, match="closed"):
        step.run(1)


@needs_compiler
@ignores_jit
def test_copies_of_inference_are_compiled_together() -> None:
    # The host's time for a call would otherwise count once for each copy.
    counters = torch._dynamo.utils.counters
    counters.clear()
    setup = Setup(batch=4, phase="inference", threads=1, compiled=True)
    compile_on_cpu().prepare(Trial(SMALL_COMPILED.network, setup, Execution(copies=3))).close()
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["stats"]["calls_captured"] >= 3


@needs_compiler
@ignores_jit
def test_many_networks_are_compiled_one_after_another() -> None:
    runtime, setup = (
        compile_on_cpu(),
        Setup(batch=4, phase="inference", threads=1, compiled=True),
    )
    counters = torch._dynamo.utils.counters
    counters.clear()
    # Beyond its limit, PyTorch would only log that it runs further networks eagerly.
    with torch._dynamo.config.patch(recompile_limit=1):
        for width in (16, 24, 32):
            layer = make_layer("linear", cin=width, cout=8)
            runtime.prepare(Trial(Network((layer,), Input((width,))), setup)).close()
    assert counters["stats"]["unique_graphs"] == 3


@needs_compiler
@ignores_jit
def test_checkpointed_layers_are_compiled_as_one_graph() -> None:
    counters = torch._dynamo.utils.counters
    counters.clear()
    hidden = replace(make_layer("linear", cin=16, cout=16), recomputed=True)
    network = Network((LINEAR_16, hidden, LINEAR), Input((16,)))
    compile_on_cpu().prepare(Trial(network, COMPILED)).close()
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


@needs_compiler
@ignores_jit
def test_compile_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("/missing/g++",))
    gelu = make_layer("elementwise", fn="gelu", shape=(7,))
    setup = Setup(batch=3, phase="inference", compiled=True)
    trial = Trial(Network((gelu,), Input((7,))), setup)
    with pytest.raises(NetError, match=r"No working C\+\+ compiler.*: install g\+\+") as error:
        compile_on_cpu().prepare(trial)
    assert "\n" not in str(error.value) and "TORCHDYNAMO" not in str(error.value)
