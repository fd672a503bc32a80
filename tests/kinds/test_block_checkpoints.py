"""Blocks of networks are marked as checkpointed, and the peak of memory falls."""

from __future__ import annotations

import pytest

from joulecast.errors import InputError
from joulecast.families import make_family
from joulecast.kinds import checkpoint_blocks, network_work, peak_memory
from joulecast.records import Setup

SETUP = Setup(batch=32)


def test_products_and_sums_at_the_end_of_a_block_are_not_run_again() -> None:
    network = checkpoint_blocks(make_family("transformer:16,2"))
    for start, stop in network.groups:
        marks = [layer.recomputed for layer in network.layers[start:stop]]
        assert marks == [True] * (stop - start - 2) + [False] * 2
    assert not network.layers[0].recomputed and not network.layers[-1].recomputed


def test_block_that_ends_with_an_activation_is_run_again_whole() -> None:
    network = checkpoint_blocks(make_family("resnet18"))
    inside = {at for start, stop in network.groups for at in range(start, stop)}
    assert [at for at, layer in enumerate(network.layers) if layer.recomputed] == sorted(inside)


@pytest.mark.parametrize("name", ["transformer:256,8", "resnet18"])
def test_checkpoints_trade_memory_for_work(name: str) -> None:
    plain = make_family(name)
    network = checkpoint_blocks(plain)
    assert peak_memory(network, SETUP) < 0.8 * peak_memory(plain, SETUP)
    assert network_work(network, SETUP).total.flops > network_work(plain, SETUP).total.flops
    inference = Setup(batch=32, phase="inference")
    assert peak_memory(network, inference) == peak_memory(plain, inference)


def test_network_without_blocks_is_refused() -> None:
    with pytest.raises(InputError, match=r"cnn5.* repeats no block to checkpoint: leave --check"):
        checkpoint_blocks(make_family("cnn5"))
