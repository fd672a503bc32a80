"""Build functions on MNN's variables from a Network: one builder per kind of operator.

What MNN cannot train is refused by name. Each refusal was tried: MNN itself gives no error, and
either leaves weights as they are or ends the process.

``ENGINE`` holds the functions on variables. Those of ``MNN.expr``, under the same names, cast
their arguments first, and a cast has no gradient: whatever is before it would not train, without
an error.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import _mnncengine
import MNN

from joulecast.operators import find_kind, input_shape, output_shape
from joulecast.operators.building import plan_wiring, refuse_unbuildable
from joulecast.records import Layer, Network, Op
from joulecast.system.errors import InputError, NetError, arg

ENGINE: Any = _mnncengine._expr
NN: Any = MNN.nn
OPTIM: Any = MNN.optim

# Without it variables are computed as they are built, and an optimizer finds no graph to train.
MNN.expr.lazy_eval(True)

Var = Any
Shape = tuple[int, ...]
Function = Callable[..., Var]

_EPSILON = 1e-5
# Padding that is never the largest element.
_LOWEST = -3e38
_MOST_SKIPPED = 99_991


class MnnNetwork:
    """A network with weights drawn from a seed.

    Raises:
        NetError: The network is empty, cannot be rebuilt, or holds what MNN cannot train.
    """

    def __init__(self, network: Network, seed: int) -> None:
        refuse_unbuildable(network, f"measure it with PyTorch ({arg('on', 'cpu')})")
        self.weights = Weights(seed)
        self._shapes = [output_shape(layer) for layer in network.layers]
        self._wiring = plan_wiring(network)
        self._layers: list[Function] = []
        for index, layer in enumerate(network.layers):
            name = layer.name or f"{index}.{layer.kind}"
            self.weights.begin_layer(name, layer.trains)
            try:
                self._layers.append(_build_layer(layer, self.weights))
            except (NetError, InputError) as error:
                raise NetError(f"layer {name}: {error}") from error

    @property
    def output_shape(self) -> Shape:
        """The shape of one sample of its result."""
        return self._shapes[-1]

    def run(self, x: Var) -> Var:
        """Return the network's result as plain rows; MNN computes it when it is read."""
        return to_plain(self._list_results(x)[-1], self.output_shape)

    def check_shapes(self, x: Var) -> None:
        """Raise NetError for a result of another shape: training it would end the process."""
        results = self._list_results(x)[1:]
        for number, (result, shape) in enumerate(zip(results, self._shapes, strict=True)):
            found = result.shape
            # Signals are images of height 1.
            if found is None or _drop_ones(found[1:]) != _drop_ones(shape):
                raise NetError(
                    f"layer {number} gives {found and found[1:]} in MNN instead of {list(shape)}: "
                    f"use PyTorch for it ({arg('on', 'cpu')})"
                )

    def _list_results(self, x: Var) -> list[Var]:
        results = [x]
        for wiring, layer in zip(self._wiring, self._layers, strict=True):
            results.append(layer(*[results[read] for read in wiring.reads]))
        return results


def _drop_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _build_layer(layer: Layer, weights: Weights) -> Function:
    if layer.channels_last or layer.transposed:
        raise _refuse("inputs in another memory format")
    shape, functions = input_shape(layer), list[Function]()
    join = "none" if find_kind(layer.kind).combines_inputs else layer.join
    joined = shape
    for op in (Op(layer.kind, layer.sizes), *layer.tail):
        build = OP_BUILDERS.get(op.kind)
        if build is None:
            raise _refuse(op.kind)
        functions.append(build(op, shape, weights))
        shape = find_kind(op.kind).out_shape(op.sizes, shape)
    first, *tail = functions

    def run(*inputs: Var) -> Var:
        x = first(*inputs) if join == "none" else first(_join(join, inputs, joined))
        for function in tail:
            x = function(x)
        return x

    return run


def _join(fn: str, inputs: Sequence[Var], shape: Shape) -> Var:
    """Return inputs joined in one memory format: packed if one of them is."""
    is_packed = any(x.data_format == ENGINE.NC4HW4 for x in inputs)
    if fn == "concat":
        # Along the channels, which may differ in number.
        images = [to_image(x, (x.shape[1], *shape[1:])) if is_packed else x for x in inputs]
        return ENGINE.concat(images, 1)
    convert = to_image if is_packed and len(shape) > 1 else to_plain
    return reduce(_JOINS[fn], [convert(x, shape) for x in inputs])


