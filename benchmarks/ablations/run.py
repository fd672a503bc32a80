"""Ablate the parts of an estimator on simulated devices; nothing is measured on hardware.

On each device a campaign profiles ``cnn5`` once for every arm: the method itself, and the method
with one part replaced. A proposal depends on the observations alone, so the first n points of a
campaign are the campaign of n points: after every fifth point the estimator is fitted again and
scored on held-out random nets. Equal seeds give equal figures on every machine.

    python benchmarks/ablations/run.py                     a table; JSON and plots in results/
    python benchmarks/ablations/run.py --out DIR           JSON and plots elsewhere
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from joulecast.campaign import run_campaign
from joulecast.errors import MissingError
from joulecast.estimators.base import Estimator, Fitted, Proposal, Target
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.families import FAMILIES, draw_family, make_family
from joulecast.figures import Caption, plot_error_by_budget, save_svg
from joulecast.gp.lognormal import lognormal_interval
from joulecast.measurer import MeasureClock, Measurer, make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Observation, Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store
from joulecast.testing.commits import find_commit
from joulecast.variants import Part, make_variant, plan_curves, resize_part

Json = dict[str, Any]

FAMILY = "cnn5"
# Settings of the estimators were chosen on devices 100 to 115, none of these.
DEVICE_SEEDS = (1, 2, 3, 4)
TEST_SEED = 2026
FIRST, STEP = 20, 5


# ---------------------------------------------------------------------------------------------
# Arms: a method, and the same method with one part replaced


@dataclass(frozen=True)
class Arm:
    """A way to profile.

    Attributes:
        make: Returns the estimator for a seed.
        acquisition: Rule that chooses the next measurement.
        is_random: Whether it depends on the seed, so that several runs are needed.
    """

    about: str
    make: Callable[[int], Estimator]
    acquisition: str = "energy"
    is_random: bool = False


class RandomAcquisition:
    """An estimator that measures variants at random widths.

    Every curve of the target is equally likely, and so is each of its widths. With
    ``bounds_first`` the bounds of all curves are measured first, as in the paper's method.
    """

    def __init__(self, inner: Estimator, seed: int, bounds_first: bool) -> None:
        self.inner, self.seed, self.bounds_first = inner, seed, bounds_first
        self.name, self.version = inner.name, inner.version
        self.uses_anchors = inner.uses_anchors

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return a random trial; equal observations give equal trials."""
        done = {observation.trial.key for observation in observations}
        points = sum(map(self.inner.uses, observations))
        for trial in self._list_trials(target, len(observations)):
            if trial.key not in done:
                return Proposal(trial, 1.0, "a random point", points)
        return Proposal(None, 1.0, "no new trial was drawn", points)

    def _list_trials(self, target: Target, count: int) -> Iterator[Trial]:
        ranges = plan_curves(target.network)
        if self.bounds_first:
            for found in ranges:
                for widths in itertools.product(*zip(found.lows, found.highs, strict=True)):
                    yield make_trial(target, found.part, widths)
        rng = random.Random(f"{self.seed} {count}")
        for _ in range(1000):
            found = rng.choice(ranges)
            limits = zip(found.lows, found.highs, found.steps, strict=True)
            widths = tuple(rng.randrange(low, high + 1, step) for low, high, step in limits)
            yield make_trial(target, found.part, widths)

    def uses(self, observation: Observation) -> bool:
        """Return whether the inner estimator can learn from an observation."""
        return self.inner.uses(observation)

    def fit(self, observations: Sequence[Observation], fitted: Fitted | None = None) -> Fitted:
        """Fit the inner estimator."""
        return self.inner.fit(observations)

    def load(self, data: Json) -> Fitted:
        """Restore a fit of the inner estimator."""
        return self.inner.load(data)


def make_trial(target: Target, part: Part, widths: Sequence[int]) -> Trial:
    """Return the variant that contains a part at some widths."""
    return Trial(make_variant(resize_part(part, widths), target.network), target.setup)


