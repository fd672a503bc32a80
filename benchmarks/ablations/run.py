"""What each piece of a method is worth, on simulated devices: nothing was measured on hardware.

In each world a campaign profiles ``cnn5`` once for every arm: the method itself, and the method
with one piece replaced. A proposal depends on the observations alone, so the first n points of a
campaign are the campaign of n points: after every fifth point the estimator is fitted anew and
judged by random nets that it never saw. The same seeds give the same figures on every machine.

    python benchmarks/ablations/run.py                     a table; JSON and pictures in results/
    python benchmarks/ablations/run.py --out DIR           JSON and pictures elsewhere
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
# Settings of the estimators were chosen in worlds 100 to 115: none of these.
WORLDS = (1, 2, 3, 4)
TEST_SEED = 2026
FIRST, STEP = 20, 5


# ---------------------------------------------------------------------------------------------
# Arms: a method, and the same method with one piece replaced


@dataclass(frozen=True)
class Arm:
    """One way to profile.

    Attributes:
        make: Gives the estimator for a seed.
        acquisition: What decides where to measure next.
        chance: Whether it depends on the seed, so that one run says little.
    """

    about: str
    make: Callable[[int], Estimator]
    acquisition: str = "energy"
    chance: bool = False


class RandomGuide:
    """Fits and predicts as another estimator does, but measures variants at random widths.

    Every curve of the target is as likely as any other, and so is each of its widths. With
    ``bounds_first`` the bounds of all curves come before, as in the guided method.
    """

    def __init__(self, inner: Estimator, seed: int, bounds_first: bool) -> None:
        self.inner, self.seed, self.bounds_first = inner, seed, bounds_first
        self.name, self.version = inner.name, inner.version

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """A random trial; the same one for the same observations."""
        done = {seen.trial.key for seen in observations}
        points = sum(map(self.inner.uses, observations))
        for trial in self._list_trials(target, len(observations)):
            if trial.key not in done:
                return Proposal(trial, 1.0, "a random point", points)
        return Proposal(None, 1.0, "nothing new was drawn", points)

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
        """Whatever the other uses."""
        return self.inner.uses(observation)

    def fit(self, observations: Sequence[Observation]) -> Fitted:
        """Fit the other estimator."""
        return self.inner.fit(observations)

    def load(self, data: Json) -> Fitted:
        """Restore a fit of the other estimator."""
        return self.inner.load(data)


def make_trial(target: Target, part: Part, widths: Sequence[int]) -> Trial:
    """The variant that shows a part at some widths."""
    return Trial(make_variant(resize_part(part, widths), target.network), target.setup)


# A method joins by a row here, with the arms that make sense for it, first the method itself.
ARMS: dict[str, dict[str, Arm]] = {
    "subtractive": {
        "guided": Arm(
            "the method: bounds, then the largest deviation of joules, Matern 5/2",
            lambda _: SubtractiveEstimator(),
        ),
        "random after bounds": Arm(
            "bounds, then random points",
            lambda seed: RandomGuide(SubtractiveEstimator(), seed, bounds_first=True),
            chance=True,
        ),
        "random": Arm(
            "random points from the start",
            lambda seed: RandomGuide(SubtractiveEstimator(), seed, bounds_first=False),
            chance=True,
        ),
        "RBF kernel": Arm("RBF instead of Matern 5/2", lambda _: SubtractiveEstimator("rbf")),
        "guided by time": Arm(
            "the largest deviation of seconds instead of joules",
            lambda _: SubtractiveEstimator(),
            acquisition="time",
        ),
    },
}
# Each picture: its title, and its lines with the arms that they show.
QUESTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "points": (
        "Guided and random points",
        {"guided": "guided", "random after bounds": "random after bounds", "random": "random"},
    ),
    "kernel": ("Kernels", {"Matern 5/2": "guided", "RBF": "RBF kernel"}),
    "guide": ("What guides", {"energy": "guided", "time": "guided by time"}),
}


def main() -> None:
    """Run every arm in every world, then print and keep what was found."""
    args = parse_arguments()
    arms = ARMS[args.estimator]
    truths = {seed: measure_truths(seed, args.nets) for seed in args.worlds}
    runs: dict[str, list[Json]] = {name: [] for name in arms}
    for name, arm in arms.items():
        for seed in args.worlds:
            for draw in range(args.draws if arm.chance else 1):
                runs[name].append(run_arm(arm, seed, draw, args.points, truths[seed]))
    report = sum_up(args, runs)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{args.estimator}.json").write_text(format_json(report))
    for question in QUESTIONS:
        draw_question(question, report, args.out)
    print(make_table(report))


def parse_arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--estimator", choices=list(ARMS), default="subtractive")
    parser.add_argument("--worlds", type=int, nargs="+", default=list(WORLDS))
    parser.add_argument("--points", type=int, default=70)
    parser.add_argument("--nets", type=int, default=30)
    parser.add_argument("--draws", type=int, default=3, help="runs of each arm that chance decides")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


# ---------------------------------------------------------------------------------------------
# Running


def open_rig(seed: int) -> Measurer:
    """A rig in a fresh copy of a world."""
    world = make_simulated_device(seed)
    clock = MeasureClock(world.now, world.sleep, world.now)
    return make_measurer(
        SimulatedRuntime(world), SimulatedMeter(world), run=f"world {seed}", clock=clock
    )


def measure_truths(seed: int, nets: int) -> list[Observation]:
    """What random members of the family take in a world; every channel count is uniform."""
    rng = random.Random(TEST_SEED)
    setup = Setup(batch=FAMILIES[FAMILY].batch)
    with open_rig(seed) as rig:
        return [rig.measure(Trial(draw_family(FAMILY, rng.randint), setup)) for _ in range(nets)]


def run_arm(arm: Arm, seed: int, draw: int, points: int, truths: Sequence[Observation]) -> Json:
    """One campaign, judged along its way: rows of points, device seconds, MAPE, coverage."""
    setup = Setup(batch=FAMILIES[FAMILY].batch)
    target = Target(make_family(FAMILY), setup, acquisition=arm.acquisition)
    estimator = arm.make(100 * seed + draw)
    with open_rig(seed) as rig, open_store(":memory:") as store:
        done = run_campaign(rig, store, estimator, target, points=points)
        seen = store.load_observations(done.profile_key)
    rows = []
    for count in range(FIRST, done.points + 1, STEP):
        known = take_points(estimator, seen, count)
        judged = judge(estimator, known, truths)
        if judged is not None:
            seconds = sum(one.cost_s for one in known)
            rows.append([count, round(seconds, 1), *(round(number, 3) for number in judged)])
    return {"world": seed, "draw": draw, "stopped": done.stopped, "rows": rows}


def take_points(
    estimator: Estimator, observations: Sequence[Observation], count: int
) -> list[Observation]:
    """The observations of a campaign that ended at so many points."""
    points = itertools.accumulate(int(estimator.uses(seen)) for seen in observations)
    return [seen for seen, point in zip(observations, points, strict=True) if point <= count]


def judge(
    estimator: Estimator, known: Sequence[Observation], truths: Sequence[Observation]
) -> tuple[float, float] | None:
    """MAPE and share of nets within the 95 % interval, in percent; None where nothing is fitted."""
    try:
        fitted = estimator.fit(known)
    except MissingError:
        return None
    nets, setup = [seen.trial.network for seen in truths], truths[0].trial.setup
    answer = fitted.predict(nets, [setup] * len(nets))
    errors, held = [], []
    for seen, mean, sd in zip(truths, answer.energy_j, answer.energy_sd_j, strict=True):
        took = seen.energy_j or 0.0
        low, high = lognormal_interval(float(mean), float(sd) ** 2, 0.95)
        errors.append(abs(float(mean) / took - 1))
        held.append(low <= took <= high)
    return 100 * statistics.fmean(errors), 100 * statistics.fmean(held)


# ---------------------------------------------------------------------------------------------
# Reporting


def sum_up(args: argparse.Namespace, runs: dict[str, list[Json]]) -> Json:
    """Everything that is kept."""
    return {
        "simulated": True,
        "estimator": args.estimator,
        "family": FAMILY,
        "worlds": list(args.worlds),
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
    """JSON with a line for each run."""
    words = json.dumps({**report, "arms": {}}, indent=1)
    arms = [
        f'  {json.dumps(name)}: {{"about": {json.dumps(arm["about"])}, "runs": [\n'
        + ",\n".join(f"   {json.dumps(run)}" for run in arm["runs"])
        + "\n  ]}"
        for name, arm in report["arms"].items()
    ]
    return words.replace('"arms": {}', '"arms": {\n' + ",\n".join(arms) + "\n }") + "\n"


def draw_question(question: str, report: Json, out: Path) -> None:
    """A picture of error against points, if the estimator has its arms."""
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
        f"{report['estimator']}, {report['family']}, {report['nets']} unseen nets in each of "
        f"{len(report['worlds'])} worlds; line: mean of the runs, band: best to worst"
    )
    plot = plot_error_by_budget(lines, caption=Caption(title, about, "simulated"))
    save_svg(plot, out / f"{report['estimator']}-{question}.svg")


def make_table(report: Json) -> str:
    """Mean error of each arm along the way, and how far single runs lie apart at its end."""
    counts = [row[0] for row in next(iter(report["arms"].values()))["runs"][0]["rows"]][::2]
    lines = [
        f"simulated: {report['estimator']}, {report['family']}, {report['nets']} unseen nets in "
        f"each of the worlds {report['worlds']}; MAPE % after so many points",
        f"{'':22s}" + "".join(f"{count:8d}" for count in counts) + "   at the end   in 95 %",
    ]
    for name, arm in report["arms"].items():
        last = [run["rows"][-1] for run in arm["runs"]]
        ends = f"{min(row[2] for row in last):.1f} to {max(row[2] for row in last):.1f}"
        held = f"{statistics.fmean(row[3] for row in last):.0f} %"
        means = "".join(f"{mean_at(arm['runs'], count):>8s}" for count in counts)
        lines.append(f"{name:22s}{means}{ends:>13s}{held:>10s}")
    return "\n".join(lines)


def mean_at(runs: Sequence[Json], count: int) -> str:
    """The mean error of some runs after so many points, if all of them got there."""
    errors = [row[2] for run in runs for row in run["rows"] if row[0] == count]
    return f"{statistics.fmean(errors):.1f}" if len(errors) == len(runs) else "-"


if __name__ == "__main__":
    main()
