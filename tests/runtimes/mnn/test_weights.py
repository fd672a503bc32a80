"""Weights of networks in MNN."""

import pytest

pytest.importorskip("MNN")

from joulecast.runtimes.mnn.engine import NN
from joulecast.runtimes.mnn.weights import Weights


def test_weights_that_train_belong_to_the_module():
    weights = Weights(1)
    weights.begin_layer("first", is_trained=True)
    drawn = weights.draw("weight", [3, 4], 4)
    weights.begin_layer("second", is_trained=False)
    frozen = weights.fill("weight", [2], 1.0)
    assert [*weights.trained] == ["first.weight"]
    assert len(weights.module.parameters) == 1
    assert (drawn.op_type, frozen.op_type) == ("Trainable", "Const")
    assert abs(drawn.read()).max() <= 0.5


def test_weights_of_one_layer_differ():
    weights = Weights(1)
    weights.begin_layer("cell", is_trained=True)
    first, second = (weights.draw("weight", [3], 1) for _ in range(2))
    assert [*weights.trained] == ["cell.weight", "cell.weight2"]
    assert (first.read() != second.read()).any()


@pytest.mark.parametrize(("is_trained", "names"), [(True, ["norm.0", "norm.1"]), (False, [])])
def test_statistics_of_a_norm_are_no_weights(is_trained, names):
    weights = Weights(1)
    weights.begin_layer("norm", is_trained)
    weights.add_module(NN.batch_norm(4, 4))
    assert [*weights.trained] == names
