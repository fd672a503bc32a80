"""Print what ``joulecast estimate`` found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.cli.print_layers import print_layers
from joulecast.cli.print_run import list_run_lines
from joulecast.cli.run_options import RunOptions
from joulecast.cli.setups import (
    begin_sentence,
    describe_setup,
    explain_not_included,
    is_inference,
    name_activity,
)
from joulecast.cli.terminal import (
    Json,
    describe_coverage,
    describe_provenance,
    format_interval,
    format_level,
    format_with_interval,
    make_console,
    plural,
    print_notes,
)
from joulecast.estimators.additive.predict import DURATIONS
from joulecast.estimators.fitted_profile import explain_memory
from joulecast.records import (
    DataParallel,
    Estimate,
    Profile,
    Setup,
    name_step,
    summarise_observations,
)
from joulecast.units import (
    JOULES_PER_WH,
    format_bytes,
    format_duration,
    format_energy,
    format_kwh,
    format_mass,
    format_money,
    format_power,
    format_share,
    format_wh,
)
from joulecast.uses.whole_run import RunCost

# Shares above which a note is worth printing.
_MIN_HOST_SHARE = 0.05
_MIN_SOURCE_SHARE = 0.05
_MIN_UNTIMED_SHARE = 0.3
_NEARLY_CERTAIN = 0.999
_MAX_SETUPS = 3
# Level of the interval of the energy that a run needs from a battery.
_FINISH_LEVEL = 0.95
# Answers by the smallest probability they stand for.
_FINISHES = {
    f"Almost certainly (above {format_share(_NEARLY_CERTAIN)})": _NEARLY_CERTAIN,
    "Yes, with {share}": 0.975,
    "Probably, with {share}": 0.5,
    "Probably not, with {share}": 0.025,
    "No, with {share}": 1 - _NEARLY_CERTAIN,
    f"Almost certainly not (below {100 * (1 - _NEARLY_CERTAIN):.1f} %)": 0.0,
}


@dataclass(frozen=True)
class EstimateReport:
    """An estimate with what it was made for.

    Attributes:
        data: The result as JSON values, totals included.
        run: What is printed of the whole run.
        cost: What the run takes, with all its parts.
        warnings: Notes of the estimate that must not be missed.
        every_layer: Whether every layer is printed, instead of the costliest.
    """

    name: str
    setup: Setup
    estimate: Estimate
    profile: Profile
    data: Json
    run: RunOptions
    cost: RunCost
    warnings: tuple[str, ...] = ()
    every_layer: bool = False


def print_estimate(report: EstimateReport) -> None:
    """Print energy and duration of a step and of the run, the costliest layers, and notes."""
    console, data, result = make_console(), report.data, report.estimate
    setup = report.setup
    verb = name_activity(setup)
    where = f"{result.gpus} × {result.device}" if result.gpus > 1 else result.device
    console.print(f"{verb} {report.name} on {where}: {describe_setup(setup, result.gpus)}\n")
    console.print(_describe_step(setup, result), style="bold")
    for line in list_run_lines(report.cost, setup, result.gpus):
        console.print(line, style="bold")
    if result.data_parallel is not None:
        console.print(_describe_scaling(result, result.data_parallel))
    console.print(" · ".join(_list_units(data, report.run)))
    if "finish" in data:
        console.print(_answer_finish(report), style="bold")
    for warning in _list_warnings(report):
        console.print(warning, style="bold yellow")
    console.print()
    print_layers(console, result, report.every_layer)
    print_notes(console, _list_notes(report))


def describe_nearest(setup: Setup, known: Sequence[Setup]) -> str:
    """Return the few setups nearest to one, and how many more there are."""

    def distance(other: Setup) -> tuple[int, float]:
        names = (
            "phase", "precision", "optimizer", "loss", "threads", "processor", "cuda_graphs",
            "accumulate", "compiled",
        )  # fmt: skip
        differences = sum(getattr(other, name) != getattr(setup, name) for name in names)
        return differences, abs(math.log(other.batch / setup.batch))

    nearest = sorted(known, key=distance)[:_MAX_SETUPS]
    more = len(known) - len(nearest)
    text = "; ".join(map(describe_setup, nearest))
    return f"{text}; and {more} more setup{'s' if more > 1 else ''}" if more else text


def _describe_step(setup: Setup, result: Estimate) -> str:
    """Return what a step or an inference takes; the duration of an inference is its latency."""
    cost = (result.energy_j, result.interval_j)
    if not is_inference(setup):
        start = begin_sentence(setup)
        if result.data_parallel is not None:
            start += f" of {result.data_parallel.samples_per_step:,} samples"
        return f"{start} takes {_format_cost(*cost, result.duration_s, result)}."
    energy = format_with_interval(*cost, result.level, result.provenance)
    latency, ends_s = format_duration(result.duration_s), result.duration_interval_s
    if ends_s is not None:
        latency += f" ({format_level(result.level)} {format_interval(ends_s, format_duration)})"
    return f"{begin_sentence(setup)} takes {energy}, with a latency of {latency}."


def _format_cost(energy_j: float, interval_j: Any, duration_s: float, result: Estimate) -> str:
    energy = format_with_interval(energy_j, interval_j, result.level, result.provenance)
    return f"{energy} and {format_duration(duration_s)}"


def _list_units(data: Json, run: RunOptions) -> list[str]:
    units = []
    if "latency_s" in data:
        units.append(f"{format_power(data['mean_power_w'])} on average")
        wh = data["wh_per_1000_inferences"]
        units.append(f"{format_wh(wh * JOULES_PER_WH)} per 1,000 inferences")
    if not units or data["steps"] * data["runs"] > 1:
        units.append(format_kwh(data["total_energy_j"]))
    if "co2e_g" in data:
        units.append(f"about {format_mass(data['co2e_g'])} CO2e (grid {run.grid})")
    if "cost" in data:
        units.append(format_money(data["cost"], data["currency"]))
    if "battery_share" in data:
        units.append(f"{format_share(data['battery_share'])} of a {run.battery} battery")
    return units


def _answer_finish(report: EstimateReport) -> str:
    """Return whether the run finishes on the charge, with its probability."""
    data, covers = report.data, report.estimate.covers
    finish = data["finish"]
    available = format_energy(finish["available_j"])
    enough = f"enough for about {plural(finish['steps_left'], name_step(report.setup))}"
    caveat = (
        f" The meter covers {covers}: give the power of everything else on the battery with "
        "--rest-w."
    )
    caveat = "" if report.run.rest_w else caveat
    if data["steps"] * data["runs"] == 1:
        option = "--inferences" if is_inference(report.setup) else "--steps"
        hint = f"Give {option}, or --epochs and --samples, to ask about a whole run."
        return f"This charge holds {available}, {enough}. {hint}{caveat}"
    probability = finish["probability"]
    answer = next(text for text, least in _FINISHES.items() if probability >= least)
    answer = answer.format(share=f"{100 * probability:.1f} %")
    interval = format_interval(finish["interval_j"], format_energy)
    needed = f"{format_energy(finish['needed_j'])} ({format_level(_FINISH_LEVEL)} {interval})"
    return (
        f"Will it finish on this charge? {answer}: it needs {needed} of {available}, which is "
        f"{enough}.{caveat}"
    )


def _list_notes(report: EstimateReport) -> list[str]:
    result = report.estimate
    is_run = report.cost.schedule.steps > 1 and not is_inference(report.setup)
    missing = report.cost.not_included if is_run else explain_not_included(report.setup)
    notes = [
        f"{_describe_memory(result)} {missing}",
        f"Provenance: {_describe_source(result)}; "
        f"{describe_coverage(result.provenance, result.covers)}.",
    ]
    if result.host_share is not None and result.host_share > _MIN_HOST_SHARE:
        notes.append(
            f"{format_share(result.host_share)} of the energy is spent waiting for the host; "
            f"without waiting, {begin_sentence(report.setup).lower()} takes "
            f"{format_energy(result.device_energy_j or 0.0)}."
        )
    notes += _explain_interval(result)
    if result.unseen_share > 0:
        notes.append(_explain_unseen(report))
    warnings = _list_warnings(report)
    return [*notes, *(note for note in result.notes if note not in warnings)]


def _list_warnings(report: EstimateReport) -> list[str]:
    """Return the notes that are printed where they cannot be missed."""
    return [*report.warnings, *explain_memory(report.estimate)]


def _describe_source(result: Estimate) -> str:
    part = result.data_parallel
    if part is None:
        return describe_provenance(result.provenance)
    return (
        f"a step of one GPU {describe_provenance(part.step_provenance)}; what {part.gpus} GPUs add "
        f"to it {part.provenance}, not measured"
    )


def _describe_scaling(result: Estimate, part: DataParallel) -> str:
    """Return how much more several GPUs do than one, and at which energy."""
    speed = part.gpus * (1.0 - part.added_s / result.duration_s)
    energy = result.energy_j / (result.energy_j - part.added_j)
    return (
        f"{part.gpus} GPUs train {speed:.2f} times the samples per second of one, at {energy:.2f} "
        "times its energy per sample (modelled)."
    )


def _describe_memory(result: Estimate) -> str:
    needed = format_bytes(result.peak_memory_bytes) + (" per GPU" if result.gpus > 1 else "")
    if not result.device_memory_bytes:
        return f"Peak memory about {needed}."
    available = format_bytes(result.device_memory_bytes)
    return f"Peak memory about {needed}; the device has {available}."


def _explain_interval(result: Estimate) -> list[str]:
    """Return where the interval comes from, and by how much a probe would narrow it."""
    sources = [
        (name, share)
        for name, share in result.uncertainty_sources.items()
        if share >= _MIN_SOURCE_SHARE
    ]
    if not sources:
        return []
    parts = ", ".join(f"{name} ({format_share(share)})" for name, share in sources)
    text = f"Sources of uncertainty: {parts}."
    untimed = result.uncertainty_sources.get(DURATIONS, 0.0)
    if untimed < _MIN_UNTIMED_SHARE:
        return [text]
    half = math.log(result.interval_j[1] / result.energy_j)
    narrowed = math.expm1(half * math.sqrt(1.0 - untimed))
    return [
        f"{text} On the device, --probe would measure these layers first and narrow the interval "
        f"from ± {format_share(math.expm1(half))} to about ± {format_share(narrowed)}."
    ]


def _explain_unseen(report: EstimateReport) -> str:
    setup = report.setup
    setups = [one for one, _ in summarise_observations(report.profile.observations).setups]
    advice = "run `joulecast profile NET --missing` for this net on the device"
    if setups and setup not in setups:
        nearest = describe_nearest(setup, setups)
        advice = f"the profile has {nearest}; use one of these, or profile this setup too"
    return (
        f"{format_share(report.estimate.unseen_share)} of the energy is extrapolated to layers "
        f"never measured on this device: {advice}."
    )
