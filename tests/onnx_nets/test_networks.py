"""Networks of ONNX files are those that the reader of modules gives."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from torch import nn

from joulecast.onnx_nets import patterns
from joulecast.onnx_nets.graph import find_module_path
from joulecast.onnx_nets.layers import find_path_blocks
from joulecast.onnx_nets.network import read_network
from joulecast.operators import input_shape, layer_work, network_work, output_shape
from joulecast.records import Setup
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.net_reader import read_net
from onnx_models import chain, export, integers, make_conv_net, make_model, node, numbers, weight


def read(model, sample=None, **options):
    """Return what is read from a model, or from a file that was exported."""
    content = model.read_bytes() if hasattr(model, "read_bytes") else model.SerializeToString()
    return read_network(content, "net", "net.onnx", sample, **options)


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.down = nn.Conv2d(cin, cout, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.down(x))


class ShuffleUnit(nn.Module):
    """A channel split, a depthwise branch, and a channel shuffle."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, 2, 1)
        self.branch = nn.Conv2d(12, 12, 3, 1, 1, groups=12)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        x = F.relu(self.stem(x))
        kept, changed = x.chunk(2, 1)
        x = torch.cat((kept, self.branch(changed)), 1)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous()
        return self.head(x.view(batch, channels, height, width).mean((2, 3)))


class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3)
        self.down, self.up = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.stem(x)
        scale = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))
        return self.head((x * scale).mean((2, 3)))


class ManyOperators(nn.Module):
    """Activations that exporters spell out, and operators that few networks have."""

    functions = (F.relu6, F.hardswish, F.hardsigmoid, F.silu, F.mish, F.gelu, F.elu, F.leaky_relu)
    functions += (torch.tanh, torch.sigmoid, F.softplus)

    def __init__(self):
        super().__init__()
        count = len(self.functions) + 1
        self.convs = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1) for _ in range(count)])
        self.prelu, self.norm = nn.PReLU(4), nn.GroupNorm(2, 4)
        self.resize = nn.Upsample(scale_factor=2, mode="bilinear")
        self.transposed = nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1)

    def forward(self, x):
        x = F.pad(x, (1, 1, 1, 1))
        for conv, function in zip(self.convs, (*self.functions, self.prelu), strict=True):
            x = function(conv(x))
        x = self.norm(x)
        x = F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 2, 2, ceil_mode=True)
        return self.transposed(self.resize(x)).amax((2, 3))


class Recurrent(nn.Module):
    def __init__(self, cls):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.inner = cls(16, 24, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(48, 5)

    def forward(self, x):
        return self.head(self.inner(self.embed(x))[0][:, -1])


def make_residual():
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    stem = (nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(*stem, Residual(8, 8, 1), Residual(8, 16, 2), *head)


def make_conv1d():
    convs = (nn.Conv1d(4, 8, 5, 2, 2), nn.ReLU(), nn.Conv1d(8, 8, 3, groups=8))
    return nn.Sequential(*convs, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 3))


def make_conv3d():
    convs = (nn.Conv3d(3, 8, 3, 1, 1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 4, 1))
    return nn.Sequential(*convs, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3))


