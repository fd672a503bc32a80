"""Checkpointed layers of built networks: equal gradients, the right layers run again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from joulecast.families import make_family
from joulecast.kinds import layer_work, make_layer
from joulecast.records import Device, Execution, Input, Network, Setup, Trial
from joulecast.runtimes.torch.build import build_seeded
from joulecast.runtimes.torch.runtime import TorchRuntime, draw_inputs

SETUP = Setup(batch=4, threads=1)
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
