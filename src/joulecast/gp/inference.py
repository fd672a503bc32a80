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

import numpy as np

from joulecast.gp.conditioning import Known, Learnt, relate_own
from joulecast.gp.joint import Evidence, Field, Prior, Rows
from joulecast.gp.kernels import Floats, Mix, combine, multiply
from joulecast.gp.queries import Nets, Pairs, list_chunks

DRAWS = 8
# So many rows leave little open about the hyper-parameters: one pair of draws says how much, and
# asking is three times as fast.
MANY_ROWS, _FEW_DRAWS = 300, 2
# A mean this far below physics is no news of a layer but noise: layers do not give joules back.
_LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Answer:
    """Totals of n nets over p pieces.

    Attributes:
        total: Means, n; ``var`` their variance; ``cov`` the joint one where it was asked for.
        own: What each piece costs that stands in any of the nets, p.
    """

    total: Floats
    var: Floats
    cov: Floats | None
    own: Floats


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
    field: Field,
    rows: Rows,
    prior: Prior,
    draws: int = DRAWS,
    spread: float = 0.0,
) -> Learnt:
    """The most probable hyper-parameters, and draws around them.

    The search always begins at the prior's medians: begun at what fewer rows had taught, it saved
    half of the time and ended at a worse mode once in two fits.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    evidence = Evidence(field, rows, prior)
    # Its matrices are small: threads would wait for each other more than they work.
    with threadpool_limits(1, user_api="blas"):
        best = _find_best(evidence)
        if len(rows.values) >= MANY_ROWS:
            draws = min(draws, _FEW_DRAWS)
        thetas = np.vstack([best, *_draw(evidence, best, draws)])
    return Learnt(field, rows, prior.level, thetas, spread)


def _find_best(evidence: Evidence) -> Floats:
    from scipy.optimize import minimize

    medians, widths = np.log(evidence.prior.medians), evidence.prior.widths
    bounds = list(zip(medians - 6.0 * widths, medians + 6.0 * widths, strict=True))
    options = {"maxiter": 80}
    found = minimize(
        evidence.weigh, medians, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return np.asarray(found.x)


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


def ask(learnt: Learnt, nets: Nets, joint: bool = False) -> Answer:
    """Totals of nets.

    Args:
        learnt: What rows have taught.
        nets: What to ask about.
        joint: Whether their joint covariance is wanted; else some nets are asked at a time.
    """
    everything = np.arange(len(nets.field.labels)), nets
    chunks = [everything] if joint else list_chunks(nets, len(learnt.field.labels))
    own = np.zeros(len(nets.field.labels))
    answers = []
    for pieces, some in chunks:
        answers.append(_ask_some(learnt, some, joint))
        own[pieces] = answers[-1].own
    total, var = (_join(answers, name) for name in ("total", "var"))
    return Answer(total, var, answers[0].cov if joint else None, own)


def ask_means(learnt: Learnt, nets: Nets) -> tuple[Floats, Floats]:
    """Totals of nets and what each piece costs, as ``ask`` says them, without any doubt."""
    total, own = np.zeros(nets.size), np.zeros(len(nets.field.labels))
    for known in learnt.draws:
        mean = nets.field.mean(known.parts)
        each = mean * np.maximum(1.0 + combine(known.relate(nets), known.pull), _LEAST_SHARE)
        own += each
        total += np.bincount(nets.net, nets.count * each[nets.piece], nets.size)
        if learnt.spread:
            kinds = len(known.above_pull)
            above = learnt.spread * weigh_kinds(nets, nets.count * mean[nets.piece], kinds)
            total += combine(above[:, :kinds], known.above_pull)
    return total / len(learnt.draws), own / len(learnt.draws)


def _join(answers: list[Answer], name: str) -> Floats:
    return np.concatenate([np.zeros(0), *(getattr(answer, name) for answer in answers)])


def _ask_some(learnt: Learnt, nets: Nets, joint: bool) -> Answer:
    """Totals under every draw, and what they have in common."""
    pairs, mix = Pairs(nets), Mix(nets.size, nets.net, nets.piece)
    asked = [_ask_one(one, learnt.spread, nets, pairs, mix, joint) for one in learnt.draws]
    total = _mean(asked, "total")
    var = _mean(asked, "var") + _mean_of([(one.total - total) ** 2 for one in asked])
    cov = None
    if joint:
        spread = [np.outer(one.total - total, one.total - total) for one in asked]
        cov = _mean(asked, "cov") + _mean_of(spread)
    return Answer(total, var, cov, _mean(asked, "own"))


def _mean(answers: list[Answer], name: str) -> Floats:
    return _mean_of([getattr(answer, name) for answer in answers])


def _mean_of(arrays: list[Floats]) -> Floats:
    return np.asarray(sum(arrays) / len(arrays))


def _ask_one(
    known: Known, spread: float, nets: Nets, pairs: Pairs, mix: Mix, joint: bool
) -> Answer:
    mean = nets.field.mean(known.parts)
    across = known.relate(nets)
    own = mean * np.maximum(1.0 + combine(across, known.pull), _LEAST_SHARE)
    entry = nets.count * mean[nets.piece]
    total = np.asarray(np.bincount(nets.net, nets.count * own[nets.piece], nets.size), float)
    gained = multiply(mix.times(entry, across), known.basis)
    var = pairs.add_up(entry, known.parts, known.level)
    above = np.zeros((nets.size, 0))
    if spread:
        kinds = len(known.above_pull)
        above = spread * weigh_kinds(nets, entry, kinds)
        seen = above[:, :kinds]
        total = total + combine(seen, known.above_pull)
        gained = gained + multiply(seen, known.above_basis)
        var = var + (above**2).sum(axis=1)
    var = var - (gained**2).sum(axis=1)
    cov = None
    if joint:
        half = mix.times(entry, relate_own(nets.field, known.parts, known.level))
        cov = mix.times(entry, half.T) + above @ above.T - multiply(gained, gained.T)
    return Answer(total, np.maximum(var, 0.0), cov, own)


def weigh_kinds(nets: Nets, entry: Floats, kinds: int) -> Floats:
    """How kinds, those of the rows and new ones, take part in what nets are off by."""
    labels = nets.field.labels
    costs = np.zeros((nets.size, max(kinds, int(labels.max(initial=-1)) + 1)))
    np.add.at(costs, (nets.net, labels[nets.piece]), entry)
    return np.asarray(np.sqrt(np.maximum(costs, 0.0) * costs.sum(axis=1, keepdims=True)))


def foresee(learnt: Learnt, nets: Nets) -> Gain:
    """What a look at each of the nets' own pieces would tell about their totals."""
    known = learnt.draws[0]
    parts, across = known.parts, known.relate(nets)
    mean = nets.field.mean(parts)
    seen = multiply(across, known.basis)
    cov = relate_own(nets.field, parts, learnt.level) - multiply(seen, seen.T)
    cov *= np.outer(mean, mean)
    cover = Mix(nets.size, nets.net, nets.piece).times(nets.count, cov)
    if learnt.spread:
        kinds = len(known.above_pull)
        above = learnt.spread * weigh_kinds(nets, nets.count * mean[nets.piece], kinds)
        cover -= multiply(multiply(above[:, :kinds], known.above_basis), seen.T) * mean
    own = mean * np.maximum(1.0 + combine(across, known.pull), _LEAST_SHARE)
    return Gain(cover, own, np.maximum(np.diag(cov), 0.0) + (parts.noise * own) ** 2)
