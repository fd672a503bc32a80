"""Channel counts that pruning may leave in each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil

from joulecast.errors import InputError
from joulecast.kinds.channel_groups import ChannelGroup
from joulecast.records import Network


@dataclass(frozen=True)
class ChannelLimits:
    """The channel counts that each group may have.

    Attributes:
        allowed: Ascending counts by group; a group that is not pruned has only its full count.
    """

    allowed: Mapping[str, tuple[int, ...]]

    @property
    def full(self) -> dict[str, int]:
        """All channels of every group."""
        return {name: counts[-1] for name, counts in self.allowed.items()}

    @property
    def smallest(self) -> dict[str, int]:
        """The fewest channels allowed in every group."""
        return {name: counts[0] for name, counts in self.allowed.items()}

    def list_below(self, name: str, count: int) -> tuple[int, ...]:
        """Return the allowed counts below ``count``, in descending order."""
        return tuple(one for one in reversed(self.allowed[name]) if one < count)

    def list_above(self, name: str, count: int) -> tuple[int, ...]:
        """Return the allowed counts above ``count``, in ascending order."""
        return tuple(one for one in self.allowed[name] if one > count)

    def round_up(self, name: str, count: float) -> int:
        """Return the smallest allowed count of at least ``count`` channels."""
        return next((one for one in self.allowed[name] if one >= count), self.allowed[name][-1])


def make_channel_limits(
    network: Network,
    groups: Sequence[ChannelGroup],
    floor: float = 0.1,
    keep: Sequence[str] = (),
    multiple: int = 1,
) -> ChannelLimits:
    """Return the limits of all groups.

    Args:
        network: Network whose layer names ``keep`` refers to.
        groups: Groups of channels that can be pruned together.
        floor: Channels that remain in every group: a share if below 1, otherwise a number.
        keep: Patterns of layer names that are not pruned.
        multiple: Round counts to a multiple of this; the full count is always allowed.

    Raises:
        InputError: A pattern matches no layer, or no group has ``multiple`` channels.
    """
    if all(multiple > group.channels for group in groups):
        widest = max(group.channels for group in groups)
        raise InputError(f"no group has {multiple} channels: give a --multiple of up to {widest}")
    names = {group.name: _list_names(network, group) for group in groups}
    _check_patterns(keep, network, names)
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


def _check_patterns(keep: Sequence[str], network: Network, names: Mapping[str, set[str]]) -> None:
    known = {layer.name for layer in network.layers}.union(*names.values())
    for pattern in keep:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise InputError(
                f"no layer matches {pattern!r}: run `joulecast inspect` to list the layer names"
            )


def _list_names(network: Network, group: ChannelGroup) -> set[str]:
    """Return the names of a group and of the layers and modules that output its channels."""
    outputs = {path for path, side in group.members if side != "in"}
    sizes = ("cout", "width", "heads", "shape")
    outputs |= {network.layers[slot.layer].name for slot in group.slots if slot.size in sizes}
    return {group.name, *outputs}


def _list_counts(group: ChannelGroup, floor: float, multiple: int) -> tuple[int, ...]:
    least = ceil(floor * group.channels - 1e-9) if floor < 1 else int(floor)
    counts = range(group.step, group.channels + 1, group.step)
    fine = [n for n in counts if n >= least and (n % multiple == 0 or n == group.channels)]
    return tuple(fine) or (group.channels,)
