"""Check that a network can be costed and, if it is marked buildable, rebuilt.

Networks may be written by hand, so every error names the layer and the value. Types and limits of
fields are the codec's matter; here sizes are checked by name, since a name means the same for every
kind, and against each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from joulecast.operators.contractions import CONVOLUTION_AXES
from joulecast.operators.cost import layer_work
from joulecast.operators.kind import Shape
from joulecast.operators.operators import find_kind, input_shape, output_shape, width_divisor
from joulecast.records import Layer, Network, Op, Setup
from joulecast.records.network import LARGEST_SIZE, MOST_AXES
from joulecast.system.errors import InputError

IMAGE_AXES = (3, 4)
"""Axes of a sample that can be channels last: an image or a volume with its channels."""

_FLAGS = {"across", "affine", "bias", "bidirectional", "causal", "ceil", "copies", "half"}
_FLAGS |= {"spelled"}
_LISTS = {"axes", "dilation", "kernel", "lead", "order", "out", "output_padding", "padding"}
_LISTS |= {"shape", "source", "space", "stride"}
_FROM_ZERO = {"axes", "order", "output_padding", "padding", "params"}
_DEEPEST = 1000


def check_network(network: Network) -> None:
    """Raise an error for the first invalid value in a network.

    Raises:
        InputError: A value is invalid; the message names the layer and the value.
    """
    _check_shape("the network's input", network.input.shape)
    for number, layer in enumerate(network.layers, start=1):
        _name_layer_in_errors(number, layer, check_layer)
    _check_groups(network)
    if network.buildable and network.layers:
        check_chain(network)


def check_observed(network: Network) -> None:
    """Raise an error unless every layer of a network that was measured can be costed.

    Layers of a block need not form a chain, and earlier versions left out some of today's sizes.

    Raises:
        InputError: A value is invalid; the message names the layer and the value.
    """
    for number, layer in enumerate(network.layers, start=1):
        _name_layer_in_errors(number, layer, _check_observed_layer)
    _check_groups(network)


def check_chain(network: Network) -> None:
    """Raise an error unless layers are called once and fit the shapes of the layers they read.

    Raises:
        InputError: A layer does not fit; the message names it and both shapes.
    """
    shapes: list[Shape] = []
    for index, layer in enumerate(network.layers):
        sources = [index - back for back in layer.reads]
        read = [network.input.shape if s < 0 else shapes[s] for s in sources]
        _name_layer_in_errors(index + 1, layer, partial(_check_reads, shapes=read))
        shapes.append(output_shape(layer))


def check_layer(layer: Layer, needs_all_sizes: bool = True) -> None:
    """Raise an error for a layer with invalid sizes, shapes or flags."""
    for part in layer.parts:
        check_layer(part, needs_all_sizes)
    if layer.parts:
        return
    try:
        _check_work(layer, needs_all_sizes)
    except KeyError as error:
        raise InputError(f"it needs {error}") from error
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        first = str(error).split("\n", 1)[0]
        raise InputError(f"its sizes ({layer.sizes}) do not fit together: {first}") from error


def _name_layer_in_errors(number: int, layer: Layer, check: Callable[[Layer], None]) -> None:
    try:
        check(layer)
    except InputError as error:
        name = f"{layer.name}, " if layer.name else ""
        raise InputError(f"layer {number} ({name}{layer.kind}) is invalid: {error}") from error


# ---------------------------------------------------------------------------------------------
# Layers


@lru_cache(maxsize=10_000)
def _check_observed_layer(layer: Layer) -> None:
    # Observations of a profile have many layers in common.
    check_layer(layer, needs_all_sizes=False)


def _check_work(layer: Layer, needs_all_sizes: bool) -> None:
    _check_sizes(layer, needs_all_sizes)
    shape = input_shape(layer)
    _check_shape("its input", shape)
    _check_memory_format(layer, len(shape))
    for number, op in enumerate((layer, *layer.tail)):
        row = find_kind(op.kind)
        if number and not row.can_be_in_tail:
            raise InputError(f"{op.kind} cannot be in a tail; make it a layer")
        if number:
            _check_sizes(op, needs_all_sizes)
        weights = sum(row.params(op.sizes, shape))
        _check_integer(f"the number of weights of {op.kind}", weights, 0)
        shape = row.out_shape(op.sizes, shape)
        _check_shape(f"the output of {op.kind}", shape)
    layer_work(layer, Setup())


def _check_memory_format(layer: Layer, axes: int) -> None:
    if layer.channels_last and axes not in IMAGE_AXES:
        raise InputError(
            f"channels_last is true, but its input has {axes} axes and is not an image"
        )
    has_image_weights = find_kind(layer.kind).is_convolution and axes in IMAGE_AXES
    if layer.channels_last_weights and not has_image_weights:
        raise InputError(
            f"channels_last_weights is true, but {layer.kind} has no weights in that format"
        )


def _check_sizes(op: Op, needs_all_sizes: bool) -> None:
    row = find_kind(op.kind)
    known = {*row.sizes, "shape"}
    for name, value in op.sizes.items():
        if name not in known:
            raise InputError(f"{op.kind} has no size {name!r}; it has {', '.join(row.sizes)}")
        is_from_zero = name in _FROM_ZERO or row.sizes.get(name) == 0
        _check_size(name, value, 0 if is_from_zero else 1)
    for name, default in row.sizes.items():
        if needs_all_sizes and default is not None and name not in op.sizes:
            raise InputError(f"{op.kind} needs the size {name!r}")
    _check_spatial_sizes(op)
    _check_widths(op)


def _check_size(name: str, value: Any, least: int) -> None:
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
        _check_integers(name, value, least)
    else:
        most = _DEEPEST if name == "depth" else LARGEST_SIZE
        _check_integer(name, value, least, most)


def _check_spatial_sizes(op: Op) -> None:
    dims = find_kind(op.kind).spatial_dims
    for name in CONVOLUTION_AXES if dims else ():
        if name in op.sizes and len(op.sizes[name]) != dims:
            raise InputError(f"{name} is {op.sizes[name]}; {op.kind} needs {dims} numbers")


def _check_widths(op: Op) -> None:
    row, divisor = find_kind(op.kind), width_divisor(op)
    for name in row.widths:
        if name in op.sizes and op.sizes[name] % divisor:
            raise InputError(
                f"{name} is {op.sizes[name]}; give a multiple of its {divisor} {row.width_divisor}"
            )


def _check_integers(name: str, value: Any, least: int) -> None:
    if not isinstance(value, tuple) or len(value) > MOST_AXES:
        raise InputError(f"{name} is {value!r}; give a list of at most {MOST_AXES} integers")
    for one in value:
        _check_integer(name, one, least)


def _check_integer(name: str, value: Any, least: int, most: int = LARGEST_SIZE) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{name} is {value!r}; give an integer from {least} to {most:,}")


def _check_shape(owner: str, shape: Shape) -> None:
    _check_integers(f"the shape of {owner}", shape, 1)
    _check_integer(f"the number of elements of {owner}", math.prod(shape), 1)


# ---------------------------------------------------------------------------------------------
# Networks


def _check_groups(network: Network) -> None:
    last = 0
    for group in network.groups:
        start, stop = group
        if not last <= start < stop <= len(network.layers):
            raise InputError(
                f"group {list(group)} is invalid: give ranges within 0 to {len(network.layers)}, "
                "in order and without overlap"
            )
        last = stop


def _check_reads(layer: Layer, shapes: Sequence[Shape]) -> None:
    if layer.calls > 1 or layer.tied or not shapes:
        wrong = f"calls is {layer.calls}" if layer.calls > 1 else "tied is true"
        wrong = wrong if shapes else "reads is empty"
        raise InputError(f"{wrong}, which cannot be rebuilt; set buildable to false")
    if find_kind(layer.kind).second_shape is not None:
        return
    if _join_shapes(shapes, layer.join) != input_shape(layer):
        read = ", ".join(str(list(shape)) for shape in shapes)
        raise InputError(
            f"its input is {list(input_shape(layer))}, but it reads {read} (join {layer.join})"
        )


def _join_shapes(shapes: Sequence[Shape], join: str) -> Shape | None:
    """Return the shape of joined inputs, or None if they do not fit together."""
    first = shapes[0]
    if join == "concat":
        fits = all(shape and shape[1:] == first[1:] for shape in shapes)
        return (sum(shape[0] for shape in shapes), *first[1:]) if fits else None
    return first if all(shape == first for shape in shapes) else None
