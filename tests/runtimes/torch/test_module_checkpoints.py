"""Blocks of users' modules are checkpointed, read as such, measured, and left as they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from joulecast.errors import InputError
from joulecast.kinds import checkpoint_blocks
from joulecast.records import Device, Network, Setup, Trial
from joulecast.runtimes.torch.load import LoadedNet, checkpoint_module, read_loaded_net
from joulecast.runtimes.torch.runtime import TorchRuntime

SETUP = Setup(batch=4, threads=1)


class Feed(nn.Module):
    """A block whose end is one of several kinds."""

    def __init__(self, end: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), end)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Blocks(nn.Module):
    def __init__(self, *ends: nn.Module, in_checkpoints: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(map(Feed, ends))
        self.head = nn.Linear(8, 3)
        self.in_checkpoints = in_checkpoints

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.in_checkpoints else block(x)
        return self.head(x)


def read(net: nn.Module, is_checkpointed: bool) -> Network:
    return read_loaded_net("net", LoadedNet(net, torch.ones(4, 8), None, is_checkpointed))


def list_marks(network: Network) -> list[bool]:
    return [layer.recomputed for layer in network.layers]


@pytest.mark.parametrize("end", [nn.Identity, nn.ReLU, lambda: nn.LayerNorm(8), nn.Dropout])
def test_marks_are_those_of_the_network_whose_blocks_are_marked(end: type[nn.Module]) -> None:
    net = Blocks(end(), end())
    plain = read(net, False)
    marked = checkpoint_blocks(plain)
    assert list_marks(read(net, True)) == list_marks(marked)
    assert any(list_marks(marked)) and not any(list_marks(plain))
    # Reading leaves no checkpoint behind.
    assert list_marks(read(net, False)) == list_marks(plain)


def test_totals_include_what_runs_again() -> None:
    net = Blocks(nn.Identity(), nn.Identity())
    marked, found = checkpoint_blocks(read(net, False)), read(net, True)
    assert marked.totals is not None and found.totals is not None
    assert marked.totals.flops == pytest.approx(found.totals.flops)
    assert checkpoint_blocks(found) is found


def test_module_that_checkpoints_by_itself_is_left_alone() -> None:
    net = Blocks(nn.Identity(), nn.Identity(), in_checkpoints=True)
    assert list_marks(read(net, True)) == list_marks(read(net, False))
    assert not any("forward" in vars(block) for block in net.blocks)


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
    loaded = LoadedNet(Blocks(*ends), torch.ones(4, 8), None, checkpoint=True)
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
