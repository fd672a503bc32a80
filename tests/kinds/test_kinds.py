"""Test parameters, FLOPs and shapes of every kind against textbook formulas."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.kinds import KINDS, layer_work, make_layer, make_op, output_shape
from joulecast.records import Setup, Sizes
from kind_examples import LAYERS


def test_examples_cover_every_kind():
    assert {layer.kind for layer in LAYERS.values()} == set(KINDS)


@pytest.mark.parametrize(
    ("name", "params", "flops", "shape"),
    [
        ("conv1d", 4 * 6 * 3 + 6, 2 * 4 * 6 * 3 * 16, (6, 16)),
        ("conv2d", 4 * 6 * 9 + 6, 2 * 4 * 6 * 9 * 36, (6, 6, 6)),
        ("conv2d grouped", 2 * 8 * 9 + 8, 2 * 2 * 8 * 9 * 36, (8, 6, 6)),
        ("conv2d depthwise", 12 * 9, 2 * 12 * 9 * 36, (12, 6, 6)),
        ("conv3d", 2 * 3 * 6 + 3, 2 * 2 * 3 * 6 * 60, (3, 5, 4, 3)),
        ("conv_transpose1d", 4 * 6 * 3 + 6, 2 * 4 * 6 * 3 * 5, (6, 11)),
        ("conv_transpose2d", 4 * 6 * 9 + 6, 2 * 4 * 6 * 9 * 25, (6, 12, 12)),
        ("linear", 12 * 5 + 5, 2 * 12 * 5, (5,)),
        ("linear on tokens", 12 * 5, 2 * 7 * 12 * 5, (7, 5)),
        ("embedding", 800, 0, (7, 8)),
        ("embedding_bag", 800, 0, (2, 8)),
        ("grouped_linear", 3 * 12 * 5, 2 * 7 * 12 * 5, (7, 5)),
        ("index", 0, 0, (21, 8)),
        ("index of a table", 80, 0, (7, 8)),
        ("scatter", 0, 0, (7, 8)),
        ("topk", 0, 0, (7, 2)),
        ("slice", 0, 0, (8,)),
        ("gradient_copy", 0, 0, (7, 8)),
        ("lstm", 4 * 6 * (5 + 6 + 2), 2 * 7 * 4 * 6 * (5 + 6), (7, 6)),
        (
            "lstm bidirectional",
            2 * 4 * 6 * (5 + 6 + 2) + 2 * 4 * 6 * (12 + 6 + 2),
            2 * 7 * 4 * 6 * 2 * (5 + 6 + 12 + 6),
            (7, 12),
        ),
        ("gru", 3 * 6 * (5 + 6), 2 * 7 * 3 * 6 * (5 + 6), (7, 6)),
        ("attention", 4 * (64 + 8), 2 * 64 * (7 + 9 + 9 + 7) + 4 * 8 * 7 * 9, (7, 8)),
        ("sdpa", 0, 4 * 4 * 8 * 7 * 9, (7, 32)),
        ("sdpa in windows", 0, 3 * 4 * 4 * 8 * 7 * 9, (3, 7, 32)),
        ("matmul", 0, 2 * 3 * 4 * 5 * 6, (3, 4, 6)),
        ("batch_norm", 12, 0, (6, 8, 8)),
        ("group_norm", 12, 0, (6, 8, 8)),
        ("layer_norm", 16, 0, (7, 8)),
        ("rms_norm", 8, 0, (7, 8)),
        ("pool", 0, 0, (6, 4, 4)),
        ("flatten", 0, 0, (384,)),
        ("view", 0, 0, (48, 8)),
        ("permute", 0, 0, (8, 7)),
        ("last", 0, 0, (8,)),
    ],
)
def test_parameters_flops_and_shapes_match_textbook_formulas(name, params, flops, shape):
    work = layer_work(LAYERS[name], Setup(batch=3))
    assert work.params == params
    assert work.forward.flops == 3 * flops
    assert output_shape(LAYERS[name]) == shape


@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2), st.booleans())
def test_pooling_windows_begin_inside_the_input(size, kernel, stride, padding, ceil):
    op = make_op(
        "pool",
        fn="max",
        kernel=(kernel,),
        stride=(stride,),
        padding=(min(padding, kernel // 2),),
        ceil=int(ceil),
    )
    layer = make_layer("pool", shape=(1, size), **op.sizes)
    pad = op.sizes["padding"][0]
    if size + 2 * pad < kernel:
        return
    (out,) = output_shape(layer)[1:]
    # The last window begins inside the input or its left padding.
    assert (out - 1) * stride < size + pad
    assert out >= math.floor((size + 2 * pad - kernel) / stride) + 1


def test_rms_norm_stored_without_the_size_spelled_is_fused():
    layer = make_layer("rms_norm", shape=(7, 8))
    sizes = {name: size for name, size in layer.sizes.items() if name != "spelled"}
    old = replace(layer, sizes=Sizes(sizes))
    assert layer_work(old, Setup(batch=3)) == layer_work(layer, Setup(batch=3))
    spelled = layer_work(make_layer("rms_norm", spelled=1, shape=(7, 8)), Setup(batch=3))
    assert spelled.total.launches > layer_work(layer, Setup(batch=3)).total.launches
