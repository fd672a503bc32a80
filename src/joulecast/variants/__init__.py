"""The small networks that show one layer: a layer and its widths → a variant, and back.

    role      variant                     what it shows (equations 1 and 2 of the paper)
    output    [output]                    E_output(C)     = E
    input     [input, output]             E_input(C)      = E - Ê_output
    hidden    [input, hidden, output]     E_hidden(C, C') = E - Ê_input - Ê_output

A network is split into **parts** (parts.py): a layer in its role, or, at the end, a pooling with
the linear behind it. A variant (make.py) is nothing but a network of one, two or three parts, so
the function that splits a whole net also reads a variant back, and an observation needs no label to
say what it shows. Which curves a net needs, and over which widths, says plan.py. A part, or a whole
repeated block, can also be run all alone (isolate.py).
Standard library only: a device agent can carry this package.
"""

from joulecast.variants.isolate import (
    BLOCK,
    isolate_part,
    make_isolated,
    read_isolated,
    settle_part,
    split_blocks,
)
from joulecast.variants.make import make_variant
from joulecast.variants.parts import (
    ROLES,
    Part,
    Place,
    Widths,
    channels_at,
    curve_key,
    describe_part,
    open_blocks,
    part_frame,
    part_widths,
    read_variant,
    resize_part,
    split_network,
    width_names,
)
from joulecast.variants.plan import Range, plan_curves

__all__ = [
    "BLOCK",
    "ROLES",
    "Part",
    "Place",
    "Range",
    "Widths",
    "channels_at",
    "curve_key",
    "describe_part",
    "isolate_part",
    "make_isolated",
    "make_variant",
    "open_blocks",
    "part_frame",
    "part_widths",
    "plan_curves",
    "read_isolated",
    "read_variant",
    "resize_part",
    "settle_part",
    "split_blocks",
    "split_network",
    "width_names",
]
