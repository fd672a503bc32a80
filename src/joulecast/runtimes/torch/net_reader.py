"""Read a Network from any ``nn.Module`` and an example input.

A module that the layers do not describe well enough to rebuild it gives a Network that is not
``buildable``; its costs are still counted.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from joulecast.errors import NetError
from joulecast.kinds import network_work
from joulecast.records import Network, Setup, StepTotals, name_layout
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.losses import LossFunction, mean_square_loss
from joulecast.runtimes.torch.memory_format import make_empty_input
from joulecast.runtimes.torch.network_assembly import assemble_network
from joulecast.runtimes.torch.op_readers import name_leaf_module
from joulecast.runtimes.torch.trace_events import Trace
from joulecast.runtimes.torch.tracer import trace_on_fake_tensors, trace_on_real_tensors

# A buildable network may leave at most this share of FLOPs and parameters to no layer.
_MAX_UNATTRIBUTED_SHARE = 0.01


def read_net(
    net: nn.Module, inputs: Any, loss: LossFunction | None = None, name: str = ""
) -> Network:
    """Read a module. Its weights may be on the meta device; it is not changed.

    Args:
        net: Any module, in any mode.
        inputs: A tensor, a tuple of positional or a dict of named inputs; the first axis of the
            first tensor is the batch.
        loss: Computes a scalar from the output, to run backward from; by default its mean square.
        name: A label for people.

    Raises:
        NetError: Forward or backward fails.
    """
    with warnings.catch_warnings():
        # Warnings about the user's module do not concern the reader of its layers.
        warnings.simplefilter("ignore")
        trace = _trace_net(net, inputs, loss or mean_square_loss)
    batch = _find_batch(trace)
    try:
        network, calls_between = assemble_network(trace, batch, name or type(net).__name__)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise NetError(f"the module calls a function in an unsupported way: {error}") from error
    totals = replace(_count_totals(trace, network, batch), between=calls_between)
    # A module that does more than its layers describe cannot be rebuilt from them.
    is_complete = (
        totals.unattributed_flops_share < _MAX_UNATTRIBUTED_SHARE
        and totals.unattributed_params_share < _MAX_UNATTRIBUTED_SHARE
        and _forward_flops_error(trace, network, batch) < _MAX_UNATTRIBUTED_SHARE
        and network.buildable
        and _keeps_memory_formats(network, batch)
    )
    return replace(network, totals=totals, buildable=is_complete)


def _trace_net(net: nn.Module, inputs: Any, loss: LossFunction) -> Trace:
    try:
        return trace_on_fake_tensors(net, inputs, loss, name_leaf_module)
    except NetError:
        raise
    except Exception as error:  # a module may raise anything; real tensors may still work
        if any(value.device.type == "meta" for value in net.parameters()):
            raise NetError(_describe_failure(error)) from error
    try:
        return trace_on_real_tensors(net, inputs, loss, name_leaf_module)
    except NetError:
        raise
    except Exception as error:
        raise NetError(_describe_failure(error)) from error


def _describe_failure(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return f"the training step fails on the example input: {type(error).__name__}: {text}"


def _find_batch(trace: Trace) -> int:
    if not trace.inputs or not trace.inputs[0].shape:
        raise NetError("the example input needs a tensor whose first axis is the batch")
    return int(trace.inputs[0].shape[0])


def _keeps_memory_formats(network: Network, batch: int) -> bool:
    """Return whether the rebuilt module propagates memory formats as the original does.

    No formula predicts this, so it is tried where any tensor is channels-last: a module may convert
    what it computes.
    """
    if not any(map(name_layout, network.layers)):
        return True
    try:
        with torch.device("meta"):
            net, inputs = build_net(network), make_empty_input(network, batch)
        rebuilt, _ = assemble_network(_trace_net(net, inputs, mean_square_loss), batch, "")
    except NetError:
        return False
    return list(map(name_layout, rebuilt.layers)) == list(map(name_layout, network.layers))


def _count_totals(trace: Trace, network: Network, batch: int) -> StepTotals:
    """Return the independent count of the step, and the shares that the layers leave or exceed."""
    params = sum(value.numel() for value in trace.params.values())
    formula = network_work(network, Setup(batch=batch))
    flops = trace.total.flops
    layer_flops = formula.forward.flops + formula.backward.flops
    attributed_bytes = trace.loss.size_bytes + sum(
        e.forward.size_bytes + e.backward.size_bytes for e in trace.events if e.is_dynamic
    )
    return StepTotals(
        flops=flops,
        size_bytes=trace.total.size_bytes,
        params=params,
        unattributed_flops_share=_share_missing(flops, layer_flops),
        unattributed_bytes_share=_share_missing(trace.total.size_bytes, attributed_bytes),
        unattributed_params_share=_share_missing(params, formula.params),
        overcounted_flops_share=_share_exceeded(flops, layer_flops),
        overcounted_bytes_share=_share_exceeded(
            trace.total.size_bytes - trace.loss.size_bytes,
            formula.forward.size_bytes + formula.backward.size_bytes,
        ),
    )


def _forward_flops_error(trace: Trace, network: Network, batch: int) -> float:
    """Return the relative difference of the formulas' forward FLOPs from the counted ones."""
    counted = sum(event.forward.flops for event in trace.events if event.is_dynamic)
    formula = network_work(network, Setup(batch=batch)).forward.flops
    return abs(formula / counted - 1.0) if counted else 0.0


def _share_missing(total: float, explained: float) -> float:
    return max(0.0, 1.0 - explained / total) if total else 0.0


def _share_exceeded(total: float, explained: float) -> float:
    return max(0.0, explained / total - 1.0) if total else 0.0
