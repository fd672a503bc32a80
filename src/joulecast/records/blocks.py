"""View a network by its repeated blocks: each group of layers becomes one layer with parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from joulecast.records.hashing import stable_hash
from joulecast.records.network import Layer, Network, name_layout


def fold_blocks(network: Network) -> Network:
    """Return the block view: each repeated group becomes one layer with its parts."""
    stops = dict(network.groups)
    spans = []
    index = 0
    while index < len(network.layers):
        spans.append((index, stops.get(index, index + 1)))
        index = spans[-1][1]
    position = {flat: at for at, span in enumerate(spans) for flat in range(*span)}
    folded = []
    for at, (start, stop) in enumerate(spans):
        layers = network.layers[start:stop]
        layer = _make_block(layers) if start in stops else layers[0]
        sources = [start + i - back for i, part in enumerate(layers) for back in part.reads]
        if start in stops:
            sources = [source for source in dict.fromkeys(sources) if source < start]
        reads = tuple(at - position.get(source, -1) for source in sources)
        folded.append(replace(layer, reads=reads))
    return replace(network, layers=tuple(folded), groups=(), buildable=False)


def group_by_block(blocks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the half-open ranges of layers that belong to one block and are more than one.

    Args:
        blocks: The block of each layer, in call order; -1 for a layer outside of blocks.
    """
    layers: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        if block >= 0:
            layers.setdefault(block, []).append(index)
    groups = [(found[0], found[-1] + 1) for _, found in sorted(layers.items())]
    return tuple((start, stop) for start, stop in groups if stop - start > 1)


def find_common_path(names: Sequence[str]) -> str:
    """Return the dotted path that all names begin with, or the first name."""
    paths = [name.split(".") for name in names]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common) or names[0]


def _make_block(parts: tuple[Layer, ...]) -> Layer:
    structure = [
        [part.kind, [op.kind for op in part.tail], list(part.reads), part.join, *name_layout(part)]
        for part in parts
    ]
    first = parts[0]
    return Layer(
        "block:" + stable_hash(structure)[:8],
        first.sizes,
        trains=any(part.trains for part in parts),
        input_grad=first.input_grad,
        calls=first.calls,
        channels_last=first.channels_last,
        parts=parts,
        name=find_common_path([part.name for part in parts]),
    )
