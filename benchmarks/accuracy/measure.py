"""Measures what the accuracy benchmark rests on, setting by setting, into one store.

    python benchmarks/accuracy/measure.py STORE learn    our campaigns, and development nets
    python benchmarks/accuracy/measure.py STORE test     test nets, their probes, rivals

Everything is kept as it is made; run again, it goes on where it was. ``--until`` stops before a
setting is begun that may not be finished in time; ``--only`` names settings.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace

from settings import (
    DEVELOPMENT_NETS,
    OWN,
    OWN_SECONDS,
    RIVALS,
    SETTINGS,
    Setting,
)

from joulecast.api.measurers import open_measurer
from joulecast.api.options import MeasureOptions
from joulecast.campaign import find_profile_key, run_campaign
from joulecast.errors import JoulecastError
from joulecast.estimators import find_estimator
from joulecast.families import draw_family
from joulecast.measurer import Measurer
from joulecast.records import Network, Trial
from joulecast.store import Store, open_store
from joulecast.uses.evaluate import EvaluationPlan, evaluate, name_evaluation
from joulecast.uses.evaluate.campaign_budget import BudgetedEstimator
from joulecast.uses.evaluate.evaluation_log import CampaignObservations, EvaluationLog
from joulecast.uses.evaluate.evaluation_plan import draw_nets

DEVELOPMENT = "development"


def main() -> None:
    """Measure what is lacking."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("part", choices=("learn", "test"))
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--only", default="", help="names of settings, comma-separated")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which none begins")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    words = parser.parse_args()
    started_s = time.monotonic()
    names = {one.name for one in SETTINGS}
    wanted = set(filter(None, words.only.split(","))) or names
    if wanted - names:
        parser.error(f"no settings {wanted - names}: give some of {', '.join(sorted(names))}")
    with open_measurer(MeasureOptions(words.on, rounds=1)) as rig, open_store(words.store) as store:
        for setting in (one for one in SETTINGS if one.name in wanted):
            spent_s = time.monotonic() - started_s
            if spent_s > words.until:
                print(f"{spent_s:.0f} s: {setting.name} and what follows is left for later")
                return
            try:
                work = learn if words.part == "learn" else test
                work(rig, store, setting, tuple(filter(None, words.rivals.split(","))))
            except JoulecastError as error:
                print(f"{setting.name}: {error}")
            print(f"{time.monotonic() - started_s:.0f} s: {setting.name} done", flush=True)


def learn(rig: Measurer, store: Store, setting: Setting, rivals: tuple[str, ...]) -> None:
    """Our campaign, then the development nets and the probes of their layers."""
    plan = setting.plan(OWN, OWN_SECONDS)
    key = find_profile_key(rig)
    book = EvaluationLog(name_evaluation(plan, key), store.observations(key), store.add_observation)
    _wake(rig, setting)
    _run_campaign(rig, book, plan)
    done = {seen.trial.key for seen in book.list_for(DEVELOPMENT)}
    networks = draw_development(setting)
    for trial in (Trial(network, setting.setup) for network in networks):
        if trial.key not in done:
            book.add(replace(rig, run=book.tag(DEVELOPMENT)).measure(trial))
    probes = book.list_for(f"{DEVELOPMENT}.probe")
    target = draw_nets(plan).make_target(setting.setup, networks)
    target = replace(target, modes=rig.runtime.modes, acquisition="probe")
    known = (*book.list_for("additive"), *probes)
    for trial in find_estimator("additive").propose(target, known).probes:
        book.add(replace(rig, run=book.tag(f"{DEVELOPMENT}.probe")).time(trial))


def _wake(rig: Measurer, setting: Setting) -> None:
    """Let the first load of a run pass, on a cold device."""
    rig.time(Trial(draw_nets(setting.plan(OWN, OWN_SECONDS)).original, setting.setup))


def _run_campaign(rig: Measurer, book: EvaluationLog, plan: EvaluationPlan) -> None:
    """The same campaign that ``evaluate`` runs; there it is then found finished."""
    draw = draw_nets(plan)
    target = replace(draw.make_target(plan.setup, draw.campaign), modes=rig.runtime.modes)
    method = BudgetedEstimator(find_estimator("additive"), plan.seconds)
    tagged = replace(rig, run=book.tag("additive"))
    run_campaign(tagged, CampaignObservations(book, "additive"), method, target)


def test(rig: Measurer, store: Store, setting: Setting, rivals: tuple[str, ...]) -> None:
    """Test nets, what our estimates of them need, and the rivals' campaigns."""
    evaluate(rig, store, setting.plan_all(rivals))


def draw_development(setting: Setting) -> tuple[Network, ...]:
    """Nets to try changes of our estimator on; none of them is a test net."""
    plan: EvaluationPlan = setting.plan(OWN, OWN_SECONDS)
    draw = draw_nets(plan)
    rng = random.Random(f"{setting.seed}.{DEVELOPMENT}")
    found: list[Network] = []
    while len(found) < DEVELOPMENT_NETS:
        network = draw_family(setting.family, rng.randint, setting.input_shape)
        if network not in (*draw.test, *draw.campaign, *found):
            found.append(network)
    return tuple(found)


if __name__ == "__main__":
    main()
