"""The MNN runtime: its contract, and trials that it refuses."""

import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("MNN")

from joulecast.devices.detect import detect_device
from joulecast.families import make_family
from joulecast.mnn.engine import ENGINE, draw_uniform, make_scalar
from joulecast.mnn.runtime import MnnStep
from joulecast.operators import make_layer
from joulecast.records import Execution, Input, Network, Setup, Trial
from joulecast.runtimes import open_runtime
from joulecast.system.errors import InputError, NetError, NotTrainingError
from joulecast.testing.runtimes import SMALL, RuntimeContract

LINEAR = make_layer("linear", cin=6, cout=4)


class TestMnnRuntime(RuntimeContract):
    stages = ("step", "forward")

    def make_runtime(self):
        return open_runtime("mnn:cpu")

    def make_huge_trial(self):
        return Trial(make_family("cnn5:4096,4096,4096,4096"), Setup(batch=100_000))


@pytest.mark.parametrize("name", ["cnn5:3,4,5,6", "har:3,4,5,6", "lstm:6,2", "resnet18:4,1,1,1,1"])
def test_families_train(name):
    step = open_runtime("mnn").prepare(Trial(make_family(name), Setup(batch=2, threads=1)))
    step.run(1)
    step.close()


def test_name_has_the_installed_version():
    from importlib.metadata import version

    runtime = open_runtime("mnn", "mine")
    assert runtime.name == f"mnn-{version('MNN')}"
    assert runtime.device.name == "mine"
    assert open_runtime("mnn").device == detect_device("cpu")


def test_kind_without_gradient_is_refused_by_name():
    with pytest.raises(NetError, match=r"layer block0\.sdpa: MNN cannot train sdpa"):
        open_runtime("mnn").prepare(Trial(make_family("transformer:16,1"), Setup(batch=2)))


@pytest.mark.parametrize(
    ("setup", "mode", "message"),
    [
        ({"precision": "bf16"}, "eager", "fp32 only"),
        ({"loss": "own"}, "eager", "needs PyTorch"),
        ({}, "graph", "use eager"),
    ],
)
def test_what_mnn_lacks_is_refused(setup, mode, message):
    trial = Trial(SMALL.network, Setup(batch=2, **setup), Execution(mode=mode))
    with pytest.raises(InputError, match=message):
        open_runtime("mnn").prepare(trial)


def test_frozen_network_has_nothing_to_train():
    frozen = replace(LINEAR, trains=False, input_grad=False)
    trial = Trial(Network((frozen,), Input((6,))), Setup(batch=2))
    with pytest.raises(NotTrainingError, match="nothing to train"):
        open_runtime("mnn").prepare(trial)


def test_frozen_layer_keeps_its_weights():
    layers = (replace(LINEAR, trains=False, input_grad=False), make_layer("linear", cin=4, cout=3))
    step = open_runtime("mnn").prepare(Trial(Network(layers, Input((6,))), Setup(batch=2)))
    assert [*step._weights] == ["0.1.linear.weight", "0.1.linear.bias"]


def test_gradient_of_the_input_is_computed_where_the_layer_needs_it():
    execution = Execution(upstream="random")
    for layer, names in (
        (LINEAR, {"0.0.linear.weight", "0.0.linear.bias", "0.input.offset"}),
        (replace(LINEAR, input_grad=False), {"0.0.linear.weight", "0.0.linear.bias"}),
    ):
        trial = Trial(Network((layer,), Input((6,))), Setup(batch=2), execution)
        assert {*open_runtime("mnn").prepare(trial)._weights} == names


def test_equal_trials_start_from_equal_weights():
    trial = Trial(Network((LINEAR,), Input((6,))), Setup(batch=2), Execution(copies=2))
    first, again = (open_runtime("mnn").prepare(trial)._weights for _ in range(2))
    assert all((first[name].read() == again[name].read()).all() for name in first)
    copies = [first[f"{copy}.0.linear.weight"].read() for copy in (0, 1)]
    assert (copies[0] != copies[1]).any()


def test_draws_depend_on_the_seed_alone():
    first, again, other = (draw_uniform([4, 5], 0.5, seed).read().copy() for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert 0.25 < abs(first).max() <= 0.5


def test_missing_mnn_is_named():
    script = "import sys; sys.modules['_mnncengine'] = None; " + (
        "from joulecast.runtimes import open_runtime; open_runtime('mnn')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "MissingError: measuring on mnn needs MNN" in done.stderr
    assert "joulecast[mnn]" in done.stderr


class CutNetwork:
    """A network in which MNN cuts the gradients without an error."""

    def __init__(self, net):
        self.weights, self.check_shapes = net.weights, net.check_shapes
        self.run = lambda x: ENGINE.cast(net.run(x), ENGINE.float)


def _lose_infinitely(replica):
    own = replica.loss
    replica.loss = lambda out: own(out) + make_scalar(float("inf"))


def _cut_gradient(replica):
    # A cast has no gradient in MNN, and says nothing.
    replica.net = CutNetwork(replica.net)


def _add_unused_weight(replica):
    replica.net.weights.begin_layer("unused", True)
    replica.net.weights.draw("weight", [2, 2], 2)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_cut_gradient, "no gradient"),
        (_add_unused_weight, r"weight unused\.weight did not change"),
        (_lose_infinitely, "loss is inf"),
    ],
)
def test_a_step_that_does_not_train_is_rejected(spoil, reason):
    (replica,) = open_runtime("mnn").prepare(SMALL)._replicas
    spoil(replica)
    with pytest.raises(NotTrainingError, match=reason):
        MnnStep([replica], SMALL.setup, Execution(), 1).check()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_measured_steps_hardly_change_weights(optimizer):
    setup = Setup(batch=4, threads=1, optimizer=optimizer)
    step = open_runtime("mnn").prepare(Trial(SMALL.network, setup))
    before = {name: weight.read().copy() for name, weight in step._weights.items()}
    step.run(5)
    changes = [abs(weight.read() - before[name]).max() for name, weight in step._weights.items()]
    # SGD's momentum still carries the two steps of the check.
    assert 0.0 < max(changes) < (0.1 if optimizer == "sgd" else 1e-5)


def test_adamw_shrinks_weights_before_its_update():
    step = open_runtime("mnn").prepare(Trial(SMALL.network, Setup(batch=4, optimizer="adamw")))
    before = {name: weight.read().copy() for name, weight in step._weights.items()}
    step._optimizer.learning_rate = 1.0
    step._decay_weights()
    for name, weight in step._weights.items():
        expected = before[name] * (1.0 - 0.01)
        assert weight.read() == pytest.approx(expected, rel=1e-6)
    assert step._step()


def test_closed_step_does_not_run():
    step = open_runtime("mnn").prepare(SMALL)
    step.close()
    with pytest.raises(InputError, match="closed"):
        step.run(1)
