"""Fig. 10: errors of ResNets as a distribution, and against their depth.

Random members of two families have random widths and depths. Named networks have the original width
and 10 to 102 layers: ResNet-18, 34, 50 and 101, and some between and beyond them. All of them are
estimated from the campaigns on the two families; none of their layers is wider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from joulecast.errors import MissingError
from joulecast.families import make_family, parse_params
from joulecast.figures import (
    Axis,
    Caption,
    ErrorPoint,
    Plot,
    combine_plots,
    plot_error_distribution,
    plot_error_trend,
)
from joulecast.kinds import network_work
from joulecast.records import Trial
from joulecast.uses.reproduce.experiment import (
    HELD,
    NOT_HELD,
    Experiment,
    ExperimentResult,
    Findings,
    PlannedWork,
)
from joulecast.uses.reproduce.laboratory import Laboratory, sum_cost_s
from joulecast.uses.reproduce.paper_settings import (
    AMPERE,
    FLOPS,
    OURS,
    TRIAL_S,
    PaperSettings,
    list_family_work,
)
from joulecast.uses.reproduce.scored_nets import (
    LEGEND,
    compute_net_mape,
    describe_mapes,
    list_evaluation_notes,
    list_net_errors,
    list_nets,
    list_scored,
    sum_evaluation_s,
)
from joulecast.uses.reproduce.statistics import correlate_ranks

ROLE = "fig10"
MOST_RANK_CORRELATION = 0.3
_SHOWN = (FLOPS, AMPERE, OURS)
_ROUNDS = 2
_FEWEST_NETS = 6
# Convolutions of a block, by family. The stem and the output layer come on top.
_LAYERS_PER_BLOCK = {"resnet18": 2, "resnet34": 2, "resnet50": 3}
_NAMED = {
    "resnet34": (
        "resnet34:64,1,1,1,1",
        "resnet18",
        "resnet34:64,2,3,4,3",
        "resnet34",
        "resnet34:64,3,4,12,3",
        "resnet34:64,3,8,24,3",
        "resnet34:64,3,8,36,3",
    ),
    "resnet50": ("resnet50:64,1,1,1,1", "resnet50", "resnet50:64,3,4,23,3"),
}
_QUICK_NAMED = {"resnet34": ("resnet18", "resnet34"), "resnet50": ("resnet50",)}


def plan(settings: PaperSettings) -> Sequence[PlannedWork]:
    """Return the evaluations of both families, and the named networks."""
    count = sum(map(len, _list_named(settings).values()))
    named = PlannedWork("named ResNets", count, TRIAL_S * 1.5 * _ROUNDS * count)
    return (*list_family_work(settings, tuple(_NAMED)), named)


def measure(lab: Laboratory) -> None:
    """Measure the evaluations of both families, and the named networks."""
    for family in _NAMED:
        lab.measure_family(lab.settings.get_family(family).make_plan())
    trials = [trial for family in _NAMED for trial in _list_trials(lab.settings, family)]
    lab.measure(trials, ROLE, _ROUNDS)


def analyse(lab: Laboratory) -> Findings:
    """Collect errors of random and of named networks."""
    nets: list[dict[str, Any]] = []
    notes: list[str] = []
    seconds = sum_cost_s(lab.list_role(ROLE))
    for family in _NAMED:
        setting = lab.settings.get_family(family)
        try:
            evaluation = lab.evaluate_family(setting.make_plan())
        except MissingError as error:
            notes.append(f"{family}: {error}.")
            continue
        nets += [{**net, "is_named": False} for net in list_nets(evaluation.nets)]
        nets += [{**net, "is_named": True} for net in _estimate_named(lab, family)]
        notes += list_evaluation_notes(evaluation)
        seconds += sum_evaluation_s(evaluation)
    nets = [{**net, "depth": count_depth(net["name"])} for net in nets]
    verdict, finding, correlation = judge(nets)
    numbers = {"nets": nets, "rank_correlation": correlation}
    found = Findings(verdict, finding, numbers, seconds, tuple(notes))
    planned = sum(lab.settings.get_family(name).nets for name in _NAMED)
    planned += sum(len(_list_trials(lab.settings, name)) for name in _NAMED)
    return found.mark_partial(len(nets), planned, "networks")


def judge(nets: Sequence[Mapping[str, Any]]) -> tuple[str, str, float]:
    """Return the verdict, the sentence, and the rank correlation of depth and AMPERE's error.

    Raises:
        MissingError: FLOPs or AMPERE estimated too few networks.
    """
    known = [net for net in nets if {FLOPS, AMPERE} <= set(net["estimates_j"])]
    if len(known) < _FEWEST_NETS:
        raise MissingError(f"only {len(known)} networks were estimated by FLOPs and by AMPERE")
    sizes = {name: [abs(e) for e in list_net_errors(known, name)] for name in (FLOPS, AMPERE)}
    depths = [float(net["depth"]) for net in known]
    correlation = correlate_ranks(depths, sizes[AMPERE])
    is_better = median(sizes[AMPERE]) < median(sizes[FLOPS]) and compute_net_mape(
        known, AMPERE
    ) < compute_net_mape(known, FLOPS)
    is_flat = correlation <= MOST_RANK_CORRELATION
    shown = [name for name in _SHOWN if all(name in net["estimates_j"] for net in known)]
    finding = (
        f"MAPE over {len(known)} ResNets of {min(depths):.0f} to {max(depths):.0f} layers: "
        f"{describe_mapes(known, shown)}. The rank correlation of depth and AMPERE's absolute "
        f"error is {correlation:+.2f}."
    )
    return HELD if is_better and is_flat else NOT_HELD, finding, correlation


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw the distribution of errors, and errors against depth."""
    result = results[0]
    nets = result.numbers["nets"]
    names = [name for name in _SHOWN if all(name in net["estimates_j"] for net in nets)]
    named = sum(net["is_named"] for net in nets)
    subtitle = (
        f"{len(nets) - named} random ResNets and {named} of the original width on "
        f"{result.device.name}; {LEGEND}"
    )
    caption = Caption("Distribution of errors", subtitle, result.provenance)
    points = [
        ErrorPoint(net["name"], name, net["depth"], error)
        for name in names
        for net, error in zip(nets, list_net_errors(nets, name), strict=True)
    ]
    plots = (
        plot_error_distribution(list_scored(nets, names), caption),
        plot_error_trend(
            points,
            Axis("Layers", is_integer=True),
            Caption("Error against depth", "", result.provenance),
            is_absolute=True,
        ),
    )
    return combine_plots("Fig. 10: errors of ResNets", plots)


