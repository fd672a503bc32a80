"""Modules made of a function and what it calls."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


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
