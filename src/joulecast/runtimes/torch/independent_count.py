"""Count a network's training step from PyTorch's operators, without the formulas of ``kinds``."""

from __future__ import annotations

import torch

from joulecast.records import Network, StepTotals
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.losses import cross_entropy_loss
from joulecast.runtimes.torch.memory_format import make_empty_input
from joulecast.runtimes.torch.net_reader import read_net


def count_step_totals(network: Network, batch: int) -> StepTotals:
    """Build a network on the meta device and count the operators of one step; allocate no memory.

    Raises:
        NetError: The network cannot be built.
    """
    with torch.device("meta"):
        net = build_net(network)
        inputs = make_empty_input(network, batch)
    totals = read_net(net, inputs, cross_entropy_loss).totals
    assert totals is not None, "read_net always counts the step"
    return totals
