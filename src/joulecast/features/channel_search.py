"""Choose how many channels each layer keeps, so that a step stays within an energy budget.

    channel groups ──strategy──▶ counts ──narrow──▶ Network ──estimate──▶ within the budget?
                        ▲                                          │
                        └────────── objective: energy or FLOPs ────┘

``prune_network`` works on Networks, without a framework, so that thousands of candidates are
estimated in seconds; ``runtimes.torch.channel_pruning`` removes the channels from the module. A
candidate is a channel count for every group. Its value is the sum over groups of ln(share of
importance kept), so that the last channels of a group are worth more than the first.

Strategies choose counts:

    marginal   repeatedly prune where the least importance is lost per joule saved
    uniform    prune the same share of every group
    random     draw many candidates within the budget and take the one that keeps most importance
               (Li et al., CVPR 2022, used by the AMPERE paper)

Large moves end somewhat below the budget, and some counts run slower than slightly larger ones (in
half precision, multiples of 8 are often cheaper). So ``refine_counts`` then tries larger counts
until none improves: one that costs no more is always taken, since pruning must never raise energy;
one that costs more is taken while the budget allows it, highest value per cost first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from joulecast.estimators import FittedProfile, fit_profile
from joulecast.features.budgets import EnergyBudget, RunLength, parse_budget
from joulecast.features.prune_report import LayerChange, PruningResult
from joulecast.gp.lognormal import lognormal_quantile, probability_below
from joulecast.operators import count_output_channels, network_work
from joulecast.operators.channel_groups import ChannelGroup, narrow_network
from joulecast.records import Estimate, Network, Profile, Setup, name_step
from joulecast.system.errors import InputError, arg
from joulecast.system.units import format_count, format_energy, format_share

Counts = Mapping[str, int]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PruneOptions:
    """How to choose the channels to prune.

    Attributes:
        strategy: ``marginal``, ``uniform`` or ``random``.
        objective: Quantity to minimise: ``energy``, or ``flops`` as a baseline. With ``flops`` the
            budget is a share of the FLOPs.
        confidence: Probability with which the pruned network must meet the budget. At 0.5 the
            estimate itself must.
        floor: Channels that remain in every group: a share if below 1, otherwise a number.
        keep: Patterns of layer names that are not pruned.
        multiple: Round channel counts to a multiple of this.
        seed: Seed of the random strategy.
        start: ``counts`` of an earlier result to continue from.
        estimator: Method that estimates energy.
        level: Probability of the intervals in the result.
    """

    strategy: str = "marginal"
    objective: str = "energy"
    confidence: float = 0.5
    floor: float = 0.1
    keep: tuple[str, ...] = ()
    multiple: int = 1
    seed: int = 0
    start: Mapping[str, int] | None = None
    estimator: str = "auto"
    level: float = 0.95


def parse_pruning_budget(
    text: str, length: RunLength | None = None, batch: int = 1
) -> EnergyBudget:
    """Return a budget for one training step.

    Args:
        text: ``50%`` of the original network, ``5J/step``, or energy of a run like ``2Wh``.
        length: Length of the run that ``text`` may be about.
        batch: Batch size, which sets the number of steps in an epoch.

    Raises:
        InputError: ``text`` is not a budget, or leaves nothing to prune.
    """
    length = length or RunLength()
    budget = parse_budget(text, length)
    if budget.share is not None and budget.share >= 1:
        raise InputError(f"a budget of {text} leaves nothing to prune: give less than 100 %")
    return budget.to_step(length.count_steps(batch))


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
    fitted = fit_profile(profile, options.estimator) if isinstance(profile, Profile) else profile
    if fitted is None and options.objective == "energy":
        raise InputError(
            "the objective energy needs a device profile: give one, or use the objective flops"
        )
    energy = EnergyObjective(fitted, setup) if fitted else None
    problem = PruningProblem(
        network,
        tuple(groups),
        make_channel_limits(network, groups, options.floor, options.keep, options.multiple),
        energy if energy and options.objective == "energy" else FlopsObjective(setup),
        budget,
        options.confidence,
        options.seed,
        options.start or {},
    )
    _check_reachable(problem, name_step(setup))
    counts = _choose_counts(problem, options.strategy)
    pruned = problem.narrow_network(counts)
    before, after = (
        fitted.estimate([one], setup, options.level)[0] if fitted else None
        for one in (network, pruned)
    )
    cost_before, cost_after = problem.compute_costs([problem.limits.full, counts])
    shares = [kept_importance_share(group, counts[group.name]) for group in groups]
    probability = None
    if energy is not None:
        # Of the energy, whatever was minimised.
        by_energy = problem
        if problem.objective is not energy:
            by_energy = replace(problem, objective=energy, known_costs={})
        probability = by_energy.compute_budget_probability(counts)
    return PruningResult(
        network=network,
        pruned=pruned,
        counts=counts,
        budget=budget,
        strategy=options.strategy,
        objective=options.objective,
        unit=problem.objective.unit,
        cost_before=cost_before,
        cost_after=cost_after,
        budget_probability=probability,
        confidence=options.confidence,
        importance_share=sum(shares) / len(shares),
        candidate_count=len(problem.known_costs),
        layers=_list_changes(network, pruned, before, after),
        before=before,
        after=after,
    )


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
            f"meets it with probability {probability}; give a larger budget, a lower "
            f"{arg('confidence')} or {arg('floor')}, or profile this network"
        )
    raise InputError(
        f"a budget of {budget} is below the smallest reachable network, which needs an "
        f"estimated {shown}: give a larger budget, a lower {arg('floor')} or fewer layers to "
        f"{arg('keep')}"
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
    found = [dict(refine_counts(problem, STRATEGIES[name](problem), spend)) for name in names]
    return max(found, key=problem.compute_value)


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


# ---------------------------------------------------------------------------------------------
# Channel counts that pruning may leave in each group


# Sizes of a layer that count output channels.
_OUTPUTS = ("cout", "width", "heads", "shape")


@dataclass(frozen=True)
class ChannelLimits:
    """The channel counts that each group may have.

    Attributes:
        allowed: Ascending counts by group; a group that is not pruned has only its full count.
    """

    allowed: Mapping[str, tuple[int, ...]]

    @property
    def full(self) -> dict[str, int]:
        """All channels of every group."""
        return {name: counts[-1] for name, counts in self.allowed.items()}

    @property
    def smallest(self) -> dict[str, int]:
        """The fewest channels allowed in every group."""
        return {name: counts[0] for name, counts in self.allowed.items()}

    def list_below(self, name: str, count: int) -> tuple[int, ...]:
        """Return the allowed counts below ``count``, in descending order."""
        return tuple(one for one in reversed(self.allowed[name]) if one < count)

    def list_above(self, name: str, count: int) -> tuple[int, ...]:
        """Return the allowed counts above ``count``, in ascending order."""
        return tuple(one for one in self.allowed[name] if one > count)

    def round_up(self, name: str, count: float) -> int:
        """Return the smallest allowed count of at least ``count`` channels."""
        return next((one for one in self.allowed[name] if one >= count), self.allowed[name][-1])


def make_channel_limits(
    network: Network,
    groups: Sequence[ChannelGroup],
    floor: float = 0.1,
    keep: Sequence[str] = (),
    multiple: int = 1,
) -> ChannelLimits:
    """Return the limits of all groups.

    Args:
        network: Network whose layer names ``keep`` refers to.
        groups: Groups of channels that can be pruned together.
        floor: Channels that remain in every group: a share if below 1, otherwise a number.
        keep: Patterns of layer names that are not pruned.
        multiple: Round counts to a multiple of this; the full count is always allowed.

    Raises:
        InputError: A pattern matches no layer, or no group has ``multiple`` channels.
    """
    if all(multiple > group.channels for group in groups):
        widest = max(group.channels for group in groups)
        raise InputError(
            f"no group has {multiple} channels: give {arg('multiple')} of up to {widest}"
        )
    names = {}
    for group in groups:
        # Layers and modules that output its channels.
        modules = {path for path, side in group.members if side != "in"}
        layers = {network.layers[slot.layer].name for slot in group.slots if slot.size in _OUTPUTS}
        names[group.name] = {group.name, *modules, *layers}
    known = {layer.name for layer in network.layers}.union(*names.values())
    for pattern in keep:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise InputError(
                f"no layer matches {pattern!r}: run `joulecast inspect` to list the layer names"
            )
    allowed = {}
    for group in groups:
        is_kept = any(fnmatchcase(name, one) for name in names[group.name] for one in keep)
        least = math.ceil(floor * group.channels - 1e-9) if floor < 1 else int(floor)
        counts = [
            count
            for count in range(group.step, group.channels + 1, group.step)
            if count >= least and (count % multiple == 0 or count == group.channels)
        ]
        allowed[group.name] = tuple(counts) if counts and not is_kept else (group.channels,)
    return ChannelLimits(allowed)


# ---------------------------------------------------------------------------------------------
# Costs of candidates, and the uncertainty of a cost relative to its budget
#
#     a, b    cost after and before pruning
#     L       joint covariance of ln a and ln b
#
#     budget in joules     ln a ~ N(ln â, L_aa)
#     budget as a share    ln(a / b) ~ N(ln(â / b̂), L_aa + L_bb - 2 L_ab)
#
# The estimator's errors for a network and for the same network with fewer channels are strongly
# correlated, so the ratio is far more certain than either energy.


class PruningObjective(Protocol):
    """A cost to minimise, in ``unit`` per training step."""

    unit: str

    def compute_costs(self, networks: Sequence[Network]) -> Floats:
        """Return the cost of one step of each network."""

    def compute_log_sd(self, before: Network, after: Network, budget: EnergyBudget) -> float:
        """Return the standard deviation of the logarithm of the quantity the budget limits."""


class EnergyObjective:
    """Energy of a step as estimated from a profile."""

    unit = "J"

    def __init__(self, fitted_profile: FittedProfile, setup: Setup) -> None:
        self.fitted_profile = fitted_profile
        self.setup = setup

    def compute_costs(self, networks: Sequence[Network]) -> Floats:
        """Return mean energies. No variances are computed, which is twice as fast."""
        return self.fitted_profile.predict_means(networks, self.setup)

    def compute_log_sd(self, before: Network, after: Network, budget: EnergyBudget) -> float:
        """Return the deviation of the ratio for a share, of the pruned network for joules."""
        found = self.fitted_profile.estimate([before, after], self.setup, joint=True, details=False)
        is_share = budget.share is not None
        variance = found.log_ratio_variance(0, [1])[0] if is_share else found.log_variance[1]
        return math.sqrt(max(float(variance), 0.0))


class FlopsObjective:
    """FLOPs of a step: the usual proxy of energy, as a baseline."""

    unit = "FLOP"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def compute_costs(self, networks: Sequence[Network]) -> Floats:
        """Return the FLOPs of forward, backward and update."""
        return np.array([network_work(one, self.setup).total.flops for one in networks])

    def compute_log_sd(self, before: Network, after: Network, budget: EnergyBudget) -> float:
        """Return zero: FLOPs are counted, not estimated."""
        return 0.0


@dataclass(frozen=True)
class PruningProblem:
    """A network, its prunable groups, an objective and a budget.

    Attributes:
        confidence: Probability with which a candidate must stay within the budget.
        start: Counts to start from; all channels if empty.
        known_costs: Cache of candidate costs.
    """

    network: Network
    groups: tuple[ChannelGroup, ...]
    limits: ChannelLimits
    objective: PruningObjective
    budget: EnergyBudget
    confidence: float = 0.5
    seed: int = 0
    start: Counts = field(default_factory=dict)
    known_costs: dict[tuple[int, ...], float] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def initial_counts(self) -> dict[str, int]:
        """The counts that the search starts from."""
        return {**self.limits.full, **self.start}

    @property
    def cost_limit(self) -> float:
        """The highest cost of a step that the budget allows."""
        return self.budget.limit(self.compute_cost(self.limits.full))

    def narrow_network(self, counts: Counts) -> Network:
        """Return the network with these channel counts."""
        return narrow_network(self.network, self.groups, counts)

    def compute_cost(self, counts: Counts) -> float:
        """Return the cost of one step of a candidate."""
        return self.compute_costs([counts])[0]

    def compute_costs(self, candidates: Sequence[Counts]) -> list[float]:
        """Return the cost of one step of each candidate."""
        keys = [self._make_key(counts) for counts in candidates]
        missing = {key: at for at, key in enumerate(keys) if key not in self.known_costs}
        if missing:
            networks = [self.narrow_network(candidates[at]) for at in missing.values()]
            costs = self.objective.compute_costs(networks)
            self.known_costs.update(zip(missing, map(float, costs), strict=True))
        return [self.known_costs[key] for key in keys]

    def compute_cost_target(self, counts: Counts) -> float:
        """Return the highest cost at which candidates like this one reach the confidence."""
        log_sd = self.compute_log_sd(counts)
        return lognormal_quantile(self.cost_limit, log_sd, 1.0 - self.confidence)

    def compute_log_sd(self, counts: Counts) -> float:
        """Return the standard deviation of the logarithm of the quantity the budget limits."""
        return self.objective.compute_log_sd(self.network, self.narrow_network(counts), self.budget)

    def compute_budget_probability(self, counts: Counts) -> float:
        """Return the probability that a candidate stays within the budget."""
        log_margin = math.log(self.cost_limit / self.compute_cost(counts))
        return probability_below(log_margin, self.compute_log_sd(counts) ** 2)

    def is_within_budget(self, counts: Counts) -> bool:
        """Return whether a candidate stays within the budget with the required confidence."""
        cost = self.compute_cost(counts)
        return cost <= self.cost_limit and cost <= self.compute_cost_target(counts)

    def compute_value(self, counts: Counts) -> float:
        """Return the sum over groups of the logarithm of the importance share kept."""
        return sum(compute_log_importance(one, counts[one.name]) for one in self.groups)

    def _make_key(self, counts: Counts) -> tuple[int, ...]:
        return tuple(counts[group.name] for group in self.groups)


def compute_log_importance(group: ChannelGroup, count: int) -> float:
    """Return the logarithm of the importance share that ``count`` channels keep."""
    return math.log(max(kept_importance_share(group, count), 1e-12))


def kept_importance_share(group: ChannelGroup, count: int) -> float:
    """Return the share of a group's importance in its ``count`` most important channels."""
    ranked = sorted(group.importance, reverse=True)
    return sum(ranked[: count // group.step]) / sum(ranked)


# ---------------------------------------------------------------------------------------------
# Strategies: the smallest network meets the budget, and so do the counts that they return


# A move removes about this share of a group; wider moves are tried as well.
_MOVE_SHARE = 1 / 16
_MOVE_FACTORS = (1, 3)


# Share of the groups that move at the same time while the target is far.
_SIMULTANEOUS_SHARE = 0.25
_MAX_ROUNDS = 400


_UNIFORM_LEVELS = 97
_RANDOM_CANDIDATES = 400


_MAX_CHECKED = 24


def choose_uniform(problem: PruningProblem) -> Counts:
    """Prune the same share of every group: the smallest that meets the budget."""
    levels = [at / (_UNIFORM_LEVELS - 1) for at in range(_UNIFORM_LEVELS - 1, -1, -1)]
    return _find_first_within(problem, (_scale_counts(problem, level) for level in levels))


def choose_random(problem: PruningProblem) -> Counts:
    """Return the random candidate within the budget that keeps most importance."""
    rng = random.Random(problem.seed)
    drawn = [_draw_counts(problem, rng) for _ in range(_RANDOM_CANDIDATES)]
    return _find_first_within(problem, sorted(drawn, key=problem.compute_value, reverse=True))


def choose_marginal(problem: PruningProblem) -> Counts:
    """Prune where the least importance is lost per joule saved, until the budget is met."""
    counts = problem.initial_counts
    # The uncertainty of a pruned network hardly depends on which channels were removed.
    reference = counts if problem.start else choose_uniform(problem)
    target = problem.compute_cost_target(reference)
    for _ in range(_MAX_ROUNDS):
        if problem.compute_cost(counts) <= target:
            if problem.is_within_budget(counts):
                return counts
            target = min(problem.compute_cost_target(counts), 0.999 * target)
        moved = _move(problem, counts, target) or _move(problem, counts, target, far=True)
        if moved is None:
            break
        counts = moved
    return choose_uniform(problem)


STRATEGIES: dict[str, Callable[[PruningProblem], Counts]] = {
    "marginal": choose_marginal,
    "uniform": choose_uniform,
    "random": choose_random,
}


def _scale_counts(problem: PruningProblem, level: float) -> Counts:
    """Return counts between the smallest (level 0) and the full ones (level 1)."""
    limits, smallest = problem.limits, problem.limits.smallest
    return {
        name: limits.round_up(name, smallest[name] + level * (full - smallest[name]))
        for name, full in limits.full.items()
    }


def _draw_counts(problem: PruningProblem, rng: random.Random) -> Counts:
    """Return random counts around a random level, so that some candidates meet any budget."""
    level = rng.random()
    shares = {name: 1.0 - level * rng.random() for name in problem.limits.full}
    return {
        name: problem.limits.round_up(name, shares[name] * full)
        for name, full in problem.limits.full.items()
    }


def _find_first_within(problem: PruningProblem, candidates: Iterable[Counts]) -> Counts:
    """Return the first candidate within the budget; the variance of only a few is computed."""
    many = list(candidates)
    limit = problem.cost_limit
    costs = problem.compute_costs(many)
    within = [one for one, cost in zip(many, costs, strict=True) if cost <= limit]
    checked = 0
    while within and checked < _MAX_CHECKED:
        target = problem.compute_cost_target(within[0])
        if problem.compute_cost(within[0]) <= target:
            return within[0]
        # Candidates that cost clearly more than this target would fail as well.
        within = [one for one in within[1:] if problem.compute_cost(one) <= target * 1.001]
        checked += 1
    return problem.limits.smallest


def _move(
    problem: PruningProblem, counts: dict[str, int], target: float, far: bool = False
) -> dict[str, int] | None:
    """Return counts after the best moves, as many at once as the target still needs."""
    list_lower = _list_far if far else _list_near
    moves = [(name, count) for name in counts for count in list_lower(problem, name, counts[name])]
    if not moves:
        return None
    candidates = [{**counts, name: count} for name, count in moves]
    now, *costs = problem.compute_costs([counts, *candidates])
    groups = {group.name: group for group in problem.groups}
    best: dict[str, tuple[float, float, int]] = {}
    for (name, count), cost in zip(moves, costs, strict=True):
        # Some counts run slower than larger ones: a cut that saves nothing is not made.
        if cost < now:
            lost = compute_log_importance(groups[name], counts[name])
            lost -= compute_log_importance(groups[name], count)
            move = (lost / (now - cost), now - cost, count)
            best[name] = min(best.get(name, move), move)
    if not best:
        return None
    ranked = sorted(best.items(), key=lambda item: item[1])
    chosen, left = {}, now
    for name, (_, saved, count) in ranked[: max(1, int(_SIMULTANEOUS_SHARE * len(ranked)))]:
        chosen[name] = count
        left -= saved
        if left <= target:
            break
    together = {**counts, **chosen}
    if len(chosen) > 1 and problem.compute_cost(together) >= now:
        name, (_, _, count) = ranked[0]
        return {**counts, name: count}
    return together


def _list_near(problem: PruningProblem, name: str, count: int) -> list[int]:
    """Return lower counts to try: the next one, a sixteenth of the group less, and further."""
    lower = problem.limits.list_below(name, count)
    full = problem.limits.full[name]
    goals = [count - full * _MOVE_SHARE * factor for factor in _MOVE_FACTORS]
    moves = [next((one for one in lower if one <= goal), None) for goal in goals]
    return sorted({one for one in (*moves, *lower[:1]) if one is not None}, reverse=True)


def _list_far(problem: PruningProblem, name: str, count: int) -> list[int]:
    """Return counts far below ``count``, for when no nearby one saves anything."""
    lower = problem.limits.list_below(name, count)
    return [lower[at] for at in range(0, len(lower), max(1, len(lower) // 6))] + list(lower[-1:])


# ---------------------------------------------------------------------------------------------
# Refinement


Move = tuple[str, int]


_MAX_REFINEMENTS = 24
_OFFSETS = (1, 2, 4, 8, 16, 32)


_CHANNEL_MULTIPLE = 8
# Cost differences below this share of the limit count as zero when values per cost are compared.
_MIN_COST_SHARE = 1e-6


def refine_counts(problem: PruningProblem, counts: Counts, spend: bool) -> Counts:
    """Return counts that are nowhere smaller.

    Args:
        problem: Groups, objective and budget.
        counts: Counts that a strategy has chosen.
        spend: Whether to also take larger counts that cost more, up to the budget.
    """
    rejected: set[Move] = set()
    target = problem.compute_cost_target(counts)
    for _ in range(_MAX_REFINEMENTS):
        moves = _list_moves(problem, counts, target * spend, rejected)
        while moves:
            grown = {**counts, **dict(moves)}
            highest = max(target, problem.compute_cost(counts))
            if problem.compute_cost(grown) <= highest and problem.is_within_budget(grown):
                break
            if len(moves) == 1:
                rejected.update(moves)
            moves = moves[: len(moves) // 2]
        if not moves and not (rejected and _list_moves(problem, counts, target * spend, rejected)):
            break
        if moves:
            # The uncertainty depends slightly on the network, so the target moves with it.
            counts, target = grown, problem.compute_cost_target(grown)
    return counts


def _list_moves(
    problem: PruningProblem, counts: Counts, target: float, rejected: set[Move]
) -> list[Move]:
    """Return at most one larger count per group, best first, as many as the target allows."""
    wider = [
        (name, count) for name in counts for count in _list_larger(problem, name, counts[name])
    ]
    candidates = [{**counts, name: count} for name, count in wider]
    now, *costs = problem.compute_costs([counts, *candidates])
    groups = {group.name: group for group in problem.groups}
    smallest = _MIN_COST_SHARE * problem.cost_limit
    best: dict[str, tuple[float, float, int]] = {}
    for (name, count), cost in zip(wider, costs, strict=True):
        if cost > max(now, target) or (name, count) in rejected:
            continue
        gain = compute_log_importance(groups[name], count)
        gain -= compute_log_importance(groups[name], counts[name])
        value = gain / max(cost - now, smallest)
        best[name] = max(best.get(name, (0.0, 0.0, 0)), (value, cost - now, count))
    moves, left = [], target - now
    for name, (_, extra, count) in sorted(best.items(), key=lambda item: item[1], reverse=True):
        if extra <= max(left, 0.0):
            moves.append((name, count))
            left -= extra
    return moves


def _list_larger(problem: PruningProblem, name: str, count: int) -> list[int]:
    """Return larger counts to try: nearby ones, the next multiple of eight, and the full count."""
    larger = problem.limits.list_above(name, count)
    near = [larger[at - 1] for at in _OFFSETS if at <= len(larger)]
    multiple = -(-(count + 1) // _CHANNEL_MULTIPLE) * _CHANNEL_MULTIPLE
    return sorted({*near, *larger[-1:], *(one for one in larger if one == multiple)})
