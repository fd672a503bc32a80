"""Say what a training run will take and has taken, in the log."""

from __future__ import annotations

from joulecast.callbacks.failures import LOGGER
from joulecast.callbacks.training_run import CallbackOptions, TrainingRun, TrainingSummary
from joulecast.records import Estimate, Setup
from joulecast.units import format_duration, format_energy, format_interval


def say_notes(run: TrainingRun) -> None:
    """Say what was assumed about a run, and what is not measured."""
    for note in run.notes:
        LOGGER.info(note)
    if run.processes > 1:
        LOGGER.warning(
            "Only the device of this process is measured, one of %d; estimates are for one device "
            "as well, and a budget is reported but does not stop training.",
            run.processes,
        )


def say_estimate(
    estimate: Estimate, run: TrainingRun, setup: Setup, options: CallbackOptions
) -> None:
    """Say what the steps will take, and warn if that is more than the budget."""
    steps = run.steps or 1
    interval = format_interval([steps * one for one in estimate.interval_j], format_energy)
    LOGGER.info(
        "Estimate: %s %s (%g %% interval %s, %s), batch %d%s, %s, %s.",
        f"{steps:,} steps take" if steps > 1 else "a step takes",
        format_energy(steps * estimate.energy_j),
        100 * estimate.level,
        interval,
        estimate.provenance,
        setup.batch,
        f" x {setup.accumulate}" if setup.accumulate > 1 else "",
        setup.precision,
        setup.optimizer,
    )
    for note in estimate.notes:
        LOGGER.info("Note: %s", note)
    if options.budget_j is not None and run.steps and steps * estimate.energy_j > options.budget_j:
        LOGGER.warning(
            "The budget of %s lasts for about %s of %s steps.",
            format_energy(options.budget_j),
            f"{int(options.budget_j / estimate.energy_j):,}",
            f"{steps:,}",
        )


def say_budget_passed(budget_j: float, energy_j: float, steps: int, run: TrainingRun) -> None:
    """Say that the budget is passed, and what follows."""
    goes_on = "training goes on, because the other processes would wait for this one"
    LOGGER.warning(
        "The budget of %s is passed: %s after %s steps; %s.",
        format_energy(budget_j),
        format_energy(energy_j),
        f"{steps:,} of {run.steps:,}" if run.steps else f"{steps:,}",
        "training stops here" if run.processes == 1 else goes_on,
    )


def say_summary(summary: TrainingSummary, run: TrainingRun, faults: tuple[str, ...]) -> None:
    """Say what a run took, beside what was estimated.

    Args:
        summary: What it took.
        run: The run.
        faults: What the meter noticed.
    """
    if summary.energy_j is None:
        reason = "; ".join(faults) or "the run was too short for the meter"
        LOGGER.warning("The energy of the run is not known: %s.", reason)
        return
    estimated = ""
    if summary.estimated_j is not None and summary.estimated_interval_j is not None:
        interval = format_interval(summary.estimated_interval_j, format_energy)
        energy = format_energy(summary.estimated_j)
        estimated = f"; the estimate of {run.steps:,} steps was {energy} ({interval})"
    LOGGER.info(
        "Training took %s (%s, the meter covers %s) in %s and %s steps%s.",
        format_energy(summary.energy_j),
        summary.provenance,
        summary.covers,
        format_duration(summary.duration_s),
        f"{summary.steps:,}",
        estimated,
    )
