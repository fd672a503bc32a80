"""Steps train, also compiled; stages run alone; modules that cannot train are rejected."""

import math
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from joulecast.families import FAMILIES, build_family
from joulecast.operators import make_layer, make_op
from joulecast.records import Device, Execution, Input, Network, Setup, Trial
from joulecast.system.errors import InputError, NetError, NotTrainingError
from joulecast.testing.runtimes import RuntimeContract
from joulecast.torch_nets.build import build_seeded
from joulecast.torch_nets.runtime import (
    ModulesTogether,
    TorchRuntime,
    compile_module,
    draw_inputs,
    find_torch_device,
)
from small_families import SMALL, make_small
from torch_nets.made_net import MadeNet

SETUP = Setup(batch=4, threads=1)
TF32 = replace(SETUP, precision="tf32")


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
    step = runtime.prepare(Trial(make_small("cnn5"), SETUP))
    step.run(1)
    first = float(step.last_losses[0])
    step.run(60)
    assert float(step.last_losses[0]) < first


@pytest.mark.parametrize("stage", ["forward", "backward", "update", "step"])
def test_stage_runs_alone(runtime: TorchRuntime, stage: str) -> None:
    step = runtime.prepare(Trial(make_small("cnn5"), SETUP, Execution(stage=stage)))
    weights = [w.detach().clone() for w in step.weights]
    step.run(2)
    changed = any(not torch.equal(a, b) for a, b in zip(weights, step.weights, strict=True))
    assert changed == (stage in ("update", "step"))


def test_replicas_have_separate_weights(runtime: TorchRuntime) -> None:
    network = make_small("har")
    step = runtime.prepare(Trial(network, SETUP, Execution(copies=3, upstream="random")))
    assert len(step.replicas) == 3
    assert len(step.weights) == 3 * len(list(step.replicas[0].net.parameters()))
    first, second = (replica.net.state_dict() for replica in step.replicas[:2])
    assert any(not torch.equal(first[key], second[key]) for key in first)
    step.run(1)


def test_same_trial_builds_the_same_weights(runtime: TorchRuntime) -> None:
    trial = Trial(make_small("cnn5"), SETUP)
    one, two = runtime.prepare(trial), runtime.prepare(trial)
    assert all(torch.equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))


def test_inference_changes_no_weights(runtime: TorchRuntime) -> None:
    step = runtime.prepare(Trial(make_small("cnn5"), replace(SETUP, phase="inference")))
    weights = list(step.replicas[0].net.parameters())
    before = [w.clone() for w in weights]
    step.run(2)
    assert all(torch.equal(a, b) for a, b in zip(before, weights, strict=True))
    assert all(w.grad is None for w in weights)


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


def test_thread_count_is_restored(runtime: TorchRuntime) -> None:
    before = torch.get_num_threads()
    runtime.prepare(Trial(make_small("har"), replace(SETUP, threads=1))).run(1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("needed", [True, False])
def test_input_requires_a_gradient_only_if_the_first_layer_needs_it(needed: bool) -> None:
    linear = replace(make_layer("linear", cin=4, cout=3), input_grad=needed)
    x = draw_inputs(Network((linear,), Input((4,))), Setup(batch=2), torch.Generator())
    assert x.requires_grad == needed


FC = partial(nn.Linear, 4, 3)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            MadeNet(lambda net, x: net.fc(x) + 0 * net.of(x), fc=FC(), of=FC()),
            r"of\.weight did not",
        ),
        (MadeNet(lambda net, x: net.fc(x) / 0, fc=nn.Linear(4, 3)), "loss"),
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


