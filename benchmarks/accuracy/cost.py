"""Error against device time: what each way of choosing measurements gets out of the same seconds.

    python benchmarks/accuracy/cost.py measure STORE --setting cnn5 --on cuda:0   campaigns
    python benchmarks/accuracy/cost.py judge STORE --setting cnn5                 results/cost.*
    python benchmarks/accuracy/cost.py simulate --worlds 1500-1519      results/cost-simulated.*

A campaign of 160 s is kept for each arm; cut after fewer seconds it is the campaign of a smaller
budget. The truth are the setting's test nets, as measure.py measures them. Device seconds are all
that an arm had the device do: for time probes, those that the cut campaign still lacks. Everything
is kept as it is made; run again, it goes on where it was. ``evaluate_stored`` also takes packed observations.
"""

from __future__ import annotations

import os

# Before numpy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from keeping import read_profiles, write_packed
from report import COST, RESULTS, count_tests, open_book
from settings import OWN, OWN_SECONDS, SETTINGS, Setting

from joulecast.api.measurers import open_measurer
from joulecast.api.options import MeasureOptions
from joulecast.campaign import ObservationLog, find_profile_key, run_campaign
from joulecast.cli.terminal import label_provenance, make_console, print_table
from joulecast.errors import JoulecastError, MeasurementError, MissingError, NetError
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Target
from joulecast.figures import Picture, draw_cost, save_png, save_svg
from joulecast.gp.lognormal import lognormal_interval
from joulecast.measurer import Measurer
from joulecast.records import Observation, Profile, Trial
from joulecast.store import open_store
from joulecast.testing.commits import find_commit
from joulecast.uses.evaluate import (
    EstimatorScore,
    NetEstimate,
    NetResult,
    evaluate,
    name_evaluation,
)
from joulecast.uses.evaluate.campaign_budget import BudgetedEstimator, cut_to_budget, sum_work_s
from joulecast.uses.evaluate.evaluation_log import PASSES, CampaignObservations, EvaluationLog
from joulecast.uses.evaluate.evaluation_plan import EvaluationNets, draw_nets
from joulecast.uses.evaluate.measured_nets import summarise_test_nets
from joulecast.uses.evaluate.scores import compute_noise_percent, score_estimator

Json = dict[str, Any]

BUDGETS_S = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
# Whoever is off further after a few seconds has not begun to know anything.
CEILING_PERCENT = 200.0
PROBES, OWN_PROBES = f"{COST}.probe", "additive.probe"


@dataclass(frozen=True)
class Arm:
    """One way to spend device time.

    Attributes:
        name: At the end of its line.
        acquisition: What decides where to measure next.
        probed: Whether the seconds of all layers of the test nets are probed on top.
        kin: The estimator whose colour it has.
    """

    name: str
    estimator: str
    acquisition: str
    probed: bool = False
    kin: str = ""

    @property
    def who(self) -> str:
        """Whose campaign it is, in run tags; probes have none of their own."""
        return f"{COST}.{self.estimator}-{self.acquisition}"


ARMS = (
    Arm("subtractive (the paper)", "subtractive", "energy", kin="subtractive"),
    Arm("additive, the paper's rule", "additive", "energy"),
    Arm("additive, aimed", "additive", "target", kin="additive-noprobe"),
    Arm("additive, aimed, layers timed", "additive", "target", probed=True, kin="additive"),
)


def main() -> None:
    """Measure, judge or simulate."""
    args = parse_arguments()
    try:
        args.work(args)
    except JoulecastError as error:
        sys.exit(str(error))


def parse_arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(required=True)
    measure = parts.add_parser("measure", help="campaigns of all arms, into a store")
    measure.add_argument("--on", default="cuda:0")
    measure.add_argument("--until", type=float, default=1e9, help="seconds, then it stops")
    measure.set_defaults(work=measure_store)
    evaluate_stored = parts.add_parser("judge", help="from a store to numbers and a picture")
    evaluate_stored.set_defaults(work=judge_store)
    for part in (measure, evaluate_stored):
        part.add_argument("store", type=Path)
    simulate = parts.add_parser("simulate", help="the same in simulated worlds")
    simulate.add_argument("--worlds", default="1500-1519", type=parse_worlds)
    simulate.add_argument("--processes", type=int, default=2)
    simulate.set_defaults(work=simulate_worlds)
    for part in (measure, evaluate_stored, simulate):
        part.add_argument("--setting", default="cnn5", choices=[one.name for one in SETTINGS])
        part.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def parse_worlds(words: str) -> range:
    """Seeds of worlds, first and last."""
    first, _, last = words.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(f"{words!r} names no worlds: give them like 1500-1519")
    return range(int(first), int(last or first) + 1)


