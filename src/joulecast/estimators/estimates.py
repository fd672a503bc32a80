"""A profile that is open for questions: many networks and setups at once, errors told jointly.

    pairs (network, setup) ──▶ Estimates ──▶ chance_within       a budget in joules
                                         ──▶ chance_ratio_within a share of another one
                                         ──▶ chance_below        less than one of another device
                                         ──▶ draw                all of them, errors together

    joules of a and b:  ln A, ln B jointly normal     cov(ln A, ln B) = ln(1 + cov(A, B) / (a b))

Chances are log-normal, as the intervals are: they agree with what an interval shows, and all of
them come from this one covariance (``log_cov``). Two questions to one device share most of their
errors, so that differences and ratios are known far better than the joules themselves; what only a
unit of the device has (``UNIT_SPREAD``) is a factor of all joules and cancels in them. The same
question asked twice is asked once: its answers and its draws are equal, to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from joulecast.errors import InputError
from joulecast.estimators.additive.encode import UNIT_SPREAD
from joulecast.estimators.additive.estimator import AdditiveEstimator, Opened, Pair
from joulecast.estimators.base import Estimator, Floats, Json, Prediction
from joulecast.kinds import peak_memory
from joulecast.records import Estimate, Profile, Setup, weakest_provenance

# Relative covariances are above -1 where joules are positive; rounding may bring one below.
_MOST_APART = -0.9
# Variances of logarithms below this are rounding.
_ROUNDING = 1e-18


@dataclass(frozen=True)
class Estimates:
    """What steps of several networks cost on one device.

    Attributes:
        each: In the order of the questions.
        cov: Joint covariance of their joules, n x n; None where it was not asked for.
        variance: Of each one's joules, n.
        same: For each the first place that asks the same.
    """

    each: tuple[Estimate, ...]
    variance: Floats
    cov: Floats | None
    same: tuple[int, ...]

    @property
    def energy_j(self) -> Floats:
        """Means, n."""
        return np.array([one.energy_j for one in self.each])

    @property
    def log_cov(self) -> Floats:
        """Joint covariance of the logarithms of their joules, n x n."""
        if self.cov is None:
            raise InputError("ratios and draws need the joint covariance: ask with joint=True")
        shares = self.cov / np.outer(self.energy_j, self.energy_j)
        return np.asarray(np.log1p(np.maximum(shares, _MOST_APART)))

    def chance_within(self, limits_j: Sequence[float]) -> Floats:
        """How probable it is that each costs no more than its limit."""
        return _chances(np.log(np.asarray(limits_j) / self.energy_j), self.vary())

    def chance_ratio_within(
        self, one: int, others: Sequence[int], ratios: Sequence[float]
    ) -> Floats:
        """How probable it is that others cost no more than so many times what ``one`` costs."""
        means, at = self.energy_j, np.asarray(others, int)
        spread = self.vary_ratios(one, others)
        return _chances(np.log(np.asarray(ratios) * means[one] / means[at]), spread)

    def chance_below(self, one: int, others: Estimates, other: int, ratio: float = 1.0) -> float:
        """How probable it is that one costs no more than so many times one of ``others``.

        Answers to another question are those of a stranger: no error is shared, nothing cancels.
        """
        if others is self:
            return float(self.chance_ratio_within(other, [one], [ratio])[0])
        room = math.log(ratio * others.energy_j[other] / self.energy_j[one])
        return find_chance(room, float(self.vary()[one] + others.vary()[other]))

    def vary(self) -> Floats:
        """Variance of the logarithm of each one's joules."""
        return np.asarray(np.log1p(self.variance / self.energy_j**2))

    def vary_ratios(self, one: int, others: Sequence[int]) -> Floats:
        """Variance of the logarithm of what others cost over what ``one`` costs."""
        cov, at = self.log_cov, np.asarray(others, int)
        return np.asarray(cov[one, one] + cov[at, at] - 2.0 * cov[one, at])

    def draw(self, count: int, seed: int = 0) -> Floats:
        """Joules of all of them as they may really be, count x n, errors going together."""
        # Equal questions are drawn once: rounding would make two of them differ.
        first, back = np.unique(self.same, return_inverse=True)
        spread = self.log_cov[np.ix_(first, first)]
        values, vectors = np.linalg.eigh(0.5 * (spread + spread.T))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        steps = np.random.default_rng(seed).standard_normal((count, len(root)))
        return np.asarray((self.energy_j[first] * np.exp(steps @ root.T))[:, back])

    def repeat(self, places: Sequence[int]) -> Estimates:
        """Answers for questions of which each is one of these, at its place."""
        first = {place: at for at, place in reversed(list(enumerate(places)))}
        return Estimates(
            tuple(self.each[place] for place in places),
            self.variance[list(places)],
            None if self.cov is None else self.cov[np.ix_(places, places)],
            tuple(first[place] for place in places),
        )


