"""Build functions on MNN's variables for operators: one builder per kind.

What MNN cannot train is refused by name. Each refusal was tried: MNN itself gives no error, and
either leaves weights as they are or ends the process.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from joulecast.mnn.engine import (
    ENGINE,
    NN,
    Var,
    Weights,
    lift_sizes,
    make_filled,
    make_scalar,
    to_image,
    to_plain,
)
from joulecast.operators import find_kind
from joulecast.records import Op, Sizes
from joulecast.system.errors import NetError

Shape = tuple[int, ...]
Function = Callable[..., Var]
OpBuilder = Callable[[Op, Shape, Weights], Function]

_EPSILON = 1e-5
# Padding that is never the largest element.
_LOWEST = -3e38


def build_op(op: Op, shape: Shape, weights: Weights) -> Function:
    """Return the function of an operator on samples of this shape, with fresh weights.

    Raises:
        NetError: MNN cannot train the operator.
    """
    builder = OP_BUILDERS.get(op.kind)
    if builder is None:
        raise refuse(op.kind)
    return builder(op, shape, weights)


def refuse(what: str) -> NetError:
    """Return the error for an operator that MNN cannot train."""
    return NetError(f"MNN cannot train {what}: use PyTorch for it (--on cpu), or leave it out")


def _build_conv(op: Op, shape: Shape, weights: Weights) -> Function:
    sizes = op.sizes
    cin, cout, groups = sizes["cin"], sizes["cout"], sizes["groups"]
    if groups != 1 and not groups == cin == cout:
        raise refuse(f"{op.kind} with {groups} groups of several channels")
    kernel = lift_sizes(sizes["kernel"], 1)
    fan_in = cin // groups * math.prod(kernel)
    weight = weights.draw("weight", [cout, cin // groups, *kernel], fan_in)
    if sizes["bias"]:
        bias = weights.draw("bias", [cout], fan_in)
    else:
        bias = make_filled(0.0, [cout])
        bias.fix_as_const()
    # MNN takes width before height.
    stride = lift_sizes(sizes["stride"], 1)[::-1]
    padding = lift_sizes(sizes["padding"], 0)[::-1]
    dilation = lift_sizes(sizes["dilation"], 1)[::-1]
    # CAFFE pads on both sides by the given numbers.
    mode = ENGINE.Padding_Mode.CAFFE

    def run(x: Var) -> Var:
        x = to_image(x, shape)
        return ENGINE.conv2d(x, weight, bias, stride, padding, dilation, groups, mode)

    return run


def _build_linear(op: Op, shape: Shape, weights: Weights) -> Function:
    cin, cout, lead = op.sizes["cin"], op.sizes["cout"], op.sizes["lead"]
    weight = weights.draw("weight", [cout, cin], cin)
    bias = weights.draw("bias", [1, cout], cin) if op.sizes["bias"] else None

    def run(x: Var) -> Var:
        batch = x.shape[0]
        rows = to_plain(x, shape) if not lead else ENGINE.reshape(to_plain(x, shape), [-1, cin])
        out = ENGINE.matmul(rows, weight, False, True)
        out = out if bias is None else out + bias
        return ENGINE.reshape(out, [batch, *lead, cout]) if lead else out

    return run


def _build_embedding(op: Op, shape: Shape, weights: Weights) -> Function:
    vocabulary, width = op.sizes["vocabulary"], op.sizes["width"]
    weight = weights.draw("weight", [vocabulary, width], 1)

    encoded: dict[int, Var] = {}

    def run(x: Var) -> Var:
        # MNN has no gradient for a lookup: rows are chosen by a product with zeros and ones. Those
        # belong to the data, so they are made once for the batch that every step reads.
        if id(x) not in encoded:
            encoded.clear()
            ones = ENGINE.one_hot(ENGINE.reshape(x, [-1]), vocabulary, 1.0, 0.0, -1)
            ones.fix_as_const()
            encoded[id(x)] = ones
        rows = ENGINE.matmul(encoded[id(x)], weight, False, False)
        return ENGINE.reshape(rows, [x.shape[0], *shape, width])

    return run


def _build_pool(op: Op, shape: Shape, weights: Weights) -> Function:
    fn, space = op.sizes["fn"], shape[1:]
    out = find_kind(op.kind).out_shape(op.sizes, shape)[1:]
    if fn.startswith("adaptive"):
        if any(size % steps for size, steps in zip(space, out, strict=True)):
            raise refuse(f"adaptive pooling from {space} to {out}")
        kernel = stride = tuple(size // steps for size, steps in zip(space, out, strict=True))
        padding = (0,) * len(out)
    else:
        kernel, stride, padding = op.sizes["kernel"], op.sizes["stride"], op.sizes["padding"]
    reach = [(o - 1) * s + k for o, s, k in zip(out, stride, kernel, strict=True)]
    ends = [max(0, r - size - p) for r, size, p in zip(reach, space, padding, strict=True)]
    if fn == "avg" and any(end > p for end, p in zip(ends, padding, strict=True)):
        raise refuse("avg pooling beyond the padding")
    pads = [*zip(lift_sizes(padding, 0), lift_sizes(ends, 0), strict=True)]
    pool, value = (ENGINE.max_pool, _LOWEST) if fn.endswith("max") else (ENGINE.avg_pool, 0.0)
    # MNN takes width before height.
    sizes = lift_sizes(kernel, 1)[::-1], lift_sizes(stride, 1)[::-1]
    mode = ENGINE.Padding_Mode.VALID
    return lambda x: pool(_pad(to_image(x, shape), pads, value), *sizes, mode, [0, 0])


def _pad(image: Var, pads: list[tuple[int, int]], value: float) -> Var:
    """Return an image with rows and columns of one value around it.

    The gradient of MNN's own padding of a maximum is wrong, and writes outside of its memory.
    """
    if not any(before or after for before, after in pads):
        return image
    x = ENGINE.convert(image, ENGINE.NCHW)
    for axis, widths in enumerate(pads, start=2):
        before, after = (_make_border(x, axis, width, value) for width in widths)
        x = ENGINE.concat([*before, x, *after], axis)
    return ENGINE.convert(x, ENGINE.NC4HW4)


def _make_border(x: Var, axis: int, width: int, value: float) -> list[Var]:
    shape = [*x.shape[:axis], width, *x.shape[axis + 1 :]]
    return [make_filled(value, shape)] if width else []


def _build_batch_norm(op: Op, shape: Shape, weights: Weights) -> Function:
    if not op.sizes["affine"]:
        raise refuse("batch_norm without weights")
    if len(shape) not in (2, 3):
        raise refuse(f"batch_norm of samples with {len(shape)} axes")
    norm = NN.batch_norm(shape[0], 4)
    weights.add_module(norm)
    return lambda x: norm.forward(to_image(x, shape))


def _build_layer_norm(op: Op, shape: Shape, weights: Weights) -> Function:
    width = math.prod(shape[len(shape) - op.sizes["dims"] :])
    scale = weights.fill("weight", [1, width], 1.0) if op.sizes["affine"] else None
    has_bias = op.sizes["affine"] and op.sizes["bias"]
    bias = weights.fill("bias", [1, width], 0.0) if has_bias else None

    def run(x: Var) -> Var:
        rows = _normalise(ENGINE.reshape(to_plain(x, shape), [-1, width]))
        rows = rows if scale is None else rows * scale
        rows = rows if bias is None else rows + bias
        return ENGINE.reshape(rows, [x.shape[0], *shape])

    return run


def _normalise(rows: Var) -> Var:
    """Return rows with mean 0 and variance 1: MNN's own layer norm has no gradient."""
    centred = rows - ENGINE.reduce_mean(rows, [1], True)
    variance = ENGINE.reduce_mean(centred * centred, [1], True)
    return centred * ENGINE.rsqrt(variance + make_scalar(_EPSILON))


