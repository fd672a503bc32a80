"""What is evaluated: a family, its random nets, the estimators and what each may spend.

Nets are drawn as the paper draws them, each parameter uniform in 1..original, and are all
different. Those that estimators may measure come first and from a seed of their own, so that asking
for more test nets later changes neither them nor the test nets there are.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from joulecast.errors import InputError, NetError
from joulecast.estimators import ESTIMATORS, find_estimator
from joulecast.estimators.base import Target
from joulecast.families import FAMILIES, draw_family, make_family
from joulecast.records import Network, Setup, Trial, stable_hash

Shape = tuple[int, ...]

NO_PROBE = "-noprobe"
"""Behind an estimator's name: without the probes of the nets in question."""

LEARN_NETS = 24
_USUAL = ("additive", "additive" + NO_PROBE, "subtractive", "neuralpower", "flops")


def list_estimators() -> tuple[str, ...]:
    """Names of the estimators that are judged where nobody says which."""
    return tuple(name for name in _USUAL if strip_probe(name) in ESTIMATORS)


def strip_probe(name: str) -> str:
    """The estimator behind a name; its campaign serves it with and without probes."""
    return name.removesuffix(NO_PROBE)


@dataclass(frozen=True)
class EvaluationPlan:
    """An evaluation as it is asked for.

    Attributes:
        net: The name of a family.
        setup: How its nets are trained.
        input_shape: Shape of one sample, where it is not the family's own.
        estimators: Names; one that ends in ``-noprobe`` shares the other's campaign.
        nets: How many test nets are drawn.
        seconds: What each campaign may take of the device; probes come on top.
        seed: Draws the nets and shuffles them.
        budgets: Seconds of single estimators, where they are not those of all.
    """

    net: str
    setup: Setup
    input_shape: Shape | None = None
    estimators: tuple[str, ...] = field(default_factory=list_estimators)
    nets: int = 20
    seconds: float = 60.0
    seed: int = 1
    budgets: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        check_family(self.net)
        for name in self.estimators:
            find_estimator(strip_probe(name))
        if len(set(self.estimators)) < max(1, len(self.estimators)):
            raise InputError("give at least one estimator, and each of them once")
        most = count_nets(self.net) - LEARN_NETS
        if not 1 <= self.nets <= most:
            raise InputError(
                f"nets is {self.nets}: give a whole number of at least 1 and, as {self.net} has no "
                f"more different ones, at most {most:,}"
            )
        for seconds in (self.seconds, *dict(self.budgets).values()):
            if not seconds > 0:
                raise InputError(f"seconds is {seconds}: give each campaign more than 0")

    @property
    def campaigns(self) -> tuple[str, ...]:
        """Names of the estimators that have the device measure something."""
        return tuple(dict.fromkeys(map(strip_probe, self.estimators)))

    def seconds_of(self, name: str) -> float:
        """What an estimator's campaign may take of the device."""
        return dict(self.budgets).get(strip_probe(name), self.seconds)

    def needs_probes(self, name: str) -> bool:
        """Whether an estimator is also judged with its probes."""
        return name in self.estimators


@dataclass(frozen=True)
class EvaluationNets:
    """The nets of an evaluation.

    Attributes:
        original: The family's widest net.
        learn: Nets that estimators may measure.
        tests: Nets that they are judged by: none of the others.
    """

    original: Network
    learn: tuple[Network, ...]
    tests: tuple[Network, ...]

    def make_trials(self, setup: Setup) -> tuple[Trial, ...]:
        """The test nets as plain eager steps."""
        return tuple(Trial(network, setup) for network in self.tests)

    def make_target(self, setup: Setup, networks: tuple[Network, ...]) -> Target:
        """What an estimator shall be good at."""
        return Target(self.original, setup, networks=networks)


def draw_nets(plan: EvaluationPlan) -> EvaluationNets:
    """The nets of a plan, the same ones on every machine."""
    original = make_family(plan.net, plan.input_shape)
    learn = _draw_distinct(plan, random.Random(f"{plan.seed}.learn"), LEARN_NETS, ())
    tests = _draw_distinct(plan, random.Random(plan.seed), plan.nets, learn)
    return EvaluationNets(original, learn, tests)


def name_evaluation(plan: EvaluationPlan, profile_key: str) -> str:
    """What an evaluation is known by in the store: more nets or seconds leave it the same."""
    shape = make_family(plan.net, plan.input_shape).input.shape
    return stable_hash([plan.net, list(shape), plan.setup.to_dict(), plan.seed, profile_key])


def check_family(net: str) -> None:
    """Complain unless a net's name is that of a family, without widths."""
    family, colon, _ = net.partition(":")
    if family not in FAMILIES:
        raise NetError(
            f"{net!r} is no family, and only those can be drawn from at random: give one of "
            f"{', '.join(FAMILIES)}; for one net compare `joulecast measure` with `estimate`"
        )
    if colon:
        raise NetError(f"{net}: the widths of random nets are drawn; give {family} alone")


def count_nets(net: str) -> int:
    """How many different nets can be drawn of a family."""
    family = FAMILIES[net]
    free = [name for name in family.params if name not in family.fixed]
    return math.prod(family.params[name] // family.steps.get(name, 1) for name in free)


def _draw_distinct(
    plan: EvaluationPlan, rng: random.Random, count: int, others: tuple[Network, ...]
) -> tuple[Network, ...]:
    """Different nets, none of the others."""
    taken = set(others)
    found: list[Network] = []
    while len(found) < count:
        network = draw_family(plan.net, rng.randint, plan.input_shape)
        if network not in taken:
            taken.add(network)
            found.append(network)
    return tuple(found)
