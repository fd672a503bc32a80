"""Steps train, also compiled; stages run alone; modules that cannot train are rejected."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from joulecast.families import FAMILIES, build_family, make_family
from joulecast.operators import make_layer, make_op
from joulecast.records import Device, Execution, Input, Network, Setup, Trial
from joulecast.system.errors import InputError, NetError, NotTrainingError
from joulecast.testing.runtimes import RuntimeContract
from joulecast.torch_nets.build import build_seeded
from joulecast.torch_nets.runtime import TorchRuntime, draw_inputs, find_torch_device
from joulecast.torch_nets.training_step import compile_module
from small_families import SMALL, make_small

SETUP = Setup(batch=4, threads=1)


@pytest.fixture(scope="module")
def runtime() -> TorchRuntime:
    return TorchRuntime("cpu", Device("a-cpu"))


def test_every_family_has_a_small_member() -> None:
    assert set(SMALL) == set(FAMILIES)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_every_family_trains(runtime: TorchRuntime, name: str) -> None:
    step = runtime.prepare(Trial(make_small(name), replace(SETUP, optimizer="adamw")))
    step.run(2)
    step.wait()
    losses = [float(loss) for loss in step.last_losses]
    assert losses and all(loss == loss for loss in losses)
    step.close()
    step.close()


def test_loss_falls(runtime: TorchRuntime) -> None:
    step = runtime.prepare(Trial(make_family(SMALL["cnn5"]), SETUP))
    first = float(step.last_losses[0])
    step.run(60)
    assert float(step.last_losses[0]) < first


@pytest.mark.parametrize("stage", ["forward", "backward", "update", "step"])
def test_stage_runs_alone(runtime: TorchRuntime, stage: str) -> None:
    step = runtime.prepare(Trial(make_family(SMALL["cnn5"]), SETUP, Execution(stage=stage)))
    weights = [w.detach().clone() for w in step.weights]
    step.run(2)
    changed = any(not torch.equal(a, b) for a, b in zip(weights, step.weights, strict=True))
    assert changed == (stage in ("update", "step"))


def test_replicas_have_separate_weights(runtime: TorchRuntime) -> None:
    network = make_family(SMALL["har"])
    step = runtime.prepare(Trial(network, SETUP, Execution(copies=3, upstream="random")))
    assert len(step.replicas) == 3
    assert len(step.weights) == 3 * len(list(step.replicas[0].net.parameters()))
    first, second = (replica.net.state_dict() for replica in step.replicas[:2])
    assert any(not torch.equal(first[key], second[key]) for key in first)
    step.run(1)


def test_same_trial_builds_the_same_weights(runtime: TorchRuntime) -> None:
    trial = Trial(make_family(SMALL["cnn5"]), SETUP)
    one, two = runtime.prepare(trial), runtime.prepare(trial)
    assert all(torch.equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))


def test_inference_changes_no_weights(runtime: TorchRuntime) -> None:
    step = runtime.prepare(Trial(make_family(SMALL["cnn5"]), replace(SETUP, phase="inference")))
    before = [w.clone() for w in step.replicas[0].net.parameters()]
    step.run(2)
    after = step.replicas[0].net.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(w.grad is None for w in step.replicas[0].net.parameters())


def test_half_precision_trains() -> None:
    """Run in a subprocess: some virtual machines report instructions that they cannot run."""
    code = """
from joulecast.families import make_family
from joulecast.records import Device, Setup, Trial
from joulecast.torch_nets.runtime import TorchRuntime
setup = Setup(batch=4, threads=1, precision="bf16")
TorchRuntime("cpu", Device("a-cpu")).prepare(Trial(make_family("cnn5:2,3,4,5"), setup)).run(1)
print("trained")
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == -signal.SIGILL:
        pytest.skip("this CPU reports bf16 instructions that it cannot run")
    assert done.stdout == "trained\n", done.stderr


def test_tf32_is_refused_on_a_processor(runtime: TorchRuntime) -> None:
    """A processor would silently compute in fp32."""
    setup = replace(SETUP, precision="tf32")
    with pytest.raises(InputError, match="give fp32"):
        runtime.prepare(Trial(make_family(SMALL["cnn5"]), setup))
    with pytest.raises(InputError, match="give fp32"):
        runtime.prepare_net(nn.Linear(3, 2), torch.zeros(4, 3), None, setup)


def test_thread_count_is_restored(runtime: TorchRuntime) -> None:
    before = torch.get_num_threads()
    runtime.prepare(Trial(make_family(SMALL["har"]), replace(SETUP, threads=1))).run(1)
    assert torch.get_num_threads() == before


