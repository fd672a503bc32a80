"""Define the layers of each family.

An architecture is a function from parameters and input to layers, in call order, and groups, the
half-open ranges of layers that repeat as blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from joulecast.kinds import Shape, make_layer, make_op, output_shape
from joulecast.records import Input, Layer, Op

Params = Mapping[str, int]
Layers = tuple[list[Layer], list[tuple[int, int]]]
Architecture = Callable[[Params, Input], Layers]
Tail = tuple[Op, ...]

CLASSES = 10
HAR_CLASSES = 6
HEADS = 4
RELU = make_op("elementwise", fn="relu")
GELU = make_op("elementwise", fn="gelu")
NORM = make_op("batch_norm")
FLATTEN = make_op("flatten")


def make_lenet5(params: Params, sample: Input) -> Layers:
    """Return two convolutions with pooling and three linear layers."""
    channels, *space = sample.shape
    conv1 = _conv2d(channels, params["c1"], space, (RELU, _max_pool(2)), kernel=5, padding=2)
    space = list(output_shape(conv1)[1:])
    tail = (RELU, _max_pool(2), FLATTEN)
    conv2 = _conv2d(params["c1"], params["c2"], space, tail, kernel=5)
    return [
        _name(conv1, "conv1"),
        _name(conv2, "conv2"),
        _name(_linear(output_shape(conv2)[0], params["f1"], tail=(RELU,)), "fc1"),
        _name(_linear(params["f1"], params["f2"], tail=(RELU,)), "fc2"),
        _name(_linear(params["f2"], CLASSES), "fc3"),
    ], []


def make_cnn5(params: Params, sample: Input) -> Layers:
    """Return four convolutions with pooling and one linear layer."""
    layers: list[Layer] = []
    channels, *space = sample.shape
    for number in (1, 2, 3, 4):
        tail = (RELU, _max_pool(2)) + ((FLATTEN,) if number == 4 else ())
        conv = _conv2d(channels, params[f"c{number}"], space, tail, kernel=3, padding=1)
        layers.append(_name(conv, f"conv{number}"))
        channels, space = params[f"c{number}"], list(output_shape(conv)[1:])
    features = output_shape(layers[-1])[0]
    return [*layers, _name(_linear(features, CLASSES), "fc")], []


def make_har(params: Params, sample: Input) -> Layers:
    """Return three 1-D convolutions with pooling and two linear layers."""
    layers: list[Layer] = []
    channels, length = sample.shape
    for number in (1, 2, 3):
        tail = (RELU, _max_pool(2, dims=1)) + ((FLATTEN,) if number == 3 else ())
        widths = {"cin": channels, "cout": params[f"c{number}"]}
        conv = make_layer("conv1d", tail, space=(length,), kernel=5, padding=2, **widths)
        layers.append(_name(conv, f"conv{number}"))
        channels, length = params[f"c{number}"], output_shape(conv)[-1]
    features = output_shape(layers[-1])[0]
    return [
        *layers,
        _name(_linear(features, params["f1"], tail=(RELU,)), "fc1"),
        _name(_linear(params["f1"], HAR_CLASSES), "fc2"),
    ], []


def make_lstm(params: Params, sample: Input) -> Layers:
    """Return an embedding, an LSTM of the same width and a linear layer on its last state."""
    (tokens,) = sample.shape
    hidden, last = params["hidden"], (make_op("last"),)
    sizes = {"cin": hidden, "hidden": hidden, "tokens": tokens, "depth": params["depth"]}
    return [
        _name(_embedding(sample, hidden), "embedding"),
        _name(make_layer("lstm", last, **sizes), "lstm"),
        _name(_linear(hidden, CLASSES), "fc"),
    ], []


def make_transformer(params: Params, sample: Input) -> Layers:
    """Return an embedding, encoder blocks, and a linear layer on the mean over all tokens."""
    (tokens,) = sample.shape
    width = params["width"]
    layers = [_name(_embedding(sample, width), "embedding")]
    groups = []
    for number in range(params["depth"]):
        start = len(layers)
        layers += _make_encoder_block(width, tokens, f"block{number}")
        groups.append((start, len(layers)))
    mean = make_op("elementwise", fn="mean", axes=(0,))
    norm = make_layer("layer_norm", (mean,), shape=(tokens, width))
    return [*layers, _name(norm, "norm"), _name(_linear(width, CLASSES), "fc")], groups


def make_resnet(has_bottleneck: bool) -> Architecture:
    """Return the architecture with basic or with bottleneck blocks, in four stages."""

    def make(params: Params, sample: Input) -> Layers:
        channels, *space = sample.shape
        pool = make_op("pool", fn="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1))
        sizes = {"kernel": 7, "stride": 2, "padding": 3, "bias": 0}
        stem = _conv2d(channels, params["width"], space, (NORM, RELU, pool), **sizes)
        layers, groups = [_name(stem, "stem")], []
        for stage in range(4):
            for number in range(params[f"d{stage + 1}"]):
                start = len(layers)
                stride = 2 if stage and not number else 1
                shape, width = output_shape(layers[-1]), params["width"] * 2**stage
                block = _make_residual_block(shape, width, stride, has_bottleneck)
                layers += _prefix_names(block, f"stage{stage + 1}.{number}")
                groups.append((start, len(layers)))
        shape = output_shape(layers[-1])
        mean = make_layer("pool", (FLATTEN,), fn="adaptive_avg", kernel=(1, 1), shape=shape)
        return [*layers, _name(mean, "pool"), _name(_linear(shape[0], CLASSES), "fc")], groups

    return make


def _make_encoder_block(width: int, tokens: int, name: str) -> list[Layer]:
    """Return pre-norm attention and a feed-forward layer, each with a residual connection."""
    lead = (tokens,)
    norm = make_layer("layer_norm", shape=(tokens, width))
    sdpa = make_layer(
        "sdpa",
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=width // HEADS,
        tokens=tokens,
        kv_tokens=tokens,
    )
    layers = [
        _name(norm, "norm1"),
        _name(_linear(width, 3 * width, lead), "qkv"),
        _name(sdpa, "sdpa"),
        _name(_linear(width, width, lead), "out"),
        _name(_add((tokens, width), reads=(1, 5)), "add1"),
        _name(norm, "norm2"),
        _name(_linear(width, 4 * width, lead, (GELU,)), "fc1"),
        _name(_linear(4 * width, width, lead), "fc2"),
        _name(_add((tokens, width), reads=(1, 4)), "add2"),
    ]
    return _prefix_names(layers, name)


def _make_residual_block(
    shape: Shape, width: int, stride: int, has_bottleneck: bool
) -> list[Layer]:
    """Return convolutions with norms and the residual sum, projected where the shape changes."""
    cin, *space = shape
    cout = 4 * width if has_bottleneck else width
    kernels_and_strides = [(1, 1), (3, stride), (1, 1)] if has_bottleneck else [(3, stride), (3, 1)]
    depth = len(kernels_and_strides)
    layers: list[Layer] = []
    channels = cin
    for number, (kernel, step) in enumerate(kernels_and_strides, start=1):
        is_last = number == depth
        sizes = {"kernel": kernel, "stride": step, "padding": kernel // 2, "bias": 0}
        out = cout if is_last else width
        conv = _conv2d(channels, out, space, (NORM,) if is_last else (NORM, RELU), **sizes)
        layers.append(_name(conv, f"conv{number}"))
        channels, space = out, list(output_shape(conv)[1:])
    reads = (1, depth + 1)
    if stride != 1 or cin != cout:
        sizes = {"kernel": 1, "stride": stride, "bias": 0}
        projection = _conv2d(cin, cout, shape[1:], (NORM,), **sizes)
        layers.append(_name(replace(projection, reads=(depth + 1,)), "project"))
        reads = (2, 1)
    return [*layers, _name(_add((cout, *space), reads, (RELU,)), "add")]


def _conv2d(cin: int, cout: int, space: Sequence[int], tail: Tail = (), **sizes: Any) -> Layer:
    return make_layer("conv2d", tail, cin=cin, cout=cout, space=tuple(space), **sizes)


def _linear(cin: int, cout: int, lead: Shape = (), tail: Tail = ()) -> Layer:
    return make_layer("linear", tail, cin=cin, cout=cout, lead=lead)


def _embedding(sample: Input, width: int) -> Layer:
    return make_layer("embedding", vocabulary=sample.vocabulary, width=width, lead=sample.shape)


def _max_pool(size: int, dims: int = 2) -> Op:
    sizes = (size,) * dims
    return make_op("pool", fn="max", kernel=sizes, stride=sizes, padding=(0,) * dims)


def _add(shape: Shape, reads: tuple[int, int], tail: Tail = ()) -> Layer:
    layer = make_layer("elementwise", tail, fn="add", inputs=2, shape=shape)
    return replace(layer, reads=reads, join="add")


def _name(layer: Layer, name: str) -> Layer:
    return replace(layer, name=name)


def _prefix_names(layers: Sequence[Layer], prefix: str) -> list[Layer]:
    return [_name(layer, f"{prefix}.{layer.name}") for layer in layers]
