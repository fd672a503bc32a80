"""Fig. 7: estimated against measured energy of random five-layer CNNs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from joulecast.errors import MissingError
from joulecast.figures import (
    Caption,
    ErrorPoint,
    Plot,
    combine_plots,
    plot_error_trend,
    plot_estimates,
)
from joulecast.figures.plot import fit_axis
from joulecast.uses.reproduce.experiment import (
    HELD,
    NOT_HELD,
    Experiment,
    ExperimentResult,
    Findings,
    PlannedWork,
)
from joulecast.uses.reproduce.laboratory import Laboratory
from joulecast.uses.reproduce.paper_settings import (
    AMPERE,
    FLOPS,
    OURS,
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

FAMILY = "cnn5"
MOST_AMPERE_PERCENT = 15.0
_SHOWN = (FLOPS, AMPERE, OURS)
_FEWEST_NETS = 9


def plan(settings: PaperSettings) -> Sequence[PlannedWork]:
    """Return the evaluation of the five-layer CNN."""
    return list_family_work(settings, (FAMILY,))


def measure(lab: Laboratory) -> None:
    """Measure the evaluation of the five-layer CNN."""
    lab.measure_family(lab.settings.get_family(FAMILY).make_plan())


def analyse(lab: Laboratory) -> Findings:
    """Compare errors at low and at high FLOPs."""
    evaluation = lab.evaluate_family(lab.settings.get_family(FAMILY).make_plan())
    nets = list_nets(evaluation.nets)
    verdict, finding, thirds = judge(nets)
    numbers = {"nets": nets, "thirds": thirds}
    notes = list_evaluation_notes(evaluation)
    return Findings(verdict, finding, numbers, sum_evaluation_s(evaluation), notes)


def judge(nets: Sequence[Mapping[str, Any]]) -> tuple[str, str, list[dict[str, Any]]]:
    """Return the verdict, the sentence, and errors in each third of the networks by FLOPs.

    Raises:
        MissingError: There are too few networks, or FLOPs or AMPERE gave no estimate.
    """
    for name in (FLOPS, AMPERE):
        if len(list_net_errors(nets, name)) < _FEWEST_NETS:
            raise MissingError(f"{name} estimated fewer than {_FEWEST_NETS} networks")
    ordered = sorted(nets, key=lambda net: float(net["flops"]))
    ends = [round(len(ordered) * at / 3) for at in range(4)]
    groups = [ordered[a:b] for a, b in pairwise(ends)]
    thirds: list[dict[str, Any]] = [
        {
            "flops": [group[0]["flops"], group[-1]["flops"]],
            "median_errors_percent": {
                n: median(list_net_errors(group, n)) for n in (FLOPS, AMPERE)
            },
            "mapes_percent": {n: compute_net_mape(group, n) for n in (FLOPS, AMPERE)},
        }
        for group in groups
    ]
    low, high = (thirds[at]["median_errors_percent"][FLOPS] for at in (0, -1))
    worst = max(third["mapes_percent"][AMPERE] for third in thirds)
    is_biased = low > 0 > high
    is_accurate = worst <= MOST_AMPERE_PERCENT
    shown = [name for name in _SHOWN if name in nets[0]["estimates_j"]]
    finding = (
        f"Energy proportional to FLOPs is off by {low:+.0f} % (median) in the third with the "
        f"lowest FLOPs and by {high:+.0f} % in the third with the highest"
        f"{'' if is_biased else ', which is not what the paper found'}; AMPERE's MAPE is at most "
        f"{worst:.1f} % in any third. MAPE over all {len(nets)} networks: "
        f"{describe_mapes(nets, shown)}."
    )
    return HELD if is_biased and is_accurate else NOT_HELD, finding, thirds


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw estimates against measurements, and errors against FLOPs."""
    result = results[0]
    nets = result.numbers["nets"]
    names = [name for name in _SHOWN if name in nets[0]["estimates_j"]]
    subtitle = f"{len(nets)} random five-layer CNNs on {result.device.name}; {LEGEND}"
    caption = Caption("Estimated against measured", subtitle, result.provenance)
    agreement = plot_estimates(list_scored(nets, names), caption)
    points = [
        ErrorPoint(net["name"], name, net["flops"], error)
        for name in names
        for net, error in zip(nets, list_net_errors(nets, name), strict=True)
    ]
    x = fit_axis("FLOPs per step", [net["flops"] for net in nets], "FLOP", has_si_prefixes=True)
    trend = plot_error_trend(points, x, Caption("Error against FLOPs", "", result.provenance))
    return combine_plots("Fig. 7: estimates of random five-layer CNNs", (agreement, trend))


RANDOM_NETWORKS = Experiment(
    "fig7",
    "Estimates of random five-layer CNNs",
    "Energy proportional to FLOPs is overestimated where FLOPs are low and underestimated where "
    "they are high, while AMPERE keeps a high accuracy across all ranges.",
    "The median error of energy proportional to FLOPs is positive in the third of the networks "
    "with the lowest FLOPs and negative in the third with the highest, and the MAPE of AMPERE is "
    f"at most {MOST_AMPERE_PERCENT:g} % in every third.",
    plan,
    measure,
    analyse,
    draw,
)
