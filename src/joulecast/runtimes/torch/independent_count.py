"""Counts a Network's step without the table of kinds: it is built on ``meta`` and read back."""

from __future__ import annotations

import torch

from joulecast.records import Network, StepTotals
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.memory_format import make_empty_input
from joulecast.runtimes.torch.net_reader import cross_entropy_loss, read_net


def count_step_totals(network: Network, batch: int) -> StepTotals:
    """What PyTorch's own operators do in one step of a network; no memory is taken.

    Raises:
        NetError: The network cannot be built.
    """
    with torch.device("meta"):
        net = build_net(network)
        inputs = make_empty_input(network, batch)
    totals = read_net(net, inputs, cross_entropy_loss).totals
    assert totals is not None, "reading always counts"
    return totals
