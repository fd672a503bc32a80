"""How much units of one device differ in power: pairs of units that ran the same trials.

    python -m benchmarks.units.run

Kept observations of H200s, of the shipped profile and of the benchmarks. A trial counts for a pair
of units if both ran it at 300 W or more in the same time (within 5 %). Levels of units are fitted
to the medians of their pairs by least squares, over the largest set of units that pairs connect.
"""

from __future__ import annotations

import json
import lzma
import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np

import joulecast
from benchmarks.atlas.ship import find_observations
from benchmarks.common import read_json
from joulecast.records import Observation

HERE = Path(__file__).parents[1]
LEAST_POWER_W, MOST_TIME_DIFFERENCE = 300.0, 0.05
LEAST_TRIALS = 5


def read_observations() -> Iterator[Observation]:
    """Yield all kept observations of H200s that name their unit."""
    seen = list(joulecast.load_profile("nvidia-h200").observations)
    for file in sorted(HERE.glob("accuracy/results/observations*.json.xz")):
        seen += find_observations(read_json(file))
    for file in sorted(HERE.glob("paper/*/observations.jsonl.xz")):
        with lzma.open(file, "rt") as lines:
            seen += find_observations(list(map(json.loads, lines)))
    for one in dict.fromkeys(seen):
        if one.device.name == "nvidia-h200" and one.device.unit and one.energy_j and one.duration_s:
            yield one


def main() -> None:
    """Print the level of each unit and their standard deviation."""
    groups: dict[str, dict[str, list[Observation]]] = defaultdict(lambda: defaultdict(list))
    for one in read_observations():
        groups[one.trial.key][one.device.unit[-8:]].append(one)
    differences: dict[tuple[str, str], list[float]] = defaultdict(list)
    for by_unit in groups.values():
        values = {
            unit: np.median([find_point(one) for one in own], axis=0)
            for unit, own in by_unit.items()
        }
        for a, b in combinations(sorted(values), 2):
            (power_a, time_a), (power_b, time_b) = values[a], values[b]
            is_alike = abs(math.log(time_a / time_b)) <= MOST_TIME_DIFFERENCE
            if is_alike and min(power_a, power_b) >= LEAST_POWER_W:
                differences[a, b].append(math.log(power_a / power_b))
    pairs = {pair: own for pair, own in differences.items() if len(own) >= LEAST_TRIALS}
    units = find_connected(list(pairs))
    pairs = {pair: own for pair, own in pairs.items() if pair[0] in units}
    rows, targets = [], []
    for (a, b), own in pairs.items():
        weight = math.sqrt(min(len(own), 20))
        rows.append([weight * ((unit == a) - (unit == b)) for unit in units])
        targets.append(weight * float(np.median(own)))
    levels = np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)[0]
    levels -= levels.mean()
    spread = np.concatenate([np.array(own) - np.median(own) for own in pairs.values()])
    for unit, level in zip(units, levels, strict=True):
        print(f"{unit}  {100 * level:+.1f} %")
    print(f"{len(units)} units, {len(spread)} pairs of trials")
    print(f"standard deviation of units: {100 * levels.std(ddof=1):.1f} %")
    print(f"half of the trials are within {100 * np.median(abs(spread)):.1f} % of their pair's")


def find_point(one: Observation) -> tuple[float, float]:
    """Return power and duration."""
    assert one.energy_j and one.duration_s
    return one.energy_j / one.duration_s, one.duration_s


def find_connected(pairs: list[tuple[str, str]]) -> list[str]:
    """Return the largest set of units that pairs connect."""
    sets: list[set[str]] = []
    for pair in pairs:
        joined = [one for one in sets if one & set(pair)]
        sets = [one for one in sets if one not in joined] + [set(pair).union(*joined)]
    largest: set[str] = max(sets, key=len)
    return sorted(largest)


if __name__ == "__main__":
    main()
