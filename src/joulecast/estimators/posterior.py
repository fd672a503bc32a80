"""Learning one joint process and asking it: rows → hyper-parameters → totals of nets.

    learn    MAP by L-BFGS, then Laplace: draws θ_s ~ N(θ̂, H⁻¹), in antithetic pairs
    ask      totals of nets under every draw; their mean, and both variances:
             within draws (what the rows leave open) and between draws (what θ leaves open)

With few rows the draws matter: the best hyper-parameters alone are far too sure of themselves.
Everything learnt is plain numbers, kept as JSON; asking needs numpy alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.estimators.joint import (
    Evidence,
    Field,
    Floats,
    Ints,
    Parts,
    Prior,
    Rows,
    factorise,
    relate,
    relate_pairs,
    split,
)

Json = dict[str, Any]

DRAWS = 8
# A mean this far below physics is no news of a layer but noise: layers do not give joules back.
_LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Learnt:
    """A joint process with its hyper-parameters; the first draw is the most probable one."""

    field: Field
    rows: Rows
    level: float
    thetas: Floats


@dataclass(frozen=True)
class Nets:
    """Nets to be asked about: distinct pieces, and how often each net runs them.

    Attributes:
        field: The pieces.
        match: For every piece the row piece that it is, or -1.
        net: For every entry the net; ``piece`` which piece, ``count`` how often.
    """

    field: Field
    match: Ints
    size: int
    net: Ints
    piece: Ints
    count: Floats


@dataclass(frozen=True)
class Answer:
    """Totals of n nets over p pieces.

    Attributes:
        total: Means, n; ``var`` their variance; ``cov`` the joint one where it was asked for.
        own: What each piece costs, p; ``own_var`` how unsure that is.
    """

    total: Floats
    var: Floats
    cov: Floats | None
    own: Floats
    own_var: Floats


@dataclass(frozen=True)
class Gain:
    """What looking at single pieces would do, by the most probable hyper-parameters.

    Attributes:
        cover: Covariance of every net's total with what each piece costs, n x p.
        own: What each piece costs, p; ``var`` the variance of a look at it.
    """

    cover: Floats
    own: Floats
    var: Floats


def learn(
    field: Field, rows: Rows, prior: Prior, draws: int = DRAWS, start: Floats | None = None
) -> Learnt:
    """The most probable hyper-parameters, and draws around them."""
    from scipy.optimize import minimize

    evidence = Evidence(field, rows, prior)
    begin = np.log(prior.medians) if start is None else start
    bounds = [
        (m - 6.0 * w, m + 6.0 * w) for m, w in zip(np.log(prior.medians), prior.widths, strict=True)
    ]
    found = minimize(
        evidence.weigh, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 80}
    )
    best = np.asarray(found.x)
    return Learnt(field, rows, prior.level, np.vstack([best, *_draw(evidence, best, draws)]))


def _draw(evidence: Evidence, best: Floats, draws: int) -> Iterator[Floats]:
    """Draws around the mode, in pairs that balance each other."""
    if draws < 2:
        return
    root = _spread_root(evidence, best)
    rng = np.random.default_rng(0)
    for _ in range(draws // 2):
        step = root @ np.clip(rng.standard_normal(len(best)), -2.5, 2.5)
        yield best + step
        yield best - step


def _spread_root(evidence: Evidence, best: Floats, step: float = 1e-3) -> Floats:
    """A root of the inverse curvature; no direction is less curved than half its prior."""
    size = len(best)
    at_best = evidence.weigh(best)[1]
    rows = [evidence.weigh(best + step * unit)[1] - at_best for unit in np.eye(size)]
    curvature = np.array(rows) / step
    widths = evidence.prior.widths
    scaled = 0.5 * (curvature + curvature.T) * np.outer(widths, widths)
    values, vectors = np.linalg.eigh(scaled)
    return np.asarray(widths[:, None] * vectors / np.sqrt(np.maximum(values, 0.5)))


def ask(learnt: Learnt, nets: Nets, joint: bool = False, weights: Floats | None = None) -> Answer:
    """Totals of nets.

    Args:
        learnt: What rows have taught.
        nets: What to ask about.
        joint: Whether their joint covariance is wanted.
        weights: Factors of the nets' totals, for another quantity in proportion to this one.
    """
    count = nets.count if weights is None else nets.count * weights[nets.net]
    asked = [_ask_one(learnt, nets, count, theta, joint) for theta in learnt.thetas]
    total, own = _mean(asked, "total"), _mean(asked, "own")
    between = _mean_of([(one.total - total) ** 2 for one in asked])
    cov = None
    if joint:
        spread = [np.outer(one.total - total, one.total - total) for one in asked]
        cov = _mean(asked, "cov") + _mean_of(spread)
    own_between = _mean_of([(one.own - own) ** 2 for one in asked])
    return Answer(
        total, _mean(asked, "var") + between, cov, own, _mean(asked, "own_var") + own_between
    )


def _mean(answers: list[Answer], name: str) -> Floats:
    return _mean_of([getattr(answer, name) for answer in answers])


def _mean_of(arrays: list[Floats]) -> Floats:
    return np.asarray(sum(arrays) / len(arrays))


def _ask_one(learnt: Learnt, nets: Nets, count: Floats, theta: Floats, joint: bool) -> Answer:
    parts = split(theta, learnt.field.columns.shape[1], learnt.field.places.shape[1])
    mean = nets.field.columns @ parts.coefficients
    shift, seen = _condition(learnt, nets, parts)
    own = mean * np.maximum(1.0 + shift, _LEAST_SHARE)
    entry = count * mean[nets.piece]
    total = _sum_by_net(nets, count * own[nets.piece])
    gained = _gather(nets, entry, seen)
    var = _add_pairs(learnt, nets, entry, parts) - (gained**2).sum(axis=1)
    width = learnt.level**2 + parts.shape**2 + parts.jagged**2
    width = width + (parts.rates**2 if nets.field.rates.shape[1] else 0.0)
    own_var = mean**2 * np.maximum(width - (seen**2).sum(axis=1), 0.0)
    cov = None
    if joint:
        counts = _matrix(nets, entry)
        prior = _relate_own(nets.field, parts, learnt.level)
        cov = counts @ prior @ counts.T - gained @ gained.T
    return Answer(total, np.maximum(var, 0.0), cov, own, own_var)


def foresee(learnt: Learnt, nets: Nets) -> Gain:
    """What a look at each of the nets' own pieces would tell about their totals."""
    parts = split(learnt.thetas[0], learnt.field.columns.shape[1], learnt.field.places.shape[1])
    mean = nets.field.columns @ parts.coefficients
    shift, seen = _condition(learnt, nets, parts)
    prior = _relate_own(nets.field, parts, learnt.level)
    cov = (prior - seen @ seen.T) * np.outer(mean, mean)
    counts = _matrix(nets, nets.count)
    own = mean * np.maximum(1.0 + shift, _LEAST_SHARE)
    return Gain(counts @ cov, own, np.maximum(np.diag(cov), 0.0) + (parts.noise * own) ** 2)


