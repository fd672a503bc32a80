"""Plot error against device time for each way of choosing measurements.

    python -m benchmarks.accuracy.cost score                           from kept observations
    python -m benchmarks.accuracy.cost measure STORE --on cuda:0       540 s of device time
    python -m benchmarks.accuracy.cost score STORE

Each arm has one campaign of 160 s; its first seconds are the campaign of a smaller budget. The
reference is the setting's test networks. The device time of an arm includes the time probes that
the cut campaign still lacks. Every observation is stored at once; the same command resumes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.accuracy.run import COST, OWN, OWN_SECONDS, RESULTS, SETTINGS, Setting
from benchmarks.common import find_commit, pack_profile, read_profiles, write_json
from joulecast.campaign import run_campaign
from joulecast.estimators import find_estimator
from joulecast.features.evaluate import NetEstimate, NetResult
from joulecast.features.evaluation import (
    PASSES,
    BudgetedEstimator,
    CampaignObservations,
    EvaluationLog,
    EvaluationPlan,
    compute_noise_percent,
    cut_to_budget,
    load_measured,
    measure_and_evaluate,
    score_estimator,
)
from joulecast.gp.lognormal import lognormal_interval
from joulecast.measurer import Measurer
from joulecast.measurer.local_devices import open_local_measurer
from joulecast.records import Observation, Profile, Trial
from joulecast.store import Store, open_store
from joulecast.system.errors import JoulecastError, MeasurementError, MissingError, NetError

Json = dict[str, Any]

KEPT = RESULTS / "observations-cost.json.xz"
BUDGETS_S = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
PROBE_ROLE, OWN_PROBE_ROLE = f"{COST}.probe", "additive.probe"


@dataclass(frozen=True)
class Arm:
    """A way to spend device time: a rule that chooses measurements, and maybe timed layers."""

    name: str
    estimator: str
    acquisition: str
    probed: bool = False

    @property
    def role(self) -> str:
        """Role of its campaign in run tags; arms that differ only in probes share it."""
        return f"{COST}.{self.estimator}-{self.acquisition}"


ARMS = (
    Arm("subtractive (the paper)", "subtractive", "energy"),
    Arm("additive, the paper's rule", "additive", "energy"),
    Arm("additive, aimed", "additive", "target"),
    Arm("additive, aimed, layers timed", "additive", "target", probed=True),
)


def main() -> None:
    """Measure or score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", choices=("measure", "score"))
    parser.add_argument("store", type=Path, nargs="?", default=KEPT)
    parser.add_argument("--setting", default="cnn5", choices=[one.name for one in SETTINGS])
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    setting = next(one for one in SETTINGS if one.name == args.setting)
    try:
        if args.work == "measure":
            with (
                open_local_measurer(args.on, rounds=1) as measurer,
                open_store(args.store) as store,
            ):
                measure(measurer, store, setting)
            return
        profile = max(read_profiles(args.store), key=setting.count_tests)
        result = score(profile, setting)
    except JoulecastError as error:
        sys.exit(str(error))
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / "cost.json.xz", result)
    draw(result, args.out / "cost.svg")
    if args.store != KEPT:
        used = replace(profile, observations=list_used(setting.open_log(profile)), fits={})
        pack_profile(used, args.out / KEPT.name)
    for arm, points in result["arms"].items():
        errors = (f"{one['device_seconds']:.0f} s {one['mape_percent']:.1f} %" for one in points)
        print(f"{arm}: {', '.join(errors)}")


def measure(measurer: Measurer, store: Store, setting: Setting) -> None:
    """Measure the test networks, run each arm's campaign and time the layers of the networks."""
    plan = setting.plan(OWN, OWN_SECONDS)
    if EvaluationLog(plan, load_measured(measurer, store)).summarise_nets()[1]:
        measure_and_evaluate(measurer, store, plan)
    log = EvaluationLog(plan, load_measured(measurer, store), store)
    target = plan.make_target(measurer.runtime.modes)
    with suppress(MeasurementError, NetError):
        # The first load on a cold device is slower and is not recorded.
        measurer.time(Trial(plan.drawn.widest, setting.setup))
    for arm in (one for one in ARMS if not one.probed):
        # Use the whole budget, even if the estimator is certain earlier.
        own = replace(target, acquisition=arm.acquisition, uncertainty_share=0.0)
        method = BudgetedEstimator(find_estimator(arm.estimator), BUDGETS_S[-1])
        tagged = replace(measurer, run=log.make_tag(arm.role))
        if method.propose(own, log.list_for(arm.role)).trial is not None:
            found = run_campaign(tagged, CampaignObservations(log, arm.role), method, own)
            print(f"{arm.role}: {found.stopped}", flush=True)
    tests = plan.make_target(measurer.runtime.modes, "probe")
    known = {one.trial.key for one in list_probes(log)}
    for trial in find_estimator("additive").propose(tests, ()).probes:
        if trial.key not in known:
            with suppress(MeasurementError, NetError):
                log.add(replace(measurer, run=log.make_tag(PROBE_ROLE)).time(trial))


