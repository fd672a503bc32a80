"""Describe what a whole run, or a sweep, takes."""

from __future__ import annotations

from joulecast.cli.terminal import format_with_interval, plural
from joulecast.records import Setup, name_step
from joulecast.units import format_duration, format_energy, format_power
from joulecast.uses.whole_run import EVALUATION, WAITING, RunCost, RunPart


def list_run_lines(cost: RunCost, setup: Setup, gpus: int = 1) -> list[str]:
    """Return a line for each part of a run, for the run, and for all runs of a sweep."""
    steps, runs = cost.schedule.steps, cost.schedule.runs
    training, *others = cost.parts
    lines = []
    if steps > 1:
        lines.append(f"{plural(steps, name_step(setup))} take {_format_part(training, cost)}.")
    lines += [_describe_part(part, cost, gpus) for part in others]
    if others:
        low_j, high_j = cost.interval_j
        one = RunPart(
            "run", 1, cost.energy_j / runs, (low_j / runs, high_j / runs), cost.duration_s / runs
        )
        lines.append(f"The run takes {_format_part(one, cost)}.")
    if runs > 1:
        total = RunPart("runs", runs, cost.energy_j, cost.interval_j, cost.duration_s)
        lines.append(f"{plural(runs, 'run')} take {_format_part(total, cost)}.")
    return lines


def _describe_part(part: RunPart, cost: RunCost, gpus: int) -> str:
    if part.name == EVALUATION:
        schedule = cost.schedule
        count = schedule.evaluation_batches
        batches = f"{count:,} {'batch' if count == 1 else 'batches'}"
        batches += " per GPU" if gpus > 1 else ""
        what = f"{plural(schedule.evaluations, 'evaluation')} of {batches}"
        verb = "takes" if schedule.evaluations == 1 else "take"
        return f"{what} {verb} {_format_part(part, cost)}."
    assert part.name == WAITING and cost.wait is not None
    loading = cost.wait.loading
    what = f"a batch takes {format_duration(loading.batch_s)} to load"
    with_workers = f" with {plural(loading.workers, 'worker')}" if loading.workers else ""
    if not cost.wait.wait_s:
        return f"Loading data adds nothing: {what}{with_workers}, behind the step."
    adds = format_duration(part.duration_s)
    if cost.wait.idle_w is not None:
        idle = format_power(cost.wait.idle_w) + (" per GPU" if gpus > 1 else "")
        adds = f"{format_energy(part.energy_j)} (idle power {idle}) and {adds}"
    waits = f"of which the device waits {format_duration(cost.wait.wait_s)}"
    return f"Loading data adds {adds}: {what}{with_workers}, {waits}."


def _format_part(part: RunPart, cost: RunCost) -> str:
    energy = format_with_interval(part.energy_j, part.interval_j, cost.level, cost.provenance)
    return f"{energy} and {format_duration(part.duration_s)}"
