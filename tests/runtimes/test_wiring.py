"""Which results the layers of a network read."""

from dataclasses import replace

from joulecast.families import make_family
from joulecast.kinds import make_layer
from joulecast.records import Input, Network
from joulecast.runtimes.wiring import LayerWiring, needs_input_gradient, plan_wiring

LINEAR = make_layer("linear", cin=4, cout=4)
SUM = replace(make_layer("elementwise", fn="add", inputs=2, shape=(4,)), reads=(1, 2), join="add")


def test_results_are_released_after_their_last_reader():
    network = Network((LINEAR, LINEAR, SUM), Input((4,)))
    assert plan_wiring(network) == [
        LayerWiring((0,), (0,)),
        LayerWiring((1,), ()),
        LayerWiring((2, 1), (1, 2)),
    ]


def test_layer_that_reads_only_weights_is_given_the_input():
    network = Network((replace(LINEAR, reads=()),), Input((4,)))
    assert plan_wiring(network)[0].reads == (0,)


def test_input_needs_a_gradient_if_its_reader_computes_one():
    frozen_start = replace(LINEAR, input_grad=False)
    assert needs_input_gradient(Network((LINEAR, LINEAR), Input((4,))))
    assert not needs_input_gradient(Network((frozen_start, LINEAR), Input((4,))))
    assert needs_input_gradient(Network((frozen_start, replace(LINEAR, reads=(2,))), Input((4,))))
    assert not needs_input_gradient(make_family("lenet5"))
