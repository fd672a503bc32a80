"""Find which sizes of a Network shrink with which group of channels, by reading pruned copies.

Every group gets a code word, a subset of a few readings: in those one step of the group is removed.
A size that depends on one group shrinks by the same amount in exactly the readings of its code
word. All code words have the same length, so that no union of others equals one. Sizes that depend
on several groups (concatenated channels) are found by removing each of those groups alone. A last
reading, with many steps of every group removed, verifies the result: groups that disagree with it
are reported as unprunable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from joulecast.errors import JoulecastError
from joulecast.kinds.channel_groups import (
    ChannelGroup,
    ChannelSlot,
    SlotKey,
    list_slots,
    narrow_network,
)
from joulecast.records import Network

PrunedReader = Callable[[Mapping[str, int]], Network]
_Reductions = dict[SlotKey, dict[str, int]]


def find_channel_slots(
    base: Network, groups: Sequence[ChannelGroup], read_pruned: PrunedReader
) -> tuple[tuple[ChannelGroup, ...], tuple[str, ...]]:
    """Return groups with their slots, and names of groups whose sizes do not follow their channels.

    Args:
        base: The network before pruning.
        groups: Groups of channels that may be removed.
        read_pruned: Reads the network that is left with given channel counts.
    """
    rejected: set[str] = {group.name for group in groups if len(group.importance) < 2}
    usable = [group for group in groups if group.name not in rejected]
    while usable:
        try:
            reductions = _find_reductions(base, usable, read_pruned)
        except JoulecastError:
            failed = {group.name for group in usable if not _can_read(group, read_pruned)}
            if not failed:
                raise
        else:
            usable = [_add_slots(group, reductions) for group in usable]
            failed = _find_inconsistent(base, usable, read_pruned)
        rejected |= failed
        usable = [replace(group, slots=()) if failed else group for group in usable]
        usable = [group for group in usable if group.name not in failed]
        if not failed:
            break
    return tuple(usable), tuple(sorted(rejected))


def _can_read(group: ChannelGroup, read_pruned: PrunedReader) -> bool:
    try:
        read_pruned({group.name: group.channels - group.step})
        return True
    except JoulecastError:
        return False


def _find_reductions(
    base: Network, groups: Sequence[ChannelGroup], read_pruned: PrunedReader
) -> _Reductions:
    """Return how much one step of each group takes from each size."""
    sizes = list_slots(base)
    code_words = _make_code_words(len(groups))
    readings = max((max(word) for word in code_words), default=-1) + 1
    observed: dict[SlotKey, list[int]] = {}
    for reading in range(readings):
        removed = [g for g, word in zip(groups, code_words, strict=True) if reading in word]
        for slot, reduction in _remove_one_step(sizes, removed, read_pruned).items():
            observed.setdefault(slot, [0] * readings)[reading] = reduction
    reductions: _Reductions = {}
    ambiguous: set[int] = set()
    for slot, amounts in observed.items():
        word = tuple(reading for reading, amount in enumerate(amounts) if amount)
        distinct = {amounts[reading] for reading in word}
        if word in code_words and len(distinct) == 1:
            name = groups[code_words.index(word)].name
            reductions.setdefault(slot, {})[name] = distinct.pop()
        else:
            ambiguous |= {i for i, part in enumerate(code_words) if set(part) <= set(word)}
    for index in sorted(ambiguous):
        for slot, reduction in _remove_one_step(sizes, [groups[index]], read_pruned).items():
            reductions.setdefault(slot, {})[groups[index].name] = reduction
    return reductions


def _remove_one_step(
    sizes: Mapping[SlotKey, int], groups: Sequence[ChannelGroup], read_pruned: PrunedReader
) -> dict[SlotKey, int]:
    """Return by how much each size shrinks if one step of these groups is removed."""
    pruned = read_pruned({group.name: group.channels - group.step for group in groups})
    left = list_slots(pruned)
    return {
        slot: size - left[slot]
        for slot, size in sizes.items()
        if slot in left and left[slot] != size
    }


def _make_code_words(count: int) -> list[tuple[int, ...]]:
    """Return ``count`` different subsets of readings, all of the same size."""
    readings = 1
    while math.comb(readings, readings // 2 or 1) < count:
        readings += 1
    return list(combinations(range(readings), readings // 2 or 1))[:count]


def _add_slots(group: ChannelGroup, reductions: _Reductions) -> ChannelGroup:
    slots = [
        ChannelSlot(*slot, by_group[group.name])
        for slot, by_group in reductions.items()
        if group.name in by_group
    ]
    return replace(group, slots=tuple(sorted(slots, key=lambda slot: (slot.layer, slot.op))))


def _find_inconsistent(
    base: Network, groups: Sequence[ChannelGroup], read_pruned: PrunedReader
) -> set[str]:
    """Return the groups without slots, else those whose slots predict a wrong layer."""
    without_slots = {group.name for group in groups if not group.slots}
    if without_slots:
        return without_slots
    # Remove about a third, with shares that differ between neighbouring groups.
    counts = {
        group.name: group.channels
        - group.step * (1 + (len(group.importance) - 1) * (index % 3 + 1) // 5)
        for index, group in enumerate(groups)
        if len(group.importance) > 2
    }
    predicted, actual = narrow_network(base, groups, counts), read_pruned(counts)
    if len(predicted.layers) != len(actual.layers):
        return {group.name for group in groups}
    wrong = {
        index
        for index, pair in enumerate(zip(predicted.layers, actual.layers, strict=True))
        if pair[0] != pair[1]
    }
    return {group.name for group in groups if any(slot.layer in wrong for slot in group.slots)}
