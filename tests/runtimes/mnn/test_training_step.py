"""Steps of MNN: only real training is measured."""

import pytest

pytest.importorskip("MNN")

from joulecast.errors import InputError, NotTrainingError
from joulecast.records import Execution, Setup, Trial
from joulecast.runtimes import open_runtime
from joulecast.runtimes.mnn import training_step
from joulecast.runtimes.mnn.engine import ENGINE, make_scalar
from joulecast.runtimes.mnn.training_step import MnnReplica, prepare_step
from joulecast.testing.runtimes import SMALL

SETUP = Setup(batch=4, threads=1)


class CutNetwork:
    """A network in which MNN cuts some gradients without an error."""

    def __init__(self, net, cut):
        self.weights, self.output_shape = net.weights, net.output_shape
        self._net, self._cut = net, cut

    def check_shapes(self, x):
        self._net.check_shapes(x)

    def run(self, x):
        return self._cut(self._net.run(x))


def _make_replica(cut=lambda out: out, loss=None):
    step = open_runtime("mnn").prepare(SMALL)
    (replica,) = step._replicas
    return MnnReplica(CutNetwork(replica.net, cut), replica.inputs, loss or replica.loss)


def test_step_without_gradient_is_rejected():
    # A cast has no gradient in MNN, and says nothing.
    replica = _make_replica(lambda out: ENGINE.cast(out, ENGINE.float))
    with pytest.raises(NotTrainingError, match="no gradient"):
        prepare_step([replica], SETUP, Execution(), 1)


def test_weight_that_does_not_change_is_named():
    replica = _make_replica()
    weights = replica.net.weights
    weights.begin_layer("unused", True)
    weights.draw("weight", [2, 2], 2)
    with pytest.raises(NotTrainingError, match=r"weight unused\.weight did not change"):
        prepare_step([replica], SETUP, Execution(), 1)


def test_infinite_loss_is_rejected():
    replica = _make_replica()
    own = replica.loss
    replica.loss = lambda out: own(out) + make_scalar(float("inf"))
    with pytest.raises(NotTrainingError, match="loss is inf"):
        prepare_step([replica], SETUP, Execution(), 1)


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
        expected = before[name] * (1.0 - training_step._ADAMW_DECAY)
        assert weight.read() == pytest.approx(expected, rel=1e-6)
    assert step._step()


def test_closed_step_does_not_run():
    step = open_runtime("mnn").prepare(SMALL)
    step.close()
    with pytest.raises(InputError, match="closed"):
        step.run(1)
