"""Say which results each layer of a network reads, for every runtime that builds networks."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.records import Network


@dataclass(frozen=True)
class LayerWiring:
    """Which results a layer reads, and which of them no later layer reads.

    Result 0 is the network's input, result i + 1 that of layer i.
    """

    reads: tuple[int, ...]
    last_reads: tuple[int, ...]


def plan_wiring(network: Network) -> list[LayerWiring]:
    """Return which results each layer of a network reads and releases."""
    reads = [
        # A layer that reads only weights is given the input, because every layer is called on one.
        tuple(max(0, index + 1 - back) for back in layer.reads) or (0,)
        for index, layer in enumerate(network.layers)
    ]
    last_reader = {result: index for index, results in enumerate(reads) for result in results}
    return [
        LayerWiring(results, tuple(r for r in set(results) if last_reader[r] == index))
        for index, results in enumerate(reads)
    ]


def needs_input_gradient(network: Network) -> bool:
    """Return whether a layer that reads the network's input computes a gradient of it."""
    return any(
        layer.input_grad and max(layer.reads, default=0) > index
        for index, layer in enumerate(network.layers)
    )
