"""Choose how many channels each layer keeps, so that a step stays within an energy budget.

    channel groups ──strategy──▶ counts ──narrow──▶ Network ──estimate──▶ within the budget?
                        ▲                                          │
                        └────────── objective: energy or FLOPs ────┘

``prune_network`` works on Networks, without a framework, so that thousands of candidates are
estimated in seconds; ``torch_nets.channel_removal`` removes the channels from the module. A
candidate is a channel count for every group. Its value is the sum over groups of ln(share of
importance kept), so that the last channels of a group are worth more than the first.

Strategies choose counts:

    marginal   repeatedly prune where the least importance is lost per joule saved
    uniform    prune the same share of every group
    random     draw many candidates within the budget and take the one that keeps most importance
               (Li et al., CVPR 2022)
    walk       remove random channels until the budget is met, as the AMPERE paper does

Large moves end somewhat below the budget, and some counts run slower than slightly larger ones (in
half precision, multiples of 8 are often cheaper). So ``refine_counts`` then tries larger counts
until none improves: one that costs no more is always taken, since pruning must never raise energy;
one that costs more is taken while the budget allows it, highest value per cost first.

The uncertainty of a cost a after and b before pruning, with L the joint covariance of ln a, ln b:

    budget in joules     ln a ~ N(ln â, L_aa)
    budget as a share    ln(a / b) ~ N(ln(â / b̂), L_aa + L_bb - 2 L_ab)

The estimator's errors for a network and for the same network with fewer channels are strongly
correlated, so the ratio is far more certain than either energy.

**Selection.** Of many candidates, the search takes one whose estimate errs low: the winner's curse.
ln(measured / estimated) was +14 % for ten best of random candidates by ``additive``, +13 % for ten
that ``marginal`` chose by it, and +7 to +11 % for others' choices; by ``subtractive`` +11 %, and -1
to +5 % (H200, benchmarks/pruning). The expected optimism o is that of a parametric bootstrap: take
the estimates for the truth, draw errors from L, choose again in each draw, and average by how much
the errors of the chosen ones are low. That gives 9, 10 and 6 % there. The search then runs again
with ln a, or ln(a / b), raised by o. That is right where an estimator follows its observations too
closely, and an upper bound for others: posterior means of an exact prior are not optimistic,
whatever is chosen.

**Verification.** ``prune_network`` can also measure what it chooses. The best network that was
measured, c, then replaces b: ln(a / c) ~ N(ln(â / ĉ), L_aa + L_cc - 2 L_ac), and a may take a known
multiple of the energy of c. Networks next to c share most errors with it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from joulecast.estimators import Estimates, FittedProfile, fit_profile
from joulecast.estimators.measured import KnownStep, answer_measured, combine_steps
from joulecast.features.prune_report import LayerChange, PruningResult, PruningRound
from joulecast.features.run import EnergyBudget, RunLength, parse_budget
from joulecast.gp.lognormal import lognormal_quantile, probability_below
from joulecast.operators import count_output_channels, network_work
from joulecast.operators.channel_groups import ChannelGroup, narrow_network
from joulecast.records import Network, Observation, Profile, Setup, name_step
from joulecast.system.errors import InputError, arg
from joulecast.system.units import format_count, format_energy, format_share

Counts = Mapping[str, int]
Measure = Callable[[Counts, Network], Observation]
"""Measures one step of a candidate."""
Floats = NDArray[np.float64]

# Sizes of a layer that count output channels.
_OUTPUTS = ("cout", "width", "heads", "shape")
_UNIFORM_LEVELS, _RANDOM_CANDIDATES, _WALK_STEPS = 97, 400, 400
# Candidates whose variance is computed, to find one within the budget.
_MAX_CHECKED = 24
# A move removes about this share of a group; wider moves are tried as well.
_MOVE_SHARE, _MOVE_FACTORS = 1 / 16, (1, 3)
# Share of the groups that move at the same time while the target is far.
_SIMULTANEOUS_SHARE = 0.25
_MAX_ROUNDS, _MAX_REFINEMENTS = 400, 24
_OFFSETS, _CHANNEL_MULTIPLE = (1, 2, 4, 8, 16, 32), 8
# Candidates among which errors are drawn, how often, and the standard deviations within which the
# budget may change what is chosen.
_MAX_DRAWN, _DRAWS, _REACH = 150, 1000, 3.0
_MAX_MEASURED, _BETWEEN = 3, 32
# Cost differences below this share of the limit count as zero when values per cost are compared.
_MIN_COST_SHARE = 1e-6


@dataclass(frozen=True)
class PruneOptions:
    """How to choose the channels to prune.

    Attributes:
        objective: Quantity to minimise: ``energy``, or ``flops`` as a baseline. With ``flops`` the
            budget is a share of the FLOPs.
        confidence: Probability with which the pruned network must meet the budget.
        floor: Channels that remain in every group: a share if below 1, otherwise a number.
        multiple: Round channel counts to a multiple of this; the full count is always allowed.
    """

    strategy: str = "marginal"
    objective: str = "energy"
    confidence: float = 0.9
    floor: float = 0.1
    keep: tuple[str, ...] = ()  # patterns of layer names that are not pruned
    multiple: int = 1
    seed: int = 0
    start: Mapping[str, int] | None = None  # counts of an earlier result to continue from
    estimator: str = "auto"
    level: float = 0.95


def parse_pruning_budget(
    text: str, length: RunLength | None = None, batch: int = 1
) -> EnergyBudget:
    """Return a budget for one step; ``batch`` sets the number of steps in an epoch of ``length``.

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
    measure: Measure | None = None,
) -> PruningResult:
    """Choose channel counts so that a step stays within a budget for one step.

    With ``measure``, the network and what is chosen are measured, and counts are chosen again, at
    most three times. Only the objective ``flops`` works without a profile of the device.

    Raises:
        InputError: No channels can be pruned, or no reachable network meets the budget.
    """
    options = options or PruneOptions()
    if options.objective == "flops" and budget.share is None:
        raise InputError("the objective flops needs a share as budget: give one like 50%")
    if not groups:
        raise InputError(f"{network.name or 'the network'} has no channels that can be pruned")
    fitted = fit_profile(profile, options.estimator) if isinstance(profile, Profile) else profile
    if fitted is not None:
        fitted = fitted.model
    elif options.objective == "energy":
        raise InputError(
            "the objective energy needs a device profile: give one, or use the objective flops"
        )
    allowed = list_allowed_counts(network, groups, options)
    guide = None if options.objective == "flops" else fitted
    problem = PruningProblem(network, tuple(groups), allowed, setup, budget, options, guide)
    if guide is not None:
        ends = [problem.narrow_network(counts) for counts in (problem.full, problem.smallest)]
        problem = replace(problem, fitted=guide.narrow(ends, setup))
    if measure is None:
        problem, counts = choose_counts(problem)
        verified = None
    else:
        verified = verify_counts(problem, measure)
        counts = verified.counts
    pruned, probability = problem.narrow_network(counts), None
    before, after = (
        fitted.estimate([one], setup, options.level)[0] if fitted else None
        for one in (network, pruned)
    )
    if verified and before and after:
        before = answer_measured(before, verified.before)
        after = answer_measured(after, verified.after)
        cost_before, cost_after = before.energy_j, after.energy_j
        chosen = next(one for one in verified.rounds if one.counts == counts)
        probability = chosen.budget_probability
    else:
        cost_before, cost_after = problem.compute_costs([problem.full, counts])
        if fitted is not None:
            # Of the energy, whatever was minimised.
            by_energy = problem if guide else replace(problem, fitted=fitted, known_costs={})
            probability = by_energy.compute_budget_probability(counts)
    energies_j = [
        [layer.energy_j for layer in one.layers] if one else [0.0] * len(network.layers)
        for one in (before, after)
    ]
    changes = []
    for old, new, *both_j in zip(network.layers, pruned.layers, *energies_j, strict=True):
        channels = count_output_channels(old), count_output_channels(new)
        changes.append(LayerChange(old.name or old.kind, old.kind, *channels, *both_j))
    return PruningResult(
        net=network.name,
        budget=budget.text or str(budget),
        strategy=options.strategy,
        objective=options.objective,
        unit=problem.unit,
        cost_before=cost_before,
        cost_after=cost_after,
        before=before,
        after=after,
        budget_probability=probability,
        confidence=options.confidence,
        importance_share=problem.compute_share(counts),
        candidates=verified.candidates if verified else len(problem.known_costs),
        counts=counts,
        layers=tuple(changes),
        network=network,
        pruned=pruned,
        setup=setup,
        rounds=verified.rounds if verified else (),
    )


