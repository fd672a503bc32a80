"""Plot error against device seconds for `additive` and its rivals, all at equal seconds.

    python -m benchmarks.accuracy.cost score [STORE]           from kept observations, and a store
    python -m benchmarks.accuracy.cost measure STORE --on cuda:0 --until-s 300

Every estimator is fitted to the first seconds of its own campaign and judged on test networks of
the same card. ``measure`` runs what a store lacks, campaign by campaign: in each setting the test
networks, `additive` and the whole networks of `work-linear`, then `subtractive` and `ampere`. Every
observation is stored at once; the same command resumes.

Kept campaigns of `additive` are of an earlier version, which measured fewer whole networks and
measured them later. They are put into the order of the present one, with the six networks that
`work-linear` was measured on (*recombined*): what they say of the order is evidence, but the layers
are those that the earlier version chose.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.accuracy.run import OWN, RESULTS, SETTINGS, Setting
from benchmarks.common import find_commit, read_profiles, write_json
from joulecast.campaign import run_campaign
from joulecast.estimators import find_estimator
from joulecast.estimators.additive.layers import set_up_layer
from joulecast.features.evaluate import NetEstimate
from joulecast.features.evaluation import (
    PASSES,
    BudgetedEstimator,
    CampaignObservations,
    EvaluationLog,
    compute_noise_percent,
    cut_to_budget,
    load_measured,
    score_estimator,
)
from joulecast.gp.lognormal import lognormal_interval
from joulecast.measurer import Measurer
from joulecast.measurer.local_devices import open_local_measurer
from joulecast.records import Observation, Profile, Setup, Trial, weakest_provenance
from joulecast.store import Store, open_store
from joulecast.system.errors import JoulecastError, MeasurementError, MissingError, NetError
from joulecast.variants import read_isolated_block
from joulecast.views.words import label_provenance
from papers.ampere.lab import Folder

Json = dict[str, Any]

BUDGETS_S = (5.0, 10.0, 20.0, 40.0, 80.0)
RIVALS = ("additive", "work-linear", "subtractive", "ampere")
ROLES = {name: name for name in RIVALS} | {"work-linear": "flops"}
PAPER = Path(__file__).parents[1] / "paper"
# Five-layer CNNs of the paper's experiments, whose campaigns are kept as well.
_CPU = Setting("cnn5-cpu", "cnn5", Setup(batch=10, threads=1), (3, 32, 32), 502, "host")
_POINTS = Setting(
    "cnn5-points", "cnn5", Setup(batch=128, precision="tf32"), (3, 96, 96), 502, "gpu"
)
COMPARED = (
    *(one for one in SETTINGS if one.name in ("cnn5", "lenet5", "transformer", "resnet")),
    _CPU,
    _POINTS,
)
# A longer campaign of the paper's method in the first setting.
_EARLIER_ROLES = {"subtractive": "cost.subtractive-energy"}
# Errors above this, in percent, say nothing.
_MOST = 1000.0
_FOLDERS = {_CPU.name: "cpu", _POINTS.name: "faithful"}
# Networks that the present campaign measures before the first layers, before the second, and after.
_NETWORK_COUNTS = (1, 3, 6)


@dataclass(frozen=True)
class Campaign:
    """What an estimator may learn from in a setting, in the order it was measured."""

    log: EvaluationLog
    observations: tuple[Observation, ...]
    is_recombined: bool = False


def main() -> None:
    """Measure or score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", choices=("measure", "score"))
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", choices=[one.name for one in COMPARED])
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each campaign")
    parser.add_argument("--until-s", type=float, default=300.0, help="start no campaign after it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    settings = [one for one in COMPARED if not args.only or one.name in args.only]
    if args.work == "measure" and not args.only:
        settings = [_CPU] if args.on == "cpu" else [one for one in settings if one in SETTINGS]
    try:
        if args.work == "score":
            report(args.store, settings, args.out)
        elif args.store is None:
            sys.exit("measure needs a store: give the name of a file, which is created")
        else:
            with (
                open_local_measurer(args.on, rounds=1) as measurer,
                open_store(args.store) as store,
            ):
                measure(measurer, store, settings, args.seconds, args.until_s)
    except JoulecastError as error:
        sys.exit(str(error))


def measure(
    measurer: Measurer, store: Store, settings: Sequence[Setting], seconds: float, until_s: float
) -> None:
    """Measure what a store lacks, the campaigns of `additive` first."""
    started_s = time.monotonic()
    for names in (RIVALS[:2], RIVALS[2:3], RIVALS[3:]):
        for setting in settings:
            log = EvaluationLog(setting.plan(OWN, seconds), load_measured(measurer, store), store)
            target = log.plan.make_target(measurer.runtime.modes)
            with suppress(MeasurementError, NetError):
                # The first load on a cold device is slower and is not recorded.
                measurer.time(Trial(log.plan.drawn.widest, setting.setup))
            known = {one.trial.key for one in log.list_for(PASSES[0])}
            for trial in log.plan.list_trials(0):
                if trial.key not in known:
                    with suppress(MeasurementError, NetError):
                        log.add(replace(measurer, run=log.make_tag(PASSES[0])).measure(trial))
            for name in names:
                if time.monotonic() - started_s > until_s:
                    sys.exit(f"{name} in {setting.name} and all after it are left out")
                # Use the whole budget, even if the estimator is certain earlier.
                own, role = replace(target, uncertainty_share=0.0), ROLES[name]
                method = BudgetedEstimator(find_estimator(name), seconds)
                if method.propose(own, log.list_for(role)).trial is not None:
                    tagged = replace(measurer, run=log.make_tag(role))
                    with suppress(MissingError):
                        run_campaign(tagged, CampaignObservations(log, role), method, own)
                spent_s = time.monotonic() - started_s
                print(f"{spent_s:.0f} s: {name} in {setting.name} done", flush=True)


def report(store: Path | None, settings: Sequence[Setting], out: Path) -> None:
    """Score, print, write and draw."""
    measured = read_profiles(store) if store is not None else []
    found = {one.name: score(one, find_campaigns(one, measured)) for one in settings}
    out.mkdir(parents=True, exist_ok=True)
    about = {"commit": find_commit(__file__), "date": max(one["date"] for one in found.values())}
    write_json(out / "cost.json.xz", {**about, "settings": found})
    draw(found, out / "cost.svg")
    lines = [["setting", "estimator", *(f"{budget:.0f} s" for budget in BUDGETS_S)]]
    lines.append(["---", "---", *["---:"] * len(BUDGETS_S)])
    for name, result in found.items():
        for arm, points in result["arms"].items():
            cells, spent_s = dict.fromkeys(BUDGETS_S, "-"), 0.0
            for one in points:
                text = f"{one['mape_percent']:.1f}" if one["mape_percent"] < _MOST else "> 1000"
                has_ended = one["device_seconds"] == spent_s
                cells[one["budget_s"]] = f"({text})" if has_ended else text
                spent_s = one["device_seconds"]
            lines.append([name, arm, *cells.values()])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    (out / "cost.md").write_text(table)
    print(table)


def find_campaigns(setting: Setting, measured: Sequence[Profile]) -> dict[str, Campaign]:
    """Return the campaign of each estimator: as measured in a store, or else the kept one."""
    plan = setting.plan(OWN, BUDGETS_S[-1])
    logs = [(EvaluationLog(plan, one), False) for one in measured]
    if setting.name in _FOLDERS:
        folder = Folder(PAPER / _FOLDERS[setting.name])
        identity = folder.read_identity()
        plan = replace(identity.plan_family(setting.family), seconds=BUDGETS_S[-1], budgets=())
        kept = [identity.make_profile(folder.observations)]
    else:
        names = ("cost", setting.name) if setting.name == "cnn5" else (setting.name,)
        files = [RESULTS / f"observations-{name}.json.xz" for name in names]
        kept = [max(read_profiles(file), key=setting.count_tests) for file in files]
    logs += [(EvaluationLog(plan, one), True) for one in kept]
    found: dict[str, Campaign] = {}
    for log, is_kept in logs:
        for name, role in ROLES.items():
            earlier = log.list_for(_EARLIER_ROLES[name]) if name in _EARLIER_ROLES else []
            observations = earlier or log.list_for(role)
            if name in found or not observations or not log.list_for(PASSES[0]):
                continue
            is_old = is_kept and name == "additive"
            used = recombine(log) if is_old else observations
            found[name] = Campaign(log, tuple(used), is_old)
    return found


def recombine(log: EvaluationLog) -> list[Observation]:
    """Return the kept measurements of `additive` in the order of its present campaigns."""
    idle: list[Observation] = []
    layers: list[Observation] = []
    networks: list[Observation] = []
    for one in log.list_for(ROLES["additive"]):
        is_layer = read_isolated_block(one.trial) is not None
        (layers if is_layer else networks if one.trial.network.layers else idle).append(one)
    whole = [one for one in log.list_for(ROLES["work-linear"]) if one.trial.network.layers]
    rounds: tuple[list[Observation], list[Observation]] = ([], [])
    rest, counts = [], dict[str, int]()
    for one in layers:
        block = read_isolated_block(one.trial)
        assert block is not None
        label = set_up_layer(block, one.trial.setup).label
        count = counts.get(label, 0)
        if one.energy_j is not None and count < len(rounds):
            rounds[count].append(one)
            counts[label] = count + 1
        else:
            rest.append(one)
    first, second, last = _NETWORK_COUNTS
    required = [*whole[:first], *rounds[0], *whole[first:second], *rounds[1], *whole[second:last]]
    known = {one.trial.key for one in whole}
    timed = [one for one in networks if one.energy_j is None and one.trial.key not in known]
    # Networks that only show the host are last, as most of them were.
    return [*idle, *required, *rest, *timed]


def score(setting: Setting, campaigns: dict[str, Campaign]) -> Json:
    """Return the scores of each estimator at each budget; one that has ended stays as it is.

    Raises:
        MissingError: Nothing was measured.
    """
    if not campaigns:
        raise MissingError(f"{setting.name} has no measurements: run measure first")
    arms: dict[str, list[Json]] = {}
    for name, campaign in campaigns.items():
        label = f"{name} (recombined)" if campaign.is_recombined else name
        for budget_s in BUDGETS_S:
            used = cut_to_budget(campaign.observations, budget_s)
            with suppress(MissingError):
                point = score_campaign(name, campaign.log, used)
                arms.setdefault(label, []).append({"budget_s": budget_s, **point})
    log = next(iter(campaigns.values())).log
    nets = log.summarise_nets()[0]
    taken_at_s = max(one.taken_at_s for one in log.observations)
    date = datetime.fromtimestamp(taken_at_s, UTC).date().isoformat()
    return {
        "date": date,
        "nets": len(nets),
        "provenance": weakest_provenance(one.provenance for one in log.observations),
        "noise_percent": compute_noise_percent(nets),
        "arms": arms,
    }


def score_campaign(name: str, log: EvaluationLog, observations: Sequence[Observation]) -> Json:
    """Return the score of an estimator fitted to observations, without those of test networks."""
    training = [one for one in observations if one.trial.network not in log.plan.drawn.test]
    nets = log.summarise_nets()[0]
    by_name = {network.name: network for network in log.plan.drawn.test}
    networks = [by_name[net.name] for net in nets]
    found = find_estimator(name).fit(training).predict(networks, [log.plan.setup] * len(networks))
    rows = zip(found.energy_j.tolist(), found.energy_sd_j.tolist(), found.duration_s, strict=True)
    estimated = []
    for net, (mean_j, sd_j, duration_s) in zip(nets, rows, strict=True):
        half, most = (lognormal_interval(mean_j, sd_j**2, level) for level in (0.5, 0.95))
        estimate = NetEstimate(mean_j, half, most, float(duration_s))
        estimated.append(replace(net, estimates={name: estimate}))
    spent_s = sum(one.cost_s for one in observations)
    scored = score_estimator(name, estimated, device_seconds=spent_s, points=len(training))
    shown = ("mape", "bias", "p90", "max", "coverage95", "width95")
    numbers = {f"{each}_percent": getattr(scored, f"{each}_percent") for each in shown}
    return {"device_seconds": spent_s, "observations": len(observations), **numbers}


def draw(found: dict[str, Json], file: Path) -> None:
    """Draw a panel for each setting, with a line for each estimator and the measurement noise."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    figure = Figure((11, 6.5), layout="constrained")
    panels = figure.subplots(2, -(-len(found) // 2), sharex=True, sharey=True, squeeze=False)
    for axes, (setting, result) in zip(panels.flat, found.items(), strict=False):
        for name, points in result["arms"].items():
            at = RIVALS.index(name.partition(" ")[0])
            spent_s = [one["device_seconds"] for one in points]
            errors = [one["mape_percent"] for one in points]
            axes.plot(spent_s, errors, f"{'os^D'[at]}-", color=f"C{at}", label=name)
        if result["noise_percent"]:
            axes.axhline(result["noise_percent"], color="0.6", ls=":", label="repeatability")
        axes.set(xscale="log", yscale="log", xticks=(5, 10, 20, 40, 80), ylim=(0.8, 100))
        axes.set(yticks=(1, 2, 5, 10, 20, 50, 100))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(ScalarFormatter())
            axis.minorticks_off()
        label = label_provenance(result["provenance"])
        title = f"{setting}{label}, {result['nets']} held-out networks"
        axes.set_title(title, loc="left", fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=7)
    figure.supxlabel("device time, s")
    figure.supylabel("MAPE, %")
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()
