"""Make the trials that show what one layer or block costs: variants and isolated trials.

A variant is a network of one, two or three layers or blocks. Subtracting the others leaves one
(equations 1 and 2 of the AMPERE paper):

    role      variant                     its cost
    output    [output]                    E_output(C)     = E
    input     [input, output]             E_input(C)      = E - Ê_output
    hidden    [input, hidden, output]     E_hidden(C, C') = E - Ê_input - Ê_output
    block     [input, block, output]      E_block(C)      = E - Ê_input - Ê_output

``blocks.py`` splits any network into layers in their roles, or whole repeated blocks, and separates
the widths of one from what identifies its curve. It splits variants too, so an observation needs no
label to say what it shows. ``curves.py`` makes variants and isolated trials, and finds all curves
of a network.
Only the standard library is needed, so this package also runs on devices.
"""

from joulecast.variants.blocks import (
    REPEATED,
    ROLES,
    Block,
    PlacedBlock,
    Widths,
    block_widths,
    curve_key,
    describe_block,
    fixed_properties,
    match_phase,
    match_precision,
    resize_block,
    split_blocks,
    split_network,
    unfold_blocks,
    width_names,
)
from joulecast.variants.curves import (
    make_isolated_network,
    make_isolated_trial,
    make_variant,
    read_isolated_block,
    read_variant,
)
