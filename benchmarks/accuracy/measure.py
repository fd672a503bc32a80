"""Measure everything that the accuracy benchmark needs into one store.

    python benchmarks/accuracy/measure.py STORE learn    campaigns of additive, development nets
    python benchmarks/accuracy/measure.py STORE test     test nets, their probes, baselines

Every observation is stored at once, and the same command resumes an interrupted run. ``--until``
starts no setting after this many seconds; ``--only`` selects settings.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace

from settings import (
    BASELINES,
    DEVELOPMENT_NETS,
    OWN,
    OWN_SECONDS,
    SETTINGS,
    Setting,
)

from joulecast.campaign import find_profile_key, run_campaign
from joulecast.errors import JoulecastError
from joulecast.estimators import find_estimator
from joulecast.families import draw_family
from joulecast.features.evaluation import (
    BudgetedEstimator,
    CampaignObservations,
    EvaluationLog,
    EvaluationPlan,
    draw_nets,
    name_evaluation,
)
from joulecast.features.evaluation_run import measure_and_evaluate
from joulecast.features.measurers import open_measurer
from joulecast.features.options import MeasureOptions
from joulecast.measurer import Measurer
from joulecast.records import Network, Trial
from joulecast.store import Store, open_store

DEVELOPMENT = "development"


def main() -> None:
    """Measure what the store lacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("part", choices=("learn", "test"))
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--only", default="", help="comma-separated names of settings")
    parser.add_argument(
        "--until", type=float, default=1e9, help="start no setting after this many seconds"
    )
    parser.add_argument("--baselines", default=",".join(BASELINES))
    args = parser.parse_args()
    started_s = time.monotonic()
    names = {one.name for one in SETTINGS}
    wanted = set(filter(None, args.only.split(","))) or names
    if wanted - names:
        parser.error(f"no settings {wanted - names}: give some of {', '.join(sorted(names))}")
    with (
        open_measurer(MeasureOptions(args.on, rounds=1)) as measurer,
        open_store(args.store) as store,
    ):
        for setting in (one for one in SETTINGS if one.name in wanted):
            spent_s = time.monotonic() - started_s
            if spent_s > args.until:
                print(f"{spent_s:.0f} s: {setting.name} and later settings are left out")
                return
            try:
                work = learn if args.part == "learn" else test
                work(measurer, store, setting, tuple(filter(None, args.baselines.split(","))))
            except JoulecastError as error:
                print(f"{setting.name}: {error}")
            print(f"{time.monotonic() - started_s:.0f} s: {setting.name} done", flush=True)


def learn(measurer: Measurer, store: Store, setting: Setting, baselines: tuple[str, ...]) -> None:
    """Run the campaign of additive, then measure the development nets and probe their layers."""
    plan = setting.plan(OWN, OWN_SECONDS)
    key = find_profile_key(measurer)
    log = EvaluationLog(
        name_evaluation(plan, key), store.load_observations(key), store.add_observation
    )
    _warm_up(measurer, setting)
    _run_campaign(measurer, log, plan)
    done = {one.trial.key for one in log.list_for(DEVELOPMENT)}
    networks = draw_development(setting)
    for trial in (Trial(network, setting.setup) for network in networks):
        if trial.key not in done:
            log.add(replace(measurer, run=log.make_tag(DEVELOPMENT)).measure(trial))
    probes = log.list_for(f"{DEVELOPMENT}.probe")
    target = draw_nets(plan).make_target(setting.setup, networks)
    target = replace(target, modes=measurer.runtime.modes, acquisition="probe")
    known = (*log.list_for("additive"), *probes)
    for trial in find_estimator("additive").propose(target, known).probes:
        log.add(replace(measurer, run=log.make_tag(f"{DEVELOPMENT}.probe")).time(trial))


def _warm_up(measurer: Measurer, setting: Setting) -> None:
    """Run a first load on the cold device, which is slower and is not recorded."""
    measurer.time(Trial(draw_nets(setting.plan(OWN, OWN_SECONDS)).widest, setting.setup))


def _run_campaign(measurer: Measurer, log: EvaluationLog, plan: EvaluationPlan) -> None:
    """Run the campaign that ``evaluate`` would run, so that it finds it finished."""
    drawn = draw_nets(plan)
    target = replace(drawn.make_target(plan.setup, drawn.campaign), modes=measurer.runtime.modes)
    method = BudgetedEstimator(find_estimator("additive"), plan.seconds)
    tagged = replace(measurer, run=log.make_tag("additive"))
    run_campaign(tagged, CampaignObservations(log, "additive"), method, target)


def test(measurer: Measurer, store: Store, setting: Setting, baselines: tuple[str, ...]) -> None:
    """Measure test nets and their probes, and run the campaigns of the baselines."""
    measure_and_evaluate(measurer, store, setting.plan_all(baselines))


def draw_development(setting: Setting) -> tuple[Network, ...]:
    """Draw nets for developing the estimator; none of them is a test net."""
    plan: EvaluationPlan = setting.plan(OWN, OWN_SECONDS)
    drawn = draw_nets(plan)
    rng = random.Random(f"{setting.seed}.{DEVELOPMENT}")
    found: list[Network] = []
    while len(found) < DEVELOPMENT_NETS:
        network = draw_family(setting.family, rng.randint, setting.input_shape)
        if network not in (*drawn.test, *drawn.campaign, *found):
            found.append(network)
    return tuple(found)


if __name__ == "__main__":
    main()