def score(profile: Profile, setting: Setting) -> Json:
    """Return the scores of each arm at each budget that is large enough to fit the estimator.

    Raises:
        MissingError: No test network or no campaign is stored.
    """
    log = setting.open_log(profile)
    nets, missing = log.summarise_nets()
    if not nets or not any(log.list_for(arm.role) for arm in ARMS):
        raise MissingError(f"{setting.name} has no measurements: run measure first")
    arms: dict[str, list[Json]] = {}
    for arm in ARMS:
        campaign = log.list_for(arm.role)
        for budget_s in BUDGETS_S if campaign else ():
            used = cut_to_budget(campaign, budget_s)
            probes = find_probes(log, used) if arm.probed else ()
            with suppress(MissingError):
                point = score_arm(arm, log.plan, nets, (*used, *probes))
                arms.setdefault(arm.name, []).append({"budget_s": budget_s, **point})
    taken_at_s = max(one.taken_at_s for one in list_used(log))
    return {
        "setting": setting.name,
        "date": datetime.fromtimestamp(taken_at_s, UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "device": profile.device.to_dict(),
        "provenance": profile.provenance,
        "noise_percent": compute_noise_percent(nets),
        "nets": len(nets),
        "missing": missing,
        "arms": arms,
    }


def score_arm(
    arm: Arm,
    plan: EvaluationPlan,
    nets: Sequence[NetResult],
    observations: Sequence[Observation],
) -> Json:
    """Return the score of an arm fitted to observations, without those of test networks."""
    training = [one for one in observations if one.trial.network not in plan.drawn.test]
    by_name = {network.name: network for network in plan.drawn.test}
    networks = [by_name[net.name] for net in nets]
    fitted = find_estimator(arm.estimator).fit(training)
    found = fitted.predict(networks, [plan.setup] * len(networks))
    estimated = []
    for net, mean_j, sd_j, duration_s in zip(
        nets,
        found.energy_j.tolist(),
        found.energy_sd_j.tolist(),
        found.duration_s.tolist(),
        strict=True,
    ):
        half, most = (lognormal_interval(mean_j, sd_j**2, level) for level in (0.5, 0.95))
        estimate = NetEstimate(mean_j, half, most, duration_s)
        estimated.append(replace(net, estimates={arm.name: estimate}))
    spent_s = sum(one.cost_s for one in observations)
    scored = score_estimator(arm.name, estimated, device_seconds=spent_s, points=len(training))
    names = ("mape", "bias", "p90", "max", "coverage95", "width95")
    numbers = {f"{name}_percent": getattr(scored, f"{name}_percent") for name in names}
    return {"device_seconds": spent_s, "observations": len(observations), **numbers}


def find_probes(log: EvaluationLog, campaign: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the probes of layers that the campaign did not time itself."""
    stored = list_probes(log)
    modes = tuple(dict.fromkeys(["eager", *(one.trial.execution.mode for one in stored)]))
    tests = log.plan.make_target(modes, "probe")
    wanted = {trial.key for trial in find_estimator("additive").propose(tests, campaign).probes}
    return tuple(one for one in stored if one.trial.key in wanted)


def list_probes(log: EvaluationLog) -> list[Observation]:
    """Return the time probes of the test networks' layers."""
    found = (*log.list_for(OWN_PROBE_ROLE), *log.list_for(PROBE_ROLE))
    return [one for one in found if one.energy_j is None]


def list_used(log: EvaluationLog) -> tuple[Observation, ...]:
    """Return the observations that a result is based on."""
    tags = {log.make_tag(role) for role in (*PASSES, OWN_PROBE_ROLE)}
    prefix = log.make_tag(f"{COST}.")
    return tuple(s for s in log.observations if s.run in tags or s.run.startswith(prefix))


def draw(result: Json, file: Path) -> None:
    """Draw a line for each arm, and the measurement noise."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    figure = Figure((7, 4.2), layout="constrained")
    axes = figure.subplots()
    for marker, (name, points) in zip("os^D", result["arms"].items(), strict=False):
        spent_s = [one["device_seconds"] for one in points]
        axes.plot(spent_s, [one["mape_percent"] for one in points], f"{marker}-", label=name)
    axes.axhline(result["noise_percent"], color="0.6", ls=":", label="repeatability")
    axes.set(xscale="log", yscale="log", xlabel="device time, s", ylabel="MAPE, %")
    axes.set(xticks=(5, 10, 20, 50, 100, 200), yticks=(0.5, 1, 2, 5, 10, 20, 50), ylim=(0.4, 60))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ScalarFormatter())
        axis.minorticks_off()
    title = f"{result['setting']} on {result['device']['name']} ({result['provenance']})"
    axes.set_title(f"{title}, {result['nets']} held-out networks", loc="left")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()