# Arms by estimator; the first one is the method itself.
ARMS: dict[str, dict[str, Arm]] = {
    "subtractive": {
        "guided": Arm(
            "the method: bounds, then the largest deviation of energy, Matern 5/2",
            lambda _: SubtractiveEstimator(),
        ),
        "random after bounds": Arm(
            "bounds, then random points",
            lambda seed: RandomAcquisition(SubtractiveEstimator(), seed, bounds_first=True),
            is_random=True,
        ),
        "random": Arm(
            "random points from the start",
            lambda seed: RandomAcquisition(SubtractiveEstimator(), seed, bounds_first=False),
            is_random=True,
        ),
        "RBF kernel": Arm("RBF instead of Matern 5/2", lambda _: SubtractiveEstimator("rbf")),
        "guided by time": Arm(
            "the largest deviation of duration instead of energy",
            lambda _: SubtractiveEstimator(),
            acquisition="time",
        ),
    },
}
# Each plot: its title, and its lines with the arms that they show.
QUESTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "points": (
        "Guided and random points",
        {"guided": "guided", "random after bounds": "random after bounds", "random": "random"},
    ),
    "kernel": ("Kernels", {"Matern 5/2": "guided", "RBF": "RBF kernel"}),
    "guide": ("Acquisition by energy and by time", {"energy": "guided", "time": "guided by time"}),
}


def main() -> None:
    """Run every arm on every device, then print and write the results."""
    args = parse_arguments()
    arms = ARMS[args.estimator]
    test_observations = {seed: measure_test_nets(seed, args.nets) for seed in args.seeds}
    runs: dict[str, list[Json]] = {name: [] for name in arms}
    for name, arm in arms.items():
        for seed in args.seeds:
            for draw in range(args.draws if arm.is_random else 1):
                runs[name].append(run_arm(arm, seed, draw, args.points, test_observations[seed]))
    report = summarise(args, runs)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{args.estimator}.json").write_text(format_json(report))
    for question in QUESTIONS:
        plot_question(question, report, args.out)
    print(make_table(report))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the defaults are those of the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--estimator", choices=list(ARMS), default="subtractive")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(DEVICE_SEEDS))
    parser.add_argument("--points", type=int, default=70)
    parser.add_argument("--nets", type=int, default=30)
    parser.add_argument("--draws", type=int, default=3, help="runs of each random arm")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


# ---------------------------------------------------------------------------------------------
# Running


def make_simulated_measurer(seed: int) -> Measurer:
    """Return a measurer of a new simulated device."""
    device = make_simulated_device(seed)
    clock = MeasureClock(device.now, device.sleep, device.now)
    return make_measurer(
        SimulatedRuntime(device), SimulatedMeter(device), run=f"world {seed}", clock=clock
    )


def measure_test_nets(seed: int, nets: int) -> list[Observation]:
    """Measure random nets of the family; every channel count is uniform."""
    rng = random.Random(TEST_SEED)
    setup = Setup(batch=FAMILIES[FAMILY].batch)
    with make_simulated_measurer(seed) as measurer:
        return [
            measurer.measure(Trial(draw_family(FAMILY, rng.randint), setup)) for _ in range(nets)
        ]


def run_arm(
    arm: Arm, seed: int, draw: int, points: int, test_observations: Sequence[Observation]
) -> Json:
    """Run one campaign; return rows of points, device time, MAPE and coverage."""
    setup = Setup(batch=FAMILIES[FAMILY].batch)
    target = Target(make_family(FAMILY), setup, acquisition=arm.acquisition)
    estimator = arm.make(100 * seed + draw)
    with make_simulated_measurer(seed) as measurer, open_store(":memory:") as store:
        done = run_campaign(measurer, store, estimator, target, points=points)
        observations = store.load_observations(done.profile_key)
    rows = []
    for count in range(FIRST, done.points + 1, STEP):
        known = take_points(estimator, observations, count)
        scores = score(estimator, known, test_observations)
        if scores is not None:
            seconds = sum(one.cost_s for one in known)
            rows.append([count, round(seconds, 1), *(round(number, 3) for number in scores)])
    return {"world": seed, "draw": draw, "stopped": done.stopped, "rows": rows}


def take_points(
    estimator: Estimator, observations: Sequence[Observation], count: int
) -> list[Observation]:
    """Return the observations of a campaign that ended at ``count`` points."""
    points = itertools.accumulate(int(estimator.uses(observation)) for observation in observations)
    return [
        observation
        for observation, point in zip(observations, points, strict=True)
        if point <= count
    ]


