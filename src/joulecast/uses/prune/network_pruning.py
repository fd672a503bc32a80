"""Choose channel counts so that a network stays within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joulecast.budgets import EnergyBudget
from joulecast.errors import InputError
from joulecast.estimators import FittedProfile, fit_profile
from joulecast.kinds import count_output_channels
from joulecast.kinds.channel_groups import ChannelGroup
from joulecast.records import Estimate, Network, Profile, Setup, name_step
from joulecast.units import format_count, format_energy, format_share
from joulecast.uses.prune.channel_limits import make_channel_limits
from joulecast.uses.prune.pruning_objectives import (
    EnergyObjective,
    FlopsObjective,
    PruningObjective,
)
from joulecast.uses.prune.pruning_problem import Counts, PruningProblem, kept_importance_share
from joulecast.uses.prune.pruning_result import LayerChange, PruningResult
from joulecast.uses.prune.refinement import refine_counts
from joulecast.uses.prune.strategies import STRATEGIES
from joulecast.uses.prune_options import PruneOptions


def prune_network(
    network: Network,
    groups: Sequence[ChannelGroup],
    setup: Setup,
    budget: EnergyBudget,
    profile: Profile | FittedProfile | None = None,
    options: PruneOptions | None = None,
) -> PruningResult:
    """Choose channel counts so that a step stays within a budget.

    Args:
        network: The original network.
        groups: Groups of channels that can be pruned, with their importance.
        setup: How the network is trained or run.
        budget: Limit for one step.
        profile: Profile of the device, which may be fitted already; only the objective ``flops``
            works without one.
        options: Strategy, objective, confidence and limits.

    Raises:
        InputError: No channels can be pruned, or no reachable network meets the budget.
    """
    options = options or PruneOptions()
    if options.objective == "flops" and budget.share is None:
        raise InputError("the objective flops needs a share as budget: give one like 50%")
    if not groups:
        raise InputError(f"{network.name or 'the network'} has no channels that can be pruned")
    fitted_profile = profile if isinstance(profile, FittedProfile) else None
    if isinstance(profile, Profile):
        fitted_profile = fit_profile(profile, options.estimator)
    problem = PruningProblem(
        network,
        tuple(groups),
        make_channel_limits(network, groups, options.floor, options.keep, options.multiple),
        _make_objective(options.objective, fitted_profile, setup),
        budget,
        options.confidence,
        options.seed,
        options.start or {},
    )
    _check_reachable(problem, name_step(setup))
    counts = _choose_counts(problem, options.strategy)
    return _make_result(problem, counts, options, fitted_profile, setup)


def _make_objective(
    name: str, fitted_profile: FittedProfile | None, setup: Setup
) -> PruningObjective:
    if name == "flops":
        return FlopsObjective(setup)
    if fitted_profile is None:
        raise InputError(
            "the objective energy needs a device profile: give one, or use the objective flops"
        )
    return EnergyObjective(fitted_profile, setup)


def _check_reachable(problem: PruningProblem, step: str) -> None:
    """Raise InputError if even the smallest network exceeds the budget; a step is called so."""
    smallest = problem.limits.smallest
    full_cost, cost = problem.compute_costs([problem.limits.full, smallest])
    if problem.is_within_budget(smallest):
        return
    show = format_energy if problem.objective.unit == "J" else lambda n: format_count(n, "FLOP")
    budget = problem.budget.describe(step)
    shown = f"{show(cost)} per {step} ({format_share(cost / full_cost)} of {show(full_cost)})"
    if cost <= problem.cost_limit:
        probability = format_share(problem.compute_budget_probability(smallest))
        raise InputError(
            f"no reachable network meets {budget} with probability "
            f"{format_share(problem.confidence)}: the smallest one needs an estimated {shown} and "
            f"meets it with probability {probability}; give a larger budget, a lower --confidence "
            "or --floor, or profile this network"
        )
    raise InputError(
        f"a budget of {budget} is below the smallest reachable network, which needs an "
        f"estimated {shown}: give a larger budget, a lower --floor or fewer layers to --keep"
    )


def _choose_counts(problem: PruningProblem, strategy: str) -> dict[str, int]:
    """Return the counts of a strategy, refined; only ``marginal`` spends what the budget leaves.

    Costs are not monotonic in the counts, and going down from the full network can end in a worse
    place than growing the result of a simpler strategy. So ``marginal`` does both, and the
    candidate that keeps most importance wins.
    """
    spend = strategy == "marginal"
    if problem.is_within_budget(problem.initial_counts):
        return dict(refine_counts(problem, problem.initial_counts, spend))
    names = [strategy] if not spend or problem.start else list(STRATEGIES)
    found = [
        dict(refine_counts(problem, STRATEGIES[name]().choose(problem), spend)) for name in names
    ]
    return max(found, key=problem.compute_value)


def _make_result(
    problem: PruningProblem,
    counts: dict[str, int],
    options: PruneOptions,
    fitted_profile: FittedProfile | None,
    setup: Setup,
) -> PruningResult:
    network, pruned = problem.network, problem.narrow_network(counts)
    before, after = (
        fitted_profile.estimate([one], setup, options.level)[0] if fitted_profile else None
        for one in (network, pruned)
    )
    cost_before, cost_after = problem.compute_costs([problem.limits.full, counts])
    shares = [kept_importance_share(group, counts[group.name]) for group in problem.groups]
    return PruningResult(
        network=network,
        pruned=pruned,
        counts=counts,
        budget=problem.budget,
        strategy=options.strategy,
        objective=options.objective,
        unit=problem.objective.unit,
        cost_before=cost_before,
        cost_after=cost_after,
        budget_probability=_compute_energy_probability(problem, counts, fitted_profile, setup),
        confidence=options.confidence,
        importance_share=sum(shares) / len(shares),
        candidate_count=len(problem.known_costs),
        layers=_list_changes(network, pruned, before, after),
        before=before,
        after=after,
    )


def _compute_energy_probability(
    problem: PruningProblem, counts: Counts, fitted_profile: FittedProfile | None, setup: Setup
) -> float | None:
    """Return the probability that the energy stays within the budget, for any objective."""
    if fitted_profile is None:
        return None
    if not isinstance(problem.objective, EnergyObjective):
        problem = replace(problem, objective=EnergyObjective(fitted_profile, setup), known_costs={})
    return problem.compute_budget_probability(counts)


def _list_changes(
    network: Network, pruned: Network, before: Estimate | None, after: Estimate | None
) -> tuple[LayerChange, ...]:
    energies = [
        [layer.energy_j for layer in one.layers] if one else [0.0] * len(network.layers)
        for one in (before, after)
    ]
    rows = zip(network.layers, pruned.layers, *energies, strict=True)
    return tuple(
        LayerChange(
            old.name or old.kind,
            old.kind,
            count_output_channels(old),
            count_output_channels(new),
            old_j,
            new_j,
        )
        for old, new, old_j, new_j in rows
    )
