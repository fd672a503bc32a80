"""Steps train, stages and copies do what they say, and what does not train is refused."""

import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from joulecast.errors import InputError, NetError, NotTrainingError
from joulecast.families import FAMILIES, build_family, make_family
from joulecast.kinds import make_layer
from joulecast.records import Device, Execution, Input, Network, Setup, Trial
from joulecast.runtimes.torch.load import load_net, read_named_net
from joulecast.runtimes.torch.runtime import TorchRuntime, draw_inputs, find_torch_device

SETUP = Setup(batch=4, threads=1)
SMALL = {
    "lenet5": "lenet5:2,3,8,8",
    "cnn5": "cnn5:2,3,4,5",
    "har": "har:3,4,5,6",
    "lstm": "lstm:8,1",
    "transformer": "transformer:16,2",
    "resnet18": "resnet18:4,1,1,1,1",
    "resnet34": "resnet34:4,1,2,1,1",
    "resnet50": "resnet50:4,1,1,1,1",
}


@pytest.fixture(scope="module")
def runtime() -> TorchRuntime:
    return TorchRuntime("cpu", Device("a-cpu"))


def test_every_family_has_a_small_member() -> None:
    assert set(SMALL) == set(FAMILIES)


@pytest.mark.parametrize("name", sorted(SMALL))
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_every_family_trains(runtime: TorchRuntime, name: str, optimizer: str) -> None:
    setup = replace(SETUP, optimizer=optimizer)
    step = runtime.prepare(Trial(make_family(SMALL[name]), setup))
    step.run(2)
    step.wait()
    losses = [float(loss) for loss in step.last_losses]
    assert losses and all(loss == loss for loss in losses)
    step.close()
    step.close()


def test_the_loss_falls(runtime: TorchRuntime) -> None:
    step = runtime.prepare(Trial(make_family(SMALL["cnn5"]), SETUP))
    first = float(step.last_losses[0])
    step.run(60)
    assert float(step.last_losses[0]) < first


@pytest.mark.parametrize("stage", ["forward", "backward", "update", "step"])
def test_a_stage_does_that_stage_only(runtime: TorchRuntime, stage: str) -> None:
    step = runtime.prepare(Trial(make_family(SMALL["cnn5"]), SETUP, Execution(stage=stage)))
    weights = [w.detach().clone() for w in step.weights]
    step.run(2)
    moved = any(not torch.equal(a, b) for a, b in zip(weights, step.weights, strict=True))
    assert moved == (stage in ("update", "step"))


def test_copies_have_their_own_weights(runtime: TorchRuntime) -> None:
    network = make_family(SMALL["har"])
    step = runtime.prepare(Trial(network, SETUP, Execution(copies=3, upstream="random")))
    assert len(step.replicas) == 3
    assert len(step.weights) == 3 * len(list(step.replicas[0].net.parameters()))
    first, second = (copy.net.state_dict() for copy in step.replicas[:2])
    assert any(not torch.equal(first[key], second[key]) for key in first)
    step.run(1)


def test_the_same_trial_builds_the_same_net(runtime: TorchRuntime) -> None:
    trial = Trial(make_family(SMALL["cnn5"]), SETUP)
    one, two = runtime.prepare(trial), runtime.prepare(trial)
    assert all(torch.equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))


def test_inference_updates_nothing(runtime: TorchRuntime) -> None:
    step = runtime.prepare(Trial(make_family(SMALL["cnn5"]), replace(SETUP, phase="inference")))
    before = [w.clone() for w in step.replicas[0].net.parameters()]
    step.run(2)
    after = step.replicas[0].net.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(w.grad is None for w in step.replicas[0].net.parameters())


def test_half_precision_trains() -> None:
    """In a process of its own: some virtual machines promise instructions that they do not run."""
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
        pytest.skip("this CPU says it has bf16 instructions, and has not")
    assert done.stdout == "trained\n", done.stderr


def test_tf32_trains(runtime: TorchRuntime) -> None:
    setup = replace(SETUP, precision="tf32")
    runtime.prepare(Trial(make_family(SMALL["cnn5"]), setup)).run(1)


def test_threads_are_put_back(runtime: TorchRuntime) -> None:
    before = torch.get_num_threads()
    runtime.prepare(Trial(make_family(SMALL["har"]), replace(SETUP, threads=1))).run(1)
    assert torch.get_num_threads() == before