def score(
    estimator: Estimator, known: Sequence[Observation], test_observations: Sequence[Observation]
) -> tuple[float, float] | None:
    """Return MAPE and coverage of the 95 % interval in percent; None if there is no fit."""
    try:
        fitted = estimator.fit(known)
    except MissingError:
        return None
    nets, setup = (
        [observation.trial.network for observation in test_observations],
        test_observations[0].trial.setup,
    )
    answer = fitted.predict(nets, [setup] * len(nets))
    errors, inside = [], []
    for observation, mean, sd in zip(
        test_observations, answer.energy_j, answer.energy_sd_j, strict=True
    ):
        measured_j = observation.energy_j or 0.0
        low, high = lognormal_interval(float(mean), float(sd) ** 2, 0.95)
        errors.append(abs(float(mean) / measured_j - 1))
        inside.append(low <= measured_j <= high)
    return 100 * statistics.fmean(errors), 100 * statistics.fmean(inside)


# ---------------------------------------------------------------------------------------------
# Reporting


def summarise(args: argparse.Namespace, runs: dict[str, list[Json]]) -> Json:
    """Return the results as JSON values."""
    return {
        "simulated": True,
        "estimator": args.estimator,
        "family": FAMILY,
        "worlds": list(args.seeds),
        "nets": args.nets,
        "points": args.points,
        "seeds": {"test_nets": TEST_SEED},
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "columns": ["points", "device_seconds", "mape_percent", "coverage95_percent"],
        "arms": {
            name: {"about": ARMS[args.estimator][name].about, "runs": found}
            for name, found in runs.items()
        },
    }


def format_json(report: Json) -> str:
    """Return JSON with one line for each run."""
    text = json.dumps({**report, "arms": {}}, indent=1)
    arms = [
        f'  {json.dumps(name)}: {{"about": {json.dumps(arm["about"])}, "runs": [\n'
        + ",\n".join(f"   {json.dumps(run)}" for run in arm["runs"])
        + "\n  ]}"
        for name, arm in report["arms"].items()
    ]
    return text.replace('"arms": {}', '"arms": {\n' + ",\n".join(arms) + "\n }") + "\n"


def plot_question(question: str, report: Json, out: Path) -> None:
    """Plot error against points, if the estimator has the arms."""
    title, names = QUESTIONS[question]
    arms = report["arms"]
    lines = {
        name: [[(row[0], row[2]) for row in run["rows"]] for run in arms[arm]["runs"]]
        for name, arm in names.items()
        if arm in arms
    }
    if len(lines) < 2:
        return
    about = (
        f"{report['estimator']}, {report['family']}, {report['nets']} held-out nets on each of "
        f"{len(report['worlds'])} devices; line: mean of the runs, band: best to worst"
    )
    plot = plot_error_by_budget(lines, caption=Caption(title, about, "simulated"))
    save_svg(plot, out / f"{report['estimator']}-{question}.svg")


def make_table(report: Json) -> str:
    """Return the mean error of each arm by points, and the range of single runs at the end."""
    counts = [row[0] for row in next(iter(report["arms"].values()))["runs"][0]["rows"]][::2]
    lines = [
        f"simulated: {report['estimator']}, {report['family']}, {report['nets']} held-out nets on "
        f"each of the devices {report['worlds']}; MAPE in percent by points",
        f"{'':22s}" + "".join(f"{count:8d}" for count in counts) + "   at the end  coverage",
    ]
    for name, arm in report["arms"].items():
        last = [run["rows"][-1] for run in arm["runs"]]
        ends = f"{min(row[2] for row in last):.1f} to {max(row[2] for row in last):.1f}"
        inside = f"{statistics.fmean(row[3] for row in last):.0f} %"
        means = "".join(f"{mean_at(arm['runs'], count):>8s}" for count in counts)
        lines.append(f"{name:22s}{means}{ends:>13s}{inside:>10s}")
    return "\n".join(lines)


def mean_at(runs: Sequence[Json], count: int) -> str:
    """Return the mean error of some runs at ``count`` points, if all of them have it."""
    errors = [row[2] for run in runs for row in run["rows"] if row[0] == count]
    return f"{statistics.fmean(errors):.1f}" if len(errors) == len(runs) else "-"


if __name__ == "__main__":
    main()
