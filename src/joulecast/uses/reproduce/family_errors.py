"""Fig. 8: mean errors of the estimators by family, and by device where there are several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from joulecast.errors import MissingError
from joulecast.figures import Caption, Plot, ScoredEstimate, plot_mape_bars
from joulecast.records import weakest_provenance
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
    ESTIMATORS,
    FLOPS,
    OURS,
    PAPER_FAMILIES,
    PaperSettings,
    list_family_work,
)
from joulecast.uses.reproduce.scored_nets import (
    LABELS,
    LEGEND,
    compute_net_mape,
    list_estimators_of,
    list_evaluation_notes,
    list_nets,
    list_scored,
    name_device,
    sum_evaluation_s,
)

MOST_AMPERE_PERCENT = 15.0


def plan(settings: PaperSettings) -> Sequence[PlannedWork]:
    """Return the evaluations of the paper's four families."""
    return list_family_work(settings, PAPER_FAMILIES)


def measure(lab: Laboratory) -> None:
    """Measure the evaluations of the paper's four families."""
    for name in PAPER_FAMILIES:
        lab.measure_family(lab.settings.get_family(name).make_plan())


def analyse(lab: Laboratory) -> Findings:
    """Average errors over families."""
    families: dict[str, Any] = {}
    notes: list[str] = []
    seconds = 0.0
    for name in PAPER_FAMILIES:
        try:
            evaluation = lab.evaluate_family(lab.settings.get_family(name).make_plan())
        except MissingError as error:
            notes.append(f"{name}: {error}.")
            continue
        families[name] = {
            "nets": list_nets(evaluation.nets),
            "noise_percent": evaluation.noise_percent,
            "batch": evaluation.setup.batch,
        }
        notes += list_evaluation_notes(evaluation)
        seconds += sum_evaluation_s(evaluation)
    verdict, finding, mapes = judge(families)
    numbers = {"families": families, "mapes_percent": mapes}
    found = Findings(verdict, finding, numbers, seconds, tuple(notes))
    return found.mark_partial(len(mapes), len(PAPER_FAMILIES), "families")


def judge(families: Mapping[str, Any]) -> tuple[str, str, dict[str, dict[str, float]]]:
    """Return the verdict, the sentence, and the MAPE by family and estimator.

    Raises:
        MissingError: No family was estimated by FLOPs and by AMPERE.
    """
    mapes: dict[str, dict[str, float]] = {}
    for name, family in families.items():
        known = list_estimators_of(family["nets"])
        if FLOPS in known and AMPERE in known:
            mapes[name] = {one: compute_net_mape(family["nets"], one) for one in known}
    if not mapes:
        raise MissingError("no family was estimated both by FLOPs and by AMPERE")
    means = {
        one: fmean(found[one] for found in mapes.values())
        for one in ESTIMATORS
        if all(one in found for found in mapes.values())
    }
    is_better = means[AMPERE] < means[FLOPS] and means[AMPERE] <= MOST_AMPERE_PERCENT
    worse = [name for name, found in mapes.items() if found[AMPERE] >= found[FLOPS]]
    shown = [f"{LABELS[one]} {means[one]:.1f} %" for one in (FLOPS, AMPERE, OURS) if one in means]
    where = f"worse than FLOPs for {', '.join(worse)}" if worse else "better in every family"
    finding = (
        f"Mean MAPE over {', '.join(mapes)}: {', '.join(shown)} (the paper: about 40 % and about "
        f"10 %). AMPERE was {where}."
    )
    return HELD if is_better else NOT_HELD, finding, mapes


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw a bar for each family and estimator; with several devices, families of each device."""
    rows: list[ScoredEstimate] = []
    noise: dict[str, float] = {}
    for name in PAPER_FAMILIES:
        for result in results:
            family = result.numbers["families"].get(name)
            if family is None:
                continue
            label = f"{name}, {result.device.name}" if len(results) > 1 else name
            rows += list_scored(family["nets"], ESTIMATORS, label)
            if family["noise_percent"] is not None:
                noise[label] = family["noise_percent"]
    subtitle = f"{' and '.join(map(name_device, results))}; {LEGEND}"
    provenance = weakest_provenance(one.provenance for one in results)
    caption = Caption("Fig. 8: mean errors by family", subtitle, provenance)
    return plot_mape_bars(rows, noise, caption)


FAMILY_ERRORS = Experiment(
    "fig8",
    "Mean errors by family and device",
    "AMPERE reduces the mean absolute percentage error of end-to-end estimates from about 40 %, "
    "with energy proportional to FLOPs, to about 10 %.",
    "Averaged over the families, the MAPE of AMPERE is below that of FLOPs and at most "
    f"{MOST_AMPERE_PERCENT:g} %.",
    plan,
    measure,
    analyse,
    draw,
    has_several_devices=True,
)