def list_allowed_counts(
    network: Network, groups: Sequence[ChannelGroup], options: PruneOptions
) -> dict[str, tuple[int, ...]]:
    """Return the counts that each group may have, ascending; one that is kept has only its own.

    Raises:
        InputError: A pattern matches no layer, or no group has ``multiple`` channels.
    """
    keep, floor, multiple = options.keep, options.floor, options.multiple
    widest = max(group.channels for group in groups)
    if multiple > widest:
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
        counts = tuple(
            count
            for count in range(group.step, group.channels + 1, group.step)
            if count >= least and (count % multiple == 0 or count == group.channels)
        )
        allowed[group.name] = counts if counts and not is_kept else (group.channels,)
    return allowed


def _check_reachable(problem: PruningProblem) -> None:
    """Raise InputError if even the smallest network exceeds the budget."""
    smallest, step = problem.smallest, name_step(problem.setup)
    full_cost, cost = problem.compute_costs([problem.full, smallest])
    if problem.is_within_budget(smallest):
        return
    show = format_energy if problem.unit == "J" else lambda n: format_count(n, "FLOP")
    budget = problem.budget.describe(step)
    shown = f"{show(cost)} per {step} ({format_share(cost / full_cost)} of {show(full_cost)})"
    if cost <= problem.cost_limit:
        probability = format_share(problem.compute_budget_probability(smallest))
        raise InputError(
            f"no reachable network meets {budget} with probability "
            f"{format_share(problem.options.confidence)}: the smallest one needs an estimated "
            f"{shown} and meets it with probability {probability}; give a larger budget, a lower "
            f"{arg('confidence')} or {arg('floor')}, or profile this network"
        )
    raise InputError(
        f"a budget of {budget} is below the smallest reachable network, which needs an "
        f"estimated {shown}: give a larger budget, a lower {arg('floor')} or fewer layers to "
        f"{arg('keep')}"
    )


