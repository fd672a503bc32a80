"""Say how the inputs of a layer that is built alone are fitted to it, for every runtime.

Reading a module loses views that no kind describes. Its layers and blocks are still measured alone,
so their inputs are given the expected shape. Layers that are connected as they were in the module
need no fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from joulecast.operators import Shape, check_chain, find_kind, input_shape
from joulecast.records import Layer, Network, Op, Sizes
from joulecast.system.errors import InputError, NetError


class InputFit(Enum):
    """How one input of a layer is fitted."""

    NONE = "none"
    """It has the expected shape, or one that is broadcast to it."""
    ELEMENTS = "elements"
    """Its elements are cut or repeated to the expected shape."""
    ONE_ELEMENT = "one element"
    """One element of each sample is broadcast, as the module broadcast fewer elements."""


def plan_input_fits(layer: Layer, shapes: Sequence[Shape]) -> tuple[tuple[InputFit, Shape], ...]:
    """Return how each input of a layer is fitted, and to which shape; empty if none needs it."""
    kind = find_kind(layer.kind)
    if kind.packs_inputs or layer.join == "concat":
        return ()
    expected = [input_shape(layer)] * len(shapes)
    if kind.second_shape and len(shapes) > 1:
        expected[1] = kind.second_shape(layer.sizes)
    is_only_input = len(shapes) == 1 or kind.second_shape is not None
    fits = tuple(
        (_choose_fit(shape, wanted, is_only_input), wanted)
        for shape, wanted in zip(shapes, expected, strict=True)
    )
    return fits if any(fit is not InputFit.NONE for fit, _ in fits) else ()


def concat_channels_to_fit(layer: Layer, shapes: Sequence[Shape]) -> int:
    """Return the channel count that concatenated inputs must be fitted to; 0 where they add up.

    A layer that concatenates inputs of different widths gets equal ones when it runs alone.
    """
    expected = input_shape(layer)
    is_flat = str(layer.sizes.get("fn", "")).startswith("concat along")
    if layer.join != "concat" or is_flat or any(shape[1:] != expected[1:] for shape in shapes):
        return 0
    return 0 if sum(shape[0] for shape in shapes) in (0, expected[0]) else expected[0]


def is_op_join(layer: Layer) -> bool:
    """Return whether the layer's operator itself combines the inputs."""
    fn = str(layer.sizes.get("fn", ""))
    is_join = layer.join == fn or fn.startswith("concat along")
    return find_kind(layer.kind).combines_inputs and is_join


def with_size(op: Op, name: str, value: int) -> Op:
    """Return an operator with another size."""
    return Op(op.kind, Sizes({**op.sizes, name: value}))


def refuse_unbuildable(network: Network, advice: str) -> None:
    """Raise NetError for a network that is empty or cannot be rebuilt from its layers."""
    if not network.layers:
        raise NetError("an empty network cannot be built: it has no layers")
    if not network.buildable:
        raise NetError(
            f"{network.name or 'this network'} was read from a file or module that cannot be "
            f"rebuilt from its layers: {advice}"
        )


def find_operand_shape(size: int, shape: Shape) -> Shape:
    """Return how so many elements broadcast over a sample: its last axes, its first, or all."""
    for axis in range(len(shape), -1, -1):
        if math.prod(shape[axis:]) == size:
            return shape[axis:]
    if shape[0] == size:
        return (size, *(1,) * (len(shape) - 1))
    return shape if size > 1 else ()


def _choose_fit(shape: Shape, expected: Shape, is_only_input: bool) -> InputFit:
    """Return what turns one shape into the expected one; several inputs may also be broadcast."""
    if shape == expected or (not is_only_input and _broadcasts(shape, expected)):
        return InputFit.NONE
    if is_only_input or math.prod(shape) >= math.prod(expected):
        return InputFit.ELEMENTS
    return InputFit.ONE_ELEMENT


def _broadcasts(shape: Shape, expected: Shape) -> bool:
    return len(shape) == len(expected) and all(
        size in (1, other) for size, other in zip(shape, expected, strict=True)
    )


@dataclass(frozen=True)
class LayerWiring:
    """Which results a layer reads, and which of them no later layer reads.

    Result 0 is the network's input, result i + 1 that of layer i.
    """

    reads: tuple[int, ...]
    last_reads: tuple[int, ...]


def plan_wiring(network: Network) -> list[LayerWiring]:
    """Return which results each layer of a network reads and releases."""
    reads = [
        # A layer that reads only weights is given the input, because every layer is called on one.
        tuple(max(0, index + 1 - back) for back in layer.reads) or (0,)
        for index, layer in enumerate(network.layers)
    ]
    last_reader = {result: index for index, results in enumerate(reads) for result in results}
    return [
        LayerWiring(results, tuple(r for r in set(results) if last_reader[r] == index))
        for index, results in enumerate(reads)
    ]


def needs_input_gradient(network: Network) -> bool:
    """Return whether a layer that reads the network's input computes a gradient of it."""
    return any(
        layer.input_grad and max(layer.reads, default=0) > index
        for index, layer in enumerate(network.layers)
    )


BUILDABLE_FUNCTIONS = frozenset(
    {
        *("relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "selu"),
        *("hardswish", "hardsigmoid", "softplus", "mish", "hardtanh", "neg", "cumsum", "copy"),
        *("add", "mul", "softmax", "log_softmax"),
    }
)
"""Functions of one input."""

DECOMPOSED_FUNCTIONS = frozenset({"newgeluactivation", "quickgeluactivation"})
"""Activations that several elementary operators compute."""

# Function and number of inputs.
_COMBINATIONS = {("mean", 1), ("add", 2), ("mul", 2), ("concat", 1)}
# What is built for them moves as many elements by index as the module does, not the same ones.
_PLACEHOLDER_KINDS = {"index", "scatter", "sort", "slice", "gradient_copy", "grouped_linear"}


def can_build(network: Network) -> bool:
    """Return whether every operator can be rebuilt and every shape follows from the layers read."""
    ops = [op for layer in network.layers for op in (Op(layer.kind, layer.sizes), *layer.tail)]
    shared = any(layer.calls > 1 or layer.tied or not layer.reads for layer in network.layers)
    if not ops or shared or not all(map(can_build_op, ops)):
        return False
    try:
        check_chain(network)
    except InputError:
        return False
    return True


def can_build_op(op: Op) -> bool:
    """Return whether the module built for an operator reads back as the same operator."""
    if op.kind in _PLACEHOLDER_KINDS:
        return False
    if not find_kind(op.kind).combines_inputs:
        return bool(op.sizes.get("bags", 1) == 1)
    fn, inputs = op.sizes["fn"], op.sizes["inputs"]
    is_decomposed = fn in DECOMPOSED_FUNCTIONS
    is_plain = not op.sizes["params"] and "out" not in op.sizes and "constant" not in op.sizes
    if not is_plain or is_decomposed or op.sizes["passes"] > 1:
        return is_plain and is_decomposed and inputs == 1
    is_known = (fn, inputs) in _COMBINATIONS or (inputs == 1 and fn in BUILDABLE_FUNCTIONS)
    return is_known and bool(op.sizes["axes"]) == (fn == "mean")
