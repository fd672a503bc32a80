"""Experiments on whole networks of families: Fig. 6 to 10 and Table 1.

All of them rest on the evaluations of families (``joulecast evaluate``), which they share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy.stats import rankdata

from joulecast.estimators.subtractive.curves import QUANTITIES
from joulecast.families import make_family, parse_params
from joulecast.operators import network_work
from joulecast.records import Trial
from joulecast.system.errors import MissingError
from papers.ampere import experiment as ex
from papers.ampere import plots
from papers.ampere.experiment import AMPERE, FLOPS, LIMITS, OURS, TABLE, Findings, Json, Net
from papers.ampere.lab import Lab, find_median_j
from papers.ampere.layers import fit_paper_curves

PAPER_FAMILIES: list[str] = TABLE["table1"]["families"]


def describe_nets(nets: Sequence[Net]) -> Json:
    """Return how many there are, and ``proportional to FLOPs 28.1 %, AMPERE 6.4 %``."""
    mapes = {ex.LABELS[name]: ex.compute_net_mape(nets, name) for name in ex.list_known(nets)}
    texts = [f"{label} {mape:.1f} %" for label, mape in mapes.items()]
    return {"count": len(nets), "mapes": ", ".join(texts)}


def judge_fig6(nets: Sequence[Net]) -> Findings:
    if len(nets) < 5:
        raise MissingError(f"only {len(nets)} networks were measured")
    kept = [
        {"energy_j": n["measured_j"], **{k: n[k] for k in ("name", "duration_s")}} for n in nets
    ]
    durations_s, energies_j = (np.array([n[k] for n in kept]) for k in ("duration_s", "energy_j"))
    powers_w = energies_j / durations_s
    numbers = {
        "pearson": ex.correlate(durations_s, energies_j),
        "spearman": ex.correlate(rankdata(durations_s), rankdata(energies_j)),
        "least_power_w": float(powers_w.min()),
        "most_power_w": float(powers_w.max()),
    }
    has_held = numbers["spearman"] >= LIMITS["fig6"]["least_rank_correlation"]
    return Findings(has_held, {"nets": kept, **numbers}, words={"count": len(nets)})


def draw_fig6(canvas: plots.Canvas) -> None:
    numbers = canvas.numbers
    nets = numbers["nets"]
    (panel,) = canvas.add(1, f"{len(nets)} random networks, r = {numbers['pearson']:.2f}")
    panel.loglog([net["duration_s"] for net in nets], [net["energy_j"] for net in nets], "o")
    panel.set(xlabel="Duration per step (s)", ylabel="Energy per step (J)")


def judge_fig7(nets: Sequence[Net]) -> Findings:
    """Compare errors at low and at high FLOPs, in each third of the networks."""
    for name in (FLOPS, AMPERE):
        if len(ex.list_net_errors(nets, name)) < 9:
            raise MissingError(f"{name} estimated fewer than 9 networks")
    ordered = sorted(nets, key=lambda net: float(net["flops"]))
    ends = [round(len(ordered) * at / 3) for at in range(4)]
    thirds: list[Json] = []
    for group in (ordered[a:b] for a, b in pairwise(ends)):
        medians = {one: float(np.median(ex.list_net_errors(group, one))) for one in (FLOPS, AMPERE)}
        mapes = {name: ex.compute_net_mape(group, name) for name in (FLOPS, AMPERE)}
        flops = [group[0]["flops"], group[-1]["flops"]]
        thirds.append({"flops": flops, "median_errors_percent": medians, "mapes_percent": mapes})
    low, high = (thirds[at]["median_errors_percent"][FLOPS] for at in (0, -1))
    worst = max(third["mapes_percent"][AMPERE] for third in thirds)
    is_biased, is_accurate = low > 0 > high, worst <= LIMITS["fig7"]["most_ampere_percent"]
    contrary = "" if is_biased else ", which is not what the paper found"
    words = {"low": low, "high": high, "worst": worst, "contrary": contrary, **describe_nets(nets)}
    numbers = {"nets": list(nets), "thirds": thirds}
    return Findings(is_biased and is_accurate, numbers, words=words)


def draw_fig7(canvas: plots.Canvas) -> None:
    nets = canvas.numbers["nets"]
    panels = canvas.add(2, f"{len(nets)} random networks")
    plots.draw_agreement(panels[0], nets)
    plots.draw_trend(panels[1], nets, "flops")
    panels[1].set(xscale="log", xlabel="FLOPs per step", title="Error against FLOPs")


def analyse_fig8(lab: Lab) -> Findings:
    families = {}
    for name in PAPER_FAMILIES:
        if nets := lab.find_nets(name):
            found = lab.evaluate(name)
            about = {"noise_percent": found.noise_percent, "batch": found.setup.batch}
            families[name] = {"nets": nets, **about}
    return judge_fig8(families)


def judge_fig8(families: Mapping[str, Any]) -> Findings:
    mapes: dict[str, dict[str, float]] = {}
    for name, family in families.items():
        known = ex.list_known(family["nets"], ex.ESTIMATORS)
        if FLOPS in known and AMPERE in known:
            mapes[name] = {one: ex.compute_net_mape(family["nets"], one) for one in known}
    if not mapes:
        raise MissingError("no family was estimated both by FLOPs and by AMPERE")
    shown = [one for one in ex.SHOWN if all(one in found for found in mapes.values())]
    means = {one: fmean(found[one] for found in mapes.values()) for one in shown}
    worse = [name for name, found in mapes.items() if found[AMPERE] >= found[FLOPS]]
    words = {
        "families": ", ".join(mapes),
        "means": ", ".join(f"{ex.LABELS[one]} {mean:.1f} %" for one, mean in means.items()),
        "where": f"worse than FLOPs for {', '.join(worse)}" if worse else "better in every family",
    }
    has_held = means[AMPERE] < means[FLOPS]
    has_held &= means[AMPERE] <= LIMITS["fig8"]["most_ampere_percent"]
    numbers = {"families": dict(families), "mapes_percent": mapes}
    measured = (len(mapes), len(PAPER_FAMILIES), "families")
    return Findings(has_held, numbers, words=words, measured=measured)


def draw_fig8(canvas: plots.Canvas) -> None:
    """Draw a bar for each family and estimator; with several devices, families of each device."""
    groups: dict[str, Mapping[str, Any]] = {}
    for name in PAPER_FAMILIES:
        for result in canvas.results:
            if name in result.numbers["families"]:
                label = f"{name},\n{result.device_label}" if len(canvas.results) > 1 else name
                groups[label] = result.numbers["families"][name]
    (panel,), places = canvas.add(), np.arange(len(groups), dtype=float)
    for at, name in enumerate(ex.ESTIMATORS):
        nets = [family["nets"] for family in groups.values()]
        heights = [ex.compute_net_mape(n, name) if ex.list_known(n, [name]) else 0.0 for n in nets]
        colour, label = plots.STYLES[name][0], ex.LABELS.get(name, "linear in FLOPs")
        panel.bar(places + 0.2 * (at - 1.5), heights, 0.18, color=colour, label=label)
    noises = [family["noise_percent"] or 0.0 for family in groups.values()]
    panel.hlines(noises, places - 0.4, places + 0.4, color=plots.DARK, label="noise")
    panel.set_xticks(places, list(groups))
    panel.set(ylabel="MAPE (%)")


def judge_fig9(nets: Sequence[Net]) -> Findings:
    flops, ampere = (np.abs(ex.list_net_errors(nets, name)) for name in (FLOPS, AMPERE))
    if min(len(flops), len(ampere)) < 3:
        raise MissingError("fewer than 3 networks were estimated by FLOPs and AMPERE")
    better = int((ampere < flops).sum())
    share = better / len(flops)
    has_held = bool(ampere.mean() < flops.mean())
    has_held &= 100 * share > LIMITS["fig9"]["least_better_percent"]
    numbers = {"nets": list(nets), "better_share": share}
    return Findings(has_held, numbers, words={**describe_nets(nets), "better": better})


def draw_fig9(canvas: plots.Canvas) -> None:
    nets = canvas.numbers["nets"]
    panels = canvas.add(2, f"{len(nets)} random networks")
    plots.draw_agreement(panels[0], nets)
    plots.draw_distribution(panels[1], nets)


# -------------------------------------------------------------------------------------------------
# Fig. 10: errors of ResNets as a distribution, and against their depth. Named ResNets have the
# original width; they are estimated from the campaigns on both families, and none of their layers
# is wider.

_ROUNDS = 2
# Convolutions of a block, by family. The stem and the output layer come on top.
_LAYERS_PER_BLOCK = {"resnet18": 2, "resnet34": 2, "resnet50": 3}


def count_depth(name: str) -> int:
    """Return the layers with weights of a ResNet by its name, without projections."""
    blocks = sum(count for key, count in parse_params(name).items() if key.startswith("d"))
    return 2 + _LAYERS_PER_BLOCK[name.partition(":")[0]] * blocks


def _list_named(settings: ex.Settings) -> dict[str, list[Trial]]:
    named: dict[str, list[Trial]] = {}
    for family in TABLE["fig10"]["families"]:
        plan, names = settings.plan_family(family), ex.SIZES["named"][settings.length][family]
        named[family] = [Trial(make_family(name, plan.input_shape), plan.setup) for name in names]
    return named


def plan_fig10(settings: ex.Settings) -> list[ex.Work]:
    trials = [trial for named in _list_named(settings).values() for trial in named]
    return [ex.plan_trials("named ResNets", trials, "fig10", _ROUNDS, 1.5 * ex.TRIAL_S)]


def analyse_fig10(lab: Lab) -> Findings:
    nets: list[Json] = []
    planned = 0
    for family, named in _list_named(lab.settings).items():
        planned += lab.settings.plan_family(family).nets + len(named)
        if found := lab.find_nets(family):
            nets += [{**net, "is_named": False} for net in found]
            nets += [{**net, "is_named": True} for net in _estimate(lab, family, named)]
    return judge_fig10([{**net, "depth": count_depth(net["name"])} for net in nets], planned)


def _estimate(lab: Lab, family: str, trials: Sequence[Trial]) -> list[Json]:
    """Return the measured ones of some networks with all estimates."""
    found = lab.find(trials, "fig10")
    trials = [trial for trial in trials if found[trial.key]]
    estimates_j: dict[str, list[float]] = {}
    for name in ex.ESTIMATORS if trials else ():
        seen = lab.find_training(family, name)
        try:
            fitted = lab.find_method(name).fit((*seen.campaign, *seen.probes))
        except MissingError:
            continue
        prediction = fitted.predict([t.network for t in trials], [t.setup for t in trials])
        estimates_j[name] = prediction.energy_j.tolist()
    return [
        {
            "name": trial.network.name,
            "flops": network_work(trial.network, trial.setup).total.flops,
            "duration_s": median(one.duration_s or 0.0 for one in found[trial.key]),
            "measured_j": find_median_j(found[trial.key]),
            "estimates_j": {name: values[at] for name, values in estimates_j.items()},
        }
        for at, trial in enumerate(trials)
    ]


def judge_fig10(nets: Sequence[Net], planned: int = 0) -> Findings:
    known = [net for net in nets if {FLOPS, AMPERE} <= set(net["estimates_j"])]
    if len(known) < 6:
        raise MissingError(f"only {len(known)} networks were estimated by FLOPs and by AMPERE")
    flops, ampere = (np.abs(ex.list_net_errors(known, name)) for name in (FLOPS, AMPERE))
    depths = [net["depth"] for net in known]
    correlation = ex.correlate(rankdata(depths), rankdata(ampere))
    has_held = all(bool(mean(ampere) < mean(flops)) for mean in (np.median, np.mean))
    has_held &= correlation <= LIMITS["fig10"]["most_rank_correlation"]
    words = {"least": min(depths), "most": max(depths), **describe_nets(known)}
    numbers, measured = {"nets": list(nets), "rank_correlation": correlation}, len(nets)
    return Findings(has_held, numbers, words=words, measured=(measured, planned, "networks"))


def draw_fig10(canvas: plots.Canvas) -> None:
    nets = canvas.numbers["nets"]
    named = sum(net["is_named"] for net in nets)
    panels = canvas.add(2, f"{len(nets) - named} random ResNets and {named} of the original width")
    plots.draw_distribution(panels[0], nets)
    plots.draw_trend(panels[1], nets, "depth")
    panels[1].set(xlabel="Layers", title="Error against depth")


# -------------------------------------------------------------------------------------------------
# Table 1: how long profiling and fitting take. Profiling is the device time of the paper's method
# in the evaluation of a family. It ends by the paper's rule, when every curve is known within 5 %,
# or at a limit. Fitting is timed on the machine that analyses the observations.


def analyse_table1(lab: Lab) -> Findings:
    families = {}
    for family in PAPER_FAMILIES:
        rows = {name: _time_estimator(lab, family, name) for name in (AMPERE, OURS)}
        if rows[AMPERE]:
            families[family] = {name: row for name, row in rows.items() if row}
    return judge_table1(families)


def _time_estimator(lab: Lab, family: str, name: str) -> Json:
    """Return the device time of an estimator's campaign and the time of its fit; {} without."""
    training, method = lab.find_training(family, name), lab.find_method(name)
    started_s = time.perf_counter()
    try:
        # The paper's method remembers its curves, and would not fit them again.
        for quantity in QUANTITIES if name == AMPERE else ():
            fit_paper_curves(lab.settings, training.campaign, quantity)
        if name != AMPERE:
            method.fit(training.campaign)
    except MissingError:
        return {}
    row = {"profiling_s": training.device_seconds, "fitting_s": time.perf_counter() - started_s}
    target = lab.settings.plan_family(family).make_target()
    is_known = name == AMPERE and method.propose(target, training.campaign).trial is None
    points = len(training.campaign)
    return {**row, "points": points, "is_known": is_known} if points else {}