def test_the_first_layer_gets_an_input_gradient_only_where_it_is_asked_for() -> None:
    linear = make_layer("linear", cin=4, cout=3)
    generator = torch.Generator().manual_seed(0)
    inside = draw_inputs(Network((linear,), Input((4,))), Setup(batch=2), generator)
    first = draw_inputs(
        Network((replace(linear, input_grad=False),), Input((4,))), Setup(batch=2), generator
    )
    assert inside.requires_grad and not first.requires_grad


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class Exploding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) / 0


@pytest.mark.parametrize(
    ("net", "word"),
    [
        (Unused(), "spare"),
        (Exploding(), "loss"),
        (nn.Linear(4, 3).requires_grad_(False), "nothing to train"),
    ],
)
def test_what_does_not_train_is_refused(runtime: TorchRuntime, net: nn.Module, word: str) -> None:
    with pytest.raises(NotTrainingError, match=word):
        runtime.prepare_net(net, torch.randn(2, 4), None, Setup(batch=2))


def test_a_bias_before_a_norm_is_no_reason_to_refuse(runtime: TorchRuntime) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    runtime.prepare_net(net, torch.randn(8, 4), None, Setup(batch=8)).run(1)


def test_graphs_need_a_gpu(runtime: TorchRuntime) -> None:
    with pytest.raises(InputError, match="CUDA"):
        runtime.prepare(Trial(make_family(SMALL["cnn5"]), SETUP, Execution(mode="graph")))


def test_an_empty_network_and_one_that_cannot_be_built_are_refused(runtime: TorchRuntime) -> None:
    with pytest.raises(NetError, match="empty"):
        runtime.prepare(Trial(Network(), SETUP))
    with pytest.raises(NetError, match="rebuilt"):
        runtime.prepare(Trial(replace(make_family("cnn5"), buildable=False), SETUP))


@pytest.mark.parametrize("on", ["tpu", "cuda:99", "cuda:x", "mps"])
def test_unknown_devices_are_refused(on: str) -> None:
    with pytest.raises(InputError):
        find_torch_device(on)


NET_FILE = """
import torch
from torch import nn

def alone(): return nn.Linear(8, 2)
def with_inputs(): return nn.Linear(8, 2), torch.zeros(5, 8)
def with_loss(): return nn.Linear(8, 2), (torch.zeros(5, 8),), lambda out: out.sum()
def broken(): raise ValueError("no such thing")
def wrong(): return 7
class NeedsNumbers(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, int(torch.ones(3).sum().item()))
    def forward(self, x): return self.fc(x)
def needs_numbers(): return NeedsNumbers(), torch.zeros(5, 8)
"""


@pytest.fixture
def net_file(tmp_path) -> str:
    path = tmp_path / "my_net.py"
    path.write_text(NET_FILE)
    return str(path)


def test_named_nets_are_read(net_file: str) -> None:
    for name, batch in (("with_inputs", 5), ("with_loss", 5), ("needs_numbers", 5)):
        network, found = read_named_net(f"{net_file}:{name}")
        assert found == batch
        assert [layer.kind for layer in network.layers] == ["linear"]
    network, found = read_named_net(f"{net_file}:alone", batch=3, input_shape=(8,))
    assert (found, network.input.shape) == (3, (8,))
    assert load_net(f"{net_file}:with_inputs", batch=7).inputs.shape == (7, 8)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("{file}:alone", "--input"),
        ("{file}:broken", "no such thing"),
        ("{file}:wrong", "int"),
        ("{file}:nothing", "nothing"),
        ("{file}.py:alone", "no file"),
        ("no.such.package:make", "fails to import"),
        ("something", "family"),
    ],
)
def test_names_that_lead_nowhere_are_one_clear_line(net_file: str, name: str, word: str) -> None:
    with pytest.raises(NetError, match=word) as caught:
        read_named_net(name.format(file=net_file))
    assert "\n" not in str(caught.value)


def test_any_width_of_one_trains(runtime: TorchRuntime) -> None:
    """The bounds of every range are measured first, and one channel may be born dead."""
    for params in ({"c1": 1, "c2": 1, "c3": 1, "c4": 1}, {"c1": 1, "c2": 4, "c3": 1, "c4": 4}):
        runtime.prepare(Trial(build_family("cnn5", params, (3, 16, 16)), SETUP)).close()
