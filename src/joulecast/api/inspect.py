"""Read a net into its layers, and count the work of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from joulecast.api.nets import NetRequest, ResolvedNet, Shape, has_torch
from joulecast.api.options import split_options
from joulecast.kinds import network_work
from joulecast.records import Network, Setup, StepTotals

# A count takes a hundredth of a second for each layer.
_MOST_COUNTED_LAYERS = 1000


def inspect(
    net: Any,
    inputs: Any = None,
    *,
    setup: Setup | None = None,
    input_shape: Shape | None = None,
    **options: Any,
) -> Network:
    """Return the network of a net: its layers and how they connect.

    Args:
        net: A name, a Network, or a module with ``inputs``.
        inputs: For a module, what it is called on: a tensor, a tuple or a dict of tensors.
        setup: How the net is trained.
        input_shape: For a name, the shape of one sample where it differs from the usual one.
        options: Fields of ``Setup`` (``batch=128``). For a module, ``loss`` may be a callable from
            its output to a scalar.
    """
    (setup_options,) = split_options(inspect, options, Setup)
    return NetRequest(net, inputs, setup, input_shape, setup_options).resolve()[0].network


@dataclass(frozen=True)
class StepCount:
    """Work of one step.

    Attributes:
        flops: FLOPs of the step; the independent count where there is one, else the layers' sum.
        size_bytes: Bytes read and written.
        params: Parameters of the network.
        totals: The independent count that was made with PyTorch; None where there is none.
        is_independent: Whether FLOPs and bytes are the independent count of this very step.
    """

    flops: float
    size_bytes: float
    params: int
    totals: StepTotals | None
    is_independent: bool


def add_step_totals(network: Network, setup: Setup) -> Network:
    """Return the network with an independent count of its step, where PyTorch can make one."""
    can_count = 0 < len(network.layers) <= _MOST_COUNTED_LAYERS and has_torch()
    if network.totals or not (network.buildable and can_count):
        return network
    from joulecast.runtimes.torch.net_reader import count_step_totals

    return replace(network, totals=count_step_totals(network, setup.batch))


def count_step(net: ResolvedNet, network: Network, setup: Setup) -> StepCount:
    """Return FLOPs, bytes and parameters of a step.

    Args:
        net: The net as it was found.
        network: Its network, with the independent count where there is one.
        setup: How it is trained.
    """
    work, totals = network_work(network, setup), network.totals
    if totals is None:
        return StepCount(work.total.flops, work.total.size_bytes, work.params, None, False)
    if not _is_count_of_step(net, network, totals, setup):
        return StepCount(work.total.flops, work.total.size_bytes, totals.params, totals, False)
    return StepCount(totals.flops, totals.size_bytes, totals.params, totals, True)


def _is_count_of_step(net: ResolvedNet, network: Network, totals: StepTotals, setup: Setup) -> bool:
    """Return whether a network's totals count this very step.

    They count training in four-byte numbers. A file does not say at which batch size they were
    counted: the layers' FLOPs at this batch size must then be those that the count was compared
    with.
    """
    if setup.phase != "train" or setup.precision not in ("fp32", "tf32") or setup.accumulate != 1:
        return False
    if net.load is not None or net.network.totals is None:
        return True
    work = network_work(network, setup)
    compared = 1 - totals.unattributed_flops_share + totals.overcounted_flops_share
    flops = work.forward.flops + work.backward.flops
    return flops > 0 and math.isclose(totals.flops * compared, flops, rel_tol=1e-6)
