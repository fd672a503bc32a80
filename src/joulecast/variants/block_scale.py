"""Scale a whole block: its one width is the largest number that divides all of its channels.

    encoder block of width 256, 4 heads     channels 256, 768, 1024, head size 64     scale 64
    residual block from 24 to 48 channels   channels 24, 48                           scale 24

Blocks of one family differ in their scale only, so that a block has a curve over one width. Blocks
whose channels have other ratios lie on other curves.
"""

from __future__ import annotations

import math
from functools import lru_cache

from joulecast.kinds import (
    find_kind,
    get_width,
    input_shape,
    output_shape,
    resize_layer,
    width_divisor,
)
from joulecast.records import Layer

Layers = tuple[Layer, ...]


@lru_cache(maxsize=4096)
def find_block_scale(layers: Layers) -> int | None:
    """Return the scale of a block, or None if its layers cannot be scaled together."""
    if any(layer.sizes.get("groups", 1) > 1 or not _list_widths(layer) for layer in layers):
        return None
    scale = math.gcd(*(get_width(layer, name) for layer in layers for name in _list_widths(layer)))
    # Sizes that are not widths, such as the heads of a view, may have to follow the widths.
    doubled = resize_block(layers, scale, 2 * scale)
    return scale if _compare_shapes(layers) == _compare_shapes(doubled) else None


def resize_block(layers: Layers, scale: int, new_scale: int) -> Layers:
    """Return the layers of a block at another scale."""
    return tuple(
        resize_layer(
            layer,
            **{name: get_width(layer, name) // scale * new_scale for name in _list_widths(layer)},
        )
        for layer in layers
    )


def find_scale_step(layers: Layers) -> int:
    """Return a number such that all of its multiples are valid scales (heads of an attention)."""
    return math.lcm(*(width_divisor(op) for layer in layers for op in (layer, *layer.tail)))


def find_least_scale(layers: Layers, scale: int) -> int:
    """Return the smallest scale at which all operators still depend on their input."""
    needs = [
        (max(find_kind(op.kind).least_width for op in (layer, *layer.tail)), units)
        for layer in layers
        for units in [min(get_width(layer, name) for name in _list_widths(layer)) // scale]
    ]
    return max(-(-least // units) for least, units in needs)


def _list_widths(layer: Layer) -> tuple[str, ...]:
    return find_kind(layer.kind).widths


def _compare_shapes(layers: Layers) -> list[bool]:
    """Return for each connection inside a block whether both ends have the same shape."""
    return [
        output_shape(layers[index - back]) == input_shape(layer)
        for index, layer in enumerate(layers)
        for back in layer.reads
        if back <= index
    ]