MODULES = {
    "residual": (make_residual, torch.zeros(2, 3, 16, 16), True),
    "shuffle": (ShuffleUnit, torch.zeros(2, 3, 16, 16), False),
    "squeeze and excite": (SqueezeExcite, torch.zeros(2, 3, 16, 16), False),
    "many operators": (ManyOperators, torch.zeros(2, 4, 14, 14), False),
    "conv1d": (make_conv1d, torch.zeros(2, 4, 50), False),
    "conv3d": (make_conv3d, torch.zeros(2, 3, 4, 8, 8), False),
    "lstm": (lambda: Recurrent(nn.LSTM), torch.zeros(2, 12, dtype=torch.long), False),
    "gru": (lambda: Recurrent(nn.GRU), torch.zeros(2, 12, dtype=torch.long), False),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_file_gives_the_network_of_its_module(tmp_path, name):
    make, x, keeps_norms = MODULES[name]
    module = make()
    options = {}
    if keeps_norms:  # an exporter for inference folds them into the convolutions
        options = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    path = export(module.train(keeps_norms), x, tmp_path / "net.onnx", **options)
    found = read(path).network
    expected = read_net(module, x)
    assert found == expected
    assert found.buildable == expected.buildable
    assert [layer.name for layer in found.layers] == [layer.name for layer in expected.layers]
    assert found.totals.params == expected.totals.params
    assert found.totals.ops_without_rule == ()


def test_norms_that_were_folded_leave_only_a_bias(tmp_path):
    module = make_residual().eval()
    x = torch.zeros(2, 3, 16, 16)
    found = read(export(module, x, tmp_path / "net.onnx")).network
    expected = read_net(module, x)
    assert not any(op.kind == "batch_norm" for layer in found.layers for op in layer.tail)
    setup = Setup(batch=2)
    assert network_work(found, setup).forward.flops == network_work(expected, setup).forward.flops
    assert found.groups == expected.groups
    assert found.buildable
    build_net(found)(x)


class OneOutput(nn.Module):
    def __init__(self, net, key):
        super().__init__()
        self.net, self.key = net, key

    def forward(self, x):
        return getattr(self.net(x), self.key)


def make_vit():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.ViTConfig(**sizes, intermediate_size=64, image_size=32, patch_size=8)
    return OneOutput(transformers.ViTForImageClassification(config), "logits")


def make_bert():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, intermediate_size=64, vocab_size=99)
    return OneOutput(transformers.BertModel(config, add_pooling_layer=False), "last_hidden_state")


def list_contractions(network):
    """Return FLOPs and parameters of every layer that multiplies, at batch 2."""
    works = [layer_work(layer, Setup(batch=2, phase="inference")) for layer in network.layers]
    return [(work.forward.flops, work.params) for work in works if work.forward.flops]


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (make_vit, torch.zeros(2, 3, 32, 32)),
        (make_bert, torch.zeros(2, 16, dtype=torch.long)),
    ],
)
def test_layers_of_transformers_have_the_same_flops_and_parameters(tmp_path, make, x):
    module = make().eval()
    found = read(export(module, x, tmp_path / "net.onnx")).network
    expected = read_net(module, x)
    assert list_contractions(found) == list_contractions(expected)
    params = [network_work(one, Setup()).params for one in (found, expected)]
    assert params[0] == params[1] == found.totals.params
    assert len(found.groups) == len(expected.groups) == 2
    assert sum(layer.kind == "sdpa" for layer in found.layers) == 2


def test_the_axis_of_the_samples_is_open_or_fixed():
    opened = read(make_conv_net())
    fixed = read(make_conv_net(shape=(4, 3, 8, 8)))
    assert (opened.batch, fixed.batch) == (1, 4)
    assert read(make_conv_net(), usual_batch=32).batch == 32
    assert read(make_conv_net(shape=(4, 3, 8, 8)), batch=8, usual_batch=32).batch == 8
    assert opened.network == fixed.network
    assert opened.network.input.shape == (3, 8, 8)
    assert [layer.name for layer in opened.network.layers] == ["conv", "head"]


def test_totals_count_the_batch_that_is_asked_for():
    one, eight = (read(make_conv_net(), batch=batch).network.totals for batch in (1, 8))
    assert eight.flops == pytest.approx(8 * one.flops)
    # Weights are read once, however many samples there are.
    assert one.size_bytes < eight.size_bytes < 8 * one.size_bytes
    forward = 2 * (4 * 3 * 9 * 64 + 4 * 10)
    assert one.flops == pytest.approx(forward + 2 * (4 * 3 * 9 * 64) + 4 * (4 * 10))


def test_other_inputs_take_open_sizes_from_the_first():
    nodes = [node("MatMul", "x w", "m"), node("Add", "m mask", "y")]

    def make(shape):
        more = [("mask", shape)]
        return make_model(nodes, [weight("w", 4, 4)], ("batch", "seq", 4), more_inputs=more)

    found = read(make(("batch", "seq", 4)), (6, 4))
    assert [layer.reads for layer in found.network.layers] == [(1,), (1, 2)]
    assert not found.network.buildable


def test_operators_without_a_rule_are_named_and_counted():
    nodes = [
        node("Relu", "x", "a"),
        node("Wobble", "a", "b", domain="com.acme"),
        node("Wobble", "b", "c", domain="com.acme"),
        node("Conv", "c w", "y"),
    ]
    model = make_model(nodes, [weight("w", 4, 3, 1, 1)])
    for name in "bc":
        model.graph.value_info.append(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ("batch", 3, 8, 8))
        )
    network = read(model).network
    assert network.totals.ops_without_rule == (("com.acme::Wobble", 2),)
    assert 0.3 < network.totals.uncounted_bytes_share < 0.7
    assert not network.buildable
    assert network.layers[-1].kind == "conv2d"


