"""Fig. 6: the energy of a training step against its duration, for random five-layer CNNs."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.errors import MissingError
from joulecast.figures import Caption, Plot, StepMeasurement, plot_energy_by_time
from joulecast.uses.reproduce.experiment import (
    HELD,
    NOT_HELD,
    Experiment,
    ExperimentResult,
    Findings,
    PlannedWork,
)
from joulecast.uses.reproduce.laboratory import Laboratory
from joulecast.uses.reproduce.paper_settings import PaperSettings, list_family_work
from joulecast.uses.reproduce.statistics import correlate, correlate_ranks

FAMILY = "cnn5"
LEAST_RANK_CORRELATION = 0.9
_FEWEST_NETS = 5


def plan(settings: PaperSettings) -> Sequence[PlannedWork]:
    """Return the evaluation of the five-layer CNN."""
    return list_family_work(settings, (FAMILY,))


def measure(lab: Laboratory) -> None:
    """Measure the networks of the evaluation."""
    lab.measure_family(lab.settings.get_family(FAMILY).make_plan())


def analyse(lab: Laboratory) -> Findings:
    """Correlate durations and energies."""
    evaluation = lab.evaluate_family(lab.settings.get_family(FAMILY).make_plan())
    nets = evaluation.nets
    if len(nets) < _FEWEST_NETS:
        raise MissingError(f"only {len(nets)} networks were measured")
    durations_s = [net.measured_s for net in nets]
    energies_j = [net.measured_j for net in nets]
    pearson, spearman = correlate(durations_s, energies_j), correlate_ranks(durations_s, energies_j)
    powers_w = [energy / duration for energy, duration in zip(energies_j, durations_s, strict=True)]
    verdict = HELD if spearman >= LEAST_RANK_CORRELATION else NOT_HELD
    finding = (
        f"Over {len(nets)} networks, duration and energy of a step have a rank correlation of "
        f"{spearman:.3f} (Pearson {pearson:.3f}), while the mean power of a step ranges from "
        f"{min(powers_w):.0f} to {max(powers_w):.0f} W."
    )
    numbers = {
        "nets": [
            {"name": net.name, "duration_s": net.measured_s, "energy_j": net.measured_j}
            for net in nets
        ],
        "pearson": pearson,
        "spearman": spearman,
        "least_power_w": min(powers_w),
        "most_power_w": max(powers_w),
    }
    return Findings(verdict, finding, numbers)


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw a point for each network."""
    series = {
        result.device.name: [
            StepMeasurement(net["name"], net["duration_s"], net["energy_j"])
            for net in result.numbers["nets"]
        ]
        for result in results
    }
    first = results[0]
    subtitle = f"{len(first.numbers['nets'])} random five-layer CNNs on {first.device.name}"
    caption = Caption("Fig. 6: energy against duration", subtitle, first.provenance)
    return plot_energy_by_time(series, caption)


TIME_AND_ENERGY = Experiment(
    "fig6",
    "Energy against duration of five-layer CNNs",
    "Time and energy of a training step have an obvious positive relationship, so that the "
    "uncertainty of time can guide profiling where energy cannot be read.",
    f"The rank correlation over random networks is at least {LEAST_RANK_CORRELATION}.",
    plan,
    measure,
    analyse,
    draw,
)
