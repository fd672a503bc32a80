"""Shapes, constants and patterns of ONNX graphs, against what the package onnx computes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from joulecast.kinds import input_shape, output_shape
from joulecast.runtimes.onnx_files.graph_reader import read_graph
from joulecast.runtimes.onnx_files.input_shapes import GraphInput
from joulecast.runtimes.onnx_files.memory_order import find_view_strides
from joulecast.runtimes.onnx_files.model_file import GraphError
from joulecast.runtimes.onnx_files.module_paths import find_module_path
from joulecast.runtimes.onnx_files.net_file import read_onnx_net
from joulecast.runtimes.onnx_files.path_blocks import find_path_blocks
from onnx_models import integers, make_model, node, numbers, save, weight

IMAGE = (2, 6, 9, 11)
TOKENS = (2, 8, 12)


def read(model, shape):
    shape = tuple(shape)
    inputs = [GraphInput("x", TensorProto.FLOAT, shape)]
    return read_graph(model.graph, inputs, [shape], {})


SHAPED = [
    (IMAGE, node("Conv", "x w", "y", strides=[2, 1], pads=[1, 0, 0, 2], dilations=[2, 1])),
    (IMAGE, node("Conv", "x w", "y", auto_pad="SAME_UPPER", strides=[2, 2])),
    (IMAGE, node("Conv", "x w", "y", auto_pad="SAME_LOWER", strides=[2, 3])),
    (IMAGE, node("Conv", "x w", "y", auto_pad="VALID")),
    (IMAGE, node("ConvTranspose", "x t", "y", strides=[2, 3], output_padding=[1, 0])),
    (IMAGE, node("ConvTranspose", "x t", "y", strides=[2, 2], pads=[1, 1, 0, 1])),
    (IMAGE, node("MaxPool", "x", "y", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1)),
    (IMAGE, node("AveragePool", "x", "y", kernel_shape=[3, 3], auto_pad="SAME_UPPER")),
    (IMAGE, node("GlobalMaxPool", "x", "y")),
    (IMAGE, node("Flatten", "x", "y", axis=2)),
    (IMAGE, node("Flatten", "x", "y", axis=-1)),
    (IMAGE, node("Transpose", "x", "y", perm=[0, 2, 3, 1])),
    (IMAGE, node("Transpose", "x", "y")),
    (IMAGE, node("ReduceMean", "x axes", "y", keepdims=0)),
    (IMAGE, node("ReduceMax", "x axes", "y")),
    (IMAGE, node("ReduceSum", "x", "y", noop_with_empty_axes=1)),
    (IMAGE, node("ArgMax", "x", "y", axis=1, keepdims=0)),
    (IMAGE, node("TopK", "x three", "y i", axis=-1)),
    (IMAGE, node("Split", "x", "y b c", axis=1, num_outputs=3)),
    (IMAGE, node("Slice", "x starts ends axes", "y")),
    (IMAGE, node("Gather", "x rows", "y", axis=1)),
    (IMAGE, node("Pad", "x pads", "y")),
    (IMAGE, node("Resize", "x  scales", "y")),
    (IMAGE, node("Tile", "x tiles", "y")),
    (IMAGE, node("Concat", "x x", "y", axis=-1)),
    (IMAGE, node("Unsqueeze", "x axes", "y")),
    (IMAGE, node("Reshape", "x zeros", "y")),
    (IMAGE, node("Expand", "x wide", "y")),
    ((2, 8, 4, 6), node("DepthToSpace", "x", "y", blocksize=2)),
    ((2, 8, 4, 6), node("SpaceToDepth", "x", "y", blocksize=2)),
    ((2, 1, 5), node("Squeeze", "x one", "y")),
    ((2, 1, 5), node("Squeeze", "x", "y")),
    (TOKENS, node("MatMul", "x m", "y")),
    (TOKENS, node("Einsum", "x m", "y", equation="btk,kn->bnt")),
    (TOKENS, node("LSTM", "x l r", "y h c", hidden_size=5, direction="bidirectional")),
    (TOKENS, node("GRU", "x g s", "y h", hidden_size=5, layout=0)),
    (TOKENS, node("Where", "yes x number", "y")),
    (TOKENS, node("Shape", "x", "y", start=-2)),
    (TOKENS, node("CumSum", "x number", "y")),
]
WEIGHTS = [
    weight("w", 4, 6, 3, 2),
    weight("t", 6, 4, 3, 2),
    weight("m", 12, 7),
    weight("l", 2, 20, 12),
    weight("r", 2, 20, 5),
    weight("g", 1, 15, 12),
    weight("s", 1, 15, 5),
    integers("axes", 2, 3),
    integers("starts", 1, -4),
    integers("ends", 8, 100),
    integers("rows", 0, 2, 4),
    integers("pads", 0, 0, 1, 2, 0, 0, 3, 0),
    integers("tiles", 1, 2, 1, 3),
    integers("zeros", 0, -1, 11),
    integers("wide", 2, 1, 1, 1, 1),
    integers("one", 1),
    integers("three", 3),
    numbers("scales", 1, 1, 2, 0.5, shape=(4,)),
    numbers("number", 0),
    helper.make_tensor("yes", TensorProto.BOOL, (1,), [True]),
]


@pytest.mark.parametrize(("shape", "made"), SHAPED)
def test_shapes_are_those_that_onnx_infers(shape, made):
    used = [one for one in WEIGHTS if one.name in made.input]
    model = make_model([made], used, shape)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made.output)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    expected = {
        one.name: tuple(dim.dim_value for dim in one.type.tensor_type.shape.dim)
        for one in inferred.graph.output
    }
    values = read(model, shape).values
    found = {name: values[name].shape for name in made.output}
    assert found == expected


FOLDED = [
    node("Add", "a b", "y"),
    node("Sub", "a b", "y"),
    node("Mul", "a b", "y"),
    node("Div", "a b", "y"),
    node("Mod", "a b", "y"),
    node("Equal", "a b", "y"),
    node("Less", "a b", "y"),
    node("GreaterOrEqual", "a b", "y"),
    node("Max", "a b", "y"),
    node("Neg", "a", "y"),
    node("Cast", "a", "y", to=TensorProto.FLOAT),
    node("Concat", "a a", "y", axis=1),
    node("Transpose", "a", "y", perm=[1, 0]),
    node("Gather", "a i", "y", axis=1),
    node("Slice", "a s e k", "y"),
    node("Slice", "a e s k t", "y"),
    node("Reshape", "a r", "y"),
    node("Unsqueeze", "a k", "y"),
    node("Expand", "b v", "y"),
    node("ReduceProd", "a", "y", keepdims=0),
    node("ReduceSum", "b", "y", keepdims=0),
    node("ConstantOfShape", "v", "y"),
    node("Range", "p q z", "y"),
    node("Where", "yes a b", "y"),
    node("Size", "a", "y"),
    node("Shape", "a", "y"),
]
CONSTANTS = {
    "a": np.array([[7, -7, 5], [4, 2, -9]]),
    "b": np.array([3, -2, 4]),
    "i": np.array([[2, 0], [1, -1]]),
    "s": np.array([0]),
    "e": np.array([2]),
    "k": np.array([1]),
    "t": np.array([-1]),
    "r": np.array([-1, 2]),
    "v": np.array([2, 3]),
    "p": np.array(2),
    "q": np.array(11),
    "z": np.array(4),
    "yes": np.array([[True], [False]]),
}


@pytest.mark.parametrize("made", FOLDED)
def test_constants_are_those_that_onnx_computes(made):
    given = [
        onnx.numpy_helper.from_array(value, name)
        for name, value in CONSTANTS.items()
        if name in made.input
    ]
    model = make_model([made], given, (2,))
    (expected,) = ReferenceEvaluator(model).run(None, {"x": np.zeros(2, np.float32)})
    found = read(model, (2,)).values["y"]
    assert found.shape == np.shape(expected)
    assert found.numbers == tuple(np.ravel(expected).tolist())


def test_shapes_that_do_not_fit_are_refused():
    for shape, made, reason in (
        ((2, 5, 8, 8), node("Conv", "x w", "y"), r"convolves 2x5x8x8 with a kernel of 4x6x3x2"),
        ((2, 6, 2, 2), node("Conv", "x w", "y"), "does not fit"),
        ((2, 5), node("MatMul", "x m", "y"), "multiplies shapes that do not fit: 2x5 and 12x7"),
        ((2, 5), node("Reshape", "x three", "y"), "reshapes 2x5 to 3"),
        ((2, 5), node("Transpose", "x", "y", perm=[0, 0]), "transposes 2 axes"),
        ((2, 5), node("Concat", "x x", "y", axis=7), "names axis 7, but its input has 2"),
        ((2, 5), node("Split", "x three", "y b", axis=1), "splits an axis of 5"),
        ((2, 5), node("Conv", "x", "y"), "has no input 2"),
        ((2, 5), node("Add", "x m", "y"), "do not fit: 2x5 and 12x7"),
    ):
        used = [one for one in WEIGHTS if one.name in made.input]
        with pytest.raises(GraphError, match=reason):
            read(make_model([made], used, shape), shape)


def read_layers(tmp_path, nodes, weights=(), shape=("batch", 6, 16), **options):
    model = make_model(nodes, weights, shape, **options)
    return read_onnx_net(save(model, tmp_path / "net.onnx")).network.layers


def spell_gelu():
    return [
        node("Div", "x root", "a"),
        node("Erf", "a", "b"),
        node("Add", "b one", "c"),
        node("Mul", "x c", "d"),
        node("Mul", "d half", "y"),
    ]


def spell_layer_norm():
    return [
        node("ReduceMean", "x last", "m"),
        node("Sub", "x m", "d"),
        node("Pow", "d two", "p"),
        node("ReduceMean", "p last", "v"),
        node("Add", "v small", "e"),
        node("Sqrt", "e", "r"),
        node("Div", "d r", "n"),
        node("Mul", "n g", "s"),
        node("Add", "s beta", "y"),
    ]


def spell_rms_norm():
    return [
        node("Pow", "x two", "p"),
        node("ReduceMean", "p last", "v"),
        node("Add", "v small", "e"),
        node("Sqrt", "e", "r"),
        node("Reciprocal", "r", "i"),
        node("Mul", "x i", "n"),
        node("Mul", "g n", "y"),
    ]


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
def test_what_exporters_spell_out_is_one_operator(tmp_path, nodes, kind, sizes):
    used = {name for one in nodes for name in one.input}
    weights = [one for one in SPELLED if one.name in used]
    (layer,) = read_layers(tmp_path, nodes, weights)
    assert layer.kind == kind
    assert {name: layer.sizes[name] for name in sizes} == sizes


def test_a_result_that_others_read_is_not_hidden_in_a_pattern(tmp_path):
    nodes = [
        node("Sigmoid", "x", "s"),
        node("Mul", "x s", "m"),
        node("Add", "m s", "y"),
    ]
    layers = read_layers(tmp_path, nodes)
    assert [layer.sizes["fn"] for layer in layers] == ["sigmoid", "mul", "add"]


def spell_attention(mask=""):
    nodes = [
        node("MatMul", "x wq", "q"),
        node("MatMul", "x wk", "k"),
        node("MatMul", "x wv", "v"),
    ]
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
def test_attention_is_one_layer(tmp_path, mask, causal):
    masks = {"triangle": weight("triangle", 1, 1, 6, 6), "by_head": weight("by_head", 1, 4, 6, 6)}
    weights = [weight(f"w{name}", 16, 16) for name in "qkv"]
    weights += [integers("heads", 0, 6, 4, 4), integers("rows", 0, 6, 16), numbers("scale", 0.5)]
    weights += [masks[mask]] if mask else []
    *linears, attention = read_layers(tmp_path, spell_attention(mask), weights)
    assert [layer.kind for layer in linears] == ["linear"] * 3
    assert attention.kind == "sdpa"
    expected = {"heads": 4, "kv_heads": 4, "head_dim": 4, "tokens": 6, "kv_tokens": 6}
    assert dict(attention.sizes) == {**expected, "causal": causal}
    assert attention.reads == (3, 2, 1)
    assert attention.tail == ()


def test_padding_that_differs_between_sides_keeps_the_output(tmp_path):
    for pads, stride in (([0, 0, 1, 1], 2), ([0, 0, 1, 1], 1), ([2, 2, 0, 0], 1)):
        nodes = [node("Conv", "x w", "y", pads=pads, strides=[stride, stride])]
        (layer,) = read_layers(tmp_path, nodes, [weight("w", 4, 3, 3, 3)], ("n", 3, 8, 8))
        size = (8 + sum(pads[::2]) - 3) // stride + 1
        assert output_shape(layer) == (4, size, size)


def test_a_convolution_of_a_weight_of_groups(tmp_path):
    nodes = [node("Conv", "x w", "c", group=6), node("Clip", "c low high", "y")]
    weights = [weight("w", 6, 1, 3), numbers("low", 0.0), numbers("high", 6.0)]
    (layer,) = read_layers(tmp_path, nodes, weights)
    assert (layer.kind, layer.sizes["groups"]) == ("conv1d", 6)
    assert [op.sizes["fn"] for op in layer.tail] == ["relu6"]


def test_products_are_linear_with_a_weight_and_matmul_without(tmp_path):
    nodes = [
        node("MatMul", "x w", "a"),
        node("Transpose", "a", "b", perm=[0, 2, 1]),
        node("MatMul", "a b", "c"),
        node("MatMul", "c v", "y"),
    ]
    layers = read_layers(tmp_path, nodes, [weight("w", 16, 5), weight("v", 6, 6, type=10)])
    assert [layer.kind for layer in layers] == ["linear", "matmul", "linear"]
    assert dict(layers[1].sizes) == {"count": 1, "m": 6, "k": 5, "n": 6}
    assert layers[1].reads == (1,)


def test_shared_weights_are_counted_once(tmp_path):
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "r"), node("MatMul", "r w", "y")]
    model = make_model(nodes, [weight("w", 16, 16)], ("n", 16))
    network = read_onnx_net(save(model, tmp_path / "net.onnx")).network
    assert [layer.tied for layer in network.layers] == [False, True]
    assert network.totals.params == 256
    assert not network.buildable


def test_the_input_of_a_network_of_tokens_has_a_vocabulary(tmp_path):
    model = make_model([node("Gather", "w x", "y")], [weight("w", 50, 8)], ("n", 6))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    network = read_onnx_net(save(model, tmp_path / "net.onnx")).network
    assert network.input.vocabulary == 50
    assert input_shape(network.layers[0]) == (6,)


def test_fused_operators_are_taken_apart(tmp_path):
    fused = node("FusedConv", "x w b z", "y", domain="com.microsoft", activation="Relu")
    nodes = [node("Conv", "x w b", "z"), fused]
    weights = [weight("w", 3, 3, 1, 1), weight("b", 3)]
    layers = read_layers(tmp_path, nodes, weights, ("n", 3, 8, 8))
    assert [layer.kind for layer in layers] == ["conv2d", "conv2d", "elementwise"]
    assert layers[2].join == "add"
    assert [op.sizes["fn"] for op in layers[2].tail] == ["relu"]


def test_fused_transformers_are_read_as_their_parts(tmp_path):
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
    layers = read_layers(tmp_path, nodes, weights)
    kinds = ["linear", "sdpa", "linear", "elementwise", "layer_norm", "linear", "linear"]
    assert [layer.kind for layer in layers] == [*kinds, "elementwise"]
    assert [layer.sizes["bias"] for layer in layers if layer.kind == "linear"] == [1, 1, 1, 0]
    assert (layers[1].sizes["heads"], layers[1].sizes["causal"]) == (4, 1)
    assert layers[3].join == "add"
    assert [op.sizes["fn"] for op in layers[5].tail] == ["gelu"]
    assert (layers[6].sizes["cin"], layers[6].sizes["cout"]) == (32, 16)
    assert layers[7].reads == (1, 4)


def test_a_repeated_value_is_copied_where_it_is_reshaped(tmp_path):
    nodes = [
        node("MatMul", "x w", "k"),
        node("Unsqueeze", "k one", "u"),
        node("Expand", "u many", "e"),
        node("Reshape", "e rows", "y"),
    ]
    weights = [weight("w", 16, 8), integers("one", 1), integers("many", 1, 3, 1, 1)]
    (layer, *others) = read_layers(tmp_path, nodes, [*weights, integers("rows", 0, 18, 8)])
    copies = [op for one in (layer, *others) for op in (one, *one.tail) if op.kind == "elementwise"]
    assert [op.sizes["fn"] for op in copies] == ["copy"]


def test_a_stack_of_recurrent_layers_is_one_layer(tmp_path):
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node("LSTM", "t l r", "h  ", hidden_size=16),
        node("Squeeze", "h one", "s"),
        node("LSTM", "s m r", "i", hidden_size=16),
        node("Squeeze", "i one", "j"),
        node("Transpose", "j", "y", perm=[1, 0, 2]),
    ]
    weights = [weight("l", 1, 64, 16), weight("m", 1, 64, 16), weight("r", 1, 64, 16)]
    (layer,) = read_layers(tmp_path, nodes, [*weights, integers("one", 1)])
    assert (layer.kind, layer.sizes["depth"], layer.sizes["bias"]) == ("lstm", 2, 0)
    assert layer.tail == ()


@pytest.mark.parametrize(
    ("shape", "order", "new"),
    [
        ((2, 3, 4), (0, 1, 2), (6, 4)),
        ((2, 3, 4), (0, 2, 1), (2, 12)),
        ((2, 3, 4), (0, 2, 1), (2, 4, 3, 1)),
        ((2, 3, 4), (1, 0, 2), (3, 2, 2, 2)),
        ((2, 3, 4), (1, 0, 2), (6, 4)),
        ((2, 1, 4), (1, 0, 2), (8,)),
        ((2, 3, 4, 5), (0, 3, 1, 2), (2, 5, 12)),
        ((2, 3, 4, 5), (0, 2, 3, 1), (2, 20, 3)),
        ((2, 3, 4, 5), (0, 2, 1, 3), (2, 4, 15)),
    ],
)
def test_a_reshape_copies_where_numpy_does(shape, order, new):
    array = np.transpose(np.zeros(shape), order)
    copies = not np.shares_memory(array.reshape(new), array)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    found = find_view_strides(array.shape, strides, new)
    assert (found is None) == copies
    if found is not None:
        expected = [stride // array.itemsize for stride in array.reshape(new).strides]
        pairs = zip(found, expected, new, strict=True)
        assert all(a == b for a, b, size in pairs if size > 1)


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
