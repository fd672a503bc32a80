"""Channels that go together, and what a network is with fewer of them.

A group of channels is cut in steps: the least that can go without breaking the net (one channel;
one of each group of a grouped convolution; one head of an attention). A ``Slot`` says which size of
which operator a step makes smaller and by how much, a ``Coupling`` which weights go with it.

    narrow(read(net), groups, counts) == read(cut(net, groups, counts))

Takes records, gives records: no framework, so that thousands of candidates can be looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from joulecast.errors import InputError
from joulecast.records import Layer, Network, Op, Sizes


@dataclass(frozen=True)
class Slot:
    """A size that follows a group.

    Attributes:
        layer: Which layer of the network.
        op: 0 for its operator, 1 and up for those of its tail.
        size: The size's name; ``axis`` is the place in it where it is a list, -1 where it is none.
        per_step: What a step takes away.
    """

    layer: int
    op: int
    size: str
    axis: int
    per_step: int


@dataclass(frozen=True)
class Coupling:
    """Weights of one module that go with a group.

    Attributes:
        path: The module, or the parameter, by its name in the net.
        side: ``out`` (rows), ``in`` (columns), ``both`` (norms, embeddings, depthwise, attention).
        places: For every step which of the module's channels go with it.
    """

    path: str
    side: str
    places: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Group:
    """Channels that can only be cut together.

    Attributes:
        name: The layer that makes them.
        step: How many channels of that layer go at a time.
        importance: Of every step, as a share of the group's; what to cut first is least.
    """

    name: str
    step: int
    couplings: tuple[Coupling, ...]
    slots: tuple[Slot, ...]
    importance: tuple[float, ...]

    @property
    def channels(self) -> int:
        """How many there are."""
        return self.step * len(self.importance)

    @property
    def members(self) -> tuple[tuple[str, str], ...]:
        """Which modules it touches, and on which side."""
        return tuple((one.path, one.side) for one in self.couplings)

    def rank(self) -> list[int]:
        """Steps from the least important on; the first of equal ones first."""
        return sorted(range(len(self.importance)), key=lambda at: (self.importance[at], at))


def narrow(network: Network, groups: Sequence[Group], counts: Mapping[str, int]) -> Network:
    """The network with so many channels left in each group; groups without a count stay whole.

    Raises:
        InputError: There is no such group, or it cannot have that many channels.
    """
    less: dict[int, dict[tuple[int, str, int], int]] = {}
    check_counts(groups, counts)
    for group in groups:
        steps = (group.channels - counts.get(group.name, group.channels)) // group.step
        for slot in group.slots if steps else ():
            sizes = less.setdefault(slot.layer, {})
            key = (slot.op, slot.size, slot.axis)
            sizes[key] = sizes.get(key, 0) + steps * slot.per_step
    layers = list(network.layers)
    for place, sizes in less.items():
        old = layers[place]
        layers[place] = replace(_shrink_layer(old, tuple(sorted(sizes.items()))), name=old.name)
    return replace(network, layers=tuple(layers), totals=None) if less else network


def check_counts(groups: Sequence[Group], counts: Mapping[str, int]) -> None:
    """Complain about counts that no group can have."""
    known = {group.name: group for group in groups}
    for name, count in counts.items():
        if name not in known:
            raise InputError(f"there is no group {name!r}; there are {', '.join(known) or 'none'}")
        step, most = known[name].step, known[name].channels
        if not step <= count <= most or count % step:
            raise InputError(
                f"{name} cannot have {count} channels: give {step} to {most}, by {step}"
            )


def list_slots(network: Network) -> dict[tuple[int, int, str, int], int]:
    """Every whole number among the sizes of a network, by where it stands."""
    found = {}
    for place, layer in enumerate(network.layers):
        for number, op in enumerate((layer, *layer.tail)):
            for name, value in op.sizes.items():
                values = value if isinstance(value, tuple) else (value,)
                for axis, one in enumerate(values):
                    if isinstance(one, int):
                        found[place, number, name, axis if isinstance(value, tuple) else -1] = one
    return found


@lru_cache(maxsize=16384)
def _shrink_layer(layer: Layer, less: tuple[tuple[tuple[int, str, int], int], ...]) -> Layer:
    """A layer with smaller sizes, under the name of any that is equal.

    Candidates differ in few layers, and share the others.
    """
    by_op: dict[int, dict[str, dict[int, int]]] = {}
    for (op, size, axis), amount in less:
        by_op.setdefault(op, {}).setdefault(size, {})[axis] = amount
    tail = tuple(
        Op(op.kind, _shrink_sizes(op.sizes, by_op[at])) if at in by_op else op
        for at, op in enumerate(layer.tail, start=1)
    )
    sizes = _shrink_sizes(layer.sizes, by_op[0]) if 0 in by_op else layer.sizes
    return replace(layer, sizes=sizes, tail=tail)


def _shrink_sizes(sizes: Sizes, less: Mapping[str, Mapping[int, int]]) -> Sizes:
    new = dict(sizes)
    for name, amounts in less.items():
        if -1 in amounts:
            new[name] = sizes[name] - amounts[-1]
        else:
            new[name] = tuple(v - amounts.get(at, 0) for at, v in enumerate(sizes[name]))
    return Sizes(new)