def _relate_own(field: Field, parts: Parts, level: float) -> Floats:
    """Prior covariance of δ among pieces, with what is each one's own."""
    cov = relate(field, field, parts, level)
    cov[np.diag_indices_from(cov)] += parts.jagged**2
    return cov


def _condition(learnt: Learnt, nets: Nets, parts: Parts) -> tuple[Floats, Floats]:
    """Posterior means of δ, and how much of each piece's prior the rows explain, p x n."""
    field, rows = learnt.field, learnt.rows
    share = rows.counts / rows.values[:, None] * (field.columns @ parts.coefficients)
    prior = _relate_own(field, parts, learnt.level)
    total = share @ prior @ share.T
    total[np.diag_indices_from(total)] += parts.noise**2 + rows.known
    inverse = np.linalg.inv(factorise(total))
    across = relate(nets.field, field, parts, learnt.level)
    found = np.flatnonzero(nets.match >= 0)
    across[found, nets.match[found]] += parts.jagged**2
    seen = across @ share.T @ inverse.T
    return seen @ (inverse @ (1.0 - share.sum(axis=1))), seen


def _add_pairs(learnt: Learnt, nets: Nets, entry: Floats, parts: Parts) -> Floats:
    """Prior variance of each net's total: all pairs of its own pieces."""
    left, right = nets_pairs(nets)
    cov = relate_pairs(nets.field, nets.piece[left], nets.piece[right], parts, learnt.level)
    cov += np.where(nets.piece[left] == nets.piece[right], parts.jagged**2, 0.0)
    return np.asarray(
        np.bincount(nets.net[left], entry[left] * entry[right] * cov, nets.size), float
    )


def _sum_by_net(nets: Nets, entries: Floats) -> Floats:
    return np.asarray(np.bincount(nets.net, entries, nets.size), float)


def _matrix(nets: Nets, entries: Floats) -> Floats:
    """Entries as a matrix, nets by pieces."""
    matrix = np.zeros((nets.size, len(nets.field.labels)))
    matrix[nets.net, nets.piece] = entries
    return matrix


def _gather(nets: Nets, entries: Floats, seen: Floats) -> Floats:
    """Sums over each net's entries of what rows explain, n x rows; entries come net by net."""
    gathered = np.zeros((nets.size, seen.shape[1]))
    held, starts = np.unique(nets.net, return_index=True)
    if len(held):
        gathered[held] = np.add.reduceat(entries[:, None] * seen[nets.piece], starts, axis=0)
    return gathered


def nets_pairs(nets: Nets) -> tuple[Ints, Ints]:
    """All ordered pairs of entries that stand in one net; entries come net by net."""
    starts = np.searchsorted(nets.net, np.arange(nets.size))
    sizes = np.diff([*starts, len(nets.net)])
    left = np.repeat(np.arange(len(nets.net)), sizes[nets.net])
    inner = np.arange(len(left)) - np.repeat(
        np.cumsum(sizes[nets.net]) - sizes[nets.net], sizes[nets.net]
    )
    return left, starts[nets.net[left]] + inner