def test_input_requires_a_gradient_only_if_the_first_layer_needs_it() -> None:
    linear = make_layer("linear", cin=4, cout=3)
    generator = torch.Generator().manual_seed(0)
    inside = draw_inputs(Network((linear,), Input((4,))), Setup(batch=2), generator)
    first = draw_inputs(
        Network((replace(linear, input_grad=False),), Input((4,))), Setup(batch=2), generator
    )
    assert inside.requires_grad and not first.requires_grad


class UnusedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class InfiniteLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) / 0


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (UnusedLayer(), "spare"),
        (InfiniteLoss(), "loss"),
        (nn.Linear(4, 3).requires_grad_(False), "nothing to train"),
    ],
)
def test_module_that_does_not_train_is_rejected(
    runtime: TorchRuntime, net: nn.Module, message: str
) -> None:
    with pytest.raises(NotTrainingError, match=message):
        runtime.prepare_net(net, torch.randn(2, 4), None, Setup(batch=2))


def test_bias_before_a_norm_is_accepted(runtime: TorchRuntime) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    runtime.prepare_net(net, torch.randn(8, 4), None, Setup(batch=8)).run(1)


def test_graph_mode_needs_a_gpu(runtime: TorchRuntime) -> None:
    with pytest.raises(InputError, match="CUDA"):
        runtime.prepare(Trial(make_family(SMALL["cnn5"]), SETUP, Execution(mode="graph")))


def test_empty_and_unbuildable_networks_are_rejected(runtime: TorchRuntime) -> None:
    with pytest.raises(NetError, match="empty"):
        runtime.prepare(Trial(Network(), SETUP))
    with pytest.raises(NetError, match="rebuilt"):
        runtime.prepare(Trial(replace(make_family("cnn5"), buildable=False), SETUP))


@pytest.mark.parametrize("on", ["tpu", "cuda:99", "cuda:x", "mps"])
def test_unknown_devices_are_rejected(on: str) -> None:
    with pytest.raises(InputError):
        find_torch_device(on)


def test_single_channel_layers_train(runtime: TorchRuntime) -> None:
    """Curves start at their bounds, and a single channel may start as a dead ReLU."""
    for params in ({"c1": 1, "c2": 1, "c3": 1, "c4": 1}, {"c1": 1, "c2": 4, "c3": 1, "c4": 4}):
        runtime.prepare(Trial(build_family("cnn5", params, (3, 16, 16)), SETUP)).close()


@pytest.mark.parametrize("stage", ["forward", "backward", "step"])
def test_accumulation_runs_a_stage_once_per_batch(runtime: TorchRuntime, stage: str) -> None:
    counts = {n: count_flops(runtime, replace(SETUP, accumulate=n), stage) for n in (0, 1, 3)}
    assert counts[3] == 3 * counts[1] == 3 * counts[0] > 0


def test_accumulated_gradients_are_those_of_one_batch(runtime: TorchRuntime) -> None:
    # All batches are the same one, and the loss is divided by their number.
    one, many = (
        runtime.prepare_net(make_linear(), torch.ones(4, 3), sum_squares, setup)
        for setup in (SETUP, replace(SETUP, accumulate=4))
    )
    for a, b in zip(one.weights, many.weights, strict=True):
        assert a.grad is not None and b.grad is not None
        assert torch.allclose(a.grad, b.grad)


def test_gradients_add_up_without_an_update(runtime: TorchRuntime) -> None:
    setup = replace(SETUP, accumulate=0)
    step = runtime.prepare_net(make_linear(), torch.ones(4, 3), sum_squares, setup)
    (weight, _), before = step.weights, [w.detach().clone() for w in step.weights]
    assert weight.grad is not None
    first = weight.grad.clone()
    step.run(1)
    added = weight.grad - first
    step.run(2)
    assert torch.allclose(weight.grad, first + 3 * added) and added.any()
    assert all(torch.equal(old, new) for old, new in zip(before, step.weights, strict=True))


def test_update_without_an_update_is_refused(runtime: TorchRuntime) -> None:
    trial = Trial(make_small("cnn5"), replace(SETUP, accumulate=0), Execution(stage="update"))
    with pytest.raises(InputError, match="without an update"):
        runtime.prepare(trial)


def count_flops(runtime: TorchRuntime, setup: Setup, stage: str) -> int:
    step = runtime.prepare(Trial(make_small("cnn5"), setup, Execution(stage=stage)))
    with FlopCounterMode(display=False) as counter:
        step.run(1)
    step.close()
    return counter.get_total_flops()


def make_linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def sum_squares(output: torch.Tensor) -> torch.Tensor:
    return output.square().sum()


class TestTorchOnCpu(RuntimeContract):
    refuses_when_closed = True

    def make_runtime(self) -> TorchRuntime:
        return TorchRuntime("cpu", Device("a-cpu"))


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
