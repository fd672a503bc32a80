"""Name the kinds of pieces: what decides which of them share residuals."""

from __future__ import annotations

from joulecast.estimators.additive.piece_points import LOSS_FUNCTION
from joulecast.kinds import count_operand, find_kind
from joulecast.records import Layer, stable_hash
from joulecast.variants import BLOCK, Part


def name_kind(part: Part, operators: tuple[tuple[object, ...], ...]) -> str:
    """Return the kinds of a leaf or the structure of a block; an output also has its loss."""
    if part.role == BLOCK:
        return f"block:{stable_hash(operators)[:8]}"
    names = [
        " ".join([_name_operator(layer), *_name_groups(layer), *_name_memory_format(layer)])
        for layer in part.layers
    ]
    return "+".join([*names, "loss"] if part.role == "output" else names)


def _name_operator(layer: Layer) -> str:
    """Return its function or kind; with a tensor that no layer computes it runs other kernels."""
    name = str(layer.sizes.get("fn", layer.kind))
    if name == LOSS_FUNCTION:
        return f"{name} loss"
    if not count_operand(layer.sizes):
        return name
    return f"{name} parameter" if layer.sizes["params"] else f"{name} constant"


def find_class(layer: Layer) -> str:
    """Return a layer's class of operators; grouped convolutions are bound by bytes."""
    name = find_kind(layer.kind).operator_class
    return " ".join(["grouped", name]) if _name_groups(layer) else name


def _name_groups(layer: Layer) -> tuple[str, ...]:
    """Return a name for grouped convolutions: libraries have kernels of their own for them."""
    groups = layer.sizes.get("groups", 1)
    if groups == 1 or not find_kind(layer.kind).is_convolution:
        return ()
    return ("depthwise",) if groups == layer.sizes["cin"] else ("grouped",)


def _name_memory_format(layer: Layer) -> tuple[str, ...]:
    """Return one name for channels-last input or weights: both run the same kernels."""
    is_channels_last = layer.channels_last or layer.channels_last_weights
    names = ("channels last",) if is_channels_last else ()
    return (*names, "transposed") if layer.transposed else names