def test_sizes_that_depend_on_the_data_are_said_to_be_uncounted():
    nodes = chain("Conv x w -> c; NonZero c -> n; Transpose n -> y")
    network = read(make_model(nodes, [weight("w", 4, 3, 1, 1)])).network
    assert network.totals.ops_without_rule == (("NonZero", 1),)
    assert network.totals.notes[0].startswith("The sizes of 1 operator depend on the data")
    assert network.totals.uncounted_bytes_share >= 1 / 3


def quantise(name, source, target):
    scale, zero = f"{name}_scale", f"{name}_zero"
    return [
        node("QuantizeLinear", f"{source} {scale} {zero}", f"{target}_q"),
        node("DequantizeLinear", f"{target}_q {scale} {zero}", target),
    ]


def make_quantised():
    nodes = [
        *quantise("x", "x", "xd"),
        node("DequantizeLinear", "w w_scale w_zero", "wd", axis=0),
        node("Conv", "xd wd", "c"),
        *quantise("c", "c", "cd"),
        node("Relu", "cd", "y"),
    ]
    weights = [weight("w", 4, 3, 3, 3, type=TensorProto.INT8), weight("w_scale", 4)]
    weights.append(weight("w_zero", 4, type=TensorProto.INT8))
    for name in "xc":
        weights.append(numbers(f"{name}_scale", 0.1))
        weights.append(weight(f"{name}_zero", type=TensorProto.UINT8))
    return make_model(nodes, weights)


def make_dynamically_quantised():
    nodes = [
        node("DynamicQuantizeLinear", "x", "xq xs xz"),
        node("MatMulInteger", "xq w xz wz", "m"),
        node("Cast", "m", "f", to=TensorProto.FLOAT),
        node("Mul", "xs ws", "s"),
        node("Mul", "f s", "r"),
        node("Add", "r b", "y"),
    ]
    weights = [weight("w", 8, 5, type=TensorProto.INT8), weight("wz", type=TensorProto.INT8)]
    weights += [numbers("ws", 0.1), weight("b", 5)]
    return make_model(nodes, weights, ("batch", 6, 8))


def test_quantised_files_are_read_as_networks_in_floating_point():
    static = read(make_quantised())
    (conv,) = static.network.layers
    assert (conv.kind, [op.sizes["fn"] for op in conv.tail]) == ("conv2d", ["relu"])
    assert static.precision == "int8"
    assert static.network.totals.params == 4 * 3 * 9
    assert "--inference --precision int8." in static.network.totals.notes[0]
    dynamic = read(make_dynamically_quantised())
    (linear,) = dynamic.network.layers
    assert (linear.kind, linear.sizes["bias"], linear.sizes["lead"]) == ("linear", 1, (6,))
    assert dynamic.precision == "int8_dynamic"
    assert dynamic.network.totals.params == 8 * 5 + 5


def test_the_precision_of_weights_is_said():
    half = make_model([node("MatMul", "x w", "y")], [weight("w", 4, 4, type=10)], ("n", 4))
    found = read(half)
    assert found.precision == "fp16"
    assert "--precision fp16" in found.network.totals.notes[0]


def make_branch(name, op):
    output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
    return helper.make_graph([node(op, "x", f"{name}_y")], name, [], [output])


def test_a_branch_that_is_known_is_taken():
    chosen = node(
        "If", "c", "r", then_branch=make_branch("a", "Relu"), else_branch=make_branch("b", "Tanh")
    )
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s one", "g"),
        node("Equal", "g three", "c"),
        chosen,
        node("Conv", "r w", "y"),
    ]
    weights = [weight("w", 4, 3, 1, 1), integers("one", 1), integers("three", 3)]
    network = read(make_model(nodes, weights)).network
    assert network.layers[0].sizes["fn"] == "relu"
    assert network.totals.ops_without_rule == ()


