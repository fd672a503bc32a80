"""Test which operators are grouped into kernels, by which table, and what they are called."""

from dataclasses import replace
from itertools import pairwise

import pytest

from joulecast.families import make_family
from joulecast.onnx_nets.fusion import FUSION_TABLES, FusionTable, find_fusion_table
from joulecast.onnx_nets.fusion_tables import group_ops
from joulecast.onnx_nets.op_graph import DATA, is_pointwise, list_op_nodes, list_readers, name_op
from joulecast.operators import make_layer, make_op
from joulecast.records import Input, Network, Setup
from joulecast.system.errors import InputError

SHAPE = (8, 6, 6)
RELU, NORM = make_op("elementwise", fn="relu"), make_op("batch_norm")
SIGMOID = make_op("elementwise", fn="sigmoid")
DROPOUT = make_op("dropout", p=0.1)


def list_kinds(network: Network, table: str, is_training: bool = False) -> list[str]:
    """Return the kinds of a network's kernels."""
    nodes = list_op_nodes(network)
    return [group.kind for group in group_ops(nodes, FUSION_TABLES[table], is_training)]


def conv(cin=8, cout=8, tail=(), reads=(1,), **sizes):
    sizes = {"kernel": 3, "padding": 1, "space": SHAPE[1:], **sizes}
    return replace(make_layer("conv2d", tail, cin=cin, cout=cout, **sizes), reads=reads)


def join(fn, reads, tail=(), shape=SHAPE):
    layer = make_layer("elementwise", tail, fn=fn, inputs=len(reads), shape=shape)
    return replace(layer, reads=reads, join=fn)


def make_residual():
    layers = (conv(tail=(NORM, RELU)), conv(tail=(NORM,)), join("add", (1, 3), (RELU,)))
    return Network(layers, Input(SHAPE))


@pytest.mark.parametrize(
    ("table", "kinds"),
    [
        ("torch", ["conv", "bn", "relu", "conv", "bn", "add", "relu"]),
        ("torch_compile", ["conv", "bn+relu", "conv", "pointwise"]),
        ("onnxruntime", ["conv+bn+relu", "conv+bn+add+relu"]),
        ("tflite", ["conv+bn+relu", "conv+bn", "add+relu"]),
    ],
)
def test_residual_block(table, kinds):
    assert list_kinds(make_residual(), table) == kinds


def test_result_with_two_readers_ends_a_kernel():
    layers = (
        conv(),
        replace(make_layer("batch_norm", shape=SHAPE), reads=(1,)),
        join("add", (1, 2)),
    )
    assert list_kinds(Network(layers, Input(SHAPE)), "tflite") == ["conv", "bn", "add"]


def test_squeeze_and_excite_is_one_kernel_on_phones():
    pool = make_layer("pool", fn="adaptive_avg", kernel=(1, 1), shape=SHAPE)
    squeeze = conv(8, 2, (RELU,), kernel=1, padding=0, space=(1, 1))
    excite = conv(2, 8, (SIGMOID,), kernel=1, padding=0, space=(1, 1))
    network = Network((conv(), pool, squeeze, excite, join("mul", (4, 1))), Input(SHAPE))
    assert list_kinds(network, "tflite") == ["conv", "se"]
    assert list_kinds(network, "torch")[-1] == "mul"


def test_channel_shuffle_is_one_kernel_everywhere():
    tail = (
        make_op("permute", order=(1, 0, 2, 3)),
        make_op("elementwise", fn="copy"),
        make_op("view", out=SHAPE),
    )
    shuffle = make_layer("view", tail, out=(2, 4, 6, 6), shape=SHAPE)
    network = Network((conv(), shuffle, conv()), Input(SHAPE))
    for table in FUSION_TABLES:
        assert list_kinds(network, table) == ["conv", "shuffle", "conv"]


def test_slices_cost_a_kernel_where_the_runtime_copies():
    half = make_layer("gradient_copy", out=(4, 6, 6), shape=SHAPE)
    network = Network((conv(), half), Input(SHAPE))
    assert list_kinds(network, "torch") == ["conv"]
    assert list_kinds(network, "onnxruntime") == ["conv", "split"]


def test_dropout_runs_in_training_only():
    network = Network((make_layer("linear", (DROPOUT, RELU), cin=4, cout=4),), Input((4,)))
    assert list_kinds(network, "onnxruntime") == ["fc+relu"]
    assert list_kinds(network, "torch", is_training=True) == ["fc", "dropout", "relu"]


def test_bare_norm_is_not_fused_with_relu_by_onnxruntime():
    network = Network((make_layer("batch_norm", (RELU,), shape=SHAPE),), Input(SHAPE))
    assert list_kinds(network, "onnxruntime") == ["bn", "relu"]
    assert list_kinds(network, "tflite") == ["bn+relu"]


