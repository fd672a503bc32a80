"""Find the blocks that a network repeats, from the names of modules.

``encoder.layer.0`` and ``encoder.layer.1`` are two of them: names that differ only in numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

# A name that covers this share of the heavy calls of the best one competes with it.
_COVERAGE_SHARE = 0.9
_NUMBERS = re.compile(r"\d+")

Range = tuple[int, int]


def find_path_blocks(paths: Sequence[str], is_heavy: Sequence[bool]) -> list[Range]:
    """Return the half-open ranges of calls that the network repeats.

    Candidates are modules with at least two heavy calls whose names differ only in numbers. Of
    those that cover nearly as many heavy calls as the best ones, the most often repeated win.

    Args:
        paths: The module of each call; empty where it is not known.
        is_heavy: Whether each call multiplies.
    """
    ranges: dict[str, dict[str, Range]] = {}
    for place, path in enumerate(paths):
        parts = path.split(".") if path else []
        for size in range(1, len(parts) + 1):
            name = ".".join(parts[:size])
            alike = ranges.setdefault(_NUMBERS.sub("#", name), {})
            start, _ = alike.get(name, (place, place))
            alike[name] = (start, place + 1)
    repeated = {}
    for key, alike in ranges.items():
        large = [one for one in alike.values() if sum(is_heavy[one[0] : one[1]]) > 1]
        if len(large) > 1 and not _overlap(large):
            repeated[key] = sorted(large)
    if not repeated:
        return []
    coverage = {
        key: sum(sum(is_heavy[start:stop]) for start, stop in found)
        for key, found in repeated.items()
    }
    best = max(coverage.values())
    rivals = [key for key in repeated if coverage[key] >= _COVERAGE_SHARE * best]
    # Of names that cover the same, the outermost is the block.
    return repeated[max(rivals, key=lambda key: (len(repeated[key]), coverage[key], -len(key)))]


def _overlap(ranges: Sequence[Range]) -> bool:
    ordered = sorted(ranges)
    return any(first[1] > second[0] for first, second in pairwise(ordered))
