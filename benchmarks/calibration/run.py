"""Are the intervals of `additive` honest? In simulated worlds: nothing was measured on hardware.

In each world a campaign profiles a family within a budget of the device's (virtual) seconds, for
nets drawn at random; then it estimates other random nets, with and without timing their layers
first. The truth is the world's law, which has no noise. The first points of a campaign are the
campaign of a smaller budget, so each runs once. In some of the worlds other methods get the same
seconds, and twice as many.

    python benchmarks/calibration/run.py                        tables; JSON in results/
    python benchmarks/calibration/run.py --worlds 3 --out DIR   fewer worlds, JSON elsewhere
    python benchmarks/calibration/run.py --parts rivals         the other methods only
"""

from __future__ import annotations

import os

# Before numpy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import itertools
import json
import math
import random
import re
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from joulecast.campaign import run_campaign
from joulecast.estimators import ESTIMATORS, find_estimator
from joulecast.estimators.base import Estimator, Prediction, Target
from joulecast.families import FAMILIES, draw_family, make_family
from joulecast.gp.lognormal import lognormal_interval
from joulecast.measurer import MeasureClock, Measurer, make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import MODES, Network, Observation, Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import SimulatedDevice, make_simulated_device
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

# Settings of the estimators were chosen in worlds 100 to 115, and this script tried there.
FIRST_WORLD = 1000
WORLDS = {"cnn5": 200, "transformer": 25, "lenet5": 25}
# Of those so many for the other methods.
RIVAL_WORLDS = {"cnn5": 40, "transformer": 25, "lenet5": 25}
GUIDED = ("subtractive", "neuralpower")
FROM_NETS = ("flops", "flops-linear")
FEW_S, MANY_S, LONG_S = 15.0, 60.0, 120.0
LEARN_NETS, TEST_NETS = 16, 12
LEVELS = (50, 80, 90, 95, 99)
# Narrow nets, told apart only after the results were seen: one of the first so many widths of their
# name is at most this. Layers then leave most of a tile of the simulated device empty.
NARROW = {"cnn5": (4, 4), "transformer": (1, 12), "lenet5": (2, 1)}


@dataclass
class Shelf:
    """Keeps a campaign's observations in memory."""

    kept: list[Observation] = field(default_factory=list)

    def add_observation(self, observation: Observation) -> None:
        """Keep an observation."""
        self.kept.append(observation)

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        """All that were kept."""
        return self.kept

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """What was learnt is fitted anew for every budget."""


@dataclass(frozen=True)
class Case:
    """A world and what is asked about in it.

    Attributes:
        learn: Nets that profiling is for.
        test: Other nets, that estimates are judged by.
    """

    family: str
    seed: int
    learn: tuple[Network, ...]
    test: tuple[Network, ...]
    setup: Setup

    def target(self, networks: tuple[Network, ...]) -> Target:
        """Profiling for some nets until the budget ends."""
        network = make_family(self.family)
        return Target(network, self.setup, "target", 0.0, networks, MODES)


def make_case(family: str, seed: int) -> Case:
    """Random nets of a family; none is both learnt for and judged."""
    rng = random.Random(f"{family} {seed}")
    nets: dict[Network, None] = {}
    while len(nets) < LEARN_NETS + TEST_NETS:
        nets[draw_family(family, rng.randint)] = None
    drawn = tuple(nets)
    setup = Setup(batch=FAMILIES[family].batch)
    return Case(family, seed, drawn[:LEARN_NETS], drawn[LEARN_NETS:], setup)


def main() -> None:
    """Run every world, then print and keep what was found."""
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    for family in args.families:
        for part in args.parts:
            list_arms, worlds = PARTS[part]
            count = min(worlds[family], args.worlds or worlds[family])
            seeds = range(args.first, args.first + count)
            with ProcessPoolExecutor(args.processes) as pool:
                found = list(pool.map(partial(run_world, list_arms, family), seeds))
            report = sum_up(family, seeds, [row for rows in found for row in rows])
            (args.out / f"{family}-{part}.json").write_text(format_json(report))
            print(make_table(report), flush=True)


