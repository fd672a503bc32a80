"""Layers as operators: precision, gradients and memory format pass along the tail."""

from dataclasses import replace

from joulecast.estimators.additive.operators import (
    count_fork_work,
    has_several_operators,
    list_operators,
    share_moved_alone,
)
from joulecast.kinds import Work, make_layer, make_op, output_shape

CONV = make_layer("conv2d", cin=3, cout=8, space=6, kernel=3)
NORM, RELU = make_op("batch_norm"), make_op("elementwise", fn="relu")
ADD = replace(make_layer("elementwise", fn="add", inputs=2, shape=(4, 8)), reads=(1, 1), join="add")


def test_operators_have_the_shapes_of_the_tail():
    layer = replace(CONV, tail=(NORM, RELU, make_op("flatten")))
    operators = [one for one, _ in list_operators(layer, half=False)]
    assert [one.kind for one in operators] == ["conv2d", "batch_norm", "elementwise", "flatten"]
    assert [output_shape(one) for one in operators] == [(8, 4, 4)] * 3 + [(128,)]
    assert not any(one.tail for one in operators)


def test_tail_gets_half_precision_and_a_gradient_from_its_layer():
    layer = replace(CONV, tail=(NORM,), input_grad=False, channels_last_weights=True)
    (conv, conv_half), (norm, norm_half) = list_operators(layer, half=False)
    assert (conv_half, norm_half) == (False, True)
    assert not conv.input_grad and norm.input_grad
    assert norm.channels_last


def test_frozen_layer_without_input_gradient_gives_its_tail_none():
    layer = replace(CONV, tail=(RELU,), input_grad=False, trains=False)
    assert not any(one.input_grad for one, _ in list_operators(layer, half=False))


def test_views_are_no_tail():
    assert not has_several_operators(replace(CONV, tail=(make_op("flatten"),)))
    assert has_several_operators(replace(CONV, tail=(RELU, make_op("flatten"))))


def test_gradients_are_added_where_branches_fork():
    forward = Work(0.0, 300.0, 1)
    assert count_fork_work(ADD, forward) == Work(0.0, 300.0, 1)
    assert count_fork_work(CONV, forward) == Work()


def test_sum_alone_moves_four_tensors_instead_of_six():
    assert share_moved_alone(ADD, has_gradient=True) == 4 / 6
    assert share_moved_alone(ADD, has_gradient=False) == 2 / 3
    assert share_moved_alone(CONV, has_gradient=True) == 1.0
