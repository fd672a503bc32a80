"""Make operators and layers with defaults filled in, and derive their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from joulecast.errors import InputError
from joulecast.kinds.kind import REQUIRED
from joulecast.kinds.kind_table import find_kind
from joulecast.kinds.work import Shape
from joulecast.records import Layer, Op, Sizes


def make_op(kind: str, **sizes: Any) -> Op:
    """Return an operator with its defaults filled in, so that equal operators compare equal.

    Raises:
        InputError: The kind is unknown, or a size is unknown or missing.
    """
    items = ((name, tuple(v) if isinstance(v, list) else v) for name, v in sizes.items())
    return _make_shared_op(kind, tuple(items))


def make_layer(kind: str, tail: tuple[Op, ...] = (), **sizes: Any) -> Layer:
    """Return a layer with its defaults filled in; set the rest with ``dataclasses.replace``."""
    return Layer(kind, make_op(kind, **sizes).sizes, tail=tail)


def input_shape(layer: Layer) -> Shape:
    """Return the shape of one input sample of a layer."""
    if layer.parts:
        return input_shape(layer.parts[0])
    return find_kind(layer.kind).in_shape(layer.sizes)


def output_shape(layer: Layer) -> Shape:
    """Return the shape of one output sample of a layer, after its tail."""
    if layer.parts:
        return output_shape(layer.parts[-1])
    shape = find_kind(layer.kind).out_shape(layer.sizes, input_shape(layer))
    for op in layer.tail:
        shape = find_kind(op.kind).out_shape(op.sizes, shape)
    return shape


# Networks repeat operators: sharing them saves memory and makes comparing them fast.
@lru_cache(maxsize=16384)
def _make_shared_op(kind: str, sizes: tuple[tuple[str, Any], ...]) -> Op:
    return Op(kind, _fill_sizes(kind, dict(sizes)))


def _fill_sizes(kind: str, sizes: Mapping[str, Any]) -> Sizes:
    row = find_kind(kind)
    unknown = sorted(set(sizes) - set(row.sizes) - {"shape"})
    if unknown:
        raise InputError(f"{kind} has no size {unknown[0]!r}; it has {', '.join(row.sizes)}")
    filled = {name: default for name, default in row.sizes.items() if default is not None}
    filled.update(sizes)
    missing = sorted(name for name, value in filled.items() if value is REQUIRED)
    if missing:
        raise InputError(f"{kind} needs the size {missing[0]!r}")
    return Sizes(row.fill_sizes(filled))
