"""Read a language model at another number of tokens than its example inputs have."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from joulecast.errors import InputError, NetError
from joulecast.records import Network
from joulecast.runtimes.torch.load import LoadedNet, load_net
from joulecast.runtimes.torch.net_reader import read_net


def read_at_tokens(net: Any, inputs: Any, tokens: int) -> Network:
    """Return the network of a module with one sequence of this many tokens.

    Labels, masks and further inputs are left out: generation has none of them.

    Args:
        net: The name of a callable that makes the module, or the module itself.
        inputs: For a module, what it is called on.
        tokens: Number of tokens.

    Raises:
        InputError: It is not a module, or has no inputs.
        NetError: It does not read tokens, or fails on that many.
    """
    loaded, name = _load(net, inputs)
    sequences = make_sequence(loaded.inputs, tokens)
    return read_net(loaded.net, sequences, name=name)


def make_sequence(inputs: Any, tokens: int) -> Any:
    """Return inputs that consist of one sequence of tokens.

    Raises:
        NetError: No input is a batch of token numbers.
    """
    named = inputs.items() if isinstance(inputs, dict) else enumerate(pytree.tree_leaves(inputs))
    for name, value in named:
        if _is_batch_of_tokens(value):
            sequence = torch.zeros((1, tokens), dtype=value.dtype, device=value.device)
            if isinstance(inputs, dict):
                return {name: sequence}
            return sequence if isinstance(inputs, torch.Tensor) else (sequence,)
    raise NetError("the example inputs have no batch of token numbers: give a language model")


def _is_batch_of_tokens(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.dim() == 2 and value.dtype in (torch.int64, torch.int32)


def _load(net: Any, inputs: Any) -> tuple[LoadedNet, str]:
    if isinstance(net, str):
        return load_net(net, on_meta=True), net
    if not isinstance(net, nn.Module) or inputs is None:
        raise InputError(
            f"net is {net!r}: give file.py:make_net, or a PyTorch module with its example inputs"
        )
    return LoadedNet(net, inputs, None), type(net).__name__