def _build_elementwise(op: Op, shape: Shape, weights: Weights) -> Function:
    sizes, fn = op.sizes, op.sizes["fn"]
    is_plain = not sizes["params"] and "out" not in sizes and "constant" not in sizes
    if fn in JOINS and sizes["inputs"] > 1 and is_plain:
        return lambda *inputs: JOINS[fn](align(inputs, shape))
    if fn == "mean" and is_plain and sizes["inputs"] == 1:
        axes = [axis + 1 for axis in sizes["axes"]]
        return lambda x: ENGINE.reduce_mean(to_plain(x, shape), axes, False)
    function = _FUNCTIONS.get(fn)
    if function is None or not is_plain or sizes["inputs"] != 1 or sizes["axes"]:
        raise refuse(f"the function {fn!r}")
    return function


def align(inputs: tuple[Var, ...], shape: Shape) -> list[Var]:
    """Return inputs in one memory format: packed if one of them is."""
    if len(shape) > 1 and any(x.data_format == ENGINE.NC4HW4 for x in inputs):
        return [to_image(x, shape) for x in inputs]
    return [to_plain(x, shape) for x in inputs]


def _add(inputs: list[Var]) -> Var:
    total = inputs[0]
    for x in inputs[1:]:
        total = total + x
    return total


def _multiply(inputs: list[Var]) -> Var:
    product = inputs[0]
    for x in inputs[1:]:
        product = product * x
    return product


JOINS: dict[str, Callable[[list[Var]], Var]] = {"add": _add, "mul": _multiply}


def _softmax(x: Var) -> Var:
    return ENGINE.softmax(x, -1)


def _clip_to_sigmoid(x: Var) -> Var:
    return ENGINE.relu6(x + make_scalar(3.0), 0.0, 6.0) * make_scalar(1.0 / 6.0)


