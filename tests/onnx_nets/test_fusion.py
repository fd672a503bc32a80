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


INFERENCE = Setup(batch=2, phase="inference")
SINGLE = Setup(batch=1, phase="inference")
# The first network of each architecture of the atlas.
ATLAS = {network.name: network for network in reversed(load_networks())}
every_table = pytest.mark.parametrize("table", FUSION_TABLES.values(), ids=list(FUSION_TABLES))


def make_conv_network() -> Network:
    """Return a convolution of 3 to 8 channels with a norm and ReLU."""
    sizes = {"cin": 3, "cout": 8, "space": (10, 12), "kernel": 3, "padding": 1, "bias": 0}
    return Network((make_layer("conv2d", (NORM, RELU), **sizes),), Input((3, 10, 12)))


def check_totals(network: Network, setup: Setup, table) -> None:
    """Check that kernels have the FLOPs and parameters of their network."""
    kernels, work = list_kernels(network, setup, table), network_work(network, setup)
    flops = sum(kernel.flops * kernel.count for kernel in kernels)
    assert flops == pytest.approx(work.total.flops)
    assert sum(kernel.params for kernel in kernels) == work.params


@every_table
@pytest.mark.parametrize("phase", ["inference", "train"])
def test_kernels_of_families_have_all_flops_and_parameters(table, phase):
    for name in FAMILIES:
        check_totals(make_family(name), Setup(batch=2, phase=phase), table)


@every_table
def test_kernels_of_drawn_architectures_have_all_flops_and_parameters(table):
    for network in ATLAS.values():
        check_totals(network, INFERENCE, table)


@pytest.mark.parametrize("model", ["Bert", "GPT2", "ConvNext"])
def test_kernels_of_real_modules_have_all_flops_and_parameters(model):
    hf = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from joulecast.torch_nets.losses import cross_entropy_loss
    from joulecast.torch_nets.net_reader import read_net

    if model == "ConvNext":
        config = hf.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1])
        inputs = {"pixel_values": torch.zeros(2, 3, 32, 32, device="meta")}
    else:
        sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
        config = getattr(hf, f"{model}Config")(vocab_size=100, **sizes)
        inputs = {"input_ids": torch.zeros(2, 16, dtype=torch.long, device="meta")}
    with torch.device("meta"):
        net = getattr(hf, f"{model}Model")(config)
    network = read_net(net.eval(), inputs, cross_entropy_loss, model)
    for table in FUSION_TABLES.values():
        check_totals(network, INFERENCE, table)


def test_fused_kernel_moves_neither_the_norms_input_nor_its_output():
    (kernel,) = list_kernels(make_conv_network(), INFERENCE, FUSION_TABLES["onnxruntime"])
    assert kernel.kind == "conv+bn+relu"
    weights, pixels = 3 * 8 * 9, 10 * 12
    assert kernel.size_bytes == 4 * (2 * (3 + 8) * pixels + weights)
    eager = list_kernels(make_conv_network(), INFERENCE, FUSION_TABLES["torch"])
    assert [one.kind for one in eager] == ["conv", "bn", "relu"]
    assert sum(one.size_bytes for one in eager) == kernel.size_bytes + 4 * 2 * 4 * 8 * pixels


def test_int8_activations_take_a_byte():
    table = FUSION_TABLES["onnxruntime"]
    network = Network((make_layer("elementwise", fn="add", inputs=2, shape=(8, 4, 4)),))
    (full,) = list_kernels(network, INFERENCE, table)
    (short,) = list_kernels(network, Setup(2, "inference", "int8"), table)
    assert full.size_bytes == 4 * short.size_bytes


def test_equal_kernels_are_merged():
    kernels = list_kernels(make_family("resnet18"), INFERENCE, FUSION_TABLES["tflite"])
    merged = merge_kernels(kernels)
    assert len(merged) < len(kernels)
    assert sum(one.count for one in merged) == len(kernels)
    assert len(set(merged)) == len(merged)


def test_repeated_calls_count_and_shared_weights_do_not():
    network = make_conv_network()
    layer = replace(network.layers[0], calls=3, tied=True)
    (kernel,) = list_kernels(replace(network, layers=(layer,)), INFERENCE, FUSION_TABLES["tflite"])
    assert (kernel.count, kernel.params) == (3, 0)


@every_table
def test_shares_of_layers_sum_to_one(table):
    network = make_family("resnet50")
    for kernel in list_kernels(network, INFERENCE, table):
        assert sum(share for _, share in kernel.layers) == pytest.approx(1.0)
        assert all(0 <= at < len(network.layers) for at, _ in kernel.layers)


def describe(*layers, table="tflite", shape=(16, 8, 8)):
    network = Network(tuple(layers), Input(shape))
    return [dict(kernel.features) for kernel in list_kernels(network, SINGLE, FUSION_TABLES[table])]