def parse_arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--families", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--worlds", type=int, help="at most so many of each family")
    parser.add_argument("--first", type=int, default=FIRST_WORLD, help="seed of the first world")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


# ---------------------------------------------------------------------------------------------
# Running


Arm = tuple[str, Estimator, Sequence[Observation]]
ListArms = Callable[["Case"], Iterator[Arm]]


def run_world(list_arms: ListArms, family: str, seed: int) -> list[Json]:
    """Everything in one world: a row for each way to estimate and each net."""
    # A fit that barely converges is judged like any other.
    warnings.simplefilter("ignore")
    case = make_case(family, seed)
    law = make_simulated_device(seed).true_cost
    truths = [law(Trial(net, case.setup)).energy_j for net in case.test]
    return [row for arm in list_arms(case) for row in judge(*arm, case, truths)]


def list_additive(case: Case) -> Iterator[Arm]:
    """Few and many points, with and without probes; and all of it within one budget."""
    estimator = find_estimator("additive")
    world = make_simulated_device(case.seed)
    with open_rig(world) as rig:
        seen = run_budget(rig, estimator, case.target(case.learn), MANY_S)
        wanted = replace(case.target(case.test), acquisition="probe")
        few = cut_budget(seen, FEW_S)
        probes = {trial.key: rig.time(trial) for trial in estimator.propose(wanted, few).probes}

    def probe(known: Sequence[Observation]) -> list[Observation]:
        missing = estimator.propose(wanted, known).probes
        return [*known, *(probes[trial.key] for trial in missing)]

    yield f"additive, {FEW_S:.0f} s", estimator, few
    yield f"additive, {FEW_S:.0f} s, then probes", estimator, probe(few)
    yield f"additive, {MANY_S:.0f} s", estimator, seen
    yield f"additive, {MANY_S:.0f} s, then probes", estimator, probe(seen)
    shorter = (probe(seen[:count]) for count in range(len(seen), len(few) - 1, -1))
    within = next((known for known in shorter if cost(known) <= MANY_S), None)
    if within is not None:
        yield f"additive, probes within {MANY_S:.0f} s", estimator, within


def list_rivals(case: Case) -> Iterator[Arm]:
    """Other methods with the same seconds, and with twice as many where they choose what to do."""
    for name in (name for name in GUIDED if name in ESTIMATORS):
        estimator = find_estimator(name)
        with open_rig(make_simulated_device(case.seed)) as rig:
            seen = run_budget(rig, estimator, case.target(case.learn), LONG_S)
        yield f"{name}, {MANY_S:.0f} s", estimator, cut_budget(seen, MANY_S)
        yield f"{name}, {LONG_S:.0f} s", estimator, seen
    rng = random.Random(f"whole nets {case.family} {case.seed}")
    with open_rig(make_simulated_device(case.seed)) as rig:
        nets: list[Observation] = []
        while cost(nets) < MANY_S:
            nets.append(rig.measure(Trial(draw_family(case.family, rng.randint), case.setup)))
    for name in (name for name in FROM_NETS if name in ESTIMATORS):
        yield f"{name}, whole nets, {MANY_S:.0f} s", find_estimator(name), nets


PARTS: dict[str, tuple[ListArms, dict[str, int]]] = {
    "intervals": (list_additive, WORLDS),
    "rivals": (list_rivals, RIVAL_WORLDS),
}


def open_rig(world: SimulatedDevice) -> Measurer:
    """A rig in a world; one round of each trial, as many trials as fit."""
    clock = MeasureClock(world.now, world.sleep, world.now)
    runtime, meter = SimulatedRuntime(world, MODES), SimulatedMeter(world)
    return make_measurer(runtime, meter, rounds=1, run=world.name, clock=clock)


def run_budget(
    rig: Measurer, estimator: Estimator, target: Target, seconds: float
) -> list[Observation]:
    """What a campaign measures within a budget."""
    shelf = Shelf()
    run_campaign(rig, shelf, estimator, target, seconds=seconds)
    return shelf.kept


