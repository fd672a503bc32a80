"""What a network must keep to so that its costs can be told, and so that it can be rebuilt.

Takes records that somebody may have written by hand, gives nothing, or one InputError that names
the layer and the value. Sizes are looked at by name, since a name means the same in every row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from joulecast.errors import InputError
from joulecast.kinds.cost import layer_work
from joulecast.kinds.operators import input_shape, output_shape
from joulecast.kinds.kind_table import find_kind
from joulecast.kinds.work import Shape
from joulecast.records import JOINS, Input, Layer, Network, Op, Setup

_FLAGS = {"affine", "bias", "bidirectional", "causal", "ceil"}
_LISTS = {"axes", "dilation", "kernel", "lead", "order", "out", "output_padding", "padding"}
_LISTS |= {"shape", "space", "stride"}
_FROM_ZERO = {"axes", "order", "output_padding", "padding", "params"}
# One for each axis of the space that a convolution sweeps.
_PER_AXIS = ("dilation", "kernel", "output_padding", "padding", "space", "stride")
# Beyond these no device could hold it, and counting would take forever or overflow.
_LARGEST = 10**12
_DEEPEST = 1000
_MOST_AXES = 16
IMAGE_AXES = (3, 4)
"""Axes of a sample that can lie channels last: an image or a volume with its channels."""


def check_network(network: Network) -> None:
    """Complain about the first thing in a network that cannot be.

    Raises:
        InputError: It names the layer and the value.
    """
    _check_input(network.input)
    for number, layer in enumerate(network.layers, start=1):
        _locate(number, layer, check_layer)
    _check_groups(network)
    if network.buildable and network.layers:
        check_chain(network)


def check_chain(network: Network) -> None:
    """Complain unless every layer is called once and takes the shape that what it reads gives.

    Raises:
        InputError: It names the layer and both shapes.
    """
    shapes: list[Shape] = []
    for index, layer in enumerate(network.layers):
        sources = [index - back for back in layer.reads]
        found = [network.input.shape if s < 0 else shapes[s] for s in sources]
        _locate(index + 1, layer, partial(_check_place, found=found))
        shapes.append(output_shape(layer))


def check_layer(layer: Layer) -> None:
    """Complain about a layer whose sizes, shapes or flags cannot be."""
    for part in layer.parts:
        check_layer(part)
    _check_flags(layer)
    if layer.parts:
        return
    try:
        _check_work(layer)
    except KeyError as error:
        raise InputError(f"it needs {error}") from error
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        first = str(error).split("\n", 1)[0]
        raise InputError(f"its sizes ({layer.sizes}) do not fit each other: {first}") from error


def _locate(number: int, layer: Layer, check: Callable[[Layer], None]) -> None:
    try:
        check(layer)
    except InputError as error:
        name = f"{layer.name}, " if layer.name and isinstance(layer.name, str) else ""
        raise InputError(f"layer {number} ({name}{layer.kind}) cannot be: {error}") from error


# ---------------------------------------------------------------------------------------------
# Layers


def _check_flags(layer: Layer) -> None:
    for key in ("trains", "input_grad", "tied", "channels_last", "channels_last_weights"):
        if not isinstance(getattr(layer, key), bool):
            raise InputError(f"{key} is {getattr(layer, key)!r}; give true or false")
    if not isinstance(layer.name, str):
        raise InputError(f"its name is {layer.name!r}; give a word")
    if layer.join not in JOINS:
        raise InputError(f"join is {layer.join!r}; give one of {', '.join(JOINS)}")
    _check_whole("calls", layer.calls, 1)
    for back in layer.reads:
        _check_whole("reads", back, 1)


def _check_work(layer: Layer) -> None:
    _check_sizes(layer)
    shape = input_shape(layer)
    _check_shape("its input", shape)
    _check_layout(layer, len(shape))
    for place, op in enumerate((layer, *layer.tail)):
        if place and not find_kind(op.kind).can_be_in_tail:
            raise InputError(f"{op.kind} stands in its tail; make it a layer of its own")
        if place:
            _check_sizes(op)
        weights = sum(find_kind(op.kind).params(op.sizes, shape))
        _check_whole(f"the number of weights of {op.kind}", weights, 0)
        shape = find_kind(op.kind).out_shape(op.sizes, shape)
        _check_shape(f"what {op.kind} gives", shape)
    layer_work(layer, Setup())


def _check_layout(layer: Layer, axes: int) -> None:
    if layer.channels_last and axes not in IMAGE_AXES:
        raise InputError(f"channels_last is true, but its input has {axes} axes and is no image")
    if layer.channels_last_weights and not (layer.kind.startswith("conv") and axes in IMAGE_AXES):
        raise InputError(f"channels_last_weights is true; {layer.kind} has no weights that can be")


def _check_sizes(op: Op) -> None:
    row = find_kind(op.kind)
    known = {*row.sizes, "shape"}
    for name, value in op.sizes.items():
        if name not in known:
            raise InputError(f"{op.kind} has no size {name!r}; it has {', '.join(row.sizes)}")
        _check_size(name, value)
    for name, default in row.sizes.items():
        if default is not None and name not in op.sizes:
            raise InputError(f"{op.kind} needs the size {name!r}")
    _check_fit(op)


def _check_size(name: str, value: Any) -> None:
    if name == "fn":
        if not (isinstance(value, str) and value):
            raise InputError(f"fn is {value!r}; give the name of a function")
    elif name == "p":
        if not (isinstance(value, (int, float)) and 0 <= value <= 1):
            raise InputError(f"p is {value!r}; give a share from 0 to 1")
    elif name in _FLAGS:
        if value not in (0, 1):
            raise InputError(f"{name} is {value!r}; give 0 or 1")
    elif name in _LISTS:
        _check_list(name, value, 0 if name in _FROM_ZERO else 1)
    else:
        most = _DEEPEST if name == "depth" else _LARGEST
        _check_whole(name, value, 0 if name in _FROM_ZERO else 1, most)


def _check_fit(op: Op) -> None:
    """Sizes that depend on each other."""
    sizes = op.sizes
    if op.kind.startswith("conv"):
        axes = int(op.kind[-2])
        for name in _PER_AXIS:
            if name in sizes and len(sizes[name]) != axes:
                raise InputError(f"{name} is {sizes[name]}; {op.kind} needs {axes} numbers there")
        for name in ("cin", "cout"):
            if sizes[name] % sizes["groups"]:
                raise InputError(f"{name} is {sizes[name]}; give a multiple of its groups")
    if op.kind == "attention" and sizes["width"] % sizes["heads"]:
        raise InputError(
            f"width is {sizes['width']}; give a multiple of its {sizes['heads']} heads"
        )


def _check_list(name: str, value: Any, least: int) -> None:
    if not isinstance(value, tuple) or len(value) > _MOST_AXES:
        raise InputError(f"{name} is {value!r}; give a list of at most {_MOST_AXES} whole numbers")
    for one in value:
        _check_whole(name, one, least)


def _check_whole(name: str, value: Any, least: int, most: int = _LARGEST) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{name} is {value!r}; give a whole number from {least} to {most:,}")


def _check_shape(what: str, shape: Shape) -> None:
    _check_list(f"the shape of {what}", shape, 1)
    _check_whole(f"the number of elements of {what}", math.prod(shape), 1)


# ---------------------------------------------------------------------------------------------
# Networks


def _check_input(sample: Input) -> None:
    _check_shape("the network's input", sample.shape)
    _check_whole("the input's vocabulary", sample.vocabulary, 0)


def _check_groups(network: Network) -> None:
    last = 0
    for group in network.groups:
        for edge in group:
            _check_whole("an edge of a group", edge, 0)
        start, stop = group
        if not last <= start < stop <= len(network.layers):
            raise InputError(
                f"group {list(group)} cannot be: give ranges within 0 to {len(network.layers)} in "
                "order and apart from each other"
            )
        last = stop


def _check_place(layer: Layer, found: Sequence[Shape]) -> None:
    if layer.calls > 1 or layer.tied or not found:
        wrong = f"calls is {layer.calls}" if layer.calls > 1 else "tied is true"
        wrong = wrong if found else "reads is empty"
        raise InputError(f"{wrong}, which cannot be rebuilt; say that buildable is false")
    # A product takes two inputs of different shapes; only the first is in its sizes.
    if layer.kind != "matmul" and _join_shapes(found, layer.join) != input_shape(layer):
        read = ", ".join(str(list(shape)) for shape in found)
        raise InputError(
            f"it takes {list(input_shape(layer))} and reads {read} (join {layer.join})"
        )


def _join_shapes(shapes: Sequence[Shape], join: str) -> Shape | None:
    """The shape that several become; None where they do not go together."""
    first = shapes[0]
    if join == "concat":
        fits = all(shape and shape[1:] == first[1:] for shape in shapes)
        return (sum(shape[0] for shape in shapes), *first[1:]) if fits else None
    return first if all(shape == first for shape in shapes) else None
