"""Test which operators run as one kernel, what kernels cost, and that each can run alone."""

from dataclasses import replace

import pytest

from joulecast.campaign.atlas import load_networks
from joulecast.families import FAMILIES, make_family
from joulecast.onnx_nets.fusion import (
    FUSION_TABLES,
    find_fusion_table,
    group_ops,
    is_pointwise,
    list_kernels,
    list_op_nodes,
    merge_kernels,
    name_op,
)
from joulecast.operators import check_network, make_layer, make_op, network_work
from joulecast.records import Input, Network, Setup
from kind_examples import join

SHAPE = (8, 6, 6)
ORT, TFLITE, TORCH = (FUSION_TABLES[name] for name in ("onnxruntime", "tflite", "torch"))
INFERENCE = Setup(batch=2, phase="inference")
SINGLE = Setup(batch=1, phase="inference")
# The first network of each architecture of the atlas.
ATLAS = {network.name: network for network in reversed(load_networks())}
every_table = pytest.mark.parametrize("table", FUSION_TABLES.values(), ids=list(FUSION_TABLES))
NORM = make_op("batch_norm")


def fn(name, **sizes):
    return make_op("elementwise", fn=name, **sizes)


RELU = fn("relu")


def conv(cin=8, cout=8, tail=(), reads=(1,), **sizes):
    sizes = {"kernel": 3, "padding": 1, "space": SHAPE[1:], **sizes}
    return replace(make_layer("conv2d", tail, cin=cin, cout=cout, **sizes), reads=reads)