def test_a_loop_is_named():
    body = helper.make_graph(
        [node("Identity", "i", "j"), node("Identity", "k", "m")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("k", TensorProto.BOOL, ()),
        ],
        [helper.make_tensor_value_info("m", TensorProto.BOOL, ())],
    )
    nodes = [
        node("Conv", "x w", "c"),
        node("Loop", "count  c", "y", body=body),
    ]
    weights = [weight("w", 4, 3, 1, 1), integers("count", 3)]
    network = read(make_model(nodes, weights)).network
    assert network.totals.ops_without_rule == (("Loop", 1),)
    assert not network.buildable


def read_layers(nodes, weights=(), shape=("batch", 6, 16), **options):
    model = make_model(nodes, weights, shape, **options)
    return read(model).network.layers


def spell_gelu():
    return chain("Div x root -> a; Erf a -> b; Add b one -> c; Mul x c -> d; Mul d half -> y")


def spell_layer_norm():
    return chain(
        "ReduceMean x last -> m; Sub x m -> d; Pow d two -> p; ReduceMean p last -> v; "
        "Add v small -> e; Sqrt e -> r; Div d r -> n; Mul n g -> s; Add s beta -> y"
    )


def spell_rms_norm():
    return chain(
        "Pow x two -> p; ReduceMean p last -> v; Add v small -> e; Sqrt e -> r; "
        "Reciprocal r -> i; Mul x i -> n; Mul g n -> y"
    )


SPELLED = [
    weight("g", 16),
    weight("beta", 16),
    integers("last", -1),
    *(numbers(name, 2.0) for name in ("root", "one", "half", "two", "small")),
]


@pytest.mark.parametrize(
    ("nodes", "kind", "sizes"),
    [
        (spell_gelu(), "elementwise", {"fn": "gelu"}),
        (spell_layer_norm(), "layer_norm", {"dims": 1, "affine": 1, "bias": 1}),
        (spell_rms_norm(), "rms_norm", {"affine": 1, "spelled": 1}),
        ([node("Sigmoid", "x", "s"), node("Mul", "s x", "y")], "elementwise", {"fn": "silu"}),
        (
            [node("HardSigmoid", "x", "s"), node("Mul", "x s", "y")],
            "elementwise",
            {"fn": "hardswish"},
        ),
    ],
)
def test_what_exporters_spell_out_is_one_operator(nodes, kind, sizes):
    used = {name for one in nodes for name in one.input}
    weights = [one for one in SPELLED if one.name in used]
    (layer,) = read_layers(nodes, weights)
    assert layer.kind == kind
    assert {name: layer.sizes[name] for name in sizes} == sizes


def test_a_result_that_others_read_is_not_hidden_in_a_pattern():
    nodes = chain("Sigmoid x -> s; Mul x s -> m; Add m s -> y")
    layers = read_layers(nodes)
    assert [layer.sizes["fn"] for layer in layers] == ["sigmoid", "mul", "add"]


def spell_attention(mask=""):
    nodes = chain("MatMul x wq -> q; MatMul x wk -> k; MatMul x wv -> v")
    for name in "qkv":
        nodes.append(node("Reshape", f"{name} heads", f"{name}r"))
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes.append(node("Transpose", f"{name}r", f"{name}t", perm=order))
    nodes += [node("MatMul", "qt kt", "s"), node("Mul", "s scale", "scaled")]
    last = "scaled"
    if mask:
        nodes.append(node("Add", f"scaled {mask}", "masked"))
        last = "masked"
    return [
        *nodes,
        node("Softmax", last, "p", axis=-1),
        node("MatMul", "p vt", "o"),
        node("Transpose", "o", "ot", perm=[0, 2, 1, 3]),
        node("Reshape", "ot rows", "y"),
    ]


@pytest.mark.parametrize(
    ("mask", "causal"), [("", 0), ("triangle", 1), ("by_head", 0)], ids=["none", "causal", "bias"]
)
def test_attention_is_one_layer(mask, causal):
    masks = {"triangle": weight("triangle", 1, 1, 6, 6), "by_head": weight("by_head", 1, 4, 6, 6)}
    weights = [weight(f"w{name}", 16, 16) for name in "qkv"]
    weights += [integers("heads", 0, 6, 4, 4), integers("rows", 0, 6, 16), numbers("scale", 0.5)]
    weights += [masks[mask]] if mask else []
    *linears, attention = read_layers(spell_attention(mask), weights)
    assert [layer.kind for layer in linears] == ["linear"] * 3
    assert attention.kind == "sdpa"
    expected = {"heads": 4, "kv_heads": 4, "head_dim": 4, "tokens": 6, "kv_tokens": 6}
    assert dict(attention.sizes) == {**expected, "causal": causal}
    assert attention.reads == (3, 2, 1)
    assert attention.tail == ()


