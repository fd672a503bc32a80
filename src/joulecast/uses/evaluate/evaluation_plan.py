"""Plan an evaluation: the family, its random networks, the estimators and their device time.

Networks are distinct and drawn as their family says; in the paper, each parameter is uniform in
1..original. The networks that campaigns may measure are drawn first and from their own seed, so
that asking for more test networks later changes neither them nor the existing test networks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from joulecast.errors import InputError, NetError
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Target
from joulecast.families import (
    FAMILIES,
    IMAGE_FAMILIES,
    count_members,
    draw_family,
    make_family,
)
from joulecast.records import Network, Setup, Trial, stable_hash

Shape = tuple[int, ...]

NO_PROBE = "-noprobe"
"""Suffix of an estimator's name: without probes of the test networks."""

CAMPAIGN_NETS = 24
# On a family without repeated blocks it would measure what ``subtractive`` measures.
_BLOCK_ESTIMATOR = "subtractive-blocks"
_DEFAULT_ESTIMATORS = (
    "additive",
    "additive" + NO_PROBE,
    "subtractive",
    _BLOCK_ESTIMATOR,
    "work-linear",
    "flops-linear",
    "flops",
    "constant",
)
# Sums of fused kernels are for inference.
_KERNEL_ESTIMATORS = ("kernel-gp",)
# Members of image families also have other kernel sizes, and are wider than the original: variants
# of the original do not cover them.
_IMAGE_ESTIMATORS = (
    "additive",
    "additive" + NO_PROBE,
    *_KERNEL_ESTIMATORS,
    "work-linear",
    "flops-linear",
    "flops",
    "constant",
)


def list_estimators(family: str = "", phase: str = "train") -> tuple[str, ...]:
    """Return the names of the estimators that are evaluated by default on a family in a phase."""
    if family in IMAGE_FAMILIES:
        return _IMAGE_ESTIMATORS
    has_blocks = bool(family and make_family(family).groups)
    names = [name for name in _DEFAULT_ESTIMATORS if has_blocks or name != _BLOCK_ESTIMATOR]
    kernels = _KERNEL_ESTIMATORS if phase == "inference" else ()
    return (*names, *kernels)


def strip_probe(name: str) -> str:
    """Return the estimator's name without the suffix; both variants share one campaign."""
    return name.removesuffix(NO_PROBE)


def name_campaign(name: str) -> str:
    """Return the name of the estimator whose campaign an estimator learns from."""
    estimator = find_estimator(strip_probe(name))
    return str(getattr(estimator, "campaign", estimator.name))


@dataclass(frozen=True)
class EvaluationPlan:
    """What to evaluate.

    Attributes:
        family: Family to draw networks from.
        setup: How the networks are trained.
        input_shape: Shape of one sample, if it is not the family's default.
        estimators: Names; one that ends in ``-noprobe`` shares the campaign of the other, and
            baselines that learn from whole networks share one.
        nets: Number of test networks.
        seconds: Device time of each campaign; probes are not included.
        seed: Seed that draws and shuffles the networks.
        budgets: Device time of single estimators that differs from ``seconds``.
        repeated: Number of test networks in the second pass; all of them by default.
    """

    family: str
    setup: Setup
    input_shape: Shape | None = None
    estimators: tuple[str, ...] = field(default_factory=list_estimators)
    nets: int = 20
    seconds: float = 60.0
    seed: int = 1
    budgets: tuple[tuple[str, float], ...] = ()
    repeated: int | None = None

    def __post_init__(self) -> None:
        check_family(self.family)
        for name in self.estimators:
            find_estimator(strip_probe(name))
        if len(set(self.estimators)) < max(1, len(self.estimators)):
            raise InputError("give at least one estimator, and each of them once")
        most = count_members(self.family) - CAMPAIGN_NETS
        if not 1 <= self.nets <= most:
            raise InputError(
                f"nets is {self.nets}: give at least 1 and at most {most:,}, the number of "
                f"distinct networks of {self.family} that remain for testing"
            )
        for seconds in (self.seconds, *dict(self.budgets).values()):
            if not seconds > 0:
                raise InputError(f"seconds is {seconds}: give each campaign more than 0")

    @property
    def campaigns(self) -> tuple[str, ...]:
        """Names of the estimators that run a campaign."""
        return tuple(dict.fromkeys(map(name_campaign, self.estimators)))

    def get_seconds(self, name: str) -> float:
        """Return the device time that an estimator's campaign may take."""
        return dict(self.budgets).get(name_campaign(name), self.seconds)

    def count_nets(self, number: int) -> int:
        """Return how many test networks a pass measures: 0 is the first, 1 the second."""
        return self.nets if not number or self.repeated is None else self.repeated

    def needs_probes(self, name: str) -> bool:
        """Return whether an estimator is evaluated with its probes."""
        return name in self.estimators


@dataclass(frozen=True)
class EvaluationNets:
    """The networks of an evaluation.

    Attributes:
        widest: The family's widest random member.
        campaign: Networks that campaigns may measure.
        test: Held-out networks that estimators are scored on.
    """

    widest: Network
    campaign: tuple[Network, ...]
    test: tuple[Network, ...]

    def make_trials(self, setup: Setup) -> tuple[Trial, ...]:
        """Return eager training steps of the test networks."""
        return tuple(Trial(network, setup) for network in self.test)

    def make_target(self, setup: Setup, networks: tuple[Network, ...]) -> Target:
        """Return the target of a campaign or of probes."""
        return Target(self.widest, setup, networks=networks)


def draw_nets(plan: EvaluationPlan) -> EvaluationNets:
    """Return the networks of a plan, which are the same on every machine."""
    widest = draw_family(plan.family, lambda low, high: high, plan.input_shape)
    campaign = _draw_distinct(plan, random.Random(f"{plan.seed}.learn"), CAMPAIGN_NETS, ())
    test = _draw_distinct(plan, random.Random(plan.seed), plan.nets, campaign)
    return EvaluationNets(widest, campaign, test)


def name_evaluation(plan: EvaluationPlan, profile_key: str) -> str:
    """Return the name of an evaluation in the store; more networks or time do not change it."""
    shape = make_family(plan.family, plan.input_shape).input.shape
    return stable_hash([plan.family, list(shape), plan.setup.to_dict(), plan.seed, profile_key])


def check_family(name: str) -> None:
    """Raise NetError unless the name is that of a family, without widths."""
    family, colon, _ = name.partition(":")
    if family not in FAMILIES:
        raise NetError(
            f"{name!r} is not a family, and only families have random networks: give one of "
            f"{', '.join(FAMILIES)}; for a single net compare `joulecast measure` with `estimate`"
        )
    if colon:
        raise NetError(f"{name}: widths are drawn at random; give {family} alone")


def _draw_distinct(
    plan: EvaluationPlan, rng: random.Random, count: int, excluded: tuple[Network, ...]
) -> tuple[Network, ...]:
    taken = set(excluded)
    found: list[Network] = []
    while len(found) < count:
        network = draw_family(plan.family, rng.randint, plan.input_shape)
        if network not in taken:
            taken.add(network)
            found.append(network)
    return tuple(found)