def choose_counts(problem: PruningProblem) -> tuple[PruningProblem, Counts]:
    """Return the counts of a strategy, and the problem with the optimism of choosing them."""
    _check_reachable(problem)
    counts = search_counts(problem)
    is_near = problem.measured is not None and problem.measured.counts != problem.full
    if problem.options.strategy == "walk" or problem.fitted is None or is_near:
        # A walk compares no candidates, and FLOPs have no errors. What is next to a measured
        # network is measured as well.
        return problem, counts
    optimism, log_sd = simulate_selection(problem, counts)
    predicted_sd = problem.compute_log_sd(counts)
    sd_factor = log_sd / predicted_sd if log_sd and predicted_sd else 1.0
    problem = replace(problem, optimism=optimism, sd_factor=sd_factor)
    _check_reachable(problem)
    return problem, search_counts(problem)


def simulate_selection(problem: PruningProblem, counts: Counts) -> tuple[float, float]:
    """Return by how much ln(estimate) of a chosen candidate is too low: its mean and its sd.

    The candidates are those that the search visited. One that is worth less than another that
    certainly meets the budget is never chosen.
    """
    target, reach = problem.compute_cost_target(counts), _REACH * problem.compute_log_sd(counts)
    lowest, highest = target * math.exp(-reach), target * math.exp(reach)
    visited = []
    for key, cost in problem.known_costs.items():
        one = dict(zip(counts, key, strict=True))
        visited.append((problem.compute_value(one), cost, one))
    least = max((value for value, cost, _ in visited if cost <= lowest), default=-math.inf)
    near = sorted(
        (one for one in visited if one[0] >= least and one[1] <= highest), key=lambda one: one[:2]
    )
    if len(near) > _MAX_DRAWN:
        near = [near[int(at)] for at in np.linspace(0, len(near) - 1, _MAX_DRAWN)]
    if not near:
        return 0.0, 0.0
    errors = problem.draw_log_errors([one for _, _, one in near], _DRAWS)
    values, log_costs = np.array([(value, math.log(cost)) for value, cost, _ in near]).T
    is_within = log_costs + errors <= math.log(target)
    chosen = np.where(is_within, values, -np.inf).argmax(axis=1)
    found = -errors[np.arange(_DRAWS), chosen][is_within.any(axis=1)]
    return (max(0.0, float(found.mean())), float(found.std())) if found.size else (0.0, 0.0)