def test_spelled_out_attention_is_one_kernel():
    one = make_layer("matmul", count=2, m=5, k=4, n=5)
    scores = replace(
        one, tail=(make_op("elementwise", fn="mul"), make_op("elementwise", fn="softmax"))
    )
    mix = make_layer("matmul", count=2, m=5, k=5, n=4)
    network = Network((scores, mix), Input((2, 5, 4)))
    assert list_kinds(network, "onnxruntime") == ["attention"]
    assert list_kinds(network, "torch") == ["matmul", "mul", "softmax", "matmul"]


def test_layers_called_a_different_number_of_times_are_not_fused():
    layers = (conv(), replace(make_layer("batch_norm", shape=SHAPE), calls=2))
    assert list_kinds(Network(layers, Input(SHAPE)), "tflite") == ["conv", "bn"]


def test_every_operator_is_in_at_most_one_kernel():
    nodes = list_op_nodes(make_family("resnet50"))
    for table in FUSION_TABLES.values():
        members = [at for group in group_ops(nodes, table, False) for at in group.members]
        assert len(set(members)) == len(members)


@pytest.mark.parametrize("table", FUSION_TABLES)
def test_longest_tail_is_grouped(table):
    relus = make_layer("elementwise", (RELU,) * 1000, fn="relu", shape=(4,))
    nodes = list_op_nodes(Network((relus,), Input((4,))))
    groups = group_ops(nodes, FUSION_TABLES[table], is_training=False)
    assert sum(len(group.members) for group in groups) == 1001
    assert len(groups) < 10 or table != "torch_compile"


def test_layers_and_tails_become_a_chain():
    nodes = list_op_nodes(make_family("lenet5"))
    assert [node.name for node in nodes[:3]] == ["conv", "relu", "maxpool"]
    assert [node.sources for node in nodes[:3]] == [(DATA,), (0,), (1,)]
    assert [node.layer_index for node in nodes[:4]] == [0, 0, 0, 1]
    assert nodes[3].sources == (2,) and nodes[3].begins_layer
    for before, node in pairwise(nodes):
        assert node.in_shape == before.out_shape


def test_residual_results_have_two_readers():
    nodes = list_op_nodes(make_family("resnet18"))
    readers = list_readers(nodes)
    stem = next(at for at, node in enumerate(nodes) if node.name == "maxpool")
    assert len(readers[stem]) == 2
    assert readers[-1] == []


CONV = {"space": (8, 8), "kernel": 3}


@pytest.mark.parametrize(
    ("op", "shape", "name"),
    [
        (make_op("conv2d", cin=4, cout=8, **CONV), (4, 8, 8), "conv"),
        (make_op("conv2d", cin=4, cout=4, groups=4, **CONV), (4, 8, 8), "dwconv"),
        (make_op("conv2d", cin=4, cout=4, groups=2, **CONV), (4, 8, 8), "grouped-conv"),
        (make_op("conv_transpose2d", cin=4, cout=4, **CONV), (4, 8, 8), "conv-transpose"),
        (make_op("conv1d", cin=4, cout=4, space=(8,), kernel=3), (4, 8), "conv1d"),
        (make_op("linear", cin=4, cout=4), (4,), "fc"),
        (make_op("elementwise", fn="relu6"), (4,), "relu"),
        (make_op("elementwise", fn="hardswish"), (4,), "hswish"),
        (make_op("elementwise", fn="concat along 2"), (4, 4), "concat"),
        (make_op("elementwise", fn="mean", axes=(1, 2)), (4, 8, 8), "global-avgpool"),
        (make_op("elementwise", fn="mean", axes=(0,)), (4, 8), "mean"),
        (make_op("pool", fn="adaptive_avg", kernel=(1, 1)), (4, 8, 8), "global-avgpool"),
        (make_op("pool", fn="avg", kernel=(2, 2)), (4, 8, 8), "avgpool"),
        (make_op("pool", fn="max", kernel=(2, 2)), (4, 8, 8), "maxpool"),
        (make_op("gradient_copy", out=(2, 8, 8)), (4, 8, 8), "split"),
    ],
)
def test_names(op, shape, name):
    assert name_op(op, shape) == name


def test_pointwise_operators():
    assert is_pointwise(make_op("elementwise", fn="gelu"))
    assert is_pointwise(make_op("batch_norm"))
    assert not is_pointwise(make_op("elementwise", fn="softmax"))
    assert not is_pointwise(make_op("elementwise", fn="sum", axes=(0,)))
    assert not is_pointwise(make_op("layer_norm"))


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


def test_empty_name_in_a_pattern_is_refused():
    with pytest.raises(InputError, match="extra"):
        FusionTable("mine", (), ("fc||conv",), frozenset()).rules  # noqa: B018


def test_every_table_parses_and_says_where_it_comes_from():
    for table in FUSION_TABLES.values():
        assert table.rules and table.note
