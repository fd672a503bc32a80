"""How layers are wired, fitted and said to be buildable, for every runtime that builds them."""

from dataclasses import replace

import pytest

from joulecast.families import make_family
from joulecast.operators import make_layer, make_op
from joulecast.operators.building import (
    BUILDABLE_FUNCTIONS,
    DECOMPOSED_FUNCTIONS,
    InputFit,
    LayerWiring,
    can_build_op,
    concat_channels_to_fit,
    find_operand_shape,
    is_op_join,
    needs_input_gradient,
    plan_input_fits,
    plan_wiring,
)
from joulecast.records import Input, Network
from joulecast.torch_nets.modules import _FUNCTIONS, DECOMPOSED_ACTIVATIONS

LINEAR = make_layer("linear", cin=4, cout=3, lead=(5,))
SUM = replace(make_layer("elementwise", fn="add", inputs=2, shape=(4, 6, 6)), join="add")


def test_inputs_of_the_expected_shape_need_no_fit():
    assert plan_input_fits(LINEAR, [(5, 4)]) == ()
    assert plan_input_fits(SUM, [(4, 6, 6), (4, 1, 1)]) == ()


def test_only_input_is_cut_or_repeated():
    assert plan_input_fits(LINEAR, [(7,)]) == ((InputFit.ELEMENTS, (5, 4)),)


def test_fewer_elements_beside_another_input_are_broadcast():
    fits = plan_input_fits(SUM, [(4, 6, 6), (3, 5)])
    assert [how for how, _ in fits] == [InputFit.NONE, InputFit.ONE_ELEMENT]


def test_second_factor_of_a_product_has_its_own_shape():
    product = make_layer("matmul", m=4, k=5, n=6)
    assert plan_input_fits(product, [(4, 5), (5, 6)]) == ()
    fits = plan_input_fits(product, [(4, 5), (6, 5)])
    assert fits == ((InputFit.NONE, (4, 5)), (InputFit.ELEMENTS, (5, 6)))


def test_concatenated_channels_are_fitted_where_they_do_not_add_up():
    layer = replace(make_layer("conv2d", cin=10, cout=2, space=(6, 6), kernel=1), join="concat")
    assert concat_channels_to_fit(layer, [(4, 6, 6), (4, 6, 6)]) == 10
    assert concat_channels_to_fit(layer, [(4, 6, 6), (6, 6, 6)]) == 0


def test_operator_may_itself_combine_the_inputs():
    assert is_op_join(SUM)
    assert not is_op_join(replace(LINEAR, join="add"))


@pytest.mark.parametrize(
    ("size", "shape", "expected"),
    [
        (8, (6, 8), (8,)),
        (48, (6, 8), (6, 8)),
        (6, (6, 4, 4), (6, 1, 1)),
        (48, (2, 6, 8), (6, 8)),
        (1, (6, 8), ()),
        (5, (6, 8), (6, 8)),
    ],
)
def test_operands_broadcast_as_their_size_allows(size, shape, expected):
    assert find_operand_shape(size, shape) == expected


SQUARE = make_layer("linear", cin=4, cout=4)
PLUS = replace(make_layer("elementwise", fn="add", inputs=2, shape=(4,)), reads=(1, 2), join="add")


def test_results_are_released_after_their_last_reader():
    network = Network((SQUARE, SQUARE, PLUS), Input((4,)))
    assert plan_wiring(network) == [
        LayerWiring((0,), (0,)),
        LayerWiring((1,), ()),
        LayerWiring((2, 1), (1, 2)),
    ]


def test_layer_that_reads_only_weights_is_given_the_input():
    network = Network((replace(SQUARE, reads=()),), Input((4,)))
    assert plan_wiring(network)[0].reads == (0,)


def test_input_needs_a_gradient_if_its_reader_computes_one():
    frozen_start = replace(SQUARE, input_grad=False)
    assert needs_input_gradient(Network((SQUARE, SQUARE), Input((4,))))
    assert not needs_input_gradient(Network((frozen_start, SQUARE), Input((4,))))
    assert needs_input_gradient(Network((frozen_start, replace(SQUARE, reads=(2,))), Input((4,))))
    assert not needs_input_gradient(make_family("lenet5"))


def test_every_named_function_has_a_builder():
    assert set(_FUNCTIONS) == BUILDABLE_FUNCTIONS
    assert set(DECOMPOSED_ACTIVATIONS) == DECOMPOSED_FUNCTIONS


def test_operators_with_operands_of_their_own_cannot_be_rebuilt():
    assert can_build_op(make_op("elementwise", fn="mul"))
    assert can_build_op(make_op("elementwise", fn="mul", inputs=2))
    assert not can_build_op(make_op("elementwise", fn="mul", params=8))
    assert not can_build_op(make_op("elementwise", fn="mul", constant=8))
    assert not can_build_op(make_op("elementwise", fn="sub", inputs=2))
    assert can_build_op(make_op("elementwise", fn="mean", axes=(1, 2)))
    assert not can_build_op(make_op("elementwise", fn="mean"))
    assert not can_build_op(make_op("slice", out=(1,), shape=(2,)))