def search_counts(problem: PruningProblem) -> Counts:
    """Return the counts of a strategy, refined; only ``marginal`` spends what the budget leaves.

    Costs are not monotonic in the counts, and going down from the full network can end in a worse
    place than growing the result of a simpler strategy. So ``marginal`` does both, and the
    candidate that keeps most importance wins.
    """
    strategy = problem.options.strategy
    spend = strategy == "marginal"
    if strategy == "walk":
        return choose_walk(problem)
    if problem.is_within_budget(problem.initial_counts):
        return refine_counts(problem, problem.initial_counts, spend)
    names = _STARTS if spend and not problem.options.start else [strategy]
    found = [refine_counts(problem, STRATEGIES[name](problem), spend) for name in names]
    return max(found, key=problem.compute_value)


# ---------------------------------------------------------------------------------------------
# Verification


@dataclass(frozen=True)
class Verification:
    """What was chosen and measured.

    Attributes:
        after: What a step of the network with these counts took.
        candidates: Number of candidates whose cost was computed.
    """

    counts: Counts
    before: KnownStep
    after: KnownStep
    rounds: tuple[PruningRound, ...]
    candidates: int


def verify_counts(problem: PruningProblem, measure: Measure) -> Verification:
    """Choose counts, measure that network, and choose again next to it, at most three times.

    The result is the most valuable network that was measured within the budget. Choices that
    another may follow meet it with a probability of one half.
    """
    options, candidates = problem.options, 0
    before = combine_windows(measure(problem.full, problem.network))
    limit_j = problem.budget.limit(before.energy_j)
    # Measured again, a network at this energy is within the budget with the confidence. Both
    # measurements of a share have in common what drifts from hour to hour.
    noise_sd = math.sqrt(before.variance_share)
    goal_j = lognormal_quantile(limit_j, noise_sd, 1.0 - options.confidence)
    # Closer to the goal is close enough: choices aim at the middle.
    enough_j, aim_j = goal_j * math.exp(-noise_sd), goal_j * math.exp(-0.5 * noise_sd)
    best = _Measured(problem.full, before, before.energy_j, 0.0)
    seen: list[_Measured] = []
    # Those within the budget with the confidence, and the others.
    within, above = list[_Measured](), list[_Measured]()
    for number in range(1, _MAX_MEASURED + 1):
        if within and above:
            lowest = min(above, key=lambda one: one.step.energy_j)
            counts, expected_j = _choose_between(problem, best, lowest, aim_j)
        else:
            is_last = number == _MAX_MEASURED and not within
            # Other strategies go further, or less far, along the same candidates.
            is_continued = seen and options.strategy == "marginal"
            now = replace(
                options,
                confidence=options.confidence if is_last else 0.5,
                start=best.counts if is_continued else options.start,
            )
            factor = best.step.energy_j / problem.compute_cost(best.counts)
            aim = MeasuredCandidate(best.counts, aim_j / best.step.energy_j)
            aimed = replace(problem, options=now, measured=aim, known_costs={})
            try:
                aimed, counts = choose_counts(aimed)
            except InputError:
                if not within:
                    raise
                break
            expected_j = aimed.compute_cost(counts) * factor * math.exp(aimed.optimism)
            candidates += len(aimed.known_costs)
        if any(counts == one.counts for one in seen):
            break
        step = combine_windows(measure(counts, problem.narrow_network(counts)))
        margin = math.log(limit_j / step.energy_j)
        probability = probability_below(margin, step.variance_share)
        seen.append(_Measured(counts, step, expected_j, probability))
        (within if probability >= options.confidence else above).append(seen[-1])
        if not within:
            best = min(above, key=lambda one: one.step.energy_j)
            continue
        best = max(within, key=lambda one: problem.compute_value(one.counts))
        if best.step.energy_j >= enough_j:
            break
    rounds = tuple(
        PruningRound(
            one.counts,
            problem.compute_share(one.counts),
            one.expected_j,
            one.step.energy_j,
            one.step.duration_s,
            one.step.energy_j / before.energy_j,
            one.probability,
        )
        for one in seen
    )
    return Verification(best.counts, before, best.step, rounds, candidates)


