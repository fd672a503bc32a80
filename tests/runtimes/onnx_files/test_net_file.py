"""Networks of ONNX files are those that the reader of modules gives."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from torch import nn

from joulecast.errors import FileError, NetError
from joulecast.kinds import layer_work, network_work
from joulecast.records import Network, Setup
from joulecast.runtimes.onnx_files import model_file, net_file
from joulecast.runtimes.onnx_files.net_file import read_onnx_net
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.net_reader import read_net
from onnx_models import (
    export,
    integers,
    make_conv_net,
    make_model,
    node,
    numbers,
    save,
    weight,
)


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
    found = read_onnx_net(path).network
    expected = read_net(module, x)
    assert found == expected
    assert found.buildable == expected.buildable
    assert [layer.name for layer in found.layers] == [layer.name for layer in expected.layers]
    assert found.totals.params == expected.totals.params
    assert found.totals.ops_without_rule == ()


def test_norms_that_were_folded_leave_only_a_bias(tmp_path):
    module = make_residual().eval()
    x = torch.zeros(2, 3, 16, 16)
    found = read_onnx_net(export(module, x, tmp_path / "net.onnx")).network
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
    found = read_onnx_net(export(module, x, tmp_path / "net.onnx")).network
    expected = read_net(module, x)
    assert list_contractions(found) == list_contractions(expected)
    params = [network_work(one, Setup()).params for one in (found, expected)]
    assert params[0] == params[1] == found.totals.params
    assert len(found.groups) == len(expected.groups) == 2
    assert sum(layer.kind == "sdpa" for layer in found.layers) == 2


def test_the_axis_of_the_samples_is_open_or_fixed(tmp_path):
    opened = read_onnx_net(save(make_conv_net(), tmp_path / "open.onnx"))
    fixed = read_onnx_net(save(make_conv_net(shape=(4, 3, 8, 8)), tmp_path / "fixed.onnx"))
    assert (opened.batch, fixed.batch) == (1, 4)
    assert read_onnx_net(tmp_path / "open.onnx", usual_batch=32).batch == 32
    assert read_onnx_net(tmp_path / "fixed.onnx", batch=8, usual_batch=32).batch == 8
    assert opened.network == fixed.network
    assert opened.network.input.shape == (3, 8, 8)
    assert [layer.name for layer in opened.network.layers] == ["conv", "head"]


def test_totals_count_the_batch_that_is_asked_for(tmp_path):
    path = save(make_conv_net(), tmp_path / "net.onnx")
    one, eight = (read_onnx_net(path, batch=batch).network.totals for batch in (1, 8))
    assert eight.flops == pytest.approx(8 * one.flops)
    # Weights are read once, however many samples there are.
    assert one.size_bytes < eight.size_bytes < 8 * one.size_bytes
    forward = 2 * (4 * 3 * 9 * 64 + 4 * 10)
    assert one.flops == pytest.approx(forward + 2 * (4 * 3 * 9 * 64) + 4 * (4 * 10))


def test_open_sizes_have_to_be_given(tmp_path):
    shape = ("batch", 3, "height", "width")
    path = save(make_conv_net(shape=shape), tmp_path / "net.onnx")
    with pytest.raises(NetError, match=r"\[batch, 3, height, width\].*--input 3x224x224"):
        read_onnx_net(path)
    with pytest.raises(NetError, match="do not fit"):
        read_onnx_net(path, (4, 8, 8))
    assert read_onnx_net(path, (3, 16, 16)).network.input.shape == (3, 16, 16)


def test_fixed_sizes_cannot_be_changed(tmp_path):
    path = save(make_conv_net(), tmp_path / "net.onnx")
    assert read_onnx_net(path, (3, 8, 8)).network.input.shape == (3, 8, 8)
    with pytest.raises(NetError, match="takes samples of 3x8x8"):
        read_onnx_net(path, (3, 16, 16))


def test_other_inputs_take_open_sizes_from_the_first(tmp_path):
    nodes = [node("MatMul", "x w", "m"), node("Add", "m mask", "y")]

    def make(shape):
        more = [("mask", shape)]
        return make_model(nodes, [weight("w", 4, 4)], ("batch", "seq", 4), more_inputs=more)

    found = read_onnx_net(save(make(("batch", "seq", 4)), tmp_path / "net.onnx"), (6, 4))
    assert [layer.reads for layer in found.network.layers] == [(1,), (1, 2)]
    assert not found.network.buildable
    with pytest.raises(
        NetError, match=r"'mask' is \[batch, past, 4\], and nothing says what 'past' is"
    ):
        read_onnx_net(save(make(("batch", "past", 4)), tmp_path / "other.onnx"), (6, 4))


def test_operators_without_a_rule_are_named_and_counted(tmp_path):
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
    network = read_onnx_net(save(model, tmp_path / "net.onnx")).network
    assert network.totals.ops_without_rule == (("com.acme::Wobble", 2),)
    assert 0.3 < network.totals.uncounted_bytes_share < 0.7
    assert not network.buildable
    assert network.layers[-1].kind == "conv2d"


def test_sizes_that_depend_on_the_data_are_said_to_be_uncounted(tmp_path):
    nodes = [
        node("Conv", "x w", "c"),
        node("NonZero", "c", "n"),
        node("Transpose", "n", "y"),
    ]
    network = read_onnx_net(
        save(make_model(nodes, [weight("w", 4, 3, 1, 1)]), tmp_path / "net.onnx")
    ).network
    assert network.totals.ops_without_rule == (("NonZero", 1),)
    assert network.totals.notes[0].startswith("The sizes of 1 operator depend on the data")
    assert network.totals.uncounted_bytes_share >= 1 / 3


def test_a_file_without_a_known_operator_is_refused(tmp_path):
    model = make_model([node("Wobble", "x", "y", domain="com.acme")])
    with pytest.raises(NetError, match=r"not known come first, com.acme::Wobble \(1\)"):
        read_onnx_net(save(model, tmp_path / "net.onnx"))
    with pytest.raises(NetError, match="so it computes nothing"):
        read_onnx_net(save(make_model([node("Flatten", "x", "y")]), tmp_path / "net.onnx"))


def test_graphs_without_end_are_read_or_refused(tmp_path, monkeypatch):
    names = ["x", *(f"v{index}" for index in range(2500)), "y"]
    chain = [node("Relu", a, b) for a, b in pairwise(names)]
    path = save(make_model(chain), tmp_path / "net.onnx")
    network = read_onnx_net(path).network
    assert sum(1 + len(layer.tail) for layer in network.layers) == len(chain)
    assert Network.from_dict(network.to_dict()) == network
    monkeypatch.setattr(net_file, "MOST_LAYERS", 20)
    with pytest.raises(FileError, match="layers, more than 20"):
        read_onnx_net(path)
    monkeypatch.setattr(model_file, "MOST_NODES", 2000)
    with pytest.raises(FileError, match="it has 2,501 nodes, more than 2,000"):
        read_onnx_net(path)


def test_outputs_have_to_depend_on_the_input(tmp_path):
    model = make_model([node("Identity", "w", "y")], [weight("w", 3)])
    with pytest.raises(FileError, match="outputs do not depend on its inputs"):
        read_onnx_net(save(model, tmp_path / "net.onnx"))


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


def test_quantised_files_are_read_as_networks_in_floating_point(tmp_path):
    static = read_onnx_net(save(make_quantised(), tmp_path / "static.onnx"))
    (conv,) = static.network.layers
    assert (conv.kind, [op.sizes["fn"] for op in conv.tail]) == ("conv2d", ["relu"])
    assert static.precision == "int8"
    assert static.network.totals.params == 4 * 3 * 9
    assert "--inference --precision int8." in static.network.totals.notes[0]
    dynamic = read_onnx_net(save(make_dynamically_quantised(), tmp_path / "dynamic.onnx"))
    (linear,) = dynamic.network.layers
    assert (linear.kind, linear.sizes["bias"], linear.sizes["lead"]) == ("linear", 1, (6,))
    assert dynamic.precision == "int8_dynamic"
    assert dynamic.network.totals.params == 8 * 5 + 5


def test_the_precision_of_weights_is_said(tmp_path):
    half = make_model([node("MatMul", "x w", "y")], [weight("w", 4, 4, type=10)], ("n", 4))
    found = read_onnx_net(save(half, tmp_path / "half.onnx"))
    assert found.precision == "fp16"
    assert "--precision fp16" in found.network.totals.notes[0]


def make_branch(name, op):
    output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
    return helper.make_graph([node(op, "x", f"{name}_y")], name, [], [output])


def test_a_branch_that_is_known_is_taken(tmp_path):
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
    network = read_onnx_net(save(make_model(nodes, weights), tmp_path / "net.onnx")).network
    assert network.layers[0].sizes["fn"] == "relu"
    assert network.totals.ops_without_rule == ()


def test_a_loop_is_named(tmp_path):
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
    network = read_onnx_net(save(make_model(nodes, weights), tmp_path / "net.onnx")).network
    assert network.totals.ops_without_rule == (("Loop", 1),)
    assert not network.buildable
