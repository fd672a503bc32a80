"""Hold the table of kinds; make operators and layers, derive their shapes, read and change widths.

Widths are the sizes that a curve runs over.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from joulecast.operators import contractions, elementwise
from joulecast.operators.kind import REQUIRED, Kind, Shape
from joulecast.records import Layer, Op, Sizes
from joulecast.system.errors import InputError

KINDS: dict[str, Kind] = {
    "conv1d": contractions.define_convolution(1),
    "conv2d": contractions.define_convolution(2),
    "conv3d": contractions.define_convolution(3),
    "conv_transpose1d": contractions.define_convolution(1, transposed=True),
    "conv_transpose2d": contractions.define_convolution(2, transposed=True),
    "conv_transpose3d": contractions.define_convolution(3, transposed=True),
    "linear": contractions.define_linear(),
    "grouped_linear": contractions.define_grouped_linear(),
    "embedding": contractions.define_embedding(),
    "embedding_bag": contractions.define_embedding_bag(),
    "lstm": contractions.define_recurrent(4),
    "gru": contractions.define_recurrent(3),
    "rnn": contractions.define_recurrent(1),
    "attention": contractions.define_attention(),
    "sdpa": contractions.define_sdpa(),
    "matmul": contractions.define_matmul(),
    "batch_norm": elementwise.define_batch_norm(),
    "group_norm": elementwise.define_group_norm(),
    "layer_norm": elementwise.define_layer_norm(),
    "rms_norm": elementwise.define_rms_norm(),
    "elementwise": elementwise.define_elementwise(),
    "index": elementwise.define_index(),
    "scatter": elementwise.define_scatter(),
    "sort": elementwise.define_sort(),
    "slice": elementwise.define_slice(),
    "gradient_copy": elementwise.define_gradient_copy(),
    "pool": elementwise.define_pool(),
    "dropout": elementwise.define_dropout(),
    "flatten": elementwise.define_flatten(),
    "view": elementwise.define_view(),
    "permute": elementwise.define_permute(),
    "last": elementwise.define_last(),
}


def find_kind(name: str) -> Kind:
    """Return the row of a kind.

    Raises:
        InputError: There is no kind of that name.
    """
    try:
        return KINDS[name]
    except KeyError:
        known = ", ".join(sorted(KINDS))
        raise InputError(f"unknown kind {name!r}; known kinds: {known}") from None


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


def free_widths(op: Op) -> tuple[str, ...]:
    """Return the widths that can be chosen independently.

    In a grouped convolution the input channels follow the output channels.
    """
    row = find_kind(op.kind)
    if row.is_convolution and op.sizes["groups"] > 1:
        return tuple(name for name in row.widths if name not in row.input_widths)
    return row.widths


def width_step(op: Op) -> int:
    """Return the number that every width is a multiple of (groups, heads)."""
    divisor = width_divisor(op)
    is_depthwise = divisor > 1 and divisor == op.sizes.get("cin")
    return int(op.sizes["cout"]) // divisor if is_depthwise else divisor


def width_divisor(op: Op) -> int:
    """Return the number of groups or heads that the widths are divided into; 1 without any."""
    return int(op.sizes.get(find_kind(op.kind).width_divisor, 1))


def get_width(layer: Layer, width: str) -> int:
    """Return the value of one width of a layer."""
    if width == "channels":
        return int(layer.sizes["shape"][channel_axis(layer)])
    return int(layer.sizes[width])


def resize_layer(layer: Layer, **widths: int) -> Layer:
    """Return the same layer at other widths; the sizes that depend on a width follow it."""
    sizes: dict[str, Any] = dict(layer.sizes)
    groups = sizes.get("groups", 1)
    if "cout" in widths and find_kind(layer.kind).is_convolution and groups > 1:
        share = widths["cout"] / sizes["cout"]
        if groups == sizes["cin"]:
            multiplier = sizes["cout"] // groups
            sizes["groups"] = sizes["cin"] = max(1, round(groups * share))
            widths = {**widths, "cout": sizes["cin"] * multiplier}
        else:
            sizes["cin"] = groups * max(1, round(sizes["cin"] // groups * share))
    if "channels" in widths:
        shape = list(sizes["shape"])
        shape[channel_axis(layer)] = widths["channels"]
        sizes["shape"] = tuple(shape)
        widths = {}
    sizes.update(widths)
    return replace(layer, sizes=Sizes(sizes))


def channel_axis(op: Op) -> int:
    """Return the axis of an operator's input that holds the channels: 0 or -1."""
    axis = find_kind(op.kind).channel_axis
    if axis is not None:
        return axis
    return -1 if len(op.sizes["shape"]) == 2 else 0


def count_output_channels(layer: Layer) -> int:
    """Return the number of channels of a layer's output."""
    for size in ("cout", "width", "hidden"):
        if size in layer.sizes:
            return int(layer.sizes[size])
    row, shape = find_kind(layer.kind), output_shape(layer)
    if row.has_head_dim:
        return int(layer.sizes["heads"] * layer.sizes["head_dim"])
    axis = row.channel_axis
    if axis is None:
        axis = -1 if len(shape) == 2 else 0
    return int(shape[axis]) if shape else 0


# Networks repeat operators: sharing them saves memory and makes comparing them fast.
@lru_cache(maxsize=16384)
def _make_shared_op(kind: str, sizes: tuple[tuple[str, Any], ...]) -> Op:
    row, given = find_kind(kind), dict(sizes)
    unknown = sorted(set(given) - set(row.sizes) - {"shape"})
    if unknown:
        raise InputError(f"{kind} has no size {unknown[0]!r}; it has {', '.join(row.sizes)}")
    filled = {name: default for name, default in row.sizes.items() if default is not None}
    filled.update(given)
    missing = sorted(name for name, value in filled.items() if value is REQUIRED)
    if missing:
        raise InputError(f"{kind} needs the size {missing[0]!r}")
    return Op(kind, Sizes(row.fill_sizes(filled)))
