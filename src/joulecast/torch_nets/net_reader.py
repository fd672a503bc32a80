"""Read a Network from any ``nn.Module`` and an example input.

A module that the layers do not describe well enough to rebuild it gives a Network that is not
``buildable``; its costs are still counted.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from joulecast.operators import Work, network_work
from joulecast.records import Network, Setup, StepTotals, name_layout
from joulecast.records.network import WAIT_BINS
from joulecast.system.errors import NetError
from joulecast.system.user_errors import describe_user_error
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.inputs import find_batch, make_empty_input, resize_batch
from joulecast.torch_nets.losses import LossFunction, cross_entropy_loss, mean_square_loss
from joulecast.torch_nets.network_assembly import (
    assemble_network,
    find_blocks,
    fuse_plain_modules,
)
from joulecast.torch_nets.op_readers import name_leaf_module
from joulecast.torch_nets.tracer import (
    OTHER_PRECISIONS,
    Trace,
    trace_on_fake_tensors,
    trace_on_real_tensors,
)

# A buildable network may leave at most this share of FLOPs and parameters to no layer.
_MAX_UNATTRIBUTED_SHARE = 0.01
# Samples of a step on real tensors: at full batch, a Whisper took 14 GiB and 89 s.
_REAL_BATCH = 2
_QUANTISED_PACKAGES = tuple(
    f"torch.{package}.quantized" for package in ("ao.nn", "ao.nn.intrinsic", "nn", "nn.intrinsic")
)


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
    notes = list_module_notes(net)
    net = unwrap_compiled(net)
    check_trainable_types(net)
    with _run_quietly():
        trace = _trace_net(net, inputs, loss or mean_square_loss)
        per_sample = _trace_one_sample(net, inputs, loss or mean_square_loss, trace)
    batch, wanted = find_batch(trace.inputs), find_batch(inputs)
    try:
        network, calls_between = assemble_network(trace, batch, name or type(net).__name__)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise NetError(f"the module calls a function in an unsupported way: {error}") from error
    if trace.is_real:
        reason = "The module's control flow depends on values, so it ran on real tensors"
        scaled = (
            ": another batch may take another path."
            if batch == wanted
            else f", with {batch} samples; counts were scaled to {wanted}, and other samples may "
            "take another path."
        )
        notes.append(reason + scaled)
    totals = _count_totals(trace, network, batch)
    totals = replace(
        totals,
        flops=totals.flops + per_sample.flops * (wanted - batch),
        size_bytes=totals.size_bytes + per_sample.size_bytes * (wanted - batch),
        between=calls_between + trace.hidden_launches,
        notes=tuple(notes),
    )
    # A module that does more than its layers describe cannot be rebuilt from them.
    is_complete = (
        totals.unattributed_flops_share < _MAX_UNATTRIBUTED_SHARE
        and totals.unattributed_params_share < _MAX_UNATTRIBUTED_SHARE
        and _forward_flops_error(trace, network, batch) < _MAX_UNATTRIBUTED_SHARE
        and network.buildable
        and _keeps_memory_formats(network, batch)
    )
    return replace(network, totals=totals, buildable=is_complete)


def find_block_modules(
    net: nn.Module, inputs: Any, loss: LossFunction | None = None
) -> tuple[list[str], bool]:
    """Return the paths of modules that a module repeats as blocks, in call order.

    Also return whether the module checkpoints any call itself.

    Raises:
        NetError: Forward or backward fails.
    """
    with _run_quietly():
        trace = _trace_net(unwrap_compiled(net), inputs, loss or mean_square_loss)
    calls = find_blocks(trace, fuse_plain_modules(trace))
    paths = list(dict.fromkeys(call.path for call in calls))
    return paths, any(event.is_recomputed for event in trace.events)


def _trace_net(net: nn.Module, inputs: Any, loss: LossFunction) -> Trace:
    """Trace a step on fake tensors; where that fails, on real ones with few samples."""
    error: BaseException | None = None
    # Weights of another precision are counted in that of the setup, as all formulas are.
    has_other_precision = any(p.dtype in OTHER_PRECISIONS for p in net.parameters())
    for in_float32 in (True, False) if has_other_precision else (False,):
        try:
            return trace_on_fake_tensors(net, inputs, loss, name_leaf_module, in_float32)
        except NetError:
            raise
        except (Exception, SystemExit) as caught:  # real tensors may still work
            error = caught
    assert error is not None
    if any(value.device.type == "meta" for value in net.parameters()):
        raise NetError(_describe_failure(error)) from error
    if find_batch(inputs) > _REAL_BATCH:
        inputs = resize_batch(inputs, _REAL_BATCH)
    try:
        return trace_on_real_tensors(net, inputs, loss, name_leaf_module)
    except NetError:
        raise
    except (Exception, SystemExit) as caught:
        raise NetError(_describe_failure(caught)) from caught


def _trace_one_sample(net: nn.Module, inputs: Any, loss: LossFunction, trace: Trace) -> Work:
    """Return the cost of one more sample, for a step that ran with fewer samples than wanted."""
    batch = find_batch(trace.inputs)
    if batch == find_batch(inputs):
        return Work()
    share = 1.0 / batch
    try:
        one = trace_on_real_tensors(net, resize_batch(inputs, 1), loss, name_leaf_module).total
    except Exception:  # a batch norm refuses one sample, for example
        return Work(trace.total.flops * share, trace.total.size_bytes * share)
    more = max(0.0, trace.total.size_bytes - one.size_bytes)
    return Work(max(0.0, trace.total.flops - one.flops) / (batch - 1), more / (batch - 1))


def _describe_failure(error: BaseException) -> str:
    return f"the training step fails on the example input: {describe_user_error(error)}"


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
    # Experts that see no tokens are not read, get no gradient and are not updated.
    read = {name for event in trace.events for name in event.param_names}
    used_params = sum(
        value.numel()
        for name, value in trace.params.items()
        if name in read or value.grad is not None
    )
    formula = network_work(network, Setup(batch=batch))
    layers = formula.forward + formula.backward
    total = trace.total
    attributed_bytes = trace.loss.size_bytes + sum(
        e.forward.size_bytes + e.backward.size_bytes + e.recomputed.size_bytes
        for e in trace.events
        if e.is_dynamic
    )
    flops_excess = _find_excess(layers.flops, total.flops)
    bytes_excess = _find_excess(layers.size_bytes, total.size_bytes - trace.loss.size_bytes)
    return StepTotals(
        waits=_place_waits(trace),
        ops_without_rule=tuple(sorted(trace.ops_without_rule.items())),
        uncounted_bytes_share=trace.uncounted_bytes / (total.size_bytes or 1.0),
        flops=total.flops,
        size_bytes=total.size_bytes,
        params=params,
        unattributed_flops_share=max(0.0, -flops_excess),
        unattributed_bytes_share=max(0.0, -_find_excess(attributed_bytes, total.size_bytes)),
        unattributed_params_share=max(0.0, -_find_excess(formula.params, used_params)),
        overcounted_flops_share=max(0.0, flops_excess),
        overcounted_bytes_share=max(0.0, bytes_excess),
    )


def _place_waits(trace: Trace) -> tuple[int, ...]:
    """Return how often the host waits in each part of the launches of forward and of backward."""
    bins, forward = [0] * (2 * WAIT_BINS), trace.forward_launches
    backward = trace.total.launches - forward
    for launches in trace.waits:
        is_backward = launches > forward
        before, total = (launches - forward, backward) if is_backward else (launches, forward)
        bins[WAIT_BINS * is_backward + min(WAIT_BINS * before // max(total, 1), WAIT_BINS - 1)] += 1
    return tuple(bins) if trace.waits else ()


def _forward_flops_error(trace: Trace, network: Network, batch: int) -> float:
    """Return the relative difference of the formulas' forward FLOPs from the counted ones."""
    counted = sum(event.forward.flops for event in trace.events if event.is_dynamic)
    return abs(_find_excess(network_work(network, Setup(batch=batch)).forward.flops, counted))


