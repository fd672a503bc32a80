"""Modules made of a function and what it calls."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from joulecast.operators import network_work
from joulecast.records import Layer, Network, Setup


class MadeNet(nn.Module):
    """A module whose forward pass is a function of it: ``MadeNet(lambda net, x: net.fc(x), fc=…)``.

    Tensors become buffers; everything else an attribute.
    """

    def __init__(self, function: Callable[..., Any], **members: Any) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            if isinstance(member, torch.Tensor) and not isinstance(member, nn.Parameter):
                self.register_buffer(name, member)
            else:
                setattr(self, name, member)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def find_layers(network: Network, kind: str) -> list[Layer]:
    """Return the layers of one kind."""
    return [layer for layer in network.layers if layer.kind == kind]


def list_kinds(network: Network) -> list[str]:
    """Return the kinds of all layers."""
    return [layer.kind for layer in network.layers]


def moved_bytes(network: Network, batch: int) -> float:
    """Return the bytes that the formulas of all layers count for a step without its update."""
    work = network_work(network, Setup(batch=batch))
    return work.forward.size_bytes + work.backward.size_bytes


def step_flops(network: Network, batch: int) -> float:
    """Return the FLOPs that the formulas of all layers count for a step."""
    work = network_work(network, Setup(batch=batch))
    return work.forward.flops + work.backward.flops
