"""Plot error against device time for each way of choosing measurements.

    python benchmarks/accuracy/cost.py measure STORE --setting cnn5 --on cuda:0   campaigns
    python benchmarks/accuracy/cost.py score STORE --setting cnn5                 results/cost.*
    python benchmarks/accuracy/cost.py simulate --seeds 1500-1519       results/cost-simulated.*

Each arm has one campaign of 160 s; its first seconds are the campaign of a smaller budget. The
reference is the setting's test nets, measured by measure.py. The device time of an arm includes the
time probes that the cut campaign still lacks. Every observation is stored at once, and the same
command resumes an interrupted run. ``score`` also reads packed observations.
"""

from __future__ import annotations

import os

# Set before NumPy is imported: each process has one core.
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

from observation_files import read_profiles, write_packed
from report import COST, RESULTS, count_tests, open_log
from settings import OWN, OWN_SECONDS, SETTINGS, Setting

from joulecast.campaign import ObservationLog, find_profile_key, run_campaign
from joulecast.cli.terminal import label_provenance, make_console, print_table
from joulecast.errors import JoulecastError, MeasurementError, MissingError, NetError
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Target
from joulecast.features.evaluate import EstimatorScore, NetEstimate, NetResult
from joulecast.features.evaluation import (
    PASSES,
    BudgetedEstimator,
    CampaignObservations,
    EvaluationLog,
    EvaluationNets,
    compute_noise_percent,
    cut_to_budget,
    draw_nets,
    name_evaluation,
    score_estimator,
    sum_work_s,
    summarise_test_nets,
)
from joulecast.features.evaluation_run import measure_and_evaluate
from joulecast.features.measurers import open_measurer
from joulecast.features.options import MeasureOptions
from joulecast.figures import Caption, CostPlotOptions, Plot, plot_error_by_cost, save_png, save_svg
from joulecast.gp.lognormal import lognormal_interval
from joulecast.measurer import Measurer
from joulecast.records import Observation, Profile, Trial
from joulecast.store import open_store
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

BUDGETS_S = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
# Errors above this are not drawn: after a few seconds some arms cannot estimate yet.
CEILING_PERCENT = 200.0
PROBE_ROLE, OWN_PROBE_ROLE = f"{COST}.probe", "additive.probe"


@dataclass(frozen=True)
class Arm:
    """A way to spend device time.

    Attributes:
        name: Label of its line.
        acquisition: Rule that chooses the next measurement.
        probed: Whether all layers of the test nets are timed as well.
        colour_of: Estimator whose colour the line has.
    """

    name: str
    estimator: str
    acquisition: str
    probed: bool = False
    colour_of: str = ""

    @property
    def role(self) -> str:
        """Role of its campaign in run tags; arms that differ only in probes share it."""
        return f"{COST}.{self.estimator}-{self.acquisition}"


ARMS = (
    Arm("subtractive (the paper)", "subtractive", "energy", colour_of="subtractive"),
    Arm("additive, the paper's rule", "additive", "energy"),
    Arm("additive, aimed", "additive", "target", colour_of="additive-noprobe"),
    Arm("additive, aimed, layers timed", "additive", "target", probed=True, colour_of="additive"),
)


def main() -> None:
    """Measure, score or simulate."""
    args = parse_arguments()
    try:
        args.work(args)
    except JoulecastError as error:
        sys.exit(str(error))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the defaults are those of the published run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(required=True)
    measure = parts.add_parser("measure", help="run the campaigns of all arms")
    measure.add_argument("--on", default="cuda:0")
    measure.add_argument("--until", type=float, default=1e9, help="stop after this many seconds")
    measure.set_defaults(work=measure_store)
    score = parts.add_parser("score", help="write scores and a plot from a store")
    score.set_defaults(work=score_store)
    for part in (measure, score):
        part.add_argument("store", type=Path)
    simulate = parts.add_parser("simulate", help="do the same on simulated devices")
    simulate.add_argument("--seeds", default="1500-1519", type=parse_seeds)
    simulate.add_argument("--processes", type=int, default=2)
    simulate.set_defaults(work=simulate_devices)
    for part in (measure, score, simulate):
        part.add_argument("--setting", default="cnn5", choices=[one.name for one in SETTINGS])
        part.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def parse_seeds(text: str) -> range:
    """Return the seeds from the first to the last."""
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of seeds: give one like 1500-1519"
        )
    return range(int(first), int(last or first) + 1)