@pytest.mark.parametrize(
    ("trial", "error", "message"),
    [
        (Trial(make_small("cnn5"), SETUP, Execution(mode="graph")), InputError, "CUDA"),
        (Trial(Network(), SETUP), NetError, "empty"),
        (Trial(replace(make_small("cnn5"), buildable=False), SETUP), NetError, "rebuilt"),
        (
            Trial(make_small("cnn5"), replace(SETUP, accumulate=0), Execution(stage="update")),
            InputError,
            "without an update",
        ),
        # A processor would silently compute in fp32.
        (Trial(make_small("cnn5"), TF32), InputError, "give fp32"),
    ],
)
def test_trials_that_cannot_run_are_refused(
    runtime: TorchRuntime, trial: Trial, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        runtime.prepare(trial)


def test_modules_are_refused_like_trials(runtime: TorchRuntime) -> None:
    with pytest.raises(InputError, match="give fp32"):
        runtime.prepare_net(nn.Linear(3, 2), torch.zeros(4, 3), None, TF32)


@pytest.mark.parametrize(
    "setup", [SETUP, replace(SETUP, phase="inference", precision="bf16", optimizer="sgd")]
)
def test_users_module_is_as_it_was_when_its_step_is_closed(
    runtime: TorchRuntime, setup: Setup
) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 3)).eval()
    net[0].train()
    net[0].weight.grad = torch.ones(6, 4)
    net[3].weight.requires_grad_(False)
    weights, before = list(net.parameters()), {k: v.clone() for k, v in net.state_dict().items()}
    inputs = torch.randn(8, 4)
    step = runtime.prepare_net(net, inputs, None, replace(setup, batch=8))
    step.run(3)
    step.close()
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert list(map(id, net.parameters())) == list(map(id, weights))
    assert {value.dtype for value in net.parameters()} == {torch.float32}
    assert [one.training for one in net] == [True, False, False, False]
    assert torch.equal(net[0].weight.grad, torch.ones(6, 4)) and net[3].weight.grad is None
    net(inputs)
    with pytest.raises(NotTrainingError):
        runtime.prepare_net(net, inputs * math.nan, None, SETUP)
    assert torch.equal(net[0].weight, before["0.weight"])


def test_weights_that_a_users_step_does_not_use_are_no_obstacle(runtime: TorchRuntime) -> None:
    net = MadeNet(lambda net, x: net.used(x), used=FC(), spare=FC())
    step = runtime.prepare_net(net, torch.randn(8, 4), None, replace(SETUP, batch=8))
    step.run(1)
    assert net.used.weight.grad is not None and net.spare.weight.grad is None


class CastWatcher(torch.autograd.Function):
    """Notes whether autocast is on in forward and backward."""

    @staticmethod
    def forward(ctx, x, seen):
        ctx.seen = seen
        seen.append(("forward", torch.is_autocast_enabled("cpu")))
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.seen.append(("backward", torch.is_autocast_enabled("cpu")))
        return grad, None


def test_backward_runs_outside_of_autocast_as_in_an_ordinary_loop(runtime: TorchRuntime) -> None:
    class Watched(nn.Linear):
        def forward(self, x):
            return CastWatcher.apply(super().forward(x), seen)

    seen: list[tuple[str, bool]] = []
    setup = replace(SETUP, batch=8, precision="bf16")
    runtime.prepare_net(Watched(4, 6), torch.randn(8, 4), None, setup).run(1)
    assert set(seen) == {("forward", True), ("backward", False)}


def test_checking_leaves_the_weights_that_are_measured(runtime: TorchRuntime) -> None:
    net = make_linear()
    before = [weight.detach().clone() for weight in net.parameters()]
    step = runtime.prepare_net(net, torch.ones(4, 3), sum_squares, SETUP)
    assert all(torch.equal(old, new) for old, new in zip(before, step.weights, strict=True))


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
        assert torch.allclose(a.grad, b.grad)


def test_gradients_add_up_without_an_update(runtime: TorchRuntime) -> None:
    setup = replace(SETUP, accumulate=0)
    step = runtime.prepare_net(make_linear(), torch.ones(4, 3), sum_squares, setup)
    (weight, _), before = step.weights, [w.detach().clone() for w in step.weights]
    first = weight.grad.clone()
    step.run(1)
    added = weight.grad - first
    step.run(2)
    assert torch.allclose(weight.grad, first + 3 * added) and added.any()
    assert all(torch.equal(old, new) for old, new in zip(before, step.weights, strict=True))


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


