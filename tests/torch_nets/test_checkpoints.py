"""Activation checkpoints are read, put on users' blocks, and run by built networks."""

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from joulecast.families import make_family
from joulecast.operators import Work, checkpoint_blocks, layer_work, make_layer
from joulecast.records import Device, Execution, Input, Network, Setup, Trial
from joulecast.system.errors import InputError
from joulecast.torch_nets.build import build_net, build_seeded
from joulecast.torch_nets.load import LoadedNet, checkpoint_module, read_loaded_net
from joulecast.torch_nets.net_reader import find_block_modules, read_net
from joulecast.torch_nets.runtime import TorchRuntime, draw_inputs
from joulecast.torch_nets.tracer import Event, assign_run
from torch_nets.made_net import MadeNet


def run_blocks(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Run two residual blocks, as ``run`` does it."""
    x = net.first(x)
    for block in net.blocks:
        x = net.run(block, x)
    return x


def make_stack(run: Callable[..., Any]) -> nn.Module:
    blocks = [
        MadeNet(
            lambda net, x: x + net.narrow(torch.relu(net.wide(x))),
            wide=nn.Linear(8, 16),
            narrow=nn.Linear(16, 8),
        )
        for _ in range(2)
    ]
    return MadeNet(run_blocks, first=nn.Linear(8, 8), blocks=nn.ModuleList(blocks), run=run)


def call_plainly(block: nn.Module, x: torch.Tensor) -> Any:
    return block(x)


def call_again(block: nn.Module, x: torch.Tensor) -> Any:
    return checkpoint(block, x, use_reentrant=False)


def call_reentrant(block: nn.Module, x: torch.Tensor) -> Any:
    return checkpoint(block, x, use_reentrant=True)


def read_stack(run: Callable[..., Any]) -> Network:
    return read_net(make_stack(run), torch.zeros(4, 8))


def list_recomputed(network: Network) -> list[bool]:
    return [layer.recomputed for layer in network.layers]


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
    unmarked = tuple(replace(one, recomputed=False) for one in network.layers)
    assert replace(network, layers=unmarked) == plain
    forward = 2 * 4 * 8 * 16
    assert network.totals.flops - plain.totals.flops == 2 * forward * sum(marks[:2])
    assert network.totals.unattributed_flops_share == 0.0
    assert network.totals.overcounted_flops_share == 0.0
    assert network.totals.unattributed_bytes_share < 0.01
    assert network.buildable


def test_reading_leaves_the_module_as_it_was() -> None:
    for run in (call_plainly, call_again, call_reentrant):
        net = make_stack(run)
        # The same module twice.
        net.blocks[1] = net.blocks[0]
        weights = list(net.parameters())
        read_net(net, torch.zeros(4, 8))
        assert all(map(operator.is_, net.parameters(), weights))
        assert all(weight.grad is None for weight in weights)


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
    assert network.groups == plain.groups and len(network.groups) == 2
    for start, stop in network.groups:
        marks = list_recomputed(network)[start:stop]
        # Without reentrance only the sum at the end is not run again: dropout needs its mask.
        assert marks == [True] * (len(marks) - 1) + [reentrant]
    inside = sum(sum(list_recomputed(network)[slice(*group)]) for group in network.groups)
    assert sum(list_recomputed(network)) == inside
    assert network.totals.flops > 1.2 * plain.totals.flops
    assert network.totals.unattributed_flops_share < 0.01
    assert network.totals.overcounted_flops_share < 0.02
    assert not network.totals.notes


def test_calls_that_are_found_nowhere_are_not_assigned() -> None:
    busy = Work(0.0, 8.0, 1)
    events = [Event(name, (), {}, "", 0, forward=busy) for name in ("linear", "relu", "linear")]
    foreign = [Event("matmul", (), {}, "", 0, forward=busy)]
    assert not assign_run(foreign, events)
    assert assign_run([replace(events[0]), replace(events[1])], events)
    assert [event.is_recomputed for event in events] == [True, True, False]
    assert events[0].recomputed == busy


SETUP = Setup(batch=4, threads=1)


def make_blocks(*ends: nn.Module, in_checkpoints: bool = False) -> nn.Module:
    """Return blocks with different ends."""
    blocks = [
        MadeNet(
            lambda net, x: x + net.layers(x),
            layers=nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), end),
        )
        for end in ends
    ]
    run = call_again if in_checkpoints else call_plainly
    return MadeNet(run_blocks, first=nn.Identity(), blocks=nn.ModuleList(blocks), run=run)


def read(net: nn.Module, is_checkpointed: bool) -> Network:
    return read_loaded_net("net", LoadedNet(net, torch.ones(4, 8), None, is_checkpointed))


@pytest.mark.parametrize("end", [nn.Identity, nn.ReLU, lambda: nn.LayerNorm(8), nn.Dropout])
def test_marks_are_those_of_the_network_whose_blocks_are_marked(end: type[nn.Module]) -> None:
    net = make_blocks(end(), end())
    plain = read(net, False)
    marked = checkpoint_blocks(plain)
    assert list_recomputed(read(net, True)) == list_recomputed(marked)
    assert any(list_recomputed(marked)) and not any(list_recomputed(plain))
    # Reading leaves no checkpoint behind.
    assert list_recomputed(read(net, False)) == list_recomputed(plain)


def test_totals_include_what_runs_again() -> None:
    net = make_blocks(nn.Identity(), nn.Identity())
    marked, found = checkpoint_blocks(read(net, False)), read(net, True)
    assert marked.totals.flops == pytest.approx(found.totals.flops)
    assert checkpoint_blocks(found) is found


def test_module_that_checkpoints_by_itself_is_left_alone() -> None:
    net = make_blocks(nn.Identity(), nn.Identity(), in_checkpoints=True)
    assert list_recomputed(read(net, True)) == list_recomputed(read(net, False))
    assert not any("forward" in vars(block) for block in net.blocks)


def test_blocks_inside_blocks_are_not_checkpointed_again() -> None:
    outer = [
        MadeNet(lambda net, x: net.last(net.inner(x)), inner=inner, last=nn.Linear(8, 8))
        for inner in make_stack(call_plainly).blocks
    ]
    net = MadeNet(run_blocks, first=nn.Identity(), blocks=nn.ModuleList(outer), run=call_plainly)
    assert find_block_modules(net, torch.ones(4, 8)) == (["blocks.0", "blocks.1"], False)


def test_module_without_blocks_is_refused() -> None:
    with pytest.raises(InputError, match="Linear repeats no block to checkpoint: leave"):
        checkpoint_module(nn.Linear(8, 3), torch.ones(4, 8), None)
    with pytest.raises(InputError, match="repeats no block to checkpoint: leave"):
        checkpoint_blocks(read(nn.Linear(8, 3), False))


def test_checkpointed_module_is_measured() -> None:
    runs: list[str] = []

    class Counted(nn.Identity):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            runs.append("again" if torch._C._current_autograd_node() else "forward")
            return input

    # The norm after it needs what it returns, so that backward calls it once more.
    ends = [nn.Sequential(Counted(), nn.LayerNorm(8)) for _ in range(2)]
    loaded = LoadedNet(make_blocks(*ends), torch.ones(4, 8), None, checkpoint=True)
    network = read_loaded_net("net", loaded)
    runs.clear()
    step = loaded.prepare(TorchRuntime("cpu", Device("a-cpu")), Trial(network, SETUP))
    runs.clear()
    step.run(1)
    assert runs == ["forward"] * 2 + ["again"] * 2
    step.close()


def test_models_of_transformers_checkpoint_themselves() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16)
    net = transformers.GPT2Model(config)
    undo = checkpoint_module(net, None, None)
    assert net.is_gradient_checkpointing
    undo()
    assert not net.is_gradient_checkpointing


PLAIN = make_family("transformer:16,2")


def mark(network: Network, left_out: int = 0) -> Network:
    """Mark the layers of all blocks, except for some at the end of each."""
    inside = {index for start, stop in network.groups for index in range(start, stop - left_out)}
    layers = enumerate(network.layers)
    return replace(network, layers=tuple(replace(one, recomputed=i in inside) for i, one in layers))


def run_backward(network: Network) -> tuple[int, list[torch.Tensor]]:
    net = build_seeded(network, 0)
    x = draw_inputs(network, SETUP, torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        net(x).square().mean().backward()
    return counter.get_total_flops(), [w.grad for w in net.parameters() if w.grad is not None]


@pytest.mark.parametrize("left_out", [0, 2])
def test_gradients_are_equal_and_marked_layers_run_again(left_out: int) -> None:
    flops, gradients = run_backward(PLAIN)
    network = mark(PLAIN, left_out)
    assert read_net(build_net(network), torch.zeros(2, 64, dtype=torch.long)) == network
    more_flops, same_gradients = run_backward(network)
    assert all(torch.allclose(a, b) for a, b in zip(gradients, same_gradients, strict=True))
    assert more_flops - flops == count_forward_flops(network)


def count_forward_flops(network: Network) -> int:
    # PyTorch has no rule for attention on a processor.
    again = [one for one in network.layers if one.recomputed and one.kind != "sdpa"]
    plain = [replace(one, recomputed=False) for one in again]
    return int(sum(layer_work(layer, SETUP).forward.flops for layer in plain))


def test_isolated_layer_runs_again() -> None:
    layer = make_layer("linear", cin=8, cout=8)
    trials = [
        Trial(Network((one,), Input((8,))), SETUP, Execution(upstream="random", copies=2))
        for one in (layer, replace(layer, recomputed=True))
    ]
    flops = [count_step_flops(trial) for trial in trials]
    assert flops[1] * 3 == flops[0] * 4


def test_backward_alone_and_inference_run() -> None:
    network = mark(PLAIN)
    plain = count_step_flops(Trial(PLAIN, SETUP, Execution(stage="backward")))
    again = count_step_flops(Trial(network, SETUP, Execution(stage="backward")))
    assert again - plain == count_forward_flops(network)
    inference = replace(SETUP, phase="inference")
    assert count_step_flops(Trial(network, inference)) == count_step_flops(Trial(PLAIN, inference))


def count_step_flops(trial: Trial) -> int:
    step = TorchRuntime("cpu", Device("a-cpu")).prepare(trial)
    with FlopCounterMode(display=False) as counter:
        step.run(1)
    step.close()
    return counter.get_total_flops()