def test_features_of_a_convolution():
    sizes = {"cin": 16, "cout": 32, "space": (8, 8), "kernel": 3, "stride": 2, "padding": 1}
    (found,) = describe(make_layer("conv2d", (NORM, RELU), bias=0, **sizes))
    flops = 2 * 16 * 32 * 9 * 16
    expected = {"HW": 8, "C_in": 16, "C_out": 32, "KS": 3, "S": 2, "FLOPs": flops}
    assert expected.items() <= found.items()
    assert found["params"] == 16 * 32 * 9 + 2 * 32


def test_norm_and_activation_have_size_and_channels():
    (found,) = describe(make_layer("batch_norm", (RELU,), shape=(16, 4, 9)))
    assert found == {"HW": 6, "C_in": 16, "batch": 1}


def test_features_of_pooling():
    (found,) = describe(
        make_layer("pool", fn="max", kernel=(3, 3), stride=(2, 2), shape=(16, 9, 9))
    )
    assert {"HW": 9, "C_in": 16, "C_out": 16, "KS": 3, "S": 2}.items() <= found.items()
    (found,) = describe(make_layer("pool", fn="adaptive_avg", kernel=(1, 1), shape=(16, 7, 7)))
    assert (found["KS"], found["S"]) == (7, 7)


def test_features_of_a_linear_layer():
    (found,) = describe(make_layer("linear", cin=8, cout=4, lead=(5,)), shape=(5, 8))
    assert found == {"rows": 5, "C_in": 8, "C_out": 4, "FLOPs": 320, "params": 36, "batch": 1}


def test_concatenation_has_the_channels_of_its_inputs():
    sizes = {"cin": 16, "space": (8, 8), "kernel": 1}
    convs = [
        replace(make_layer("conv2d", cout=w, **sizes), reads=(at,)) for at, w in ((1, 4), (2, 8))
    ]
    joined = make_layer("elementwise", fn="concat", shape=(12, 8, 8))
    found = describe(*convs, replace(joined, reads=(2, 1), join="concat"))[-1]
    assert found == {"HW": 8, "C1": 8, "C2": 4, "C3": 0, "C4": 0, "batch": 1}


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (
            make_layer("embedding", vocabulary=50, width=8, lead=(4,)),
            {"vocabulary", "width", "rows"},
        ),
        (make_layer("matmul", m=2, k=3, n=4), {"count", "m", "k", "n", "FLOPs"}),
        (make_layer("lstm", cin=3, hidden=5, tokens=7), {"cin", "hidden", "tokens", "depth"}),
        (
            make_layer("sdpa", heads=2, kv_heads=2, head_dim=4, tokens=6, kv_tokens=6),
            {"heads", "head_dim", "tokens", "FLOPs"},
        ),
    ],
)
def test_other_kernels_have_their_sizes(layer, names):
    (found,) = describe(layer, table="torch")
    assert names <= set(found)


def list_distinct(network, table):
    return merge_kernels(list_kernels(network, SINGLE, FUSION_TABLES[table]))


@pytest.mark.parametrize("table", FUSION_TABLES)
def test_kernel_alone_is_the_same_kernel(table):
    for network in (make_family("resnet18"), make_family("transformer"), make_family("lenet5")):
        for kernel in list_distinct(network, table):
            (alone,) = list_kernels(kernel.network, SINGLE, FUSION_TABLES[table])
            assert (alone.kind, alone.network) == (kernel.kind, kernel.network)
            assert alone.features == kernel.features
            assert alone.size_bytes == kernel.size_bytes
            if kernel.network.buildable:
                check_network(kernel.network)


def test_kernel_whose_inputs_have_other_shapes_is_not_buildable():
    kernels = list_distinct(make_family("resnet50"), "onnxruntime")
    sums = [kernel for kernel in kernels if kernel.kind == "conv+bn+add+relu"]
    assert sums and not any(kernel.network.buildable for kernel in sums)
    others = [kernel for kernel in kernels if "add" not in kernel.kind]
    assert all(kernel.network.buildable for kernel in others)


def test_norm_after_a_lost_view_keeps_its_own_shape():
    network = ATLAS["convnext"]
    kernels = list_kernels(network, SINGLE, FUSION_TABLES["onnxruntime"])
    found = sum(network_work(kernel.network, SINGLE).params for kernel in kernels)
    assert found == network_work(network, SINGLE).params


def test_concatenation_alone_has_equal_widths():
    network = ATLAS["densenet"]
    concats = [one for one in list_distinct(network, "torch") if one.kind == "concat"]
    assert concats
    for kernel in concats:
        (layer,) = kernel.network.layers
        assert layer.sizes["shape"][0] == len(layer.reads) * kernel.network.input.shape[0]