@dataclass(frozen=True)
class OpenProfile:
    """A profile and a method, ready to be asked again and again.

    Attributes:
        fitted: The method's fitted numbers; ``opened`` the same, read, where the method does so.
    """

    profile: Profile
    method: Estimator
    fitted: Json
    opened: Opened | None = None

    @property
    def basis(self) -> str:
        """The weakest provenance that answers rest on."""
        seen = (one.provenance for one in self.profile.observations)
        return weakest_provenance([self.profile.provenance, *dict.fromkeys(seen)])

    def ask(
        self,
        pairs: Sequence[Pair],
        level: float = 0.95,
        joint: bool = False,
        details: bool = True,
    ) -> Estimates:
        """What a step of each network costs as its setup says.

        Args:
            pairs: Networks, each with how it is trained.
            level: How probable each interval shall be.
            joint: Whether it is wanted how their errors go together.
            details: Whether layers and peak memory are wanted: they take as long as all the rest.
        """
        if not 0.0 < level < 1.0:
            raise InputError(f"level is {level}: give a probability between 0 and 1, like 0.95")
        _check_layers(pairs)
        distinct: dict[Any, int] = {}
        first: list[Pair] = []
        places = []
        for pair in pairs:
            places.append(distinct.setdefault(_identify(pair), len(first)))
            first += [pair] * (places[-1] == len(first))
        return self._ask_each(first, level, joint, details).repeat(places)

    def ask_means(self, pairs: Sequence[Pair]) -> Floats:
        """Joules of a step of each alone, twice as fast: for whoever compares many."""
        _check_layers(pairs)
        if isinstance(self.method, AdditiveEstimator) and self.opened is not None:
            return self.method.predict_means(self.opened, pairs)
        return self.ask(pairs, details=False).energy_j

    def _ask_each(
        self, pairs: Sequence[Pair], level: float, joint: bool, details: bool
    ) -> Estimates:
        found = self._predict(pairs, joint, details)
        own, means = found.energy_sd_j**2, found.energy_j
        # Another unit of the device takes some factor of all joules: variances of products.
        unit = UNIT_SPREAD**2 if self.profile.shipped else 0.0
        strange = unit * (own + means**2)
        basis = self.basis
        each = tuple(
            self._describe(found, at, (float(own[at]), float(strange[at])), level, basis)
            for at in range(len(pairs))
        )
        if details:
            peaks = [peak_memory(*pair) for pair in pairs]
            each = tuple(
                replace(one, peak_memory_bytes=peak) for one, peak in zip(each, peaks, strict=True)
            )
        cov = found.energy_cov
        if cov is not None:
            cov = cov + unit * (cov + np.outer(means, means))
        return Estimates(each, own + strange, cov, tuple(range(len(pairs))))

    def _predict(self, pairs: Sequence[Pair], joint: bool, details: bool) -> Prediction:
        if isinstance(self.method, AdditiveEstimator) and self.opened is not None:
            return self.method.predict_pairs(self.opened, pairs, joint, details)
        groups: dict[Setup, list[int]] = {}
        for at, (_, setup) in enumerate(pairs):
            groups.setdefault(setup, []).append(at)
        parts = []
        for setup, places in groups.items():
            networks = [pairs[at][0] for at in places]
            parts.append((places, self.method.predict(self.fitted, networks, setup, joint)))
        return parts[0][1] if len(parts) == 1 else _join(parts, len(pairs))

    def _describe(
        self,
        found: Prediction,
        at: int,
        variances: tuple[float, float],
        level: float,
        basis: str,
    ) -> Estimate:
        energy_j = float(found.energy_j[at])
        device_j = None if found.device_j is None else float(found.device_j[at])
        doubts = found.doubts[at] if found.doubts else {}
        return Estimate(
            energy_j=energy_j,
            interval_j=make_interval(energy_j, sum(variances), level),
            level=level,
            duration_s=float(found.duration_s[at]),
            peak_memory_bytes=0,
            layers=found.layers[at],
            unseen_share=found.unseen_share[at],
            basis=basis,
            covers=self.profile.covers,
            device=self.profile.device.name,
            estimator=self.method.name,
            device_j=device_j,
            host_share=None if device_j is None else max(0.0, 1.0 - device_j / energy_j),
            doubts=_add_doubt(doubts, *variances),
            duration_interval_s=self._bracket_time(found, at, level),
        )

    def _bracket_time(self, found: Prediction, at: int, level: float) -> tuple[float, float] | None:
        """An interval of the seconds; another unit of a device may be slower, too."""
        if found.duration_sd_s is None:
            return None
        mean_s, strange = float(found.duration_s[at]), UNIT_SPREAD * self.profile.shipped
        variance = float(found.duration_sd_s[at]) ** 2 + (strange * mean_s) ** 2
        return make_interval(mean_s, variance, level)


