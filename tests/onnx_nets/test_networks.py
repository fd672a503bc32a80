"""Networks of ONNX files are those that the reader of modules gives."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import nn

from joulecast.onnx_nets import patterns
from joulecast.onnx_nets.network import find_path_blocks, read_network
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


class Branches(nn.Module):
    """A channel split, a depthwise branch, a channel shuffle, and squeeze and excite."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, 2, 1)
        self.branch = nn.Conv2d(12, 12, 3, 1, 1, groups=12)
        self.down, self.up = nn.Conv2d(24, 4, 1), nn.Conv2d(4, 24, 1)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        kept, changed = F.relu(self.stem(x)).chunk(2, 1)
        x = torch.cat((kept, self.branch(changed)), 1)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous()
        x = x.view(batch, channels, height, width)
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


IMAGES, TOKENS = torch.zeros(2, 3, 16, 16), torch.zeros(2, 12, dtype=torch.long)
SIGNALS = (nn.Conv1d(4, 8, 5, 2, 2), nn.ReLU(), nn.Conv1d(8, 8, 3, groups=8))
VOLUMES = (nn.Conv3d(3, 8, 3, 1, 1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 4, 1))
MODULES = {
    "residual": (make_residual(), IMAGES),
    "branches": (Branches(), IMAGES),
    "many operators": (ManyOperators(), torch.zeros(2, 4, 14, 14)),
    "conv1d": (
        nn.Sequential(*SIGNALS, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 3)),
        torch.zeros(2, 4, 50),
    ),
    "conv3d": (
        nn.Sequential(*VOLUMES, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3)),
        torch.zeros(2, 3, 4, 8, 8),
    ),
    "lstm": (Recurrent(nn.LSTM), TOKENS),
    "gru": (Recurrent(nn.GRU), TOKENS),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_file_gives_the_network_of_its_module(tmp_path, name):
    (module, x), options, keeps_norms = MODULES[name], {}, name == "residual"
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
    found = read(export(module, IMAGES, tmp_path / "net.onnx")).network
    expected = read_net(module, IMAGES)
    assert not any(op.kind == "batch_norm" for layer in found.layers for op in layer.tail)
    setup = Setup(batch=2)
    assert network_work(found, setup).forward.flops == network_work(expected, setup).forward.flops
    assert found.groups == expected.groups
    assert found.buildable
    build_net(found)(IMAGES)


class OneOutput(nn.Module):
    def __init__(self, net, key):
        super().__init__()
        self.net, self.key = net, key

    def forward(self, x):
        return getattr(self.net(x), self.key)


def list_contractions(network):
    """Return FLOPs and parameters of every layer that multiplies, at batch 2."""
    works = [layer_work(layer, Setup(batch=2, phase="inference")) for layer in network.layers]
    return [(work.forward.flops, work.params) for work in works if work.forward.flops]


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_layers_of_transformers_have_the_same_flops_and_parameters(tmp_path, name):
    hf = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes["intermediate_size"] = 64
    if name == "vit":
        net = hf.ViTForImageClassification(hf.ViTConfig(**sizes, image_size=32, patch_size=8))
        module, x = OneOutput(net, "logits"), torch.zeros(2, 3, 32, 32)
    else:
        net = hf.BertModel(hf.BertConfig(**sizes, vocab_size=99), add_pooling_layer=False)
        module, x = OneOutput(net, "last_hidden_state"), TOKENS
    module.eval()
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


def make_weights(nodes):
    """Return the weights that nodes read: their names say the type, and sizes or numbers."""
    types = {"h": TensorProto.FLOAT16, "q": TensorProto.INT8, "u": TensorProto.UINT8}
    made = []
    for name in dict.fromkeys(name for one in nodes for name in one.input if ":" in name):
        kind, _, text = name.partition(":")
        if kind == "float":
            made.append(numbers(name, float(text)))
            continue
        sizes = map(int, text.split(",")) if text else ()
        type_ = types.get(kind, TensorProto.FLOAT)
        made.append(integers(name, *sizes) if kind == "int" else weight(name, *sizes, type=type_))
    return made


def read_nodes(nodes, shape=("batch", 6, 16), **options):
    return read(make_model(nodes, make_weights(nodes), shape, **options))


def test_other_inputs_take_open_sizes_from_the_first():
    nodes, shape = chain("MatMul x w:4,4 -> m; Add m mask -> y"), ("batch", "seq", 4)
    model = make_model(nodes, make_weights(nodes), shape, more_inputs=[("mask", shape)])
    found = read(model, (6, 4))
    assert [layer.reads for layer in found.network.layers] == [(1,), (1, 2)]
    assert not found.network.buildable


IMAGE = ("batch", 3, 8, 8)


def make_branch(name, op):
    output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
    return helper.make_graph([node(op, "x", f"{name}_y")], name, [], [output])


