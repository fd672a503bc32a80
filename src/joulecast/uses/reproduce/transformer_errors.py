"""Fig. 9: estimates of Transformers with a random number of encoder layers and hidden size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joulecast.errors import MissingError
from joulecast.figures import (
    Caption,
    Plot,
    combine_plots,
    plot_error_distribution,
    plot_estimates,
)
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

FAMILY = "transformer"
LEAST_BETTER_SHARE = 0.5
_SHOWN = (FLOPS, AMPERE, OURS)
_FEWEST_NETS = 3


def plan(settings: PaperSettings) -> Sequence[PlannedWork]:
    """Return the evaluation of the Transformer."""
    return list_family_work(settings, (FAMILY,))


def measure(lab: Laboratory) -> None:
    """Measure the evaluation of the Transformer."""
    lab.measure_family(lab.settings.get_family(FAMILY).make_plan())


def analyse(lab: Laboratory) -> Findings:
    """Compare AMPERE with FLOPs network by network."""
    evaluation = lab.evaluate_family(lab.settings.get_family(FAMILY).make_plan())
    nets = list_nets(evaluation.nets)
    verdict, finding, share = judge(nets)
    notes = list_evaluation_notes(evaluation)
    numbers = {"nets": nets, "better_share": share}
    return Findings(verdict, finding, numbers, sum_evaluation_s(evaluation), notes)


def judge(nets: Sequence[Mapping[str, Any]]) -> tuple[str, str, float]:
    """Return the verdict, the sentence, and the share of networks that AMPERE estimates better.

    Raises:
        MissingError: FLOPs or AMPERE estimated too few networks.
    """
    flops, ampere = (list_net_errors(nets, name) for name in (FLOPS, AMPERE))
    if min(len(flops), len(ampere)) < _FEWEST_NETS:
        raise MissingError(f"fewer than {_FEWEST_NETS} networks were estimated by FLOPs and AMPERE")
    better = sum(abs(a) < abs(b) for a, b in zip(ampere, flops, strict=True))
    share = better / len(flops)
    is_better = compute_net_mape(nets, AMPERE) < compute_net_mape(nets, FLOPS)
    shown = [name for name in _SHOWN if name in nets[0]["estimates_j"]]
    finding = (
        f"MAPE over {len(nets)} Transformers: {describe_mapes(nets, shown)}; AMPERE was closer "
        f"than FLOPs for {better} of them."
    )
    return HELD if is_better and share > LEAST_BETTER_SHARE else NOT_HELD, finding, share


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw estimates against measurements, and the distribution of errors."""
    result = results[0]
    nets = result.numbers["nets"]
    rows = list_scored(nets, [name for name in _SHOWN if name in nets[0]["estimates_j"]])
    subtitle = f"{len(nets)} random Transformers on {result.device.name}; {LEGEND}"
    plots = (
        plot_estimates(rows, Caption("Estimated against measured", subtitle, result.provenance)),
        plot_error_distribution(rows, Caption("Distribution of errors", "", result.provenance)),
    )
    return combine_plots("Fig. 9: estimates of Transformers", plots)


TRANSFORMER_ERRORS = Experiment(
    "fig9",
    "Estimates of Transformers",
    "AMPERE consistently outperforms energy proportional to FLOPs on Transformers.",
    "The MAPE of AMPERE is below that of FLOPs, and its error is the smaller one for more than "
    f"{100 * LEAST_BETTER_SHARE:g} % of the networks.",
    plan,
    measure,
    analyse,
    draw,
)
