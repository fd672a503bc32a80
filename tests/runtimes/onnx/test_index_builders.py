"""Operators that move elements by index, in ONNX: as many elements, of the same shape."""

import pytest

pytest.importorskip("onnxruntime")

from joulecast.kinds import make_layer
from onnx_comparison import compare_with_torch, make_network, run_both


@pytest.mark.parametrize(
    "sizes",
    [
        {"axes": (0,), "shape": (7, 8), "out": (5, 8)},
        {"axes": (1,), "shape": (3, 7, 8), "out": (3, 5, 8)},
        {"axes": (0,), "across": 1, "shape": (7, 8), "out": (9, 8)},
        {"axes": (5,), "shape": (7, 8), "out": (7, 3)},
    ],
    ids=str,
)
def test_selected_elements_are_those_of_the_input(sizes):
    expected, found = run_both(make_network(make_layer("index", fn="index", **sizes)))
    assert found.shape == expected.shape
    assert {*found.ravel()} <= {*run_both_inputs(sizes["shape"]).ravel()}


def run_both_inputs(shape):
    import torch

    from onnx_comparison import BATCH

    return torch.randn((BATCH, *shape), generator=torch.Generator().manual_seed(2)).numpy()


def test_sum_of_scattered_elements_is_that_of_both():
    layer = make_layer("scatter", fn="index_add", shape=(7, 8), source=(9, 8))
    expected, found = run_both(make_network(layer))
    assert found.sum() == pytest.approx(expected.sum(), abs=1e-3)


def test_experts_multiply_their_rows_as_in_pytorch():
    compare_with_torch(
        make_network(make_layer("grouped_linear", cin=12, cout=5, lead=(6,), experts=3))
    )


def test_first_element_is_expanded_as_in_pytorch():
    compare_with_torch(make_network(make_layer("gradient_copy", shape=(1, 8), out=(4, 8))))


def test_slice_has_the_first_elements():
    layer = make_layer("slice", shape=(16, 8), out=(8,))
    _, found = run_both(make_network(layer))
    assert (found == run_both_inputs((16, 8))[:, 0]).all()