@dataclass(frozen=True)
class _Measured:
    """A candidate that was measured, and the probability that it meets the budget again."""

    counts: Counts
    step: KnownStep
    expected_j: float
    probability: float


def _choose_between(
    problem: PruningProblem, low: _Measured, high: _Measured, aim_j: float
) -> tuple[Counts, float]:
    """Return the most valuable counts between two measured ones, and the energy expected there.

    The errors of the estimates are interpolated as well.
    """
    error_low, error_high = (
        math.log(one.step.energy_j / problem.compute_cost(one.counts)) for one in (low, high)
    )
    chosen, chosen_j = low.counts, low.step.energy_j
    for at in range(1, _BETWEEN):
        part = at / _BETWEEN
        counts = problem.interpolate_counts(low.counts, high.counts, part)
        error = error_low + part * (error_high - error_low)
        expected_j = problem.compute_cost(counts) * math.exp(error)
        is_better = problem.compute_value(counts) > problem.compute_value(chosen)
        if expected_j <= aim_j and is_better:
            chosen, chosen_j = counts, expected_j
    return chosen, chosen_j


def combine_windows(observation: Observation) -> KnownStep:
    """Return what a measured step says of the step on the same unit.

    Raises:
        InputError: The meter gave no energy.
    """
    if not observation.energy_j or not observation.duration_s:
        raise InputError(f"the meter gave no energy: choose another with {arg('meter')}")
    return combine_steps([observation], observation.device.unit)


# ---------------------------------------------------------------------------------------------
# Costs of candidates