def find_setting(name: str) -> Setting:
    """A setting by its name."""
    return next(one for one in SETTINGS if one.name == name)


# ---------------------------------------------------------------------------------------------
# Measuring


def measure_store(args: argparse.Namespace) -> None:
    """Whatever a store lacks."""
    with open_measurer(MeasureOptions(args.on, rounds=1)) as rig, open_store(args.store) as store:
        measure_setting(rig, store, find_setting(args.setting), args.until)


def measure_setting(
    rig: Measurer, store: ObservationLog, setting: Setting, until_s: float = 1e9
) -> None:
    """Test nets, a campaign for each arm, and time probes of the test nets' layers."""
    plan, key = setting.plan(OWN, OWN_SECONDS), find_profile_key(rig)
    draw, name = draw_nets(plan), name_evaluation(plan, key)
    started_s = rig.now()
    if summarise_test_nets(EvaluationLog(name, store.observations(key)), plan, draw)[1]:
        evaluate(rig, store, plan)
        say(f"{rig.now() - started_s:.0f} s: test nets done")
    book = EvaluationLog(name, store.observations(key), store.add_observation)
    target = replace(draw.make_target(setting.setup, draw.campaign), modes=rig.runtime.modes)
    with suppress(MeasurementError, NetError):
        # The first load of a run, on a cold device, is let pass.
        rig.time(Trial(draw.original, setting.setup))
    for arm in (one for one in ARMS if not one.probed):
        left_s = until_s - (rig.now() - started_s)
        if left_s <= 0:
            say(f"{until_s:.0f} s are over: {arm.who} and what follows is left for later")
            return
        # To the end of its seconds, however sure the estimator is by then.
        aimed = replace(target, acquisition=arm.acquisition, uncertainty_share=0.0)
        run_arm(rig, book, arm, aimed, left_s)
        say(f"{rig.now() - started_s:.0f} s: {arm.who}, {sum_work_s(book.list_for(arm.who)):.0f} s")
    probe_layers(rig, book, setting, draw)


def run_arm(rig: Measurer, book: EvaluationLog, arm: Arm, target: Target, left_s: float) -> None:
    """The rest of an arm's campaign, as far as the time that is left goes."""
    method = BudgetedEstimator(find_estimator(arm.estimator), BUDGETS_S[-1])
    if method.propose(target, book.list_for(arm.who)).trial is None:
        return
    tagged = replace(rig, run=book.tag(arm.who))
    try:
        result = run_campaign(
            tagged, CampaignObservations(book, arm.who), method, target, seconds=left_s
        )
        say(f"{arm.who}: {result.stopped}")
        for words in result.skipped:
            say(f"{arm.who} went without {words}")
    except MissingError as error:
        say(f"{arm.who}: {error}")


def probe_layers(
    rig: Measurer, book: EvaluationLog, setting: Setting, draw: EvaluationNets
) -> None:
    """Seconds of every distinct layer of the test nets that nobody has timed yet."""
    target = draw.make_target(setting.setup, draw.test)
    tests = replace(target, modes=rig.runtime.modes, acquisition="probe")
    known = {seen.trial.key for seen in list_probes(book)}
    for trial in find_estimator("additive").propose(tests, ()).probes:
        if trial.key not in known:
            try:
                book.add(replace(rig, run=book.tag(PROBES)).time(trial))
            except (MeasurementError, NetError) as error:
                say(f"a time probe: {error}")


def list_probes(book: EvaluationLog) -> list[Observation]:
    """Time probes of layers of the test nets, of whichever part of the benchmark."""
    found = (*book.list_for(OWN_PROBES), *book.list_for(PROBES))
    return [seen for seen in found if seen.energy_j is None]


