"""Measure the coverage of additive's intervals on simulated devices, not on hardware.

On each device a campaign profiles a family for random nets within a budget of simulated device
time; then the estimator predicts other random nets, with and without timing their layers first. The
reference is the device's true cost, without noise. The first points of a campaign are the campaign
of a smaller budget, so each runs once. On some devices the baselines get the same device time, and
twice as much.

    python benchmarks/calibration/run.py                         tables; JSON in results/
    python benchmarks/calibration/run.py --devices 3 --out DIR   fewer devices, JSON elsewhere
    python benchmarks/calibration/run.py --parts rivals          the baselines only
"""

from __future__ import annotations

import os

# Set before NumPy is imported: each process has one core.
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
from joulecast.gp.lognormal import log_variance, lognormal_interval
from joulecast.measurer import MeasureClock, Measurer, make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import MODES, Network, Observation, Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import SimulatedDevice, make_simulated_device
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

# Settings of the estimators were chosen on devices 100 to 115.
FIRST_SEED = 1000
DEVICE_COUNTS = {"cnn5": 200, "transformer": 25, "lenet5": 25}
# Devices that the baselines run on.
BASELINE_DEVICE_COUNTS = {"cnn5": 40, "transformer": 25, "lenet5": 25}
PROPOSING_BASELINES = ("subtractive", "neuralpower")
WHOLE_NET_BASELINES = ("flops", "flops-linear")
FEW_S, MANY_S, LONG_S = 15.0, 60.0, 120.0
LEARN_NETS, TEST_NETS = 16, 12
LEVELS = (50, 80, 90, 95, 99)
# Narrow nets, defined only after the results were seen: for each family, how many of the first
# widths count, and the largest narrow width. Such layers leave most of a tile of the simulated
# device empty.
NARROW = {"cnn5": (4, 4), "transformer": (1, 12), "lenet5": (2, 1)}