@dataclass(frozen=True)
class PruningProblem:
    """A network, its prunable groups and the counts they may have, and the budget of a step.

    A cost is the energy that ``fitted`` estimates, in joules. Without it a cost is FLOPs, the usual
    proxy of energy, which are counted.

    Attributes:
        optimism: How much lower than the truth ln(cost) of a chosen candidate is expected to be.
        sd_factor: Standard deviation of the errors of chosen candidates over that of any.
        measured: A measured candidate that costs are relative to.
    """

    network: Network
    groups: tuple[ChannelGroup, ...]
    allowed: Mapping[str, tuple[int, ...]]
    setup: Setup
    budget: EnergyBudget
    options: PruneOptions
    fitted: FittedProfile | None = None
    known_costs: dict[tuple[int, ...], float] = field(default_factory=dict, compare=False)
    optimism: float = 0.0
    sd_factor: float = 1.0
    measured: MeasuredCandidate | None = None

    @cached_property
    def shares(self) -> dict[str, dict[int, float]]:
        """For each group and count, the share of importance in its most important channels."""
        shares = {}
        for group in self.groups:
            kept = np.cumsum(sorted(group.importance, reverse=True))
            counts = range(group.step, group.channels + 1, group.step)
            shares[group.name] = dict(zip(counts, (kept / kept[-1]).tolist(), strict=True))
        return shares

    @property
    def unit(self) -> str:
        return "J" if self.fitted else "FLOP"

    @property
    def full(self) -> dict[str, int]:
        """All channels of every group."""
        return {name: counts[-1] for name, counts in self.allowed.items()}

    @property
    def smallest(self) -> dict[str, int]:
        """The fewest channels allowed in every group."""
        return {name: counts[0] for name, counts in self.allowed.items()}

    @property
    def initial_counts(self) -> dict[str, int]:
        """The counts that the search starts from."""
        return {**self.full, **(self.options.start or {})}

    @property
    def cost_limit(self) -> float:
        """The highest cost of a step that the budget allows."""
        if self.measured is not None:
            return self.compute_cost(self.measured.counts) * self.measured.limit_share
        return self.budget.limit(self.compute_cost(self.full))

    def round_up(self, name: str, count: float) -> int:
        """Return the smallest allowed count of at least ``count`` channels."""
        return next((one for one in self.allowed[name] if one >= count), self.allowed[name][-1])

    def interpolate_counts(self, low: Counts, high: Counts, part: float) -> Counts:
        """Return the counts at a part of the way between two candidates, rounded up."""
        return {n: self.round_up(n, count + part * (high[n] - count)) for n, count in low.items()}

    def narrow_network(self, counts: Counts) -> Network:
        """Return the network with these channel counts."""
        return narrow_network(self.network, self.groups, counts)

    def compute_cost(self, counts: Counts) -> float:
        """Return the cost of one step of a candidate."""
        return self.compute_costs([counts])[0]

    def compute_costs(self, candidates: Sequence[Counts]) -> list[float]:
        """Return the cost of one step of each candidate; each is estimated once."""
        keys = [tuple(counts[group.name] for group in self.groups) for counts in candidates]
        missing = {key: at for at, key in enumerate(keys) if key not in self.known_costs}
        if missing:
            networks = [self.narrow_network(candidates[at]) for at in missing.values()]
            if self.fitted is None:
                costs = [network_work(one, self.setup).total.flops for one in networks]
            else:
                # Means alone, which is twice as fast as with variances.
                costs = self.fitted.predict_means(networks, self.setup).tolist()
            self.known_costs.update(zip(missing, costs, strict=True))
        return [self.known_costs[key] for key in keys]

    def compute_log_sd(self, counts: Counts) -> float:
        """Return the standard deviation of the logarithm of the quantity the budget limits."""
        if self.fitted is None:
            return 0.0
        found = self._estimate_jointly([counts])
        variance = found.log_ratio_variance(0, [1])[0] if self.is_ratio else found.log_variance[1]
        return self.sd_factor * math.sqrt(max(float(variance), 0.0))

    @property
    def is_ratio(self) -> bool:
        """Whether the budget limits the ratio of two energies."""
        return self.budget.share is not None or self.measured is not None

    def draw_log_errors(self, candidates: Sequence[Counts], count: int) -> Floats:
        """Draw errors of the logarithm of that quantity jointly, ``count`` x candidates."""
        found = self._estimate_jointly(candidates)
        errors = np.log(found.draw(count) / found.energy_j)
        return np.asarray(errors[:, 1:] - errors[:, :1] * self.is_ratio)

    def _estimate_jointly(self, candidates: Sequence[Counts]) -> Estimates:
        """Estimate what the budget refers to, and candidates."""
        assert self.fitted is not None
        reference = self.measured.counts if self.measured else self.full
        networks = [self.narrow_network(one) for one in (reference, *candidates)]
        return self.fitted.estimate(networks, self.setup, joint=True, details=False)

    def compute_cost_target(self, counts: Counts) -> float:
        """Return the highest cost at which candidates like this one reach the confidence."""
        log_sd, confidence = self.compute_log_sd(counts), self.options.confidence
        highest = self.cost_limit * math.exp(-self.optimism)
        return min(highest, lognormal_quantile(highest, log_sd, 1.0 - confidence))

    def compute_budget_probability(self, counts: Counts) -> float:
        """Return the probability that a candidate stays within the budget."""
        log_margin = math.log(self.cost_limit / self.compute_cost(counts)) - self.optimism
        return probability_below(log_margin, self.compute_log_sd(counts) ** 2)

    def is_within_budget(self, counts: Counts) -> bool:
        """Return whether a candidate stays within the budget with the required confidence."""
        cost = self.compute_cost(counts)
        return cost <= self.cost_limit and cost <= self.compute_cost_target(counts)

    def compute_value(self, counts: Counts) -> float:
        """Return the sum over groups of the logarithm of the importance share kept."""
        return sum(math.log(max(self.shares[one][count], 1e-12)) for one, count in counts.items())

    def compute_share(self, counts: Counts) -> float:
        """Return the share of importance kept, averaged over groups."""
        return sum(self.shares[name][count] for name, count in counts.items()) / len(self.groups)

    def rank_changes(
        self, counts: Counts, list_others: ListCounts, rate: Callable[[float, float], float | None]
    ) -> list[tuple[str, int, float]]:
        """Return the best other count of each group and the cost with it, the highest rate first.

        ``rate`` takes the gain in value and the cost of a change; it returns None for one that must
        not be made.
        """
        pairs = [(name, new) for name in counts for new in list_others(self, name, counts[name])]
        costs = self.compute_costs([{**counts, name: new} for name, new in pairs])
        best: dict[str, tuple[float, float, int]] = {}
        for (name, new), cost in zip(pairs, costs, strict=True):
            gain = self.compute_value({name: new}) - self.compute_value({name: counts[name]})
            if (rated := rate(gain, cost)) is not None:
                best[name] = max(best.get(name, (rated, cost, new)), (rated, cost, new))
        ranked = sorted(best.items(), key=lambda item: item[1], reverse=True)
        return [(name, count, cost) for name, (_, cost, count) in ranked]