def test_padding_that_differs_between_sides_keeps_the_output():
    for pads, stride in (([0, 0, 1, 1], 2), ([0, 0, 1, 1], 1), ([2, 2, 0, 0], 1)):
        nodes = [node("Conv", "x w", "y", pads=pads, strides=[stride, stride])]
        (layer,) = read_layers(nodes, [weight("w", 4, 3, 3, 3)], ("n", 3, 8, 8))
        size = (8 + sum(pads[::2]) - 3) // stride + 1
        assert output_shape(layer) == (4, size, size)


def test_a_convolution_of_a_weight_of_groups():
    nodes = [node("Conv", "x w", "c", group=6), node("Clip", "c low high", "y")]
    weights = [weight("w", 6, 1, 3), numbers("low", 0.0), numbers("high", 6.0)]
    (layer,) = read_layers(nodes, weights)
    assert (layer.kind, layer.sizes["groups"]) == ("conv1d", 6)
    assert [op.sizes["fn"] for op in layer.tail] == ["relu6"]


def test_products_are_linear_with_a_weight_and_matmul_without():
    nodes = [
        node("MatMul", "x w", "a"),
        node("Transpose", "a", "b", perm=[0, 2, 1]),
        node("MatMul", "a b", "c"),
        node("MatMul", "c v", "y"),
    ]
    layers = read_layers(nodes, [weight("w", 16, 5), weight("v", 6, 6, type=10)])
    assert [layer.kind for layer in layers] == ["linear", "matmul", "linear"]
    assert dict(layers[1].sizes) == {"count": 1, "m": 6, "k": 5, "n": 6}
    assert layers[1].reads == (1,)


@pytest.mark.parametrize(
    ("equation", "sizes"),
    [
        ("btk,kn->btn", {"cin": 16, "cout": 5, "lead": (6,), "bias": 0}),
        ("...k,kn->...n", {"cin": 16, "cout": 5, "lead": (6,), "bias": 0}),
    ],
)
def test_an_einsum_with_a_weight_is_linear(equation, sizes):
    nodes = [node("Einsum", "x w", "y", equation=equation)]
    (layer,) = read_layers(nodes, [weight("w", 16, 5)])
    assert (layer.kind, dict(layer.sizes)) == ("linear", sizes)


def test_shared_weights_are_counted_once():
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "r"), node("MatMul", "r w", "y")]
    model = make_model(nodes, [weight("w", 16, 16)], ("n", 16))
    network = read(model).network
    assert [layer.tied for layer in network.layers] == [False, True]
    assert network.totals.params == 256
    assert not network.buildable


def test_the_input_of_a_network_of_tokens_has_a_vocabulary():
    model = make_model([node("Gather", "w x", "y")], [weight("w", 50, 8)], ("n", 6))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    network = read(model).network
    assert network.input.vocabulary == 50
    assert input_shape(network.layers[0]) == (6,)


def test_fused_operators_are_taken_apart():
    fused = node("FusedConv", "x w b z", "y", domain="com.microsoft", activation="Relu")
    nodes = [node("Conv", "x w b", "z"), fused]
    weights = [weight("w", 3, 3, 1, 1), weight("b", 3)]
    layers = read_layers(nodes, weights, ("n", 3, 8, 8))
    assert [layer.kind for layer in layers] == ["conv2d", "conv2d", "elementwise"]
    assert layers[2].join == "add"
    assert [op.sizes["fn"] for op in layers[2].tail] == ["relu"]


