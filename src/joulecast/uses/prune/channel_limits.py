"""How far each group may be cut: floors, layers to keep, multiples of channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil

from joulecast.errors import InputError
from joulecast.kinds.narrow import Group
from joulecast.records import Network


@dataclass(frozen=True)
class ChannelLimits:
    """The counts that each group may have, from the fewest to all of them.

    Attributes:
        allowed: By group. A group that is kept has one count: all.
    """

    allowed: Mapping[str, tuple[int, ...]]

    @property
    def whole(self) -> dict[str, int]:
        """All channels of every group."""
        return {name: counts[-1] for name, counts in self.allowed.items()}

    @property
    def least(self) -> dict[str, int]:
        """The fewest channels of every group."""
        return {name: counts[0] for name, counts in self.allowed.items()}

    def below(self, name: str, count: int) -> tuple[int, ...]:
        """Allowed counts below one, from the largest on."""
        return tuple(one for one in reversed(self.allowed[name]) if one < count)

    def above(self, name: str, count: int) -> tuple[int, ...]:
        """Allowed counts above one, from the smallest on."""
        return tuple(one for one in self.allowed[name] if one > count)

    def fit(self, name: str, count: float) -> int:
        """The smallest allowed count of at least so many channels."""
        return next((one for one in self.allowed[name] if one >= count), self.allowed[name][-1])


def make_channel_limits(
    network: Network,
    groups: Sequence[Group],
    floor: float = 0.1,
    keep: Sequence[str] = (),
    multiple: int = 1,
) -> ChannelLimits:
    """Limits of all groups.

    Args:
        network: Whose layers' names ``keep`` means.
        groups: What can be cut.
        floor: Below 1 the share of channels that stays at least, from 1 on their number.
        keep: Patterns of layers that stay whole.
        multiple: Channels come in multiples of this; all of them are always allowed.

    Raises:
        InputError: A pattern matches no layer, or a number makes no sense.
    """
    if not floor >= 0 or multiple < 1:
        raise InputError(f"floor {floor} and multiple {multiple}: give numbers from 0 and 1 on")
    if all(multiple > group.channels for group in groups):
        widest = max(group.channels for group in groups)
        raise InputError(f"no group has {multiple} channels: give a --multiple up to {widest}")
    names = {group.name: _list_names(network, group) for group in groups}
    everything = {name for found in names.values() for name in found}
    everything |= {layer.name for layer in network.layers}
    for pattern in keep:
        if not any(fnmatchcase(name, pattern) for name in everything):
            raise InputError(f"no layer is called {pattern!r}: see `joulecast inspect` for names")
    kept = {
        group
        for group, found in names.items()
        if any(fnmatchcase(name, pattern) for name in found for pattern in keep)
    }
    return ChannelLimits(
        {
            group.name: (group.channels,)
            if group.name in kept
            else _list_counts(group, floor, multiple)
            for group in groups
        }
    )


def _list_names(network: Network, group: Group) -> set[str]:
    """A group, the layers that make its channels, and modules that do."""
    made = {path for path, side in group.members if side != "in"}
    sizes = ("cout", "width", "heads", "shape")
    made |= {network.layers[slot.layer].name for slot in group.slots if slot.size in sizes}
    return {group.name, *made}


def _list_counts(group: Group, floor: float, multiple: int) -> tuple[int, ...]:
    least = ceil(floor * group.channels - 1e-9) if floor < 1 else int(floor)
    counts = range(group.step, group.channels + 1, group.step)
    fine = [n for n in counts if n >= least and (n % multiple == 0 or n == group.channels)]
    return tuple(fine) or (group.channels,)