@dataclass(frozen=True)
class MeasuredCandidate:
    """A candidate that was measured, and the share of its energy that the budget allows."""

    counts: Counts
    limit_share: float


ListCounts = Callable[[PruningProblem, str, int], Iterable[int]]
"""Lists other counts of a group that has this one."""


# ---------------------------------------------------------------------------------------------
# Strategies: the smallest network meets the budget, and so do the counts that they return


def choose_uniform(problem: PruningProblem) -> Counts:
    """Prune the same share of every group: the smallest that meets the budget."""
    levels = [at / (_UNIFORM_LEVELS - 1) for at in range(_UNIFORM_LEVELS - 1, -1, -1)]
    low, high = problem.smallest, problem.full
    candidates = [problem.interpolate_counts(low, high, level) for level in levels]
    return _find_first_within(problem, candidates)


def choose_random(problem: PruningProblem) -> Counts:
    """Return the random candidate within the budget that keeps most importance."""
    rng, drawn = random.Random(problem.options.seed), []
    for _ in range(_RANDOM_CANDIDATES):
        # Around a random level, so that some candidates meet any budget.
        level = rng.random()
        shares = {name: 1.0 - level * rng.random() for name in problem.full}
        drawn.append({n: problem.round_up(n, shares[n] * full) for n, full in problem.full.items()})
    return _find_first_within(problem, sorted(drawn, key=problem.compute_value, reverse=True))


def choose_walk(problem: PruningProblem) -> Counts:
    """Remove random channels until the budget is met."""
    rng, counts = random.Random(problem.options.seed), dict(problem.initial_counts)
    lower = {
        name: [one for one in problem.allowed[name] if one < count][::-1]
        for name, count in counts.items()
    }
    # Every channel is as likely as any other to go next.
    order = [name for name, own in lower.items() for _ in own]
    rng.shuffle(order)
    path, places = [dict(counts)], dict.fromkeys(counts, 0)
    for name in order:
        counts[name] = lower[name][places[name]]
        places[name] += 1
        path.append(dict(counts))
    # Networks with thousands of channels are estimated after several removals.
    kept = np.unique(np.linspace(0, len(path) - 1, _WALK_STEPS).astype(int))
    return _find_first_within(problem, [path[at] for at in kept])


def choose_marginal(problem: PruningProblem) -> Counts:
    """Prune where the least importance is lost per joule saved, until the budget is met."""
    counts: Counts = problem.initial_counts
    # The uncertainty of a pruned network hardly depends on which channels were removed.
    reference = counts if problem.options.start else choose_uniform(problem)
    target = problem.compute_cost_target(reference)
    for _ in range(_MAX_ROUNDS):
        if problem.compute_cost(counts) <= target:
            if problem.is_within_budget(counts):
                return counts
            target = min(problem.compute_cost_target(counts), 0.999 * target)
        moved = _move(problem, counts, target, _list_near) or _move(
            problem, counts, target, _list_far
        )
        if moved is None:
            break
        counts = moved
    return choose_uniform(problem)


STRATEGIES: dict[str, Callable[[PruningProblem], Counts]] = {
    "marginal": choose_marginal,
    "uniform": choose_uniform,
    "random": choose_random,
    "walk": choose_walk,
}
# Those whose results ``marginal`` grows.
_STARTS = ("marginal", "uniform", "random")