def judge_table1(families: Mapping[str, Mapping[str, Net]]) -> Findings:
    if not families:
        raise MissingError("no family was profiled")
    ampere = [{"name": name, **rows[AMPERE]} for name, rows in families.items()]
    ours = [rows[OURS] for rows in families.values() if OURS in rows]
    times = ", ".join(f"{row['profiling_s']:.0f} + {row['fitting_s']:.1f} s" for row in ours)
    words = {"ours": f"; ours {times}" * (len(ours) == len(ampere))}
    limited = ", ".join(row["name"] for row in ampere if not row["is_known"])
    note = f"Profiling of {limited} ended at its limit of device time, before every curve was known"
    longest_s = max(one["profiling_s"] + one["fitting_s"] for one in ampere)
    has_held = longest_s <= LIMITS["table1"]["most_seconds"]
    notes = [f"{note} within 5 %."] if limited else []
    numbers = {"families": {name: dict(rows) for name, rows in families.items()}}
    measured = (len(families), len(PAPER_FAMILIES), "families")
    return Findings(has_held, numbers, ampere, words, notes, measured)


def draw_table1(canvas: plots.Canvas) -> None:
    families = canvas.numbers["families"]
    names = [name for name in PAPER_FAMILIES if name in families]
    (panel,) = canvas.add(1, "in colour; the paper's own devices, in grey, differ")
    devices = TABLE["table1"]["paper_seconds"]
    for (device, seconds), marker in zip(devices.items(), "oDs^X", strict=True):
        known = dict(zip(PAPER_FAMILIES, seconds, strict=True))
        panel.plot([known[n] for n in names], names, marker, color=plots.GREY, label=device)
    for estimator in (AMPERE, OURS):
        rows = {name: families[name].get(estimator) for name in names}
        times_s = {n: row["profiling_s"] + row["fitting_s"] for n, row in rows.items() if row}
        colour, marker = plots.STYLES[estimator]
        label = ex.LABELS[estimator]
        panel.plot(list(times_s.values()), list(times_s), marker, color=colour, label=label)
    panel.set(xscale="log", xlabel="Profiling and fitting (s)")
    panel.invert_yaxis()
