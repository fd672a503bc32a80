"""Passes of a training step together do the work of the step."""

import pytest

from joulecast.estimators.additive.layers import set_up_layer, split_passes
from joulecast.kinds import make_layer
from joulecast.records import Setup
from joulecast.variants import Part

LARGE = {
    "linear": make_layer("linear", cin=256, cout=512, lead=(64,), bias=0),
    "grouped_linear": make_layer("grouped_linear", cin=256, cout=512, lead=(64,), experts=4),
    "matmul": make_layer("matmul", count=8, m=64, k=32, n=64),
    "conv2d": make_layer("conv2d", cin=32, cout=64, space=32, kernel=3, padding=1),
    "softmax": make_layer("elementwise", fn="softmax", shape=(64, 128)),
    "layer_norm": make_layer("layer_norm", shape=(64, 256)),
    "embedding": make_layer("embedding", vocabulary=1000, width=256, lead=(64,)),
    "lstm": make_layer("lstm", cin=128, hidden=128, tokens=16),
    "attention": make_layer("attention", width=256, heads=4, tokens=64, kv_tokens=64),
}


def list_leaves(layer, setup):
    piece = set_up_layer(Part("hidden", (layer,)), setup)
    return [leaf for leaf, _ in piece.operators_alone]


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_passes_conserve_flops(name, precision):
    for leaf in list_leaves(LARGE[name], Setup(batch=16, precision=precision)):
        passes = split_passes(leaf)
        assert sum(n * one.flops for one, n in passes) == pytest.approx(leaf.flops, rel=1e-9)


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_passes_move_the_bytes_of_their_leaf(name, precision):
    for leaf in list_leaves(LARGE[name], Setup(batch=16, precision=precision)):
        moved = sum(n * one.size_bytes for one, n in split_passes(leaf))
        assert moved == pytest.approx(leaf.size_bytes, rel=0.02)


@pytest.mark.parametrize("name", LARGE)
def test_inference_is_one_pass(name):
    for leaf in list_leaves(LARGE[name], Setup(batch=16, phase="inference")):
        assert split_passes(leaf) == ((leaf, 1.0),)


def test_backward_of_a_product_is_two_products():
    (leaf,) = list_leaves(LARGE["linear"], Setup(batch=16))
    products = [one for one, _ in split_passes(leaf) if one.flops]
    assert sum(n for one, n in split_passes(leaf) if one.flops) == 3.0
    assert all(one.phase == "inference" for one in products)