def test_fused_transformers_are_read_as_their_parts():
    domain = {"domain": "com.microsoft"}
    nodes = [
        node("Attention", "x wa ba", "a", num_heads=4, unidirectional=1, **domain),
        node("MatMul", "a wo", "o"),
        node("SkipLayerNormalization", "o x g beta bo", "n   s", **domain),
        node("MatMul", "n wi", "i"),
        node("BiasGelu", "i bi", "h", **domain),
        node("MatMulNBits", "h wp scales", "p", K=32, N=16, bits=4, block_size=16, **domain),
        node("Add", "p s", "y"),
    ]
    weights = [weight("wa", 16, 48), weight("ba", 48), weight("wo", 16, 16), weight("bo", 16)]
    weights += [weight("g", 16), weight("beta", 16), weight("wi", 16, 32), weight("bi", 32)]
    weights += [weight("wp", 16, 2, 8, type=TensorProto.UINT8), weight("scales", 32)]
    layers = read_layers(nodes, weights)
    kinds = ["linear", "sdpa", "linear", "elementwise", "layer_norm", "linear", "linear"]
    assert [layer.kind for layer in layers] == [*kinds, "elementwise"]
    assert [layer.sizes["bias"] for layer in layers if layer.kind == "linear"] == [1, 1, 1, 0]
    assert (layers[1].sizes["heads"], layers[1].sizes["causal"]) == (4, 1)
    assert layers[3].join == "add"
    assert [op.sizes["fn"] for op in layers[5].tail] == ["gelu"]
    assert (layers[6].sizes["cin"], layers[6].sizes["cout"]) == (32, 16)
    assert layers[7].reads == (1, 4)


def test_a_repeated_value_is_copied_where_it_is_reshaped():
    nodes = chain("MatMul x w -> k; Unsqueeze k one -> u; Expand u many -> e; Reshape e rows -> y")
    weights = [weight("w", 16, 8), integers("one", 1), integers("many", 1, 3, 1, 1)]
    (layer, *others) = read_layers(nodes, [*weights, integers("rows", 0, 18, 8)])
    copies = [op for one in (layer, *others) for op in (one, *one.tail) if op.kind == "elementwise"]
    assert [op.sizes["fn"] for op in copies] == ["copy"]


def test_a_stack_of_recurrent_layers_is_one_layer():
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node("LSTM", "t l r", "h  ", hidden_size=16),
        node("Squeeze", "h one", "s"),
        node("LSTM", "s m r", "i", hidden_size=16),
        node("Squeeze", "i one", "j"),
        node("Transpose", "j", "y", perm=[1, 0, 2]),
    ]
    weights = [weight("l", 1, 64, 16), weight("m", 1, 64, 16), weight("r", 1, 64, 16)]
    (layer,) = read_layers(nodes, [*weights, integers("one", 1)])
    assert (layer.kind, layer.sizes["depth"], layer.sizes["bias"]) == ("lstm", 2, 0)
    assert layer.tail == ()


@pytest.mark.parametrize(
    ("order", "new"), [((0, 1, 2), (6, 4)), ((0, 2, 1), (2, 12)), ((1, 0, 2), (3, 2, 2, 2))]
)
def test_a_reshape_copies_where_numpy_does(order, new):
    array = np.transpose(np.zeros((2, 3, 4)), order)
    transposed = np.transpose(patterns._lay_out((2, 3, 4)), order)
    found = patterns._view(transposed, new)
    assert (found is None) == (not np.shares_memory(array.reshape(new), array))
    if found is not None:
        strides = [stride // array.itemsize for stride in array.reshape(new).strides]
        assert [*found.strides] == strides


def test_nodes_are_named_after_modules():
    made = node("Conv", "x", "y", name="/layer1/layer1.0/conv1/Conv")
    assert find_module_path(made) == "layer1.0.conv1"
    assert find_module_path(node("Conv", "x", "y", name="Conv_3")) == ""
    scoped = node("Conv", "x", "y", name="node_conv2d")
    entry = scoped.metadata_props.add()
    entry.key = "pkg.torch.onnx.name_scopes"
    entry.value = "['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d']"
    assert find_module_path(scoped) == "layer1.0.conv1"
    for hostile in ("[" * 5000, "__import__('os')", "[1, 2]", "{}"):
        entry.value = hostile
        assert find_module_path(scoped) == ""


def test_blocks_are_modules_whose_names_differ_in_numbers():
    paths = ["stem", "layer.0.a", "layer.0.b", "layer.1.a", "layer.1.b", "head"]
    assert find_path_blocks(paths, [True] * 6) == [(1, 3), (3, 5)]
    assert find_path_blocks(paths, [False] * 6) == []
    nested = ["s1.b0.a", "s1.b0.c", "s1.b1.a", "s1.b1.c", "s2.b0.a", "s2.b0.c"]
    assert find_path_blocks(nested, [True] * 6) == [(0, 2), (2, 4), (4, 6)]