def cut_budget(seen: Sequence[Observation], seconds: float) -> list[Observation]:
    """What the same campaign measures within a smaller budget: it stops as campaigns do."""
    spent_s, new = 0.0, 0
    for count, (one, following) in enumerate(itertools.pairwise(seen), start=1):
        spent_s += one.cost_s
        new += bool(one.trial.network.layers)
        waits = not following.trial.network.layers  # the waiting device belongs to the first point
        if not waits and spent_s + spent_s / new > seconds:
            return list(seen[:count])
    return list(seen)


def cost(seen: Sequence[Observation]) -> float:
    """Device seconds."""
    return sum(one.cost_s for one in seen)


def judge(
    name: str,
    estimator: Estimator,
    seen: Sequence[Observation],
    case: Case,
    truths: Sequence[float],
) -> Iterator[Json]:
    """Estimates of the test nets beside the truth."""
    answer = estimator.fit(seen).predict(case.test, [case.setup] * len(case.test))
    for at, (net, truth_j) in enumerate(zip(case.test, truths, strict=True)):
        yield {
            "arm": name,
            "world": case.seed,
            "net": net.name,
            "seconds": cost(seen),
            "points": sum(bool(one.trial.network.layers) for one in seen),
            **compare(answer, at, truth_j),
        }


def compare(answer: Prediction, at: int, truth_j: float) -> Json:
    """How far one estimate is off, in percent and in its own deviations."""
    mean_j, var = float(answer.energy_j[at]), float(answer.energy_sd_j[at]) ** 2
    ends = [lognormal_interval(mean_j, var, level / 100) for level in LEVELS]
    low, high = ends[LEVELS.index(95)]
    spread = math.sqrt(math.log1p(var / mean_j**2)) if mean_j > 0 else math.inf
    return {
        "error": 100 * (mean_j / truth_j - 1),
        "z": math.log(truth_j / mean_j) / spread if mean_j > 0 else math.inf,
        "held": [low_j <= truth_j <= high_j for low_j, high_j in ends],
        "width": 100 * (high - low) / mean_j if mean_j > 0 else math.inf,
        "doubts": answer.uncertainty_sources[at] if answer.uncertainty_sources else {},
    }


# ---------------------------------------------------------------------------------------------
# Reporting


def sum_up(family: str, seeds: Sequence[int], rows: Sequence[Json]) -> Json:
    """Everything that is kept."""
    arms: dict[str, list[Json]] = {}
    for row in rows:
        arms.setdefault(row["arm"], []).append(row)
    report: Json = {
        "simulated": True,
        "family": family,
        "batch": FAMILIES[family].batch,
        "worlds": [seeds[0], seeds[-1]],
        "nets": TEST_NETS,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "arms": {name: sum_up_arm(found) for name, found in arms.items()},
        "missed": {name: list_missed(found) for name, found in arms.items() if "additive" in name},
        "by_world": {name: list_worlds(found) for name, found in arms.items()},
    }
    return {**report, "narrow": split_narrow(report)}


def sum_up_arm(rows: Sequence[Json]) -> Json:
    """Errors, and how often intervals hold; deviations are over worlds, whose nets are alike."""
    held = [[100.0 * row["held"][at] for row in rows] for at in range(len(LEVELS))]
    inside = [row["held"][LEVELS.index(95)] for row in rows]
    missed = [row for row, good in zip(rows, inside, strict=True) if not good]
    return {
        "nets": len(rows),
        "seconds": round(statistics.fmean(row["seconds"] for row in rows), 1),
        "points": round(statistics.fmean(row["points"] for row in rows), 1),
        "mape_percent": round(statistics.fmean(abs(row["error"]) for row in rows), 3),
        "mape_se": round(cluster(rows, lambda row: abs(row["error"])), 3),
        "bias_percent": round(statistics.fmean(row["error"] for row in rows), 3),
        "coverage_percent": {
            f"{level}": round(statistics.fmean(found), 2)
            for level, found in zip(LEVELS, held, strict=True)
        },
        "coverage95_se": round(cluster(rows, lambda row: 100.0 * row["held"][LEVELS.index(95)]), 2),
        "width95_percent": round(statistics.median(row["width"] for row in rows), 2),
        "missed_too_high_percent": round(
            100 * statistics.fmean(row["error"] > 0 for row in missed), 1
        )
        if missed
        else None,
        "variance_percent": share_doubts(rows),
        "variance_percent_missed": share_doubts(missed),
    }


