"""Steps train, stages run alone, and modules that cannot train are rejected."""

import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from joulecast.errors import InputError, NetError, NotTrainingError
from joulecast.families import FAMILIES, build_family, make_family
from joulecast.kinds import make_layer
from joulecast.records import Device, Execution, Input, Network, Setup, Trial
from joulecast.runtimes.torch.runtime import TorchRuntime, draw_inputs, find_torch_device
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
from joulecast.runtimes.torch.runtime import TorchRuntime
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
