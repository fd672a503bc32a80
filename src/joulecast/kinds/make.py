"""Operators and layers with their defaults filled in, and the shapes they take and give."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from joulecast.errors import InputError
from joulecast.kinds.table import find_kind
from joulecast.kinds.work import REQUIRED, Shape
from joulecast.records import Layer, Op, Sizes


def make_op(kind: str, **sizes: Any) -> Op:
    """An operator with its defaults filled in, so that equal operators compare equal."""
    items = ((name, tuple(v) if isinstance(v, list) else v) for name, v in sizes.items())
    return _share_op(kind, tuple(items))


def make_layer(kind: str, tail: tuple[Op, ...] = (), **sizes: Any) -> Layer:
    """A layer with its defaults filled in; set the rest with ``dataclasses.replace``."""
    return Layer(kind, make_op(kind, **sizes).sizes, tail=tail)


@lru_cache(maxsize=16384)
def _share_op(kind: str, sizes: tuple[tuple[str, Any], ...]) -> Op:
    """Nets repeat operators: those that share one take little memory and are compared at once."""
    return Op(kind, _fill_sizes(kind, dict(sizes)))


def input_shape(layer: Layer) -> Shape:
    """Shape of one sample that a layer takes."""
    if layer.parts:
        return input_shape(layer.parts[0])
    return find_kind(layer.kind).in_shape(layer.sizes)


def output_shape(layer: Layer) -> Shape:
    """Shape of one sample that a layer gives, behind its tail."""
    if layer.parts:
        return output_shape(layer.parts[-1])
    shape = find_kind(layer.kind).out_shape(layer.sizes, input_shape(layer))
    for op in layer.tail:
        shape = find_kind(op.kind).out_shape(op.sizes, shape)
    return shape


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
    dims = _spatial_dims(kind)
    if dims:
        for name in ("space", "kernel", "stride", "padding", "dilation", "output_padding"):
            if isinstance(filled.get(name), int):
                filled[name] = (filled[name],) * dims
    if kind == "pool" and not filled["fn"].startswith("adaptive"):
        filled["stride"] = filled["stride"] or filled["kernel"]
        filled["padding"] = filled["padding"] or (0,) * len(filled["kernel"])
    return Sizes(filled)


def _spatial_dims(kind: str) -> int:
    return int(kind[-2]) if kind.startswith("conv") else 0