def make_interval(mean_j: float, variance: float, level: float) -> tuple[float, float]:
    """A log-normal interval around a mean: never below zero, longer upwards where doubt is large.

    Narrow, it is the usual mean plus and minus z standard deviations.
    """
    if mean_j <= 0:
        return 0.0, max(0.0, mean_j) + NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(variance)
    width = math.sqrt(math.log1p(max(0.0, variance) / mean_j**2))
    factor = math.exp(NormalDist().inv_cdf(0.5 + level / 2) * width)
    return mean_j / factor, mean_j * factor


def find_chance(room: float, variance: float) -> float:
    """How probable it is that a normal logarithm is no more than ``room`` above its mean."""
    if variance <= 0:
        return float(room >= 0)
    return NormalDist().cdf(room / math.sqrt(max(variance, _ROUNDING)))


def _chances(rooms: Floats, variances: Floats) -> Floats:
    pairs = zip(np.atleast_1d(rooms), np.atleast_1d(variances), strict=True)
    return np.array([find_chance(float(room), float(variance)) for room, variance in pairs])


def _check_layers(pairs: Sequence[Pair]) -> None:
    if not all(network.layers for network, _ in pairs):
        raise InputError("an empty network costs nothing; give a net with layers")


def _identify(pair: Pair) -> Any:
    """What an answer depends on: also on names, and on what was counted when the net was read."""
    network, setup = pair
    return network, setup, network.totals, tuple(layer.name for layer in network.layers)


def _add_doubt(doubts: Mapping[str, float], variance: float, strange: float) -> dict[str, float]:
    """Shares of the variance, with that of another unit of the same device."""
    if not strange:
        return dict(doubts)
    left = variance / (variance + strange)
    shares = {words: share * left for words, share in doubts.items()}
    shares["your unit of the device is another one"] = 1.0 - left
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _join(parts: Sequence[tuple[list[int], Prediction]], count: int) -> Prediction:
    """Predictions by setup as one; errors of different setups are taken to be strangers."""
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    found = [answer for _, answer in parts]

    def stack(name: str) -> Floats:
        return np.asarray(np.concatenate([getattr(one, name) for one in found])[order])

    def stack_known(name: str) -> Floats | None:
        return None if any(getattr(one, name) is None for one in found) else stack(name)

    cov = None
    if found[0].energy_cov is not None:
        cov = np.zeros((count, count))
        for places, answer in parts:
            cov[np.ix_(places, places)] = answer.energy_cov
    layers = [row for one in found for row in one.layers]
    unseen = [share for one in found for share in one.unseen_share]
    doubts = [doubt for one in found for doubt in one.doubts]
    return Prediction(
        energy_j=stack("energy_j"),
        energy_sd_j=stack("energy_sd_j"),
        energy_cov=cov,
        duration_s=stack("duration_s"),
        layers=tuple(layers[at] for at in order),
        unseen_share=tuple(unseen[at] for at in order),
        device_j=stack_known("device_j"),
        doubts=tuple(doubts[at] for at in order) if len(doubts) == count else (),
        duration_sd_s=stack_known("duration_sd_s"),
    )
