"""The operators that are said to be buildable are those that PyTorch's builders know."""

from joulecast.kinds import make_op
from joulecast.runtimes.buildable import (
    BUILDABLE_FUNCTIONS,
    DECOMPOSED_FUNCTIONS,
    can_build_op,
)
from joulecast.runtimes.torch.modules import _FUNCTIONS, DECOMPOSED_ACTIVATIONS


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