BARE_NORM = make_layer("batch_norm", shape=SHAPE)
ONE_PIXEL = {"kernel": 1, "padding": 0, "space": (1, 1)}
SHUFFLE = (make_op("permute", order=(1, 0, 2, 3)), fn("copy"), make_op("view", out=SHAPE))
SCORES = make_layer("matmul", (fn("mul"), fn("softmax")), count=2, m=5, k=4, n=5)
# Layers, and the kinds of their kernels by table; "train" is PyTorch's table in training.
GROUPS = {
    "residual block": (
        [conv(tail=(NORM, RELU)), conv(tail=(NORM,)), join("add", (1, 3), (RELU,))],
        {
            "torch": "conv bn relu conv bn add relu",
            "torch_compile": "conv bn+relu conv pointwise",
            "onnxruntime": "conv+bn+relu conv+bn+add+relu",
            "tflite": "conv+bn+relu conv+bn add+relu",
        },
    ),
    "result with two readers": ([conv(), BARE_NORM, join("add", (1, 2))],
        {"tflite": "conv bn add"}),
    "layers called a different number of times": ([conv(), replace(BARE_NORM, calls=2)],
        {"tflite": "conv bn"}),
    "squeeze and excite": (
        [
            conv(), make_layer("pool", fn="adaptive_avg", kernel=(1, 1), shape=SHAPE),
            conv(8, 2, (RELU,), **ONE_PIXEL), conv(2, 8, (fn("sigmoid"),), **ONE_PIXEL),
            join("mul", (4, 1)),
        ],
        {"tflite": "conv se", "torch": "conv global-avgpool conv relu conv sigmoid mul"}),
    "channel shuffle": (
        [conv(), make_layer("view", SHUFFLE, out=(2, 4, 6, 6), shape=SHAPE), conv()],
        dict.fromkeys(FUSION_TABLES, "conv shuffle conv")),
    "slice": ([conv(), make_layer("gradient_copy", out=(4, 6, 6), shape=SHAPE)],
        {"torch": "conv", "onnxruntime": "conv split"}),
    "dropout": ([make_layer("linear", (make_op("dropout", p=0.1), RELU), cin=4, cout=4)],
        {"onnxruntime": "fc+relu", "train": "fc dropout relu"}),
    "bare norm": ([make_layer("batch_norm", (RELU,), shape=SHAPE)],
        {"onnxruntime": "bn relu", "tflite": "bn+relu"}),
    "spelled-out attention": ([SCORES, make_layer("matmul", count=2, m=5, k=5, n=4)],
        {"onnxruntime": "attention", "torch": "matmul mul softmax matmul"}),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_operators_are_grouped_to_kernels(name):
    layers, expected = GROUPS[name]
    nodes = list_op_nodes(Network(tuple(layers), Input(SHAPE)))
    for table, kinds in expected.items():
        rules = FUSION_TABLES.get(table, TORCH)
        found = group_ops(nodes, rules, is_training=table == "train")
        assert [group.kind for group in found] == kinds.split()


@every_table
def test_longest_tail_is_grouped(table):
    relus = make_layer("elementwise", (RELU,) * 1000, fn="relu", shape=(4,))
    groups = group_ops(list_op_nodes(Network((relus,), Input((4,)))), table, is_training=False)
    assert sum(len(group.members) for group in groups) == 1001
    assert len(groups) < 10 or table.name != "torch_compile"


CONV = {"space": (8, 8), "kernel": 3, "cin": 4}


@pytest.mark.parametrize(
    ("op", "shape", "name"),
    [
        (make_op("conv2d", cout=8, **CONV), (4, 8, 8), "conv"),
        (make_op("conv2d", cout=4, groups=4, **CONV), (4, 8, 8), "dwconv"),
        (make_op("conv2d", cout=4, groups=2, **CONV), (4, 8, 8), "grouped-conv"),
        (make_op("conv_transpose2d", cout=4, **CONV), (4, 8, 8), "conv-transpose"),
        (make_op("conv1d", cin=4, cout=4, space=(8,), kernel=3), (4, 8), "conv1d"),
        (make_op("linear", cin=4, cout=4), (4,), "fc"),
        (fn("relu6"), (4,), "relu"),
        (fn("hardswish"), (4,), "hswish"),
        (fn("concat along 2"), (4, 4), "concat"),
        (fn("mean", axes=(1, 2)), (4, 8, 8), "global-avgpool"),
        (fn("mean", axes=(0,)), (4, 8), "mean"),
        (make_op("pool", fn="adaptive_avg", kernel=(1, 1)), (4, 8, 8), "global-avgpool"),
        (make_op("pool", fn="avg", kernel=(2, 2)), (4, 8, 8), "avgpool"),
        (make_op("pool", fn="max", kernel=(2, 2)), (4, 8, 8), "maxpool"),
        (make_op("gradient_copy", out=(2, 8, 8)), (4, 8, 8), "split"),
    ],
)
def test_names(op, shape, name):
    assert name_op(op, shape) == name


def test_pointwise_operators():
    assert all(map(is_pointwise, (fn("gelu"), NORM)))
    assert not any(map(is_pointwise, (fn("softmax"), fn("sum", axes=(0,)), make_op("layer_norm"))))


@pytest.mark.parametrize(
    ("runtime", "name"),
    [
        ("torch-2.13.0", "torch"),
        ("torch_compile-2.13.0", "torch_compile"),
        ("onnxruntime-1.31.1", "onnxruntime"),
        ("mnn-3.0", "tflite"),
        ("", "torch"),
        ("unheard-of-1", "torch"),
    ],
)
def test_runtimes_have_tables(runtime, name):
    assert find_fusion_table(runtime, Setup()) is FUSION_TABLES[name]
    compiled = Setup(compiled=True)
    assert find_fusion_table(runtime, compiled) is FUSION_TABLES["torch_compile"]


def check_totals(network: Network, setup: Setup, table) -> None:
    """Check that kernels have the FLOPs and parameters of their network."""
    kernels, work = list_kernels(network, setup, table), network_work(network, setup)
    flops = sum(kernel.flops * kernel.count for kernel in kernels)
    assert flops == pytest.approx(work.total.flops)
    assert sum(kernel.params for kernel in kernels) == work.params


@every_table
def test_kernels_have_all_flops_and_parameters(table):
    families = [make_family(name) for name in FAMILIES]
    for network in (*families, *ATLAS.values()):
        check_totals(network, INFERENCE, table)
    for network in families:
        check_totals(network, Setup(batch=2), table)


CONV_NORM_RELU = conv(3, tail=(NORM, RELU), space=(10, 12), bias=0)
CONV_NET = Network((CONV_NORM_RELU,), Input((3, 10, 12)))


def test_fused_kernel_moves_neither_the_norms_input_nor_its_output():
    (kernel,) = list_kernels(CONV_NET, INFERENCE, ORT)
    assert kernel.kind == "conv+bn+relu"
    weights, pixels = 3 * 8 * 9, 10 * 12
    assert kernel.size_bytes == 4 * (2 * (3 + 8) * pixels + weights)
    eager = list_kernels(CONV_NET, INFERENCE, TORCH)
    assert [one.kind for one in eager] == ["conv", "bn", "relu"]
    assert sum(one.size_bytes for one in eager) == kernel.size_bytes + 4 * 2 * 4 * 8 * pixels


def test_int8_activations_take_a_byte():
    network = Network((make_layer("elementwise", fn="add", inputs=2, shape=(8, 4, 4)),))
    (full,) = list_kernels(network, INFERENCE, ORT)
    (short,) = list_kernels(network, Setup(2, "inference", "int8"), ORT)
    assert full.size_bytes == 4 * short.size_bytes


def test_equal_kernels_are_merged():
    kernels = list_kernels(make_family("resnet18"), INFERENCE, TFLITE)
    merged = merge_kernels(kernels)
    assert len(merged) < len(kernels)
    assert sum(one.count for one in merged) == len(kernels)
    assert len(set(merged)) == len(merged)


def test_repeated_calls_count_and_shared_weights_do_not():
    layer = replace(CONV_NORM_RELU, calls=3, tied=True)
    (kernel,) = list_kernels(replace(CONV_NET, layers=(layer,)), INFERENCE, TFLITE)
    assert (kernel.count, kernel.params) == (3, 0)


@every_table
def test_every_operator_is_in_one_kernel_at_most_and_shares_of_layers_sum_to_one(table):
    network = make_family("resnet50")
    groups = group_ops(list_op_nodes(network), table, is_training=False)
    members = [at for group in groups for at in group.members]
    assert len({*members}) == len(members)
    for kernel in list_kernels(network, INFERENCE, table):
        assert sum(share for _, share in kernel.layers) == pytest.approx(1.0)
        assert all(0 <= at < len(network.layers) for at, _ in kernel.layers)


SIX = {"tokens": 6, "kv_tokens": 6, "heads": 2, "kv_heads": 2, "head_dim": 4}
# Layers, and the features of the last kernel.
FEATURES = {
    "convolution": ([conv(16, 32, (NORM, RELU), space=(8, 8), stride=2, bias=0)],
        {"HW": 8, "C_in": 16, "C_out": 32, "KS": 3, "S": 2, "groups": 1, "batch": 1}
        | {"FLOPs": 2 * 16 * 32 * 9 * 16, "params": 16 * 32 * 9 + 2 * 32}),
    "norm and activation": ([make_layer("batch_norm", (RELU,), shape=(16, 4, 9))],
        {"HW": 6, "C_in": 16, "batch": 1}),
    "pooling": ([make_layer("pool", fn="max", kernel=(3, 3), stride=(2, 2), shape=(16, 9, 9))],
        {"HW": 9, "C_in": 16, "C_out": 16, "KS": 3, "S": 2}),
    "global pooling": ([make_layer("pool", fn="adaptive_avg", kernel=(1, 1), shape=(16, 7, 7))],
        {"KS": 7, "S": 7}),
    "linear": ([make_layer("linear", cin=8, cout=4, lead=(5,))],
        {"rows": 5, "C_in": 8, "C_out": 4, "FLOPs": 320, "params": 36, "batch": 1}),
    "concatenation": (
        [conv(16, 4, kernel=1), conv(16, 8, reads=(2,)), join("concat", (2, 1), shape=(12, 6, 6))],
        {"HW": 6, "C1": 8, "C2": 4, "C3": 0, "C4": 0, "batch": 1}),
    "embedding": ([make_layer("embedding", vocabulary=50, width=8, lead=(4,))],
        {"vocabulary": 50, "width": 8, "rows": 4}),
    "matmul": ([make_layer("matmul", m=2, k=3, n=4)],
        {"count": 1, "m": 2, "k": 3, "n": 4, "FLOPs": 48}),
    "lstm": ([make_layer("lstm", cin=3, hidden=5, tokens=7)],
        {"cin": 3, "hidden": 5, "tokens": 7, "depth": 1}),
    "attention": ([make_layer("sdpa", **SIX)], {**SIX, "FLOPs": 2 * 2 * 2 * 4 * 6 * 6}),
}  # fmt: skip


@pytest.mark.parametrize("name", FEATURES)
def test_features_of_kernels(name):
    layers, expected = FEATURES[name]
    *_, kernel = list_kernels(Network(tuple(layers), Input((16, 8, 8))), SINGLE, TFLITE)
    found = dict(kernel.features)
    assert expected.items() <= found.items()
    # Those with a batch are complete.
    assert "batch" not in expected or expected == found


def list_distinct(network, table):
    return merge_kernels(list_kernels(network, SINGLE, table))


@every_table
@pytest.mark.parametrize("name", ["resnet18", "transformer", "lenet5"])
def test_kernel_alone_is_the_same_kernel(table, name):
    for kernel in list_distinct(make_family(name), table):
        (alone,) = list_kernels(kernel.network, SINGLE, table)
        assert alone == replace(kernel, count=1)
        assert alone.size_bytes == kernel.size_bytes
        if kernel.network.buildable:
            check_network(kernel.network)


def test_kernel_whose_inputs_have_other_shapes_is_not_buildable():
    kernels = list_distinct(make_family("resnet50"), ORT)
    sums = [kernel for kernel in kernels if kernel.kind == "conv+bn+add+relu"]
    assert sums and not any(kernel.network.buildable for kernel in sums)
    others = [kernel for kernel in kernels if "add" not in kernel.kind]
    assert all(kernel.network.buildable for kernel in others)


def test_concatenation_alone_has_equal_widths():
    concats = [one for one in list_distinct(ATLAS["densenet"], TORCH) if one.kind == "concat"]
    assert concats
    for kernel in concats:
        (layer,) = kernel.network.layers
        assert layer.sizes["shape"][0] == len(layer.reads) * kernel.network.input.shape[0]