_JOINS: dict[str, Callable[[Var, Var], Var]] = {"add": operator.add, "mul": operator.mul}


def _refuse(what: str) -> NetError:
    return NetError(
        f"MNN cannot train {what}: use PyTorch for it ({arg('on', 'cpu')}), or leave it out"
    )


def _build_conv(op: Op, shape: Shape, weights: Weights) -> Function:
    sizes = op.sizes
    cin, cout, groups = sizes["cin"], sizes["cout"], sizes["groups"]
    if groups != 1 and not groups == cin == cout:
        raise _refuse(f"{op.kind} with {groups} groups of several channels")
    kernel = lift_sizes(sizes["kernel"], 1)
    fan_in = cin // groups * math.prod(kernel)
    weight = weights.draw("weight", [cout, cin // groups, *kernel], fan_in)
    if sizes["bias"]:
        bias = weights.draw("bias", [cout], fan_in)
    else:
        bias = make_filled(0.0, [cout])
        bias.fix_as_const()
    # MNN takes width before height, and CAFFE pads on both sides by the given numbers.
    stride = lift_sizes(sizes["stride"], 1)[::-1]
    padding = lift_sizes(sizes["padding"], 0)[::-1]
    dilation = lift_sizes(sizes["dilation"], 1)[::-1]
    more = (stride, padding, dilation, groups, ENGINE.Padding_Mode.CAFFE)
    return lambda x: ENGINE.conv2d(to_image(x, shape), weight, bias, *more)


def _build_linear(op: Op, shape: Shape, weights: Weights) -> Function:
    cin, cout, lead = op.sizes["cin"], op.sizes["cout"], op.sizes["lead"]
    weight = weights.draw("weight", [cout, cin], cin)
    bias = weights.draw("bias", [1, cout], cin) if op.sizes["bias"] else None

    def run(x: Var) -> Var:
        rows = to_plain(x, shape) if not lead else ENGINE.reshape(to_plain(x, shape), [-1, cin])
        out = ENGINE.matmul(rows, weight, False, True)
        out = out if bias is None else out + bias
        return ENGINE.reshape(out, [x.shape[0], *lead, cout]) if lead else out

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
    kernel, stride, padding = op.sizes["kernel"], op.sizes["stride"], op.sizes["padding"]
    if fn.startswith("adaptive"):
        if any(size % steps for size, steps in zip(space, out, strict=True)):
            raise _refuse(f"adaptive pooling from {space} to {out}")
        kernel = stride = tuple(size // steps for size, steps in zip(space, out, strict=True))
        padding = (0,) * len(out)
    reach = [(o - 1) * s + k for o, s, k in zip(out, stride, kernel, strict=True)]
    ends = [max(0, r - size - p) for r, size, p in zip(reach, space, padding, strict=True)]
    if fn == "avg" and any(end > p for end, p in zip(ends, padding, strict=True)):
        raise _refuse("avg pooling beyond the padding")
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
        shapes = [[*x.shape[:axis], width, *x.shape[axis + 1 :]] for width in widths]
        before, after = ([make_filled(value, one)] if one[axis] else [] for one in shapes)
        x = ENGINE.concat([*before, x, *after], axis)
    return ENGINE.convert(x, ENGINE.NC4HW4)


def _build_batch_norm(op: Op, shape: Shape, weights: Weights) -> Function:
    if not op.sizes["affine"]:
        raise _refuse("batch_norm without weights")
    if len(shape) not in (2, 3):
        raise _refuse(f"batch_norm of samples with {len(shape)} axes")
    norm = NN.batch_norm(shape[0], 4)
    weights.add_module(norm)
    return lambda x: norm.forward(to_image(x, shape))


def _build_layer_norm(op: Op, shape: Shape, weights: Weights) -> Function:
    width = math.prod(shape[len(shape) - op.sizes["dims"] :])
    scale = weights.fill("weight", [1, width], 1.0) if op.sizes["affine"] else None
    has_bias = op.sizes["affine"] and op.sizes["bias"]
    bias = weights.fill("bias", [1, width], 0.0) if has_bias else None

    def run(x: Var) -> Var:
        # MNN's own layer norm has no gradient.
        rows = ENGINE.reshape(to_plain(x, shape), [-1, width])
        rows = rows - ENGINE.reduce_mean(rows, [1], True)
        variance = ENGINE.reduce_mean(rows * rows, [1], True)
        rows = rows * ENGINE.rsqrt(variance + make_scalar(_EPSILON))
        rows = rows if scale is None else rows * scale
        rows = rows if bias is None else rows + bias
        return ENGINE.reshape(rows, [x.shape[0], *shape])

    return run


def _build_elementwise(op: Op, shape: Shape, weights: Weights) -> Function:
    sizes, fn = op.sizes, op.sizes["fn"]
    if not sizes["params"] and "out" not in sizes and "constant" not in sizes:
        if fn in _JOINS and sizes["inputs"] > 1:
            return lambda *inputs: _join(fn, inputs, shape)
        if fn == "mean" and sizes["inputs"] == 1:
            axes = [axis + 1 for axis in sizes["axes"]]
            return lambda x: ENGINE.reduce_mean(to_plain(x, shape), axes, False)
        if fn in FUNCTIONS and sizes["inputs"] == 1 and not sizes["axes"]:
            return FUNCTIONS[fn]
    raise _refuse(f"the function {fn!r}")


def _clip_to_sigmoid(x: Var) -> Var:
    return ENGINE.relu6(x + make_scalar(3.0), 0.0, 6.0) * make_scalar(1.0 / 6.0)


FUNCTIONS: dict[str, Function] = {
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
    "softmax": lambda x: ENGINE.softmax(x, -1),
}
"""Functions of one input."""


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
    # The first axis is the batch, and the one that is removed (mask 2) holds the tokens.
    begin, steps = [0, tokens - 1, *[0] * len(rest)], [1] * (len(shape) + 1)
    return lambda x: ENGINE.strided_slice(
        to_plain(x, shape), begin, [x.shape[0], *shape], steps, 0, 0, 0, 0, 2
    )


def _build_lstm(op: Op, shape: Shape, weights: Weights) -> Function:
    """Return the function from a sequence to the hidden states of the last of ``depth`` layers."""
    if op.sizes["bidirectional"]:
        raise _refuse("lstm in two directions")
    (tokens, cin), hidden = shape, op.sizes["hidden"]
    layers = [
        (
            weights.draw("input_weight", [4 * hidden, width], hidden),
            weights.draw("hidden_weight", [4 * hidden, hidden], hidden),
            # PyTorch adds two biases; one has the same effect.
            weights.draw("bias", [1, 4 * hidden], hidden) if op.sizes["bias"] else None,
        )
        for width in (cin, *[hidden] * (op.sizes["depth"] - 1))
    ]

    def run(x: Var) -> Var:
        batch = x.shape[0]
        x = to_plain(x, shape)
        for input_weight, hidden_weight, bias in layers:
            # The products with the input are made at once.
            rows = ENGINE.reshape(ENGINE.transpose(x, [1, 0, 2]), [tokens * batch, -1])
            rows = ENGINE.matmul(rows, input_weight, False, True)
            rows = rows if bias is None else rows + bias
            state = cell = make_filled(0.0, [batch, hidden])
            states = []
            for gates in ENGINE.split(rows, [batch] * tokens, 0):
                gates = gates + ENGINE.matmul(state, hidden_weight, False, True)
                opened, kept, new, shown = ENGINE.split(gates, [hidden] * 4, 1)
                cell = ENGINE.sigmoid(kept) * cell + ENGINE.sigmoid(opened) * ENGINE.tanh(new)
                state = ENGINE.sigmoid(shown) * ENGINE.tanh(cell)
                states.append(ENGINE.reshape(state, [batch, 1, hidden]))
            x = ENGINE.concat(states, 1)
        return x

    return run


OP_BUILDERS: dict[str, Callable[[Op, Shape, Weights], Function]] = {
    "conv1d": _build_conv, "conv2d": _build_conv, "linear": _build_linear,
    "embedding": _build_embedding, "lstm": _build_lstm, "batch_norm": _build_batch_norm,
    "layer_norm": _build_layer_norm, "elementwise": _build_elementwise, "pool": _build_pool,
    "flatten": _build_view, "view": _build_view, "permute": _build_permute, "last": _build_last,
}  # fmt: skip


# -- variables and weights ----------------------------------------------------------------------


def make_scalar(value: float) -> Var:
    """Return a number that is broadcast to any shape."""
    return ENGINE.const([value], [], ENGINE.NCHW, ENGINE.float)


def make_filled(value: float, shape: Sequence[int]) -> Var:
    """Return a variable of one number."""
    return ENGINE.fill(make_indices(shape, [len(shape)]), make_scalar(value))


def make_indices(values: Sequence[int], shape: Sequence[int]) -> Var:
    """Return a variable of given integers."""
    return ENGINE.const(list(values), list(shape), ENGINE.NCHW, ENGINE.int)


def draw_uniform(shape: Sequence[int], bound: float, seed: int) -> Var:
    """Draw a variable between plus and minus ``bound``."""
    # MNN ignores the seed that it is given: every draw begins with the same numbers. Seeds say how
    # many of them are left out.
    skipped, count = seed % _MOST_SKIPPED, math.prod(shape)
    drawn = ENGINE.randomuniform([skipped + count], ENGINE.float, -bound, bound, 1, 1)
    # What is read lies in the memory of the variable.
    values = drawn.read()[skipped:].copy()
    return ENGINE.const(values, list(shape), ENGINE.NCHW, ENGINE.float)


def to_plain(x: Var, shape: Sequence[int]) -> Var:
    """Return a batch with samples of this shape, in the order of memory.

    Images stay in MNN's packed format between convolutions, and signals as images of height 1.
    """
    if x.data_format == ENGINE.NC4HW4:
        x = ENGINE.convert(x, ENGINE.NCHW)
    return x if x.shape[1:] == list(shape) else ENGINE.reshape(x, [x.shape[0], *shape])


def to_image(x: Var, shape: Sequence[int]) -> Var:
    """Return a batch of images or signals in the packed format that convolutions need."""
    if x.data_format == ENGINE.NC4HW4:
        return x
    channels, *space = shape
    image = [x.shape[0], channels, *lift_sizes(space, 1)]
    if x.shape != image:
        x = ENGINE.reshape(x, image)
    return ENGINE.convert(x, ENGINE.NC4HW4)


def lift_sizes(sizes: Sequence[int], missing: int) -> list[int]:
    """Return height and width: a signal is an image of one row."""
    return [*[missing] * (2 - len(sizes)), *sizes]


class Weights:
    """Weights drawn from a seed.

    Attributes:
        module: MNN's module of all weights that train: what an optimizer takes.
        trained: Those weights, by name.
    """

    def __init__(self, seed: int) -> None:
        self.module = NN.Module()
        self.trained: dict[str, Var] = {}
        self._seed = seed
        self._layer = ""
        self._is_trained = True

    def begin_layer(self, name: str, is_trained: bool) -> None:
        """Name the layer that the next weights belong to, and say whether they train."""
        self._layer, self._is_trained = name, is_trained

    def draw(self, name: str, shape: Sequence[int], fan_in: int) -> Var:
        """Return a weight drawn as PyTorch draws those of linear layers and convolutions."""
        self._seed += 1
        return self._add(name, draw_uniform(shape, 1.0 / math.sqrt(max(fan_in, 1)), self._seed))

    def fill(self, name: str, shape: Sequence[int], value: float) -> Var:
        """Return a weight whose elements are equal at first."""
        weight = make_filled(value, shape)
        weight.fix_as_const()
        return self._add(name, weight)

    def add_module(self, module: Var) -> None:
        """Add the weights of one of MNN's own modules."""
        module.train(True)
        if not self._is_trained:
            return
        self.module._register_submodules([module])
        for number, weight in enumerate(module.parameters):
            if weight.op_type == "Trainable":
                self._remember(f"{number}", weight)

    def _add(self, name: str, weight: Var) -> Var:
        if self._is_trained:
            weight.fix_as_trainable()
            self.module._add_parameter(weight)
            self._remember(name, weight)
        return weight

    def _remember(self, name: str, weight: Var) -> None:
        path, number = f"{self._layer}.{name}", 2
        while path in self.trained:
            path, number = f"{self._layer}.{name}{number}", number + 1
        self.trained[path] = weight