def cluster(rows: Sequence[Json], value: Callable[[Json], float]) -> float:
    """Standard error of a mean over worlds."""
    worlds: dict[int, list[float]] = {}
    for row in rows:
        worlds.setdefault(row["world"], []).append(value(row))
    means = [statistics.fmean(found) for found in worlds.values()]
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.inf


def share_doubts(rows: Sequence[Json]) -> Json:
    """Where the variance comes from, on average, in percent."""
    words = sorted({word for row in rows for word in row["doubts"]})
    return {
        word: round(100 * statistics.fmean(row["doubts"].get(word, 0.0) for row in rows), 1)
        for word in words
    }


def list_missed(rows: Sequence[Json]) -> list[Json]:
    """Nets outside their 95 % interval: where, by how much, and what was thought to be in doubt."""
    return [
        {
            "world": row["world"],
            "net": row["net"],
            "error": round(row["error"], 1),
            "z": round(row["z"], 2),
            "most_in_doubt": next(iter(row["doubts"]), ""),
        }
        for row in rows
        if not row["held"][LEVELS.index(95)]
    ]


def split_narrow(report: Json) -> Json:
    """Share of narrow nets, and of the others, within the 95 % interval, in percent."""
    family, (first, last) = report["family"], report["worlds"]
    tests = [make_case(family, seed).test for seed in range(first, last + 1)]
    narrow = sum(is_narrow(family, net.name) for nets in tests for net in nets)
    others = sum(map(len, tests)) - narrow
    found: Json = {"nets": narrow}
    for name, missed in report["missed"].items():
        bad = sum(is_narrow(family, row["net"]) for row in missed)
        shares = [1 - bad / max(narrow, 1), 1 - (len(missed) - bad) / max(others, 1)]
        found[name] = [round(100 * share, 1) for share in shares]
    return found


def is_narrow(family: str, name: str) -> bool:
    """Whether a net has very few channels somewhere."""
    places, most = NARROW[family]
    widths = name.partition(":")[2].split(",")[:places]
    return min(map(int, widths)) <= most


def list_worlds(rows: Sequence[Json]) -> list[list[float]]:
    """For each world its seed, MAPE % and how many of its nets lie in the 95 % interval."""
    found = []
    for seed, group in itertools.groupby(rows, key=lambda row: row["world"]):
        nets = list(group)
        mape = statistics.fmean(abs(row["error"]) for row in nets)
        inside = sum(row["held"][LEVELS.index(95)] for row in nets)
        found.append([seed, round(mape, 2), inside])
    return found


def format_json(report: Json) -> str:
    """JSON with a line for each net that was missed, and for each world."""
    text = json.dumps(report, indent=1)
    for inner in (r"\{[^{}\[\]]*\}", r"\[[^{}\[\]]*\]"):
        text = re.sub(inner, lambda found: " ".join(found.group().split()), text)
    return text + "\n"


def make_table(report: Json) -> str:
    """Everything at a glance."""
    first, last = report["worlds"]
    heads = ("points", "seconds", "MAPE %", "+-", "bias %", "in 50 %", "in 95 %", "+-", "width %")
    lines = [
        f"simulated: {report['family']}, worlds {first} to {last}, {report['nets']} nets in each",
        f"{'':34s}" + "".join(f"{head:>9s}" for head in heads),
    ]
    for name, arm in report["arms"].items():
        covered = arm["coverage_percent"]
        numbers = [arm[key] for key in ("points", "seconds", "mape_percent", "mape_se")]
        numbers += [arm["bias_percent"], covered["50"], covered["95"]]
        numbers += [arm["coverage95_se"], arm["width95_percent"]]
        lines.append(f"{name:34s}" + "".join(f"{number:9.1f}" for number in numbers))
    if report["missed"]:
        lines.append(f"in 95 %: {report['narrow']['nets']} narrow nets, and the others")
        for name in report["missed"]:
            narrow, others = report["narrow"][name]
            lines.append(f"{name:34s}{narrow:9.1f}{others:9.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