def count_depth(name: str) -> int:
    """Return the layers with weights of a ResNet by its name, without projections."""
    params = parse_params(name)
    blocks = sum(count for key, count in params.items() if key.startswith("d"))
    return 2 + _LAYERS_PER_BLOCK[name.partition(":")[0]] * blocks


def _list_named(settings: PaperSettings) -> Mapping[str, Sequence[str]]:
    return _QUICK_NAMED if settings.is_quick else _NAMED


def _list_trials(settings: PaperSettings, family: str) -> list[Trial]:
    setting = settings.get_family(family)
    names = _list_named(settings)[family]
    return [Trial(make_family(name, setting.input_shape), setting.setup) for name in names]


def _estimate_named(lab: Laboratory, family: str) -> list[dict[str, Any]]:
    """Return the named networks of a family with their energy and all estimates."""
    evaluation_plan = lab.settings.get_family(family).make_plan()
    found = lab.find(_list_trials(lab.settings, family), ROLE)
    trials = [trial for trial in _list_trials(lab.settings, family) if found[trial.key]]
    estimates_j: dict[str, list[float]] = {}
    for name in evaluation_plan.estimators if trials else ():
        try:
            fitted = lab.fit(evaluation_plan, name)
        except MissingError:
            continue
        networks, setups = [t.network for t in trials], [t.setup for t in trials]
        estimates_j[name] = fitted.predict(networks, setups).energy_j.tolist()
    return [
        {
            "name": trial.network.name,
            "flops": network_work(trial.network, trial.setup).total.flops,
            "duration_s": median(one.duration_s or 0.0 for one in found[trial.key]),
            "measured_j": median(one.energy_j or 0.0 for one in found[trial.key]),
            "estimates_j": {name: values[at] for name, values in estimates_j.items()},
        }
        for at, trial in enumerate(trials)
    ]


DEPTH_ERRORS = Experiment(
    "fig10",
    "Errors of ResNets, and their depth",
    "On ResNets AMPERE has smaller errors than energy proportional to FLOPs, and its accuracy does "
    "not decrease with the number of layers.",
    "Median and mean absolute error of AMPERE are below those of FLOPs, and the rank correlation "
    f"of depth and AMPERE's absolute error is at most {MOST_RANK_CORRELATION}.",
    plan,
    measure,
    analyse,
    draw,
)