_FUNCTIONS: dict[str, Function] = {
    "relu": lambda x: ENGINE.relu(x, 0.0),
    "relu6": lambda x: ENGINE.relu6(x, 0.0, 6.0),
    "leaky_relu": lambda x: ENGINE.relu(x, 0.01),
    "gelu": ENGINE.gelu,
    "silu": lambda x: x * ENGINE.sigmoid(x),
    "sigmoid": ENGINE.sigmoid,
    "tanh": ENGINE.tanh,
    "selu": lambda x: ENGINE.selu(x, 1.0507009873554805, 1.6732632423543772),
    "hardswish": lambda x: x * _clip_to_sigmoid(x),
    "hardsigmoid": _clip_to_sigmoid,
    "softplus": ENGINE.softplus,
    "neg": ENGINE.negative,
    "copy": lambda x: x * make_scalar(1.0),
    "softmax": _softmax,
}


def _build_view(op: Op, shape: Shape, weights: Weights) -> Function:
    out = find_kind(op.kind).out_shape(op.sizes, shape)
    if math.prod(out) != math.prod(shape):
        raise NetError(f"a tensor of shape {shape} cannot be viewed as {out}")
    return lambda x: ENGINE.reshape(to_plain(x, shape), [x.shape[0], *out])


def _build_permute(op: Op, shape: Shape, weights: Weights) -> Function:
    order = [0, *(axis + 1 for axis in op.sizes["order"])]
    return lambda x: ENGINE.transpose(to_plain(x, shape), order)


def _build_last(op: Op, shape: Shape, weights: Weights) -> Function:
    tokens, *rest = shape

    def run(x: Var) -> Var:
        x = to_plain(x, shape)
        # The first axis is the batch, and the one that is removed (mask 2) holds the tokens.
        begin, end = [0, tokens - 1, *[0] * len(rest)], [x.shape[0], tokens, *rest]
        return ENGINE.strided_slice(x, begin, end, [1] * len(end), 0, 0, 0, 0, 2)

    return run


OP_BUILDERS: dict[str, OpBuilder] = {
    "conv1d": _build_conv,
    "conv2d": _build_conv,
    "linear": _build_linear,
    "embedding": _build_embedding,
    "lstm": lambda op, shape, weights: _build_lstm(op, weights),
    "batch_norm": _build_batch_norm,
    "layer_norm": _build_layer_norm,
    "elementwise": _build_elementwise,
    "pool": _build_pool,
    "flatten": _build_view,
    "view": _build_view,
    "permute": _build_permute,
    "last": _build_last,
}


def _build_lstm(op: Op, weights: Weights) -> Function:
    if op.sizes["bidirectional"]:
        raise refuse("lstm in two directions")
    return build_lstm(op.sizes, weights)


def build_lstm(sizes: Sizes, weights: Weights) -> Callable[[Var], Var]:
    """Return the function from a sequence to the hidden states of the last of ``depth`` layers."""
    tokens, hidden, depth = sizes["tokens"], sizes["hidden"], sizes["depth"]
    widths = [sizes["cin"], *[hidden] * (depth - 1)]
    layers = [_draw_layer(width, hidden, bool(sizes["bias"]), weights) for width in widths]

    def run(x: Var) -> Var:
        batch = x.shape[0]
        x = to_plain(x, (tokens, sizes["cin"]))
        for layer in layers:
            x = _run_layer(x, layer, (batch, tokens, hidden))
        return x

    return run


def _draw_layer(
    width: int, hidden: int, has_bias: bool, weights: Weights
) -> tuple[Var, Var, Var | None]:
    # PyTorch adds two biases; one has the same effect.
    return (
        weights.draw("input_weight", [4 * hidden, width], hidden),
        weights.draw("hidden_weight", [4 * hidden, hidden], hidden),
        weights.draw("bias", [1, 4 * hidden], hidden) if has_bias else None,
    )


def _run_layer(x: Var, layer: tuple[Var, Var, Var | None], shape: tuple[int, int, int]) -> Var:
    """Return the hidden states of one layer; the products with its input are made at once."""
    batch, tokens, hidden = shape
    input_weight, hidden_weight, bias = layer
    rows = ENGINE.reshape(ENGINE.transpose(x, [1, 0, 2]), [tokens * batch, -1])
    rows = ENGINE.matmul(rows, input_weight, False, True)
    rows = rows if bias is None else rows + bias
    state = cell = make_filled(0.0, [batch, hidden])
    states = []
    for gates in ENGINE.split(rows, [batch] * tokens, 0):
        state, cell = _run_cell(gates + ENGINE.matmul(state, hidden_weight, False, True), cell)
        states.append(ENGINE.reshape(state, [batch, 1, hidden]))
    return ENGINE.concat(states, 1)


def _run_cell(gates: Var, cell: Var) -> tuple[Var, Var]:
    hidden = gates.shape[1] // 4
    opened, kept, new, shown = ENGINE.split(gates, [hidden] * 4, 1)
    cell = ENGINE.sigmoid(kept) * cell + ENGINE.sigmoid(opened) * ENGINE.tanh(new)
    return ENGINE.sigmoid(shown) * ENGINE.tanh(cell), cell