def _find_excess(found: float, counted: float) -> float:
    """Return by which share a number exceeds a count; negative if it falls short of it."""
    return found / counted - 1.0 if counted else 0.0


# ---------------------------------------------------------------------------------------------
# What a module is: compiled, quantised, frozen, of another precision


def unwrap_compiled(net: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` wraps; any other module unchanged."""
    while type(net).__name__ == "OptimizedModule" and isinstance(net._orig_mod, nn.Module):
        net = net._orig_mod
    return net


@contextlib.contextmanager
def _run_quietly() -> Iterator[None]:
    """Run modules and functions as they are written, uncompiled and without their warnings."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # Importing the compiler takes seconds, and without it nothing can have been compiled.
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def check_trainable_types(net: nn.Module) -> None:
    """Raise NetError for a module that was quantised for inference."""
    for path, module in net.named_modules():
        if type(module).__module__.startswith(_QUANTISED_PACKAGES):
            raise NetError(
                f"{path or 'the module'} is quantised ({type(module).__name__}) and cannot be "
                "trained: give the floating-point module"
            )


def list_module_notes(net: nn.Module) -> list[str]:
    """Return what a reader of an estimate should know about a module, in sentences."""
    notes = []
    if any(
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in net.modules()
    ):
        notes.append(
            "torch.compile was left out: the module was read as it runs without, which costs more."
        )
    params = list(net.parameters())
    types = {p.dtype for p in params}
    names = sorted(OTHER_PRECISIONS[one] for one in types if one in OTHER_PRECISIONS)
    if names:
        share = "All" if len(types) == 1 else "Some"
        advice = (
            "no setup describes that, and the real step costs more than estimated"
            if "float64" in names
            else "the estimate is for the precision of the setup, so give the one that you train in"
        )
        notes.append(f"{share} weights are {' and '.join(names)}: {advice}.")
    packed = sum(not (p.is_floating_point() or p.is_complex()) for p in params)
    if packed:
        notes.append(
            f"{packed} weights are integers (quantised): what their operators multiply is only "
            "counted where PyTorch shows it."
        )
    if params and not any(p.requires_grad for p in params):
        notes.append("No weight requires a gradient: a step is a forward pass and the loss.")
    return notes


def count_step_totals(network: Network, batch: int) -> StepTotals:
    """Count the operators of one step without the formulas of ``operators``; allocate no memory.

    Raises:
        NetError: The network cannot be built.
    """
    with torch.device("meta"):
        net = build_net(network)
        inputs = make_empty_input(network, batch)
    totals = read_net(net, inputs, cross_entropy_loss).totals
    assert totals is not None, "read_net always counts the step"
    return totals