def make_loop():
    types = {"i": TensorProto.INT64, "k": TensorProto.BOOL, "m": TensorProto.BOOL}
    given, test, out = (helper.make_tensor_value_info(name, types[name], ()) for name in types)
    nodes = chain("Identity i -> j; Identity k -> m")
    return helper.make_graph(nodes, "body", [given, test], [out])


BRANCHES = {"then_branch": make_branch("a", "Relu"), "else_branch": make_branch("b", "Tanh")}
WOBBLES = [node("Wobble", one, two, domain="com.acme") for one, two in ("ap", "pq")]
CONV_LOOP = [node("Conv", "x w:4,3,1,1", "c"), node("Loop", "int:3  c", "y", body=make_loop())]
# Nodes, the layers that are read, the operators without a rule, and limits of the bytes that they
# move, as a share.
UNKNOWN = {
    "operator of others": (
        [node("Relu", "x", "a"), *WOBBLES, node("Conv", "q w:4,3,1,1", "y")],
        "relu+com.acme::Wobble+com.acme::Wobble conv2d", (("com.acme::Wobble", 2),), (0.3, 0.7),
    ),
    "sizes that depend on the data": (
        chain("Conv x w:4,3,1,1 -> c; NonZero c -> n; Transpose n -> y"),
        "conv2d", (("NonZero", 1),), (1 / 3, 1),
    ),
    "loop": (CONV_LOOP, "conv2d", (("Loop", 1),), (0.1, 1)),
    "branch that is known": (
        [
            *chain("Shape x -> s; Gather s int:1 -> g; Equal g int:3 -> c"),
            node("If", "c", "r", **BRANCHES), node("Conv", "r w:4,3,1,1", "y"),
        ],
        "relu conv2d", (), (0, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_operators_without_a_rule_are_named_and_counted(name):
    nodes, layers, unknown, (least, most) = UNKNOWN[name]
    model = make_model(nodes, make_weights(nodes), IMAGE)
    for value in "pq":
        model.graph.value_info.append(helper.make_tensor_value_info(value, 1, IMAGE))
    network = read(model).network
    assert " ".join(map(describe, network.layers)) == layers
    assert network.totals.ops_without_rule == unknown
    assert least <= network.totals.uncounted_bytes_share <= most
    assert not (network.buildable and unknown)
    is_noted = any("depend on the data" in note for note in network.totals.notes)
    assert is_noted == ("depend" in name)


STATIC = [
    *chain("QuantizeLinear x float:0.1 u: -> xq; DequantizeLinear xq float:0.1 u: -> xd"),
    node("DequantizeLinear", "q:4,3,3,3 w:4 q:4", "wd", axis=0),
    *chain("Conv xd wd -> c; QuantizeLinear c float:0.1 u: -> cq"),
    *chain("DequantizeLinear cq float:0.1 u: -> cd; Relu cd -> y"),
]
DYNAMIC = [
    node("DynamicQuantizeLinear", "x", "xq xs xz"),
    node("MatMulInteger", "xq q:8,5 xz q:", "m"),
    node("Cast", "m", "f", to=TensorProto.FLOAT),
    *chain("Mul xs float:0.1 -> s; Mul f s -> r; Add r w:5 -> y"),
]


@pytest.mark.parametrize(
    ("nodes", "shape", "layer", "precision", "params", "note"),
    [
        (STATIC, IMAGE, "conv2d+relu", "int8", 4 * 3 * 9, "--inference --precision int8."),
        (DYNAMIC, ("n", 6, 8), "linear", "int8_dynamic", 8 * 5 + 5, "--precision int8_dynamic."),
        (chain("MatMul x h:4,4 -> y"), ("n", 4), "linear", "fp16", 16, "--precision fp16"),
    ],
)
def test_the_precision_of_a_file_is_said(nodes, shape, layer, precision, params, note):
    found = read_nodes(nodes, shape)
    assert [*map(describe, found.network.layers)] == [layer]
    assert (found.precision, found.network.totals.params) == (precision, params)
    assert note in found.network.totals.notes[0]


def describe(layer):
    """Return the kind or function of a layer and of its tail."""
    return "+".join(str(op.sizes.get("fn", op.kind)) for op in (layer, *layer.tail))


def spell_attention(mask="", more=""):
    nodes = chain("MatMul x w1:16,16 -> q; MatMul x w2:16,16 -> k; MatMul x w3:16,16 -> v")
    for name in "qkv":
        nodes.append(node("Reshape", f"{name} int:0,6,4,4", f"{name}r"))
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes.append(node("Transpose", f"{name}r", f"{name}t", perm=order))
    nodes += chain("MatMul qt kt -> s; Mul s float:0.5 -> scaled")
    nodes += chain(more) if more else []
    nodes += chain(f"Add scaled {mask} -> masked") if mask else []
    return [
        *nodes,
        node("Softmax", "masked" if mask else "scaled", "p", axis=-1),
        node("MatMul", "p vt", "o"),
        node("Transpose", "o", "ot", perm=[0, 2, 1, 3]),
        node("Reshape", "ot int:0,6,16", "y"),
    ]


HEADS = {"heads": 4, "kv_heads": 4, "head_dim": 4, "tokens": 6, "kv_tokens": 6}
THREE = "linear linear linear sdpa"
FUSED = {"domain": "com.microsoft"}
SWAP = {"perm": [1, 0, 2]}
# Nodes, the layers that they are read as, and facts about some of these by their number.
READ = {
    "gelu": (
        "Div x float:1.4 -> a; Erf a -> b; Add b float:1 -> c; Mul x c -> d; Mul d float:2 -> y",
        "gelu", {},
    ),
    "layer norm": (
        "ReduceMean x int:-1 -> m; Sub x m -> d; Pow d float:2 -> p; ReduceMean p int:-1 -> v; "
        "Add v float:1e-5 -> e; Sqrt e -> r; Div d r -> n; Mul n w1:16 -> s; Add s w2:16 -> y",
        "layer_norm", {0: {"dims": 1, "affine": 1, "bias": 1}},
    ),
    "rms norm": (
        "Pow x float:2 -> p; ReduceMean p int:-1 -> v; Add v float:1e-5 -> e; Sqrt e -> r; "
        "Reciprocal r -> i; Mul x i -> n; Mul w:16 n -> y",
        "rms_norm", {0: {"affine": 1, "spelled": 1}},
    ),
    "hardswish": ("HardSigmoid x -> s; Mul x s -> y", "hardswish", {}),
    "read by others": ("Sigmoid x -> s; Mul x s -> m; Add m s -> y", "sigmoid mul add", {}),
    "attention": (spell_attention(), THREE, {3: {**HEADS, "causal": 0, "reads": (3, 2, 1)}}),
    "causal attention": (spell_attention("m:1,1,6,6"), THREE, {3: {**HEADS, "causal": 1}}),
    "attention with a bias": (spell_attention("m:1,4,6,6"), THREE, {3: {**HEADS, "causal": 0}}),
    # Nothing tells which of them is the mask.
    "attention whose scores come from two products": (
        spell_attention("t", "MatMul qt kt -> t"),
        "linear+view+permute linear+view+permute linear+view+permute matmul+mul matmul "
        "add+softmax matmul+permute+copy+view", {5: {"reads": (1, 2), "join": "add"}},
    ),
    "attention with a bias by position": (
        spell_attention("t", "MatMul qt w4:4,6 -> t"),
        "linear linear linear linear sdpa", {4: {**HEADS, "reads": (4, 3, 2, 1)}},
    ),
    "convolution by groups": (
        [node("Conv", "x w:6,1,3", "c", group=6), node("Clip", "c float:0 float:6", "y")],
        "conv1d+relu6", {0: {"groups": 6}},
    ),
    "products": (
        [
            node("MatMul", "x w:16,5", "a"), node("Transpose", "a", "b", perm=[0, 2, 1]),
            *chain("MatMul a b -> c; MatMul c h:6,6 -> y"),
        ],
        "linear matmul linear", {1: {"count": 1, "m": 6, "k": 5, "n": 6, "reads": (1,)}},
    ),
    "transposed factor": (
        [node("FusedMatMul", "x x", "y", transA=1, **FUSED)],
        "matmul", {0: {"count": 1, "m": 16, "k": 6, "n": 16}},
    ),
    **{
        f"einsum {equation}": (
            [node("Einsum", "x w:16,5", "y", equation=equation)],
            "linear", {0: {"cin": 16, "cout": 5, "lead": (6,), "bias": 0}},
        )
        for equation in ("btk,kn->btn", "...k,kn->...n")
    },
    "shared weight": (
        "MatMul x w:16,16 -> a; Relu a -> r; MatMul r w:16,16 -> y",
        "linear+relu linear", {0: {"tied": False}, 1: {"tied": True}},
    ),
    "fused convolution": (
        [
            node("Conv", "x w:6,6,1 b:6", "z"),
            node("FusedConv", "x w:6,6,1 b:6 z", "y", activation="Relu", **FUSED),
        ],
        "conv1d conv1d add+relu", {2: {"join": "add"}},
    ),
    "fused transformer": (
        [
            node("Attention", "x w:16,48 b:48", "a", num_heads=4, unidirectional=1, **FUSED),
            node("MatMul", "a w:16,16", "o"),
            node("SkipLayerNormalization", "o x g:16 b1:16 b2:16", "n   s", **FUSED),
            node("MatMul", "n w:16,32", "i"),
            node("BiasGelu", "i b:32", "h", **FUSED),
            node("MatMulNBits", "h u:16,2,8 s:32", "p", K=32, N=16, **FUSED),
            node("Add", "p s", "y"),
        ],
        "linear sdpa linear add layer_norm linear+gelu linear add",
        {
            0: {"bias": 1}, 1: {"heads": 4, "causal": 1}, 2: {"bias": 1}, 3: {"join": "add"},
            5: {"bias": 1}, 6: {"cin": 32, "cout": 16, "bias": 0}, 7: {"reads": (1, 4)},
        },
    ),
    "repeated value that is reshaped": (
        "MatMul x w:16,8 -> k; Unsqueeze k int:1 -> u; Expand u int:1,3,1,1 -> e; "
        "Reshape e int:0,18,8 -> y",
        "linear+copy", {},
    ),
    "stack of recurrent layers": (
        [
            node("Transpose", "x", "t", **SWAP),
            node("LSTM", "t w1:1,64,16 r:1,64,16", "h  ", hidden_size=16),
            node("Squeeze", "h int:1", "s"),
            node("LSTM", "s w2:1,64,16 r:1,64,16", "i", hidden_size=16),
            node("Squeeze", "i int:1", "j"), node("Transpose", "j", "y", **SWAP),
        ],
        "lstm", {0: {"depth": 2, "bias": 0}},
    ),
    **{
        f"padding {pads} with stride {stride}": (
            [node("Conv", "x w:4,6,3", "y", pads=pads, strides=[stride])],
            "conv1d", {0: {"out": (4, (16 + sum(pads) - 3) // stride + 1)}},
        )
        for pads, stride in (([0, 1], 2), ([0, 1], 1), ([2, 0], 1))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_nodes_are_read_as_layers(name):
    nodes, expected, facts = READ[name]
    layers = read_nodes(chain(nodes) if isinstance(nodes, str) else nodes).network.layers
    assert " ".join(map(describe, layers)) == expected
    for number, wanted in facts.items():
        layer = layers[number]
        found = {**vars(layer), **layer.sizes, "out": output_shape(layer)}
        assert wanted.items() <= found.items()


def test_shared_weights_are_counted_once():
    network = read_nodes(chain(READ["shared weight"][0])).network
    assert network.totals.params == 256
    assert not network.buildable


def test_the_input_of_a_network_of_tokens_has_a_vocabulary():
    model = make_model([node("Gather", "w x", "y")], [weight("w", 50, 8)], ("n", 6))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    network = read(model).network
    assert network.input.vocabulary == 50
    assert input_shape(network.layers[0]) == (6,)


@given(st.permutations(range(4)), st.permutations([2, 3, 4, 1, 2, 1]), st.integers(1, 6))
def test_a_reshape_copies_where_numpy_does(order, sizes, count):
    array = np.broadcast_to(np.zeros((2, 1, 2, 3)), (2, 4, 2, 3)).transpose(order)
    new = (*sizes[: count - 1], math.prod(sizes[count - 1 :]))
    for plain in (array, np.ascontiguousarray(array)):
        found, reshaped = patterns._view(plain, new), plain.reshape(new)
        assert (found is None) == (not np.shares_memory(reshaped, plain))
        assert found is None or (found == reshaped).all()


def test_no_memory_is_read_to_find_copies():
    layout = patterns._lay_out((30_000, 30_000)).T
    assert patterns._view(layout, (900_000_000,)) is None


SCOPES = "['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d']"


@pytest.mark.parametrize(
    ("name", "scopes", "path"),
    [
        ("/layer1/layer1.0/conv1/Conv", None, "layer1.0.conv1"),
        ("Conv_3", None, "Conv_3"),
        ("node_conv2d", SCOPES, "layer1.0.conv1"),
        *(("node", one, "node") for one in ("[" * 5000, "__import__('os')", "[1, 2]", "{}")),
    ],
)
def test_layers_are_named_after_modules(name, scopes, path):
    made = node("Conv", "x w:4,3,1,1", "y", name=name)
    if scopes:
        made.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    assert [layer.name for layer in read_nodes([made], IMAGE).network.layers] == [path]


def test_blocks_are_modules_whose_names_differ_in_numbers():
    paths = ["stem", "layer.0.a", "layer.0.b", "layer.1.a", "layer.1.b", "head"]
    assert find_path_blocks(paths, [True] * 6) == [(1, 3), (3, 5)]
    assert find_path_blocks(paths, [False] * 6) == []
    nested = ["s1.b0.a", "s1.b0.c", "s1.b1.a", "s1.b1.c", "s2.b0.a", "s2.b0.c"]
    assert find_path_blocks(nested, [True] * 6) == [(0, 2), (2, 4), (4, 6)]