def needs_compiler(test: Callable[..., None]) -> Callable[..., None]:
    """Skip a test without a compiler, and ignore what PyTorch's own modules do wrong."""
    reason = "torch.compile needs a C++ compiler on a processor"
    skips = pytest.mark.skipif(shutil.which("g++") is None, reason=reason)
    return skips(pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")(test))


LINEAR = replace(make_layer("linear", cin=16, cout=8), name="fc", input_grad=False)
LINEAR_16 = make_layer("linear", cin=16, cout=16)
COMPILED = Setup(batch=4, threads=1, compiled=True)
COMPILED_INFERENCE = replace(COMPILED, phase="inference")
SMALL_COMPILED = Trial(Network((LINEAR,), Input((16,))), COMPILED)


@pytest.fixture
def compiler_counts() -> dict[str, Counter[str]]:
    """Return what PyTorch counts while it compiles, from 0."""
    counters = torch._dynamo.utils.counters
    counters.clear()
    return counters


@needs_compiler
def test_compiled_module_computes_what_the_eager_one_does() -> None:
    tail = (make_op("batch_norm"), make_op("elementwise", fn="relu"), make_op("flatten"))
    conv = make_layer("conv2d", tail, cin=3, cout=4, space=(6, 6), kernel=3, padding=1)
    fc = make_layer("linear", cin=4 * 6 * 6, cout=5)
    net = build_seeded(Network((conv, fc), Input((3, 6, 6))), 0).eval()
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        assert torch.allclose(compile_module(net)(x), net(x), atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_compiled_step_trains_and_closes(runtime: TorchRuntime, optimizer: str) -> None:
    trial = replace(SMALL_COMPILED, setup=replace(COMPILED, optimizer=optimizer))
    step = runtime.prepare(trial)
    before = [weight.detach().clone() for weight in step.weights]
    step.run(2)
    assert not any(torch.equal(a, b) for a, b in zip(before, step.weights, strict=True))
    step.close()
    step.close()
    with pytest.raises(InputError, match="closed"):
        step.run(1)


def test_copies_of_inference_have_their_own_inputs() -> None:
    nets, inputs = [nn.Linear(3, 2), nn.Linear(3, 2)], torch.randn(2, 4, 3)
    outputs = ModulesTogether(nets)(*inputs)
    assert [torch.equal(nets[i](inputs[i]), outputs[i]) for i in (0, 1)] == [True, True]


@needs_compiler
def test_copies_of_inference_are_compiled_together(runtime, compiler_counts) -> None:
    # The host's time for a call would otherwise count once for each copy.
    trial = Trial(SMALL_COMPILED.network, COMPILED_INFERENCE, Execution(copies=3))
    runtime.prepare(trial).close()
    assert compiler_counts["stats"]["unique_graphs"] == 1
    assert compiler_counts["stats"]["calls_captured"] >= 3


@needs_compiler
def test_many_networks_are_compiled_one_after_another(runtime, compiler_counts) -> None:
    # Beyond its limit, PyTorch would only log that it runs further networks eagerly.
    with torch._dynamo.config.patch(recompile_limit=1):
        for width in (16, 24, 32):
            layer = make_layer("linear", cin=width, cout=8)
            runtime.prepare(Trial(Network((layer,), Input((width,))), COMPILED_INFERENCE)).close()
    assert compiler_counts["stats"]["unique_graphs"] == 3


@needs_compiler
def test_checkpointed_layers_are_compiled_as_one_graph(runtime, compiler_counts) -> None:
    hidden = replace(LINEAR_16, recomputed=True)
    network = Network((LINEAR_16, hidden, LINEAR), Input((16,)))
    runtime.prepare(Trial(network, COMPILED)).close()
    assert compiler_counts["stats"]["unique_graphs"] == 1 and not compiler_counts["graph_break"]


@needs_compiler
def test_compile_error_is_one_line(runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("/missing/g++",))
    gelu = make_layer("elementwise", fn="gelu", shape=(7,))
    trial = Trial(Network((gelu,), Input((7,))), replace(COMPILED_INFERENCE, batch=3, threads=0))
    with pytest.raises(NetError, match=r"No working C\+\+ compiler.*: install g\+\+") as error:
        runtime.prepare(trial)
    assert "\n" not in str(error.value) and "TORCHDYNAMO" not in str(error.value)
