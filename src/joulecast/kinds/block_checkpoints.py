"""Mark the repeated blocks of a network as checkpointed, as PyTorch would run them."""

from __future__ import annotations

from dataclasses import replace

from joulecast.errors import InputError
from joulecast.kinds.checkpointing import needs_only_its_input
from joulecast.kinds.cost import layer_work, network_work
from joulecast.records import Layer, Network, Setup

_ANY = Setup(batch=1)


def checkpoint_blocks(network: Network) -> Network:
    """Return a network whose repeated blocks are each under activation checkpointing.

    Layers at the end of a block that backward can do without are not run again, as in PyTorch.

    Raises:
        InputError: The network repeats no block.
    """
    if any(layer.recomputed for layer in network.layers):
        return network
    if not network.groups:
        name = network.name or "the network"
        raise InputError(f"{name} repeats no block to checkpoint: leave --checkpoint out")
    inside = {
        index
        for start, stop in network.groups
        for index in range(start, start + _count_repeated(network.layers[start:stop]))
    }
    layers = tuple(
        replace(layer, recomputed=index in inside) for index, layer in enumerate(network.layers)
    )
    return _scale_totals(network, replace(network, layers=layers))


def _count_repeated(layers: tuple[Layer, ...]) -> int:
    """Return how many layers of a block are run again."""
    count = len(layers)
    while count and not layer_work(layers[count - 1], _ANY).forward.memory_bytes:
        count -= 1
    return count - 1 if count and needs_only_its_input(layers[count - 1]) else count


def _scale_totals(plain: Network, network: Network) -> Network:
    """Return the network with totals that include what is run again."""
    if plain.totals is None:
        return network
    before, after = (network_work(one, _ANY) for one in (plain, network))
    flops, moved = (
        getattr(after.total, name) / max(getattr(before.total, name), 1.0)
        for name in ("flops", "size_bytes")
    )
    totals = replace(
        plain.totals, flops=plain.totals.flops * flops, size_bytes=plain.totals.size_bytes * moved
    )
    return replace(network, totals=totals)