def find_setting(name: str) -> Setting:
    """Return a setting by its name."""
    return next(one for one in SETTINGS if one.name == name)


# ---------------------------------------------------------------------------------------------
# Measuring


def measure_store(args: argparse.Namespace) -> None:
    """Measure what a store lacks."""
    with (
        open_measurer(MeasureOptions(args.on, rounds=1)) as measurer,
        open_store(args.store) as store,
    ):
        measure_setting(measurer, store, find_setting(args.setting), args.until)


def measure_setting(
    measurer: Measurer, store: ObservationLog, setting: Setting, until_s: float = 1e9
) -> None:
    """Measure the test nets, run each arm's campaign and time the layers of the test nets."""
    plan, key = setting.plan(OWN, OWN_SECONDS), find_profile_key(measurer)
    drawn, name = draw_nets(plan), name_evaluation(plan, key)
    started_s = measurer.now()
    if summarise_test_nets(EvaluationLog(name, store.load_observations(key)), plan, drawn)[1]:
        measure_and_evaluate(measurer, store, plan)
        print_progress(f"{measurer.now() - started_s:.0f} s: test nets done")
    log = EvaluationLog(name, store.load_observations(key), store.add_observation)
    target = replace(drawn.make_target(setting.setup, drawn.campaign), modes=measurer.runtime.modes)
    with suppress(MeasurementError, NetError):
        # The first load on a cold device is slower and is not recorded.
        measurer.time(Trial(drawn.widest, setting.setup))
    for arm in (one for one in ARMS if not one.probed):
        left_s = until_s - (measurer.now() - started_s)
        if left_s <= 0:
            print_progress(
                f"{until_s:.0f} s have passed: {arm.role} and later campaigns are left out"
            )
            return
        # Use the whole budget, even if the estimator is certain earlier.
        arm_target = replace(target, acquisition=arm.acquisition, uncertainty_share=0.0)
        run_arm(measurer, log, arm, arm_target, left_s)
        print_progress(
            f"{measurer.now() - started_s:.0f} s: {arm.role} used "
            f"{sum_work_s(log.list_for(arm.role)):.0f} s"
        )
    probe_layers(measurer, log, setting, drawn)


def run_arm(
    measurer: Measurer, log: EvaluationLog, arm: Arm, target: Target, left_s: float
) -> None:
    """Run the rest of an arm's campaign in the time that is left."""
    method = BudgetedEstimator(find_estimator(arm.estimator), BUDGETS_S[-1])
    if method.propose(target, log.list_for(arm.role)).trial is None:
        return
    tagged = replace(measurer, run=log.make_tag(arm.role))
    try:
        result = run_campaign(
            tagged, CampaignObservations(log, arm.role), method, target, seconds=left_s
        )
        print_progress(f"{arm.role}: {result.stopped}")
        for reason in result.skipped:
            print_progress(f"{arm.role} skipped {reason}")
    except MissingError as error:
        print_progress(f"{arm.role}: {error}")


def probe_layers(
    measurer: Measurer, log: EvaluationLog, setting: Setting, drawn: EvaluationNets
) -> None:
    """Time every distinct layer of the test nets that has not been timed yet."""
    target = drawn.make_target(setting.setup, drawn.test)
    tests = replace(target, modes=measurer.runtime.modes, acquisition="probe")
    known = {one.trial.key for one in list_probes(log)}
    for trial in find_estimator("additive").propose(tests, ()).probes:
        if trial.key not in known:
            try:
                log.add(replace(measurer, run=log.make_tag(PROBE_ROLE)).time(trial))
            except (MeasurementError, NetError) as error:
                print_progress(f"a time probe: {error}")


def list_probes(log: EvaluationLog) -> list[Observation]:
    """Return the time probes of the test nets' layers from all parts of the benchmark."""
    found = (*log.list_for(OWN_PROBE_ROLE), *log.list_for(PROBE_ROLE))
    return [one for one in found if one.energy_j is None]


