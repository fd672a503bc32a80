"""Which sizes of a Network follow which group of channels: read off copies that were cut.

Every group gets a code word: some of a few readings cut one step of it, the others leave it whole.
A size that follows one group alone falls by the same amount in exactly the readings of its word;
all words have as many readings, so that no sum of others looks like one. What is left, sizes that
follow several groups (joined channels), is found by cutting each of those groups alone. A last
reading with many steps of everything holds all of it against the net: what disagrees stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from joulecast.errors import JoulecastError
from joulecast.kinds.channel_groups import ChannelGroup, ChannelSlot, list_slots, narrow_network
from joulecast.records import Network

Place = tuple[int, int, str, int]
Read = Callable[[Mapping[str, int]], Network]
Falls = dict[Place, dict[str, int]]


def find_channel_slots(
    base: Network, groups: Sequence[ChannelGroup], read: Read
) -> tuple[tuple[ChannelGroup, ...], tuple[str, ...]]:
    """Groups with their slots, and the names of those whose sizes do not follow their channels.

    Args:
        base: The net as it is.
        groups: What may be cut of it.
        read: Counts of channels → the net that is left, read anew.
    """
    lost: set[str] = {group.name for group in groups if len(group.importance) < 2}
    usable = [group for group in groups if group.name not in lost]
    while usable:
        try:
            falls = _measure_falls(base, usable, read)
        except JoulecastError:
            bad = {group.name for group in usable if not _reads(group, read)}
            if not bad:
                raise
        else:
            usable = [_fill(group, falls) for group in usable]
            bad = _find_wrong(base, usable, read)
        lost |= bad
        usable = [replace(group, slots=()) if bad else group for group in usable]
        usable = [group for group in usable if group.name not in bad]
        if not bad:
            break
    return tuple(usable), tuple(sorted(lost))


def _reads(group: ChannelGroup, read: Read) -> bool:
    try:
        read({group.name: group.channels - group.step})
        return True
    except JoulecastError:
        return False


def _measure_falls(base: Network, groups: Sequence[ChannelGroup], read: Read) -> Falls:
    """What one step of each group takes from each size."""
    whole = list_slots(base)
    words = _make_words(len(groups))
    readings = max((max(word) for word in words), default=-1) + 1
    seen: dict[Place, list[int]] = {}
    for number in range(readings):
        some = [group for group, word in zip(groups, words, strict=False) if number in word]
        for place, fall in _measure(whole, some, read).items():
            seen.setdefault(place, [0] * readings)[number] = fall
    falls: Falls = {}
    mixed: set[int] = set()
    for place, amounts in seen.items():
        word = tuple(number for number, fall in enumerate(amounts) if fall)
        alone = {amounts[number] for number in word}
        if word in words and len(alone) == 1:
            falls.setdefault(place, {})[groups[words.index(word)].name] = alone.pop()
        else:
            mixed |= {at for at, one in enumerate(words) if set(one) <= set(word)}
    for at in sorted(mixed):
        for place, fall in _measure(whole, [groups[at]], read).items():
            falls.setdefault(place, {})[groups[at].name] = fall
    return falls


def _measure(
    whole: Mapping[Place, int], some: Sequence[ChannelGroup], read: Read
) -> dict[Place, int]:
    """By how much each size falls where one step of some groups is cut."""
    left = list_slots(read({group.name: group.channels - group.step for group in some}))
    return {p: size - left[p] for p, size in whole.items() if p in left and left[p] != size}


def _make_words(count: int) -> list[tuple[int, ...]]:
    """So many different sets of readings, all of one size."""
    readings = 1
    while math.comb(readings, readings // 2 or 1) < count:
        readings += 1
    return list(combinations(range(readings), readings // 2 or 1))[:count]


def _fill(group: ChannelGroup, falls: Falls) -> ChannelGroup:
    slots = [
        ChannelSlot(*place, found[group.name])
        for place, found in falls.items()
        if group.name in found
    ]
    return replace(group, slots=tuple(sorted(slots, key=lambda slot: (slot.layer, slot.op))))


def _find_wrong(base: Network, groups: Sequence[ChannelGroup], read: Read) -> set[str]:
    """Groups that change layers which turn out otherwise than their slots say, or nothing."""
    idle = {group.name for group in groups if not group.slots}
    if idle:
        return idle
    # About a third of every group, so that no two fall by the same share.
    counts = {
        group.name: group.channels
        - group.step * (1 + (len(group.importance) - 1) * (at % 3 + 1) // 5)
        for at, group in enumerate(groups)
        if len(group.importance) > 2
    }
    said, seen = narrow_network(base, groups, counts), read(counts)
    if len(said.layers) != len(seen.layers):
        return {group.name for group in groups}
    off = {
        at
        for at, pair in enumerate(zip(said.layers, seen.layers, strict=False))
        if pair[0] != pair[1]
    }
    return {group.name for group in groups if any(slot.layer in off for slot in group.slots)}
