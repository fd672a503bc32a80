"""Know every kind of operator, and count the work of its forward and backward pass and update.

A row of ``KINDS`` says which sizes an operator has, which of them are widths, how it changes the
shape of a sample, how many parameters it has, how much work it does, and every other fact that the
package needs about a kind (see ``Kind``). Work is counted per call and for a whole batch, with
conventions that allow a comparison with counts of the real operators:

- FLOPs are those of contractions, two per multiply-add, as in torch's FlopCounterMode. Elementwise
  work shows in the bytes.
- Bytes are what an operator reads plus what it writes, each tensor once, without caches.
- Launches are the kernels that a GPU framework starts, to the nearest whole number.
- Memory of the forward pass is what is kept for the backward pass; memory of the update is weights,
  gradients and optimizer state.

Operators in the tail of a layer have no size ``shape``: theirs follows from the operator before.
"""

from __future__ import annotations

from joulecast.operators.check import check_chain, check_network, check_observed
from joulecast.operators.cost import (
    HOST_CALLS,
    CheckpointSegment,
    add_host_calls,
    checkpoint_blocks,
    count_gradients,
    count_host_calls,
    is_half_precision,
    layer_work,
    list_checkpoint_segments,
    list_half_inputs,
    loss_work,
    network_work,
    peak_memory,
    uses_autocast,
    works_in_half,
)
from joulecast.operators.elementwise import APPENDS, count_operand
from joulecast.operators.kind import Kind, Shape, StepWork, Work, WorkContext
from joulecast.operators.operators import (
    KINDS,
    channel_axis,
    count_output_channels,
    find_kind,
    free_widths,
    get_width,
    input_shape,
    make_layer,
    make_op,
    output_shape,
    resize_layer,
    width_divisor,
    width_step,
)
