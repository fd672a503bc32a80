"""Describe channels that can only be removed together, and remove them from a network.

Channels of a group are removed in steps. A step is the least that leaves the network valid: one
channel, one channel of each group of a grouped convolution, or one attention head. A
``ChannelSlot`` is a size that a step reduces; a ``Coupling`` is the weights that go with it.

    narrow_network(read(module), groups, counts) == read(remove(module, groups, counts))

Only records are needed, no framework, so thousands of candidates can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from joulecast.records import Layer, Network, Op, Sizes
from joulecast.system.errors import InputError

SlotKey = tuple[int, int, str, int]
"""Where a size is in a network: layer, operator, name of the size, axis."""


@dataclass(frozen=True)
class ChannelSlot:
    """A size that shrinks with a group of channels.

    Attributes:
        layer: Index of the layer in the network.
        op: 0 for the layer's operator, 1 and up for operators of its tail.
        size: Name of the size.
        axis: Index within the size if it is a tuple, -1 otherwise.
        per_step: How much smaller the size gets with every step.
    """

    layer: int
    op: int
    size: str
    axis: int
    per_step: int


@dataclass(frozen=True)
class Coupling:
    """Weights of one module that belong to a group of channels.

    Attributes:
        path: Name of the module or parameter.
        side: ``out`` (rows), ``in`` (columns) or ``both`` (norms, embeddings, depthwise
            convolutions, attention).
        channels_by_step: For every step, the channels of the module that go with it.
    """

    path: str
    side: str
    channels_by_step: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that can only be removed together.

    Attributes:
        name: Name of the layer that computes them.
        step: How many channels of that layer one step removes.
        couplings: The weights that belong to them.
        slots: The sizes that shrink with them.
        importance: Importance of every step, as a share of the group's.
    """

    name: str
    step: int
    couplings: tuple[Coupling, ...]
    slots: tuple[ChannelSlot, ...]
    importance: tuple[float, ...]

    @property
    def channels(self) -> int:
        """The number of channels in the group."""
        return self.step * len(self.importance)

    @property
    def members(self) -> tuple[tuple[str, str], ...]:
        """The modules it belongs to, and the side of each."""
        return tuple((coupling.path, coupling.side) for coupling in self.couplings)

    def rank(self) -> list[int]:
        """Return the steps in order of importance, least important first; ties by position."""
        return sorted(range(len(self.importance)), key=lambda step: (self.importance[step], step))


def narrow_network(
    network: Network, groups: Sequence[ChannelGroup], counts: Mapping[str, int]
) -> Network:
    """Return a network with the given number of channels in each group.

    Args:
        network: The network to narrow.
        groups: Its channel groups.
        counts: Channels to keep, by name of the group; all others keep theirs.

    Raises:
        InputError: There is no such group, or it cannot have that many channels.
    """
    reductions: dict[int, dict[tuple[int, str, int], int]] = {}
    check_counts(groups, counts)
    for group in groups:
        steps = (group.channels - counts.get(group.name, group.channels)) // group.step
        for slot in group.slots if steps else ():
            sizes = reductions.setdefault(slot.layer, {})
            key = (slot.op, slot.size, slot.axis)
            sizes[key] = sizes.get(key, 0) + steps * slot.per_step
    layers = list(network.layers)
    for index, sizes in reductions.items():
        old = layers[index]
        layers[index] = replace(_shrink_layer(old, tuple(sorted(sizes.items()))), name=old.name)
    return replace(network, layers=tuple(layers), totals=None) if reductions else network


def check_counts(groups: Sequence[ChannelGroup], counts: Mapping[str, int]) -> None:
    """Raise an error for a count that its group cannot have.

    Raises:
        InputError: There is no such group, or it cannot have that many channels.
    """
    by_name = {group.name: group for group in groups}
    for name, count in counts.items():
        if name not in by_name:
            known = ", ".join(by_name) or "none"
            raise InputError(f"unknown channel group {name!r}; known groups: {known}")
        step, most = by_name[name].step, by_name[name].channels
        if not step <= count <= most or count % step:
            raise InputError(
                f"{name} cannot have {count} channels: give a multiple of {step} "
                f"from {step} to {most}"
            )


def list_slots(network: Network) -> dict[SlotKey, int]:
    """Return all integers among the sizes of a network, by where they are."""
    found = {}
    for index, layer in enumerate(network.layers):
        for number, op in enumerate((layer, *layer.tail)):
            for name, value in op.sizes.items():
                values = value if isinstance(value, tuple) else (value,)
                for axis, one in enumerate(values):
                    if isinstance(one, int):
                        found[index, number, name, axis if isinstance(value, tuple) else -1] = one
    return found


# Candidates differ in few layers and share the others.
@lru_cache(maxsize=16384)
def _shrink_layer(layer: Layer, reductions: tuple[tuple[tuple[int, str, int], int], ...]) -> Layer:
    """Return a layer with smaller sizes; its name may be that of an equal layer."""
    by_op: dict[int, dict[str, dict[int, int]]] = {}
    for (op, size, axis), amount in reductions:
        by_op.setdefault(op, {}).setdefault(size, {})[axis] = amount
    tail = tuple(
        Op(op.kind, _shrink_sizes(op.sizes, by_op[number])) if number in by_op else op
        for number, op in enumerate(layer.tail, start=1)
    )
    sizes = _shrink_sizes(layer.sizes, by_op[0]) if 0 in by_op else layer.sizes
    return replace(layer, sizes=sizes, tail=tail)


def _shrink_sizes(sizes: Sizes, reductions: Mapping[str, Mapping[int, int]]) -> Sizes:
    new = dict(sizes)
    for name, amounts in reductions.items():
        if -1 in amounts:
            new[name] = sizes[name] - amounts[-1]
        else:
            new[name] = tuple(v - amounts.get(axis, 0) for axis, v in enumerate(sizes[name]))
    return Sizes(new)
