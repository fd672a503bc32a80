"""Print what ``joulecast prune`` did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joulecast.cli.setups import begin_sentence, describe_setup
from joulecast.cli.terminal import (
    describe_coverage,
    describe_provenance,
    format_with_interval,
    label_provenance,
    make_console,
    print_notes,
    print_table,
)
from joulecast.features.prune import PrunedNet, is_within_budget
from joulecast.records import Estimate, Observation, Setup, name_step
from joulecast.units import format_duration, format_energy, format_share
from joulecast.uses.prune import LayerChange, PruningResult

_MAX_LAYERS = 24
_MAX_NOT_PRUNABLE = 6
# A layer is said to cost more only beyond what rounding explains.
_MORE_ENERGY = 1.02


@dataclass(frozen=True)
class PruningReport:
    """A pruned net and what was done with it.

    Attributes:
        measured: Observations of the original and of the pruned net.
        place: Folder of the saved model; empty where it was not saved.
        steps: Steps of the run that the budget is for.
    """

    pruned: PrunedNet
    setup: Setup
    measured: tuple[Observation, Observation] | None
    place: str
    steps: int | None


def print_pruning(report: PruningReport) -> None:
    """Print the energy before and after, the change of every layer, and notes."""
    console = make_console()
    result = report.pruned.pruning
    before, after = result.before, result.after
    assert before is not None and after is not None, "the command has a profile"
    console.print(
        f"Pruning {result.network.name} for {before.device}: {describe_setup(report.setup)}; "
        f"budget {result.budget.describe(name_step(report.setup))}, strategy {result.strategy}, "
        f"minimising {result.objective}\n"
    )
    share = format_share(after.energy_j / before.energy_j)
    first = begin_sentence(report.setup)
    console.print(f"{first} takes {_format_estimate(after)},", style="bold")
    console.print(f"{share} of {_format_estimate(before)} before.", style="bold")
    console.print(_describe_probability(result) + "\n", style="bold")
    columns = ("layer", "kind", ">channels", ">before", ">after", ">share")
    print_table(console, columns, map(_format_layer, _choose_layers(result.layers)))
    print_notes(console, _list_notes(report, after))
    if report.measured is not None:
        console.print("\n" + _describe_measured(report, *report.measured), style="bold")
    if report.place:
        net = ", net=the original module" if report.pruned.source else ""
        load = f"joulecast.load_pruned({report.place!r}{net})"
        console.print(f"Saved in {report.place}; load it with {load}.")


def _format_estimate(one: Estimate) -> str:
    energy = format_with_interval(one.energy_j, one.interval_j, one.level, one.provenance)
    return f"{energy} and {format_duration(one.duration_s)}"


def _describe_probability(result: PruningResult) -> str:
    if result.budget_probability is None:
        return "Without a profile, the probability of keeping the budget is unknown."
    probability = format_share(result.budget_probability)
    return f"It stays within the budget with a probability of {probability}."


def _choose_layers(layers: Sequence[LayerChange]) -> list[LayerChange]:
    """Return the layers in order; in long nets those that save most, and the rest as one."""
    if len(layers) <= _MAX_LAYERS:
        return list(layers)
    ranked = sorted(layers, key=lambda one: one.energy_after_j - one.energy_before_j)
    top = set(map(id, ranked[:_MAX_LAYERS]))
    rest = [one for one in layers if id(one) not in top]
    sums = (sum(one.energy_before_j for one in rest), sum(one.energy_after_j for one in rest))
    other = LayerChange(f"other {len(rest)} layers", "", 0, 0, *sums)
    return [*(one for one in layers if id(one) in top), other]


def _format_layer(one: LayerChange) -> tuple[str, ...]:
    channels = f"{one.channels_before} → {one.channels_after}" if one.channels_before else ""
    if one.channels_before == one.channels_after and channels:
        channels = str(one.channels_before)
    share = one.energy_after_j / one.energy_before_j if one.energy_before_j else 1.0
    energies = (format_energy(one.energy_before_j), format_energy(one.energy_after_j))
    return (one.name, one.kind, channels, *energies, format_share(share))


def _list_notes(report: PruningReport, after: Estimate) -> list[str]:
    result = report.pruned.pruning
    notes = [
        f"{format_share(result.importance_share)} of the importance is kept on average; "
        f"{result.candidate_count:,} candidates were estimated.",
        f"Provenance: {describe_provenance(after.provenance)}; "
        f"{describe_coverage(after.provenance, after.covers)}.",
    ]
    if after.unseen_share > 0:
        notes.append(
            f"{format_share(after.unseen_share)} of the energy is extrapolated to layers that were "
            "never measured on this device, and so is the choice of channels: on the device, "
            "--probe measures them first."
        )
    if any(one.energy_after_j > _MORE_ENERGY * one.energy_before_j for one in result.layers):
        notes.append(
            "A layer may take more energy with fewer channels, which run less efficiently."
        )
    if result.objective == "flops":
        share = format_share(result.cost_after / result.cost_before)
        notes.insert(0, f"FLOPs are {share} of the original; energies are estimates.")
    if not report.pruned.source:
        notes.append(
            "Joulecast built this net: its weights are random, and so is their importance."
        )
    if report.steps:
        total = format_energy(after.energy_j * report.steps)
        steps = f"{report.steps:,} {name_step(report.setup)}s"
        notes.append(f"{steps} take {total}{label_provenance(after.provenance)}.")
    whole = result.not_prunable
    notes += [f"Not pruned: {reason}." for reason in whole[:_MAX_NOT_PRUNABLE]]
    if len(whole) > _MAX_NOT_PRUNABLE:
        notes.append(f"Not pruned: {len(whole) - _MAX_NOT_PRUNABLE} more, see --json.")
    return notes


def _describe_measured(report: PruningReport, before: Observation, after: Observation) -> str:
    kept = is_within_budget(report.pruned.pruning.budget, before, after)
    verdict = "within the budget" if kept else "above the budget"
    share = format_share((after.energy_j or 0.0) / (before.energy_j or 1.0))
    return (
        f"Measured{label_provenance(after.provenance)}: {begin_sentence(report.setup).lower()} "
        f"takes {_format_energy(after)} "
        f"instead of {_format_energy(before)} ({share}), {verdict}."
    )


def _format_energy(observation: Observation) -> str:
    """Return the energy and its standard deviation over the rounds."""
    spread = f" ± {format_energy(observation.energy_sd_j)}" if observation.energy_sd_j else ""
    return format_energy(observation.energy_j or 0.0) + spread
