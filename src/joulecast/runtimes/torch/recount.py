"""Counts a Network's step without the table of kinds: it is built on ``meta`` and read back."""

from __future__ import annotations

import torch

from joulecast.records import Network, StepTotals
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.layouts import make_empty_input
from joulecast.runtimes.torch.read import cross_entropy, read_net


def recount(network: Network, batch: int) -> StepTotals:
    """What PyTorch's own operators do in one step of a network; no memory is taken.

    Raises:
        NetError: The network cannot be built.
    """
    with torch.device("meta"):
        net = build_net(network)
        inputs = make_empty_input(network, batch)
    totals = read_net(net, inputs, cross_entropy).totals
    assert totals is not None, "reading always counts"
    return totals
