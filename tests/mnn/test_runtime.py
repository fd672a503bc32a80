"""The MNN runtime: its contract, and trials that it refuses."""

from dataclasses import replace
from importlib.metadata import version

import pytest

pytest.importorskip("MNN")

from joulecast.devices.detect import detect_device
from joulecast.families import make_family
from joulecast.mnn.engine import ENGINE, make_scalar
from joulecast.mnn.runtime import MnnStep
from joulecast.operators import make_layer
from joulecast.records import Execution, Input, Network, Setup, Trial
from joulecast.runtimes import open_runtime
from joulecast.system.errors import InputError, NetError, NotTrainingError
from joulecast.testing.runtimes import SMALL, RuntimeContract

LINEAR = make_layer("linear", cin=6, cout=4)


class TestMnnRuntime(RuntimeContract):
    stages = ("step", "forward")
    refuses_when_closed = True

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
    runtime = open_runtime("mnn", "mine")
    assert runtime.name == f"mnn-{version('MNN')}"
    assert runtime.device.name == "mine"
    assert open_runtime("mnn").device == detect_device("cpu")


FROZEN = replace(LINEAR, trains=False, input_grad=False)
TWO = Setup(batch=2)


@pytest.mark.parametrize(
    ("trial", "error", "message"),
    [
        (Trial(SMALL.network, Setup(batch=2, precision="bf16")), InputError, "fp32 only"),
        (Trial(SMALL.network, Setup(batch=2, loss="own")), InputError, "needs PyTorch"),
        (Trial(SMALL.network, TWO, Execution(mode="graph")), InputError, "use eager"),
        (Trial(make_family("transformer:16,1"), TWO), NetError, r"block0\.sdpa: MNN cannot train"),
        (Trial(Network((FROZEN,), Input((6,))), TWO), NotTrainingError, "nothing to train"),
    ],
)
def test_what_mnn_lacks_is_refused(trial, error, message):
    with pytest.raises(error, match=message):
        open_runtime("mnn").prepare(trial)


def test_frozen_layer_keeps_its_weights():
    layers = (FROZEN, make_layer("linear", cin=4, cout=3))
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
    # As PyTorch draws the weights of a layer with six inputs.
    assert 0.5 < abs(copies[0]).max() * 6**0.5 <= 1.0


def _lose_infinitely(replica):
    own = replica.loss
    replica.loss = lambda out: own(out) + make_scalar(float("inf"))


def _cut_gradient(replica):
    # A cast has no gradient in MNN, and says nothing.
    run = replica.net.run
    replica.net.run = lambda x: ENGINE.cast(run(x), ENGINE.float)


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


def prepare_with_weights(setup):
    """Return a step, and its weights as they are."""
    step = open_runtime("mnn").prepare(Trial(SMALL.network, setup))
    return step, {name: weight.read().copy() for name, weight in step._weights.items()}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_measured_steps_hardly_change_weights(optimizer):
    setup = Setup(batch=4, threads=1, optimizer=optimizer)
    step, before = prepare_with_weights(setup)
    step.run(5)
    changes = [abs(weight.read() - before[name]).max() for name, weight in step._weights.items()]
    # SGD's momentum still carries the two steps of the check.
    assert 0.0 < max(changes) < (0.1 if optimizer == "sgd" else 1e-5)


def test_adamw_shrinks_weights_before_its_update():
    step, before = prepare_with_weights(Setup(batch=4, optimizer="adamw"))
    step._optimizer.learning_rate = 1.0
    step._decay_weights()
    for name, weight in step._weights.items():
        expected = before[name] * (1.0 - 0.01)
        assert weight.read() == pytest.approx(expected, rel=1e-6)
    assert step._step()