def say(words: str) -> None:
    """Progress, on stderr."""
    print(words, file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------
# Judging


def judge_cost(profile: Profile, setting: Setting) -> Json:
    """For each arm its score at each budget.

    Raises:
        MissingError: No test net or no campaign is kept.
    """
    book = open_book(profile, setting)
    plan = setting.plan(OWN, OWN_SECONDS)
    draw = draw_nets(plan)
    nets, missing = summarise_test_nets(book, plan, draw)
    seen = list_kept(book)
    if not nets or not any(book.list_for(arm.who) for arm in ARMS):
        raise MissingError(f"nothing is kept of {setting.name}: run cost.py measure first")
    arms = {arm.name: judge_arm(book, setting, draw, nets, arm) for arm in ARMS}
    return {
        "date": datetime.fromtimestamp(max(s.taken_at_s for s in seen), UTC).date().isoformat(),
        "device": profile.device.to_dict(),
        "provenance": profile.provenance,
        "noise_percent": compute_noise_percent(nets),
        "nets": len(nets),
        "missing": missing,
        "arms": arms,
    }


def judge_arm(
    book: EvaluationLog, setting: Setting, draw: EvaluationNets, nets: Sequence[NetResult], arm: Arm
) -> list[Json]:
    """A point for each budget that is enough to learn anything from."""
    points = []
    for budget_s, campaign in cut_campaign(book.list_for(arm.who)).items():
        probes = find_probes(book, setting, draw, campaign) if arm.probed else ()
        try:
            score = score_lesson(arm, setting, draw, nets, (*campaign, *probes))
        except MissingError:
            continue
        words = ("mape", "bias", "p90", "max", "coverage95", "width95")
        numbers = {f"{word}_percent": getattr(score, f"{word}_percent") for word in words}
        points.append(
            {
                "budget_s": budget_s,
                "device_seconds": score.device_seconds,
                "observations": len(campaign),
                "probes": len(probes),
                **numbers,
            }
        )
    return points


def cut_campaign(campaign: Sequence[Observation]) -> dict[float, tuple[Observation, ...]]:
    """What a campaign had seen at each budget; nothing where there is no campaign."""
    return (
        {budget_s: cut_to_budget(campaign, budget_s) for budget_s in BUDGETS_S} if campaign else {}
    )


def find_probes(
    book: EvaluationLog, setting: Setting, draw: EvaluationNets, campaign: Sequence[Observation]
) -> tuple[Observation, ...]:
    """Probes of layers of the test nets that a campaign has not timed itself."""
    kept = list_probes(book)
    modes = tuple(dict.fromkeys(["eager", *(seen.trial.execution.mode for seen in kept)]))
    target = draw.make_target(setting.setup, draw.test)
    tests = replace(target, modes=modes, acquisition="probe")
    wanted = {trial.key for trial in find_estimator("additive").propose(tests, campaign).probes}
    return tuple(seen for seen in kept if seen.trial.key in wanted)


def score_lesson(
    arm: Arm,
    setting: Setting,
    draw: EvaluationNets,
    nets: Sequence[NetResult],
    lesson: Sequence[Observation],
) -> EstimatorScore:
    """How good an arm is after what it has seen; a test net that happens to be there is not."""
    method = find_estimator(arm.estimator)
    learnt = [seen for seen in lesson if seen.trial.network not in draw.test]
    by_name = {network.name: network for network in draw.test}
    networks = [by_name[net.name] for net in nets]
    said = method.fit(learnt).predict(networks, [setting.setup] * len(networks))
    answered = []
    for net, mean, sd, seconds in zip(
        nets, said.energy_j, said.energy_sd_j, said.duration_s, strict=True
    ):
        ends = [lognormal_interval(float(mean), float(sd) ** 2, level) for level in (0.5, 0.95)]
        answer = NetEstimate(float(mean), ends[0], ends[1], float(seconds))
        answered.append(replace(net, estimates={arm.name: answer}))
    spent_s = sum(seen.cost_s for seen in lesson)
    return score_estimator(arm.name, answered, device_seconds=spent_s, points=len(learnt))


def judge_store(args: argparse.Namespace) -> None:
    """From a store, or packed observations, to results."""
    setting = find_setting(args.setting)
    profiles = read_profiles(args.store)
    if not profiles:
        raise MissingError(f"{args.store} holds nothing yet: run cost.py measure first")
    profile = max(profiles, key=lambda one: count_tests(one, setting))
    result = {
        "setting": setting.name,
        **judge_cost(profile, setting),
        "commit": find_commit(__file__),
    }
    seen = list_kept(open_book(profile, setting))
    args.out.mkdir(parents=True, exist_ok=True)
    write_packed(
        replace(profile, observations=seen, fits={}), args.out / "observations-cost.json.gz"
    )
    write_result(args.out, "cost", result)


def list_kept(book: EvaluationLog) -> tuple[Observation, ...]:
    """All that a result rests on."""
    tags = {book.tag(who) for who in (*PASSES, OWN_PROBES)}
    aside = book.tag(f"{COST}.")
    return tuple(s for s in book.list_all() if s.run in tags or s.run.startswith(aside))


# ---------------------------------------------------------------------------------------------
# Simulated worlds


def simulate_worlds(args: argparse.Namespace) -> None:
    """The same in worlds whose laws no estimator knows, with nets of their own."""
    setting = find_setting(args.setting)
    with ProcessPoolExecutor(args.processes) as pool:
        found = list(pool.map(partial(simulate_world, setting), args.worlds))
    result = {
        "setting": setting.name,
        "provenance": "simulated",
        "device": {"name": f"{len(found)} simulated devices"},
        "date": datetime.now(UTC).date().isoformat(),
        "worlds": list(args.worlds),
        "nets": sum(one["nets"] for one in found),
        "noise_percent": fmean(one["noise_percent"] for one in found),
        "arms": {
            arm.name: average_worlds([one["arms"][arm.name] for one in found]) for arm in ARMS
        },
        "commit": find_commit(__file__),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    write_result(args.out, "cost-simulated", result)


def simulate_world(setting: Setting, seed: int) -> Json:
    """One world, with the test nets of its own seed."""
    own = replace(setting, seed=seed)
    with (
        open_measurer(MeasureOptions(f"simulated:{seed}", rounds=1)) as rig,
        open_store(":memory:") as store,
    ):
        measure_setting(rig, store, own)
        return judge_cost(store.profile(find_profile_key(rig)), own)


def average_worlds(worlds: Sequence[Sequence[Mapping[str, float]]]) -> list[Json]:
    """Means over worlds, at budgets that were enough in all of them."""
    by_budget = [{point["budget_s"]: point for point in points} for points in worlds]
    return [
        {
            name: fmean(world[budget_s][name] for world in by_budget)
            for name in by_budget[0][budget_s]
        }
        for budget_s in BUDGETS_S
        if all(budget_s in world for world in by_budget)
    ]


# ---------------------------------------------------------------------------------------------
# For people


def write_result(out: Path, name: str, result: Json) -> None:
    """JSON, a table and pictures."""
    (out / f"{name}.json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    picture = draw_result(result)
    save_svg(picture, out / f"{name}.svg")
    save_png(picture, out / f"{name}.png")
    rows = [
        [arm, f"{point['budget_s']:.0f}", *(f"{point[word]:.1f}" for word in _WORDS)]
        for arm, points in result["arms"].items()
        for point in points
    ]
    basis = label_provenance(result["provenance"])
    title = f"{result['setting']} on {result['device']['name']}{basis}, {result['nets']} nets"
    heads = ("arm", ">budget s", ">device s", ">error", ">bias", ">p90", ">in 95 %", ">width")
    print_table(make_console(), heads, rows, title=title)


_WORDS = (
    "device_seconds",
    "mape_percent",
    "bias_percent",
    "p90_percent",
    "coverage95_percent",
    "width95_percent",
)


def draw_result(result: Json) -> Picture:
    """A line for each arm, the noise of measuring below."""
    setting = find_setting(result["setting"])
    setup = setting.setup
    shape = "x".join(map(str, setting.input_shape))
    trained = f"batch {setup.batch}, {shape}, {setup.precision}, {setup.optimizer}"
    lines = {name: trim(points) for name, points in result["arms"].items() if points}
    over = any(error > CEILING_PERCENT for line in lines.values() for _, error in line)
    cut = f"; errors above {CEILING_PERCENT:.0f} % are not shown" if over else ""
    return draw_cost(
        lines,
        floor_percent=result["noise_percent"],
        ceiling_percent=CEILING_PERCENT,
        kin={arm.name: arm.kin for arm in ARMS if arm.kin},
        error="mean absolute error of a step's energy",
        title=f"What device time buys: {setting.family} on {result['device']['name']}",
        about=f"{result['nets']} random nets that no method has run; {trained}{cut}",
        provenance=result["provenance"],
    )


def trim(points: Iterable[Json]) -> list[tuple[float, float]]:
    """Seconds and errors; a campaign that ended early has no more points after its last."""
    places = [(point["device_seconds"], point["mape_percent"]) for point in points]
    return list(dict.fromkeys(places))


if __name__ == "__main__":
    main()
