"""Checkpointed modules are read with the layers that backward runs again."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from joulecast.families import make_family
from joulecast.kinds import Work
from joulecast.records import Network
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.net_reader import read_net
from joulecast.runtimes.torch.trace_events import Event
from joulecast.runtimes.torch.tracer import assign_run


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 16)
        self.narrow = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(torch.relu(self.wide(x)))


class Stack(nn.Module):
    """Two residual blocks, run as ``run`` does it."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Residual(), Residual()])
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = self.run(block, x)
        return x


def call_plainly(block: nn.Module, x: torch.Tensor) -> Any:
    return block(x)


def call_again(block: nn.Module, x: torch.Tensor) -> Any:
    return checkpoint(block, x, use_reentrant=False)


def call_reentrant(block: nn.Module, x: torch.Tensor) -> Any:
    return checkpoint(block, x, use_reentrant=True)


def read_stack(run: Callable[..., Any]) -> Network:
    return read_net(Stack(run), torch.zeros(4, 8))


def list_recomputed(network: Network) -> list[bool]:
    return [layer.recomputed for layer in network.layers]


def without_marks(network: Network) -> Network:
    return replace(network, layers=tuple(replace(one, recomputed=False) for one in network.layers))


@pytest.mark.parametrize(
    ("run", "marks"),
    [
        # Backward needs only the input of the last product, and nothing of the sum.
        (call_again, [True, False, False]),
        (call_reentrant, [True, True, True]),
    ],
)
def test_layers_of_a_checkpoint_are_marked(run: Callable[..., Any], marks: list[bool]) -> None:
    plain, network = read_stack(call_plainly), read_stack(run)
    assert list_recomputed(network) == [False, *marks, *marks]
    assert without_marks(network) == plain
    assert plain.totals is not None and network.totals is not None
    forward = 2 * 4 * 8 * 16
    assert network.totals.flops - plain.totals.flops == 2 * forward * sum(marks[:2])
    assert network.totals.unattributed_flops_share == 0.0
    assert network.totals.overcounted_flops_share == 0.0
    assert network.totals.unattributed_bytes_share < 0.01
    assert network.buildable


def test_reading_leaves_the_module_as_it_was() -> None:
    for run in (call_plainly, call_again, call_reentrant):
        net = Stack(run)
        # The same module twice.
        net.blocks[1] = net.blocks[0]
        weights = list(net.parameters())
        read_net(net, torch.zeros(4, 8))
        assert all(map(operator.is_, net.parameters(), weights))
        assert all(weight.grad is None for weight in weights)


@pytest.mark.parametrize("left_out", [0, 2])
def test_built_network_is_read_with_its_marks(left_out: int) -> None:
    family = make_family("transformer:16,2")
    inside = {at for start, stop in family.groups for at in range(start, stop - left_out)}
    layers = [replace(one, recomputed=at in inside) for at, one in enumerate(family.layers)]
    network = replace(family, layers=tuple(layers))
    assert read_net(build_net(network), torch.zeros(2, 64, dtype=torch.long)) == network


@pytest.mark.parametrize("reentrant", [False, True])
def test_transformers_checkpointing_is_read(reentrant: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16)
    tokens = torch.zeros(2, 16, dtype=torch.long)
    networks = []
    for is_checkpointed in (False, True):
        net = transformers.GPT2LMHeadModel(config)
        net.config.use_cache = False
        if is_checkpointed:
            net.gradient_checkpointing_enable({"use_reentrant": reentrant})
            net.enable_input_require_grads()
        networks.append(read_net(net, {"input_ids": tokens}, lambda output: output.logits.mean()))
    plain, network = networks
    assert plain.totals is not None and network.totals is not None
    assert network.groups == plain.groups and len(network.groups) == 2
    for start, stop in network.groups:
        marks = list_recomputed(network)[start:stop]
        # Without reentrance only the sum at the end is not run again: dropout needs its mask.
        assert marks == [True] * (len(marks) - 1) + [reentrant]
    assert sum(list_recomputed(network)) == sum(
        sum(marks_of(network, one)) for one in network.groups
    )
    assert network.totals.flops > 1.2 * plain.totals.flops
    assert network.totals.unattributed_flops_share < 0.01
    assert network.totals.overcounted_flops_share < 0.02
    assert not network.totals.notes


def marks_of(network: Network, group: tuple[int, int]) -> list[bool]:
    return list_recomputed(network)[slice(*group)]


def test_calls_that_are_found_nowhere_are_not_assigned() -> None:
    busy = Work(0.0, 8.0, 1)
    events = [Event(name, (), {}, "", 0, forward=busy) for name in ("linear", "relu", "linear")]
    foreign = [Event("matmul", (), {}, "", 0, forward=busy)]
    assert not assign_run(foreign, events)
    assert assign_run([replace(events[0]), replace(events[1])], events)
    assert [event.is_recomputed for event in events] == [True, True, False]
    assert events[0].recomputed == busy
