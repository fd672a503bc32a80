"""One table: what each kind of operator is, and what forward, backward and the update cost.

A row of ``KINDS`` says which sizes an operator has, which of them are widths (what the paper
varies), how it changes the shape of a sample, how many parameters it holds, and its work.
Everything is per call and for a whole batch. Conventions, so that the numbers can be checked
against a count of the real operators:

- FLOPs count contractions only, two a multiply-add, as torch's FlopCounterMode does. Elementwise
  work shows in the bytes.
- Bytes are what an operator reads plus what it writes, each tensor once, caches ignored.
- Launches are kernels that a GPU framework would start, to the nearest whole number.
- Memory of forward is what stays alive until backward; memory of the update is weights, gradients
  and the optimizer's state.

Operators in a layer's tail carry no shape of their own: it follows from what stands before them.
Standing alone they have the size ``shape``.
"""

from __future__ import annotations

from joulecast.kinds.calls import CALLS, add_calls, count_calls
from joulecast.kinds.check import check_chain, check_network
from joulecast.kinds.cost import layer_work, loss_work, network_work, peak_memory
from joulecast.kinds.make import input_shape, make_layer, make_op, output_shape
from joulecast.kinds.precision import is_half, list_half_inputs
from joulecast.kinds.table import KINDS, VIEWS, find_kind
from joulecast.kinds.widths import channel_axis, free_widths, resize, width_of, width_step
from joulecast.kinds.work import Context, Kind, Shape, StepWork, Work

__all__ = [
    "CALLS",
    "KINDS",
    "VIEWS",
    "Context",
    "Kind",
    "Shape",
    "StepWork",
    "Work",
    "add_calls",
    "channel_axis",
    "check_chain",
    "check_network",
    "count_calls",
    "find_kind",
    "free_widths",
    "input_shape",
    "is_half",
    "layer_work",
    "list_half_inputs",
    "loss_work",
    "make_layer",
    "make_op",
    "network_work",
    "output_shape",
    "peak_memory",
    "resize",
    "width_of",
    "width_step",
]