def print_progress(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------
# Scores


def score_cost(profile: Profile, setting: Setting) -> Json:
    """Return the scores of each arm at each budget.

    Raises:
        MissingError: No test net or no campaign is stored.
    """
    log = open_log(profile, setting)
    plan = setting.plan(OWN, OWN_SECONDS)
    drawn = draw_nets(plan)
    nets, missing = summarise_test_nets(log, plan, drawn)
    observations = list_used(log)
    if not nets or not any(log.list_for(arm.role) for arm in ARMS):
        raise MissingError(f"{setting.name} has no measurements: run cost.py measure first")
    arms = {arm.name: score_arm(log, setting, drawn, nets, arm) for arm in ARMS}
    return {
        "date": datetime.fromtimestamp(max(s.taken_at_s for s in observations), UTC)
        .date()
        .isoformat(),
        "device": profile.device.to_dict(),
        "provenance": profile.provenance,
        "noise_percent": compute_noise_percent(nets),
        "nets": len(nets),
        "missing": missing,
        "arms": arms,
    }


def score_arm(
    log: EvaluationLog, setting: Setting, drawn: EvaluationNets, nets: Sequence[NetResult], arm: Arm
) -> list[Json]:
    """Return the scores at each budget that is large enough to fit the estimator."""
    points = []
    for budget_s, campaign in cut_campaign(log.list_for(arm.role)).items():
        probes = find_probes(log, setting, drawn, campaign) if arm.probed else ()
        try:
            score = score_observations(arm, setting, drawn, nets, (*campaign, *probes))
        except MissingError:
            continue
        names = ("mape", "bias", "p90", "max", "coverage95", "width95")
        numbers = {f"{name}_percent": getattr(score, f"{name}_percent") for name in names}
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
    """Return the observations of a campaign at each budget; empty without a campaign."""
    return (
        {budget_s: cut_to_budget(campaign, budget_s) for budget_s in BUDGETS_S} if campaign else {}
    )


def find_probes(
    log: EvaluationLog, setting: Setting, drawn: EvaluationNets, campaign: Sequence[Observation]
) -> tuple[Observation, ...]:
    """Return the probes of layers that the campaign did not time itself."""
    stored = list_probes(log)
    modes = tuple(dict.fromkeys(["eager", *(one.trial.execution.mode for one in stored)]))
    target = drawn.make_target(setting.setup, drawn.test)
    tests = replace(target, modes=modes, acquisition="probe")
    wanted = {trial.key for trial in find_estimator("additive").propose(tests, campaign).probes}
    return tuple(one for one in stored if one.trial.key in wanted)


def score_observations(
    arm: Arm,
    setting: Setting,
    drawn: EvaluationNets,
    nets: Sequence[NetResult],
    observations: Sequence[Observation],
) -> EstimatorScore:
    """Return the score of an arm fitted to observations, without those of test nets."""
    method = find_estimator(arm.estimator)
    training = [one for one in observations if one.trial.network not in drawn.test]
    by_name = {network.name: network for network in drawn.test}
    networks = [by_name[net.name] for net in nets]
    prediction = method.fit(training).predict(networks, [setting.setup] * len(networks))
    estimated = []
    for net, mean, sd, seconds in zip(
        nets, prediction.energy_j, prediction.energy_sd_j, prediction.duration_s, strict=True
    ):
        ends = [lognormal_interval(float(mean), float(sd) ** 2, level) for level in (0.5, 0.95)]
        estimate = NetEstimate(float(mean), ends[0], ends[1], float(seconds))
        estimated.append(replace(net, estimates={arm.name: estimate}))
    spent_s = sum(one.cost_s for one in observations)
    return score_estimator(arm.name, estimated, device_seconds=spent_s, points=len(training))


def score_store(args: argparse.Namespace) -> None:
    """Score a store or packed observations and write the results."""
    setting = find_setting(args.setting)
    profiles = read_profiles(args.store)
    if not profiles:
        raise MissingError(f"{args.store} is empty: run cost.py measure first")
    profile = max(profiles, key=lambda one: count_tests(one, setting))
    result = {
        "setting": setting.name,
        **score_cost(profile, setting),
        "commit": find_commit(__file__),
    }
    observations = list_used(open_log(profile, setting))
    args.out.mkdir(parents=True, exist_ok=True)
    kept = args.out / "observations-cost.json.gz"
    if kept.resolve() != args.store.resolve():
        write_packed(replace(profile, observations=observations, fits={}), kept)
    write_result(args.out, "cost", result)


def list_used(log: EvaluationLog) -> tuple[Observation, ...]:
    """Return the observations that a result is based on."""
    tags = {log.make_tag(role) for role in (*PASSES, OWN_PROBE_ROLE)}
    prefix = log.make_tag(f"{COST}.")
    return tuple(s for s in log.list_all() if s.run in tags or s.run.startswith(prefix))


# ---------------------------------------------------------------------------------------------
# Simulated devices


def simulate_devices(args: argparse.Namespace) -> None:
    """Score the arms on simulated devices with other test nets."""
    setting = find_setting(args.setting)
    with ProcessPoolExecutor(args.processes) as pool:
        found = list(pool.map(partial(simulate_device, setting), args.seeds))
    result = {
        "setting": setting.name,
        "provenance": "simulated",
        "device": {"name": f"{len(found)} simulated devices"},
        "date": datetime.now(UTC).date().isoformat(),
        "worlds": list(args.seeds),
        "nets": sum(one["nets"] for one in found),
        "noise_percent": fmean(one["noise_percent"] for one in found),
        "arms": {
            arm.name: average_devices([one["arms"][arm.name] for one in found]) for arm in ARMS
        },
        "commit": find_commit(__file__),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    write_result(args.out, "cost-simulated", result)


def simulate_device(setting: Setting, seed: int) -> Json:
    """Score the arms on one simulated device."""
    own = replace(setting, seed=seed)
    with (
        open_measurer(MeasureOptions(f"simulated:{seed}", rounds=1)) as measurer,
        open_store(":memory:") as store,
    ):
        measure_setting(measurer, store, own)
        return score_cost(store.load_profile(find_profile_key(measurer)), own)


def average_devices(devices: Sequence[Sequence[Mapping[str, float]]]) -> list[Json]:
    """Return means over devices at the budgets that every device has."""
    by_budget = [{point["budget_s"]: point for point in points} for points in devices]
    return [
        {
            name: fmean(device[budget_s][name] for device in by_budget)
            for name in by_budget[0][budget_s]
        }
        for budget_s in BUDGETS_S
        if all(budget_s in device for device in by_budget)
    ]


# ---------------------------------------------------------------------------------------------
# Output


def write_result(out: Path, name: str, result: Json) -> None:
    """Write the result as JSON and plots, and print a table."""
    (out / f"{name}.json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    picture = draw_result(result)
    save_svg(picture, out / f"{name}.svg")
    save_png(picture, out / f"{name}.png")
    rows = [
        [arm, f"{point['budget_s']:.0f}", *(f"{point[name]:.1f}" for name in _COLUMNS)]
        for arm, points in result["arms"].items()
        for point in points
    ]
    provenance = label_provenance(result["provenance"])
    title = f"{result['setting']} on {result['device']['name']}{provenance}, {result['nets']} nets"
    heads = ("arm", ">budget s", ">device s", ">MAPE", ">bias", ">p90", ">coverage", ">width")
    print_table(make_console(), heads, rows, title=title)


_COLUMNS = (
    "device_seconds",
    "mape_percent",
    "bias_percent",
    "p90_percent",
    "coverage95_percent",
    "width95_percent",
)


def draw_result(result: Json) -> Plot:
    """Draw a line for each arm, and the measurement noise."""
    setting = find_setting(result["setting"])
    setup = setting.setup
    shape = "x".join(map(str, setting.input_shape))
    trained = f"batch {setup.batch}, {shape}, {setup.precision}, {setup.optimizer}"
    lines = {name: trim(points) for name, points in result["arms"].items() if points}
    is_cut = any(error > CEILING_PERCENT for line in lines.values() for _, error in line)
    note = f"; cut at {CEILING_PERCENT:.0f} %" if is_cut else ""
    options = CostPlotOptions(
        noise_percent=result["noise_percent"],
        max_percent=CEILING_PERCENT,
        estimator_of={arm.name: arm.colour_of for arm in ARMS if arm.colour_of},
        error_title="MAPE of the energy per step",
    )
    title = f"Error against device time: {setting.family} on {result['device']['name']}"
    subtitle = f"{result['nets']} held-out networks; {trained}{note}"
    caption = Caption(title, subtitle, result["provenance"])
    return plot_error_by_cost(lines, options, caption=caption)


def trim(points: Iterable[Json]) -> list[tuple[float, float]]:
    """Return device times and errors, without repeated points of a campaign that ended early."""
    points_xy = [(point["device_seconds"], point["mape_percent"]) for point in points]
    return list(dict.fromkeys(points_xy))


if __name__ == "__main__":
    main()
