"""``prune_network``: from a net, its groups and a budget to a Pruning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joulecast.errors import InputError
from joulecast.estimators import DEFAULT, OpenProfile, open_profile
from joulecast.kinds import output_shape
from joulecast.kinds.narrow import Group
from joulecast.records import Estimate, Layer, Network, Profile, Setup
from joulecast.units import format_count, format_energy, format_share
from joulecast.uses.prune.pruning_budget import EnergyBudget
from joulecast.uses.prune.refinement import refine_counts
from joulecast.uses.prune.pruning_objectives import EnergyObjective, FlopsObjective, PruningObjective
from joulecast.uses.prune.channel_limits import ChannelLimits, make_channel_limits
from joulecast.uses.prune.pruning_result import LayerChange, PruningResult
from joulecast.uses.prune.strategies import STRATEGIES
from joulecast.uses.prune.pruning_problem import Counts, PruningProblem, kept_importance_share

OBJECTIVES = ("estimate", "flops")


def prune_network(
    network: Network,
    groups: Sequence[Group],
    setup: Setup,
    budget: EnergyBudget,
    profile: Profile | None = None,
    *,
    strategy: str = "marginal",
    guide: str = "estimate",
    estimator: str = DEFAULT,
    confidence: float = 0.5,
    limits: ChannelLimits | None = None,
    seed: int = 0,
    start: Counts | None = None,
    level: float = 0.95,
) -> PruningResult:
    """Choose counts of channels so that a step keeps a budget.

    Args:
        network: The net as it is.
        groups: What can be cut of it, with its importance.
        setup: How it is trained, or run.
        budget: What a step may take.
        profile: What the device has learnt; FLOPs can guide without.
        strategy: ``marginal``, ``uniform`` or ``random``.
        guide: ``estimate``, or ``flops`` to compare with; a share of FLOPs is bounded then.
        estimator: Which method estimates.
        confidence: How probable keeping the budget shall be; 0.5 is the estimate itself.
        limits: How far groups may go; a tenth of their channels by default.
        seed: Of random candidates.
        start: Counts of an earlier pruning, to go on from when the device has learnt more since.
        level: How probable the estimates' intervals shall be.

    Raises:
        InputError: Nothing can be cut, or no net that can be reached keeps the budget.
    """
    _check_words(strategy, guide, budget)
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence is {confidence}: give a probability like 0.9")
    if not groups:
        raise InputError(f"{network.name or 'the net'} has no channels that can be cut")
    known = open_profile(profile, estimator) if profile else None
    guiding = _make_guide(guide, known, setup)
    bounds = limits or make_channel_limits(network, groups)
    task = PruningProblem(network, tuple(groups), bounds, guiding, budget, confidence, seed, start or {})
    _check_reach(task)
    counts = _choose(task, strategy)
    smaller = task.narrow(counts)
    before, after = (
        known.ask([(one, setup)], level).each[0] if known else None for one in (network, smaller)
    )
    cost_before, cost_after = task.cost([task.limits.whole, counts])
    shares = [kept_importance_share(group, counts[group.name]) for group in groups]
    return PruningResult(
        network=network,
        smaller=smaller,
        counts=counts,
        budget=budget,
        strategy=strategy,
        guide=guide,
        unit=guiding.unit,
        cost_before=cost_before,
        cost_after=cost_after,
        kept_probability=_find_odds(task, counts, known, setup),
        confidence=confidence,
        importance_share=sum(shares) / len(shares),
        looked_at=len(task.costs),
        layers=_list_changes(network, smaller, before, after),
        before=before,
        after=after,
    )


def _find_odds(task: PruningProblem, counts: Counts, known: OpenProfile | None, setup: Setup) -> float | None:
    """How probably joules keep the budget, whoever guided."""
    if known is None:
        return None
    if isinstance(task.guide, EnergyObjective):
        return task.odds(counts)
    guide = EnergyObjective(known, setup)
    return replace(task, guide=guide, costs={}).odds(counts)


def _choose(task: PruningProblem, strategy: str) -> dict[str, int]:
    """Counts by a strategy; the plain ones stay what they are, ``marginal`` spends what is left.

    It goes down from the whole net, and up from what the plain ones found: costs are jagged, and
    the way down can end where the way up does not. What keeps most importance is taken.
    """
    if task.keeps(task.first):
        return dict(refine_counts(task, task.first, strategy == "marginal"))
    if strategy != "marginal":
        return dict(refine_counts(task, STRATEGIES[strategy]().choose(task), spend=False))
    names = ["marginal"] if task.start else list(STRATEGIES)
    found = [dict(refine_counts(task, STRATEGIES[name]().choose(task), spend=True)) for name in names]
    return max(found, key=task.worth)


def _check_words(strategy: str, guide: str, budget: EnergyBudget) -> None:
    """Complain before anything is fitted."""
    if strategy not in STRATEGIES:
        raise InputError(f"there is no strategy {strategy!r}; known are {', '.join(STRATEGIES)}")
    if guide not in OBJECTIVES:
        raise InputError(f"there is no guide {guide!r}; known are {', '.join(OBJECTIVES)}")
    if guide == "flops" and budget.share is None:
        raise InputError("FLOPs have no joules: give a share like 50%, or leave the guide out")


def _make_guide(name: str, known: OpenProfile | None, setup: Setup) -> PruningObjective:
    if name == "flops":
        return FlopsObjective(setup)
    if known is None:
        raise InputError("an estimate needs a device's profile: give one, or let FLOPs guide")
    return EnergyObjective(known, setup)


def _check_reach(task: PruningProblem) -> None:
    """Complain where even the smallest net is above the budget."""
    least = task.limits.least
    whole, cost = task.cost([task.limits.whole, least])
    if task.keeps(least):
        return
    show = format_energy if task.guide.unit == "J" else lambda n: format_count(n, "FLOP")
    said = f"{show(cost)} a step ({format_share(cost / whole)} of {show(whole)})"
    if cost <= task.limit():
        raise InputError(
            f"no net within reach keeps {task.budget} with {format_share(task.confidence)}: the "
            f"smallest is estimated at {said} and keeps it with {format_share(task.odds(least))}; "
            "give a larger budget, less --confidence or a lower --floor, or profile this net"
        )
    raise InputError(
        f"a budget of {task.budget} is below the smallest net within reach, which is estimated at "
        f"{said}: give a larger budget, a lower --floor or fewer layers to --keep"
    )


def _list_changes(
    network: Network, smaller: Network, before: Estimate | None, after: Estimate | None
) -> tuple[LayerChange, ...]:
    costs = [
        [layer.energy_j for layer in one.layers] if one else [0.0] * len(network.layers)
        for one in (before, after)
    ]
    rows = zip(network.layers, smaller.layers, *costs, strict=True)
    return tuple(
        LayerChange(old.name or old.kind, old.kind, _count(old), _count(new), old_j, new_j)
        for old, new, old_j, new_j in rows
    )


def _count(layer: Layer) -> int:
    """Channels that a layer gives."""
    for size in ("cout", "width", "hidden"):
        if size in layer.sizes:
            return int(layer.sizes[size])
    if layer.kind == "sdpa":
        return int(layer.sizes["heads"] * layer.sizes["head_dim"])
    shape = output_shape(layer)
    token_wise = layer.kind in ("layer_norm", "rms_norm") or len(shape) == 2
    return int(shape[-1 if token_wise else 0]) if shape else 0