@dataclass
class MemoryLog:
    """The observations of a campaign in memory."""

    stored: list[Observation] = field(default_factory=list)

    def add_observation(self, observation: Observation) -> None:
        """Append an observation."""
        self.stored.append(observation)

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        """Return all observations."""
        return self.stored

    def load_fit(self, profile_key: str, estimator: str) -> Json | None:
        """Return nothing: campaigns start afresh."""
        return None

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Discard the fit: estimators are fitted again for every budget."""


@dataclass(frozen=True)
class Case:
    """A simulated device and its nets.

    Attributes:
        learn: Nets that the campaign targets.
        test: Held-out nets.
    """

    family: str
    seed: int
    learn: tuple[Network, ...]
    test: tuple[Network, ...]
    setup: Setup

    def target(self, networks: tuple[Network, ...]) -> Target:
        """Return the target of a campaign that uses its whole budget."""
        network = make_family(self.family)
        return Target(network, self.setup, "target", 0.0, networks, MODES)


def make_case(family: str, seed: int) -> Case:
    """Draw random nets of a family; targets and test nets are distinct."""
    rng = random.Random(f"{family} {seed}")
    nets: dict[Network, None] = {}
    while len(nets) < LEARN_NETS + TEST_NETS:
        nets[draw_family(family, rng.randint)] = None
    drawn = tuple(nets)
    setup = Setup(batch=FAMILIES[family].batch)
    return Case(family, seed, drawn[:LEARN_NETS], drawn[LEARN_NETS:], setup)


def main() -> None:
    """Run every device, then print and write the results."""
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    for family in args.families:
        for part in args.parts:
            list_arms, counts = PARTS[part]
            count = min(counts[family], args.devices or counts[family])
            seeds = range(args.first, args.first + count)
            with ProcessPoolExecutor(args.processes) as pool:
                found = list(pool.map(partial(run_device, list_arms, family), seeds))
            report = summarise(family, seeds, [row for rows in found for row in rows])
            (args.out / f"{family}-{part}.json").write_text(format_json(report))
            print(make_table(report), flush=True)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the defaults are those of the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--families", nargs="+", choices=list(DEVICE_COUNTS), default=list(DEVICE_COUNTS)
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--devices", type=int, help="largest number of devices per family")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="seed of the first device")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


# ---------------------------------------------------------------------------------------------
# Running


Arm = tuple[str, Estimator, Sequence[Observation]]
ListArms = Callable[["Case"], Iterator[Arm]]


def run_device(list_arms: ListArms, family: str, seed: int) -> list[Json]:
    """Run one device; return a row for each arm and net."""
    # Fits that barely converge are scored like any other.
    warnings.simplefilter("ignore")
    case = make_case(family, seed)
    true_cost = make_simulated_device(seed).true_cost
    true_energies_j = [true_cost(Trial(net, case.setup)).energy_j for net in case.test]
    return [row for arm in list_arms(case) for row in score_estimates(*arm, case, true_energies_j)]


def list_additive(case: Case) -> Iterator[Arm]:
    """Yield additive with short and long campaigns, with and without probes."""
    estimator = find_estimator("additive")
    device = make_simulated_device(case.seed)
    with make_simulated_measurer(device) as measurer:
        observations = run_budget(measurer, estimator, case.target(case.learn), MANY_S)
        wanted = replace(case.target(case.test), acquisition="probe")
        few = cut_budget(observations, FEW_S)
        probes = {
            trial.key: measurer.time(trial) for trial in estimator.propose(wanted, few).probes
        }

    def probe(known: Sequence[Observation]) -> list[Observation]:
        missing = estimator.propose(wanted, known).probes
        return [*known, *(probes[trial.key] for trial in missing)]

    yield f"additive, {FEW_S:.0f} s", estimator, few
    yield f"additive, {FEW_S:.0f} s, then probes", estimator, probe(few)
    yield f"additive, {MANY_S:.0f} s", estimator, observations
    yield f"additive, {MANY_S:.0f} s, then probes", estimator, probe(observations)
    shorter = (probe(observations[:count]) for count in range(len(observations), len(few) - 1, -1))
    within = next((known for known in shorter if sum_cost_s(known) <= MANY_S), None)
    if within is not None:
        yield f"additive, probes within {MANY_S:.0f} s", estimator, within


def list_baselines(case: Case) -> Iterator[Arm]:
    """Yield the baselines with the same device time, and with twice as much if they propose."""
    for name in (name for name in PROPOSING_BASELINES if name in ESTIMATORS):
        estimator = find_estimator(name)
        with make_simulated_measurer(make_simulated_device(case.seed)) as measurer:
            observations = run_budget(measurer, estimator, case.target(case.learn), LONG_S)
        yield f"{name}, {MANY_S:.0f} s", estimator, cut_budget(observations, MANY_S)
        yield f"{name}, {LONG_S:.0f} s", estimator, observations
    rng = random.Random(f"whole nets {case.family} {case.seed}")
    with make_simulated_measurer(make_simulated_device(case.seed)) as measurer:
        nets: list[Observation] = []
        while sum_cost_s(nets) < MANY_S:
            nets.append(measurer.measure(Trial(draw_family(case.family, rng.randint), case.setup)))
    for name in (name for name in WHOLE_NET_BASELINES if name in ESTIMATORS):
        yield f"{name}, whole nets, {MANY_S:.0f} s", find_estimator(name), nets


PARTS: dict[str, tuple[ListArms, dict[str, int]]] = {
    "intervals": (list_additive, DEVICE_COUNTS),
    "rivals": (list_baselines, BASELINE_DEVICE_COUNTS),
}


def make_simulated_measurer(device: SimulatedDevice) -> Measurer:
    """Return a measurer of a simulated device with one round per trial."""
    clock = MeasureClock(device.now, device.sleep, device.now)
    runtime, meter = SimulatedRuntime(device, MODES), SimulatedMeter(device)
    return make_measurer(runtime, meter, rounds=1, run=device.name, clock=clock)


def run_budget(
    measurer: Measurer, estimator: Estimator, target: Target, seconds: float
) -> list[Observation]:
    """Return the observations of a campaign within a budget."""
    shelf = MemoryLog()
    run_campaign(measurer, shelf, estimator, target, seconds=seconds)
    return shelf.stored


def cut_budget(observations: Sequence[Observation], seconds: float) -> list[Observation]:
    """Return the observations of the same campaign within a smaller budget."""
    spent_s, new = 0.0, 0
    for count, (one, following) in enumerate(itertools.pairwise(observations), start=1):
        spent_s += one.cost_s
        new += bool(one.trial.network.layers)
        is_idle = not following.trial.network.layers  # the idle device belongs to the first point
        if not is_idle and spent_s + spent_s / new > seconds:
            return list(observations[:count])
    return list(observations)


def sum_cost_s(observations: Sequence[Observation]) -> float:
    """Return the device time of observations."""
    return sum(one.cost_s for one in observations)


def score_estimates(
    name: str,
    estimator: Estimator,
    observations: Sequence[Observation],
    case: Case,
    true_energies_j: Sequence[float],
) -> Iterator[Json]:
    """Yield the estimate of each test net with its true energy."""
    prediction = estimator.fit(observations).predict(case.test, [case.setup] * len(case.test))
    for at, (net, true_j) in enumerate(zip(case.test, true_energies_j, strict=True)):
        yield {
            "arm": name,
            "world": case.seed,
            "net": net.name,
            "seconds": sum_cost_s(observations),
            "points": sum(bool(one.trial.network.layers) for one in observations),
            **compare(prediction, at, true_j),
        }


def compare(prediction: Prediction, at: int, true_j: float) -> Json:
    """Return the error of one estimate in percent and in standard deviations."""
    mean_j, var = float(prediction.energy_j[at]), float(prediction.energy_sd_j[at]) ** 2
    ends = [lognormal_interval(mean_j, var, level / 100) for level in LEVELS]
    low, high = ends[LEVELS.index(95)]
    log_sd = math.sqrt(log_variance(mean_j, var)) if mean_j > 0 else math.inf
    return {
        "error": 100 * (mean_j / true_j - 1),
        "z": math.log(true_j / mean_j) / log_sd if mean_j > 0 else math.inf,
        "held": [low_j <= true_j <= high_j for low_j, high_j in ends],
        "width": 100 * (high - low) / mean_j if mean_j > 0 else math.inf,
        "doubts": prediction.uncertainty_sources[at] if prediction.uncertainty_sources else {},
    }


# ---------------------------------------------------------------------------------------------
# Reporting


def summarise(family: str, seeds: Sequence[int], rows: Sequence[Json]) -> Json:
    """Return the results as JSON values."""
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
        "arms": {name: summarise_arm(found) for name, found in arms.items()},
        "missed": {name: list_missed(found) for name, found in arms.items() if "additive" in name},
        "by_world": {name: list_devices(found) for name, found in arms.items()},
    }
    return {**report, "narrow": split_narrow(report)}


def summarise_arm(rows: Sequence[Json]) -> Json:
    """Return errors and coverage; standard errors are clustered by device."""
    held = [[100.0 * row["held"][at] for row in rows] for at in range(len(LEVELS))]
    inside = [row["held"][LEVELS.index(95)] for row in rows]
    missed = [row for row, good in zip(rows, inside, strict=True) if not good]
    return {
        "nets": len(rows),
        "seconds": round(statistics.fmean(row["seconds"] for row in rows), 1),
        "points": round(statistics.fmean(row["points"] for row in rows), 1),
        "mape_percent": round(statistics.fmean(abs(row["error"]) for row in rows), 3),
        "mape_se": round(compute_standard_error(rows, lambda row: abs(row["error"])), 3),
        "bias_percent": round(statistics.fmean(row["error"] for row in rows), 3),
        "coverage_percent": {
            f"{level}": round(statistics.fmean(found), 2)
            for level, found in zip(LEVELS, held, strict=True)
        },
        "coverage95_se": round(
            compute_standard_error(rows, lambda row: 100.0 * row["held"][LEVELS.index(95)]), 2
        ),
        "width95_percent": round(statistics.median(row["width"] for row in rows), 2),
        "missed_too_high_percent": round(
            100 * statistics.fmean(row["error"] > 0 for row in missed), 1
        )
        if missed
        else None,
        "variance_percent": average_sources(rows),
        "variance_percent_missed": average_sources(missed),
    }


def compute_standard_error(rows: Sequence[Json], value: Callable[[Json], float]) -> float:
    """Return the standard error of a mean, clustered by device."""
    by_device: dict[int, list[float]] = {}
    for row in rows:
        by_device.setdefault(row["world"], []).append(value(row))
    means = [statistics.fmean(found) for found in by_device.values()]
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.inf


def average_sources(rows: Sequence[Json]) -> Json:
    """Return the mean share of each source of variance in percent."""
    sources = sorted({source for row in rows for source in row["doubts"]})
    return {
        source: round(100 * statistics.fmean(row["doubts"].get(source, 0.0) for row in rows), 1)
        for source in sources
    }


def list_missed(rows: Sequence[Json]) -> list[Json]:
    """Return the nets outside their 95 % interval, with the largest source of variance."""
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
    """Return the coverage of narrow nets and of the others in percent."""
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
    """Return whether a net has very few channels somewhere."""
    places, most = NARROW[family]
    widths = name.partition(":")[2].split(",")[:places]
    return min(map(int, widths)) <= most


def list_devices(rows: Sequence[Json]) -> list[list[float]]:
    """Return seed, MAPE and number of nets in the 95 % interval for each device."""
    found = []
    for seed, group in itertools.groupby(rows, key=lambda row: row["world"]):
        nets = list(group)
        mape = statistics.fmean(abs(row["error"]) for row in nets)
        inside = sum(row["held"][LEVELS.index(95)] for row in nets)
        found.append([seed, round(mape, 2), inside])
    return found


def format_json(report: Json) -> str:
    """Return JSON with one line for each missed net and each device."""
    text = json.dumps(report, indent=1)
    for inner in (r"\{[^{}\[\]]*\}", r"\[[^{}\[\]]*\]"):
        text = re.sub(inner, lambda found: " ".join(found.group().split()), text)
    return text + "\n"


def make_table(report: Json) -> str:
    """Return all scores as a table."""
    first, last = report["worlds"]
    heads = ("points", "seconds", "MAPE %", "+-", "bias %", "cov. 50", "cov. 95", "+-", "width %")
    lines = [
        f"simulated: {report['family']}, devices {first} to {last}, {report['nets']} nets on each",
        f"{'':34s}" + "".join(f"{head:>9s}" for head in heads),
    ]
    for name, arm in report["arms"].items():
        covered = arm["coverage_percent"]
        numbers = [arm[key] for key in ("points", "seconds", "mape_percent", "mape_se")]
        numbers += [arm["bias_percent"], covered["50"], covered["95"]]
        numbers += [arm["coverage95_se"], arm["width95_percent"]]
        lines.append(f"{name:34s}" + "".join(f"{number:9.1f}" for number in numbers))
    if report["missed"]:
        lines.append(
            f"coverage of the 95 % interval: {report['narrow']['nets']} narrow nets, and the others"
        )
        for name in report["missed"]:
            narrow, others = report["narrow"][name]
            lines.append(f"{name:34s}{narrow:9.1f}{others:9.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