def _find_first_within(problem: PruningProblem, candidates: Sequence[Counts]) -> Counts:
    """Return the first candidate within the budget; the variance of only a few is computed."""
    limit, costs = problem.cost_limit, problem.compute_costs(candidates)
    within = [one for one, cost in zip(candidates, costs, strict=True) if cost <= limit]
    for _ in range(_MAX_CHECKED):
        if not within:
            break
        target = problem.compute_cost_target(within[0])
        if problem.compute_cost(within[0]) <= target:
            return within[0]
        # Candidates that cost clearly more than this target would fail as well.
        within = [one for one in within[1:] if problem.compute_cost(one) <= target * 1.001]
    return problem.smallest


def _move(
    problem: PruningProblem, counts: Counts, target: float, list_lower: ListCounts
) -> Counts | None:
    """Return counts after the best moves, as many at once as the target still needs."""
    now = problem.compute_cost(counts)

    def rate(gain: float, cost: float) -> float | None:
        # Some counts run slower than larger ones: a cut that saves nothing is not made.
        return gain / (now - cost) if cost < now else None

    ranked = problem.rank_changes(counts, list_lower, rate)
    if not ranked:
        return None
    chosen, left = {}, now
    for name, count, cost in ranked[: max(1, int(_SIMULTANEOUS_SHARE * len(ranked)))]:
        chosen[name] = count
        left -= now - cost
        if left <= target:
            break
    if len(chosen) > 1 and problem.compute_cost({**counts, **chosen}) >= now:
        name, count, _ = ranked[0]
        chosen = {name: count}
    return {**counts, **chosen}


def _list_near(problem: PruningProblem, name: str, count: int) -> list[int]:
    """Return lower counts to try: the next one, a sixteenth of the group less, and further."""
    lower = [one for one in problem.allowed[name] if one < count]
    goals = [count - problem.full[name] * _MOVE_SHARE * factor for factor in _MOVE_FACTORS]
    near = {max(below) for goal in (count, *goals) if (below := [n for n in lower if n <= goal])}
    return sorted(near, reverse=True)


def _list_far(problem: PruningProblem, name: str, count: int) -> list[int]:
    """Return counts far below ``count``, for when no nearby one saves anything."""
    lower = [one for one in problem.allowed[name] if one < count][::-1]
    return lower[:: max(1, len(lower) // 6)] + lower[-1:]


def refine_counts(problem: PruningProblem, counts: Counts, spend: bool) -> Counts:
    """Return counts that are nowhere smaller; with ``spend`` also ones that cost more.

    Costs then rise up to the budget.
    """
    rejected: set[tuple[str, int]] = set()
    target = problem.compute_cost_target(counts)
    for _ in range(_MAX_REFINEMENTS):
        moves = _list_moves(problem, counts, target * spend, rejected)
        if not moves:
            break
        while moves:
            grown = {**counts, **dict(moves)}
            highest = max(target, problem.compute_cost(counts))
            if problem.compute_cost(grown) <= highest and problem.is_within_budget(grown):
                # The uncertainty depends slightly on the network, so the target moves with it.
                counts, target = grown, problem.compute_cost_target(grown)
                break
            if len(moves) == 1:
                rejected.update(moves)
            moves = moves[: len(moves) // 2]
    return counts


def _list_moves(
    problem: PruningProblem, counts: Counts, target: float, rejected: set[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Return at most one larger count per group, best first, as many as the target allows."""
    now, smallest = problem.compute_cost(counts), _MIN_COST_SHARE * problem.cost_limit

    def list_untried(problem: PruningProblem, name: str, count: int) -> list[int]:
        return [one for one in _list_larger(problem, name, count) if (name, one) not in rejected]

    def rate(gain: float, cost: float) -> float | None:
        return gain / max(cost - now, smallest) if cost <= max(now, target) else None

    moves, left = [], target - now
    for name, count, cost in problem.rank_changes(counts, list_untried, rate):
        if cost - now <= max(left, 0.0):
            moves.append((name, count))
            left -= cost - now
    return moves


def _list_larger(problem: PruningProblem, name: str, count: int) -> list[int]:
    """Return larger counts to try: nearby ones, the next multiple of eight, and the full count."""
    larger = [one for one in problem.allowed[name] if one > count]
    near = [larger[at - 1] for at in _OFFSETS if at <= len(larger)]
    multiple = (count // _CHANNEL_MULTIPLE + 1) * _CHANNEL_MULTIPLE
    return sorted({*near, *larger[-1:], *(one for one in larger if one == multiple)})
