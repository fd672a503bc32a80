"""The joint process: laws of its gradient, of its sums, and of asking about nets in chunks."""

import json
import subprocess
import sys

import numpy as np
import pytest

from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.families import make_family
from joulecast.gp import kernel_groups, kernels, queries
from joulecast.gp.conditioning import Learnt, know, relate_own
from joulecast.gp.inference import ask, foresee, learn
from joulecast.gp.joint import Evidence, Field, Prior, Rows, relate, split
from joulecast.gp.kernels import Mix, factorise, invert, matern_within, multiply
from joulecast.gp.queries import Nets
from joulecast.records import Network, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import observe
from joulecast.variants import make_isolated_trial, split_blocks

COLUMNS, AXES, LEVEL = 3, 5, 0.2


def draw_field(rng, size, rates=2, kinds=3):
    return Field(
        rng.uniform(0.5, 2.0, (size, COLUMNS)),
        rng.integers(0, kinds, size),
        9.0 + rng.normal(size=(size, AXES)),
        rng.normal(size=(size, rates)),
    )


def draw_rows(rng, field, count):
    """Some pieces alone, then sums of a few."""
    size = len(field.labels)
    counts = (rng.random((count, size)) < 0.2) * rng.integers(1, 4, (count, size)).astype(float)
    counts[:size] = np.eye(size)[:count]
    counts[:, 0] += counts.sum(axis=1) == 0
    values = counts @ field.columns.sum(axis=1) * np.exp(0.1 * rng.normal(size=count))
    above = np.zeros((count, int(field.labels.max()) + 1))
    above[size:] = 0.1 * rng.random(above[size:].shape)
    units = 0.1 * (rng.random((count, 2)) < 0.3)
    return Rows(counts, values, np.full(count, 1e-4), above, units)


def make_prior(field):
    size = COLUMNS + 4 + AXES + field.rates.shape[1]
    return Prior(np.full(size, 0.3), np.full(size, 0.7), LEVEL)


def draw_nets(rng, field, size, seen=4):
    """Nets over a field of which the first pieces were seen in rows; the last net is empty."""
    entries = [sorted(rng.choice(len(field.labels), 1 + k % 6, False)) for k in range(size - 1)]
    net = np.repeat(np.arange(size - 1), [len(one) for one in entries])
    match = np.where(np.arange(len(field.labels)) < seen, np.arange(len(field.labels)), -1)
    count = rng.integers(1, 5, len(net)).astype(float)
    return Nets(field, match, size, net, np.concatenate(entries), count)


@pytest.mark.parametrize("rates", [0, 2])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_gradient_equals_finite_differences(seed, rates):
    rng = np.random.default_rng(seed)
    field = draw_field(rng, 12, rates)
    prior = make_prior(field)
    evidence = Evidence(field, draw_rows(rng, field, 17), prior)
    theta = 0.3 * rng.normal(size=len(prior.medians)) - 1.0
    steps = 1e-5 * np.eye(len(theta))
    slopes = [evidence.weigh(theta + s)[0] - evidence.weigh(theta - s)[0] for s in steps]
    assert evidence.weigh(theta)[1] == pytest.approx(np.array(slopes) / 2e-5, abs=1e-5)


def test_weighing_leaves_no_trace():
    """What was made for one draw is no part of the next."""
    rng = np.random.default_rng(5)
    field = draw_field(rng, 9)
    prior, rows = make_prior(field), draw_rows(rng, field, 12)
    one, two = (0.2 * rng.normal(size=(2, len(prior.medians)))) - 1.0
    evidence = Evidence(field, rows, prior)
    first, _, again = evidence.weigh(one), evidence.weigh(two), evidence.weigh(one)
    assert first[0] == again[0]
    assert (first[1] == again[1]).all()


def test_the_likelihood_is_that_of_a_dense_normal():
    rng = np.random.default_rng(6)
    field = draw_field(rng, 11)
    prior, rows = make_prior(field), draw_rows(rng, field, 15)
    theta = 0.3 * rng.normal(size=len(prior.medians)) - 1.0
    parts = split(theta, COLUMNS, AXES)
    share = rows.counts / rows.values[:, None] * field.mean(parts)
    cov = share @ relate_own(field, parts, LEVEL) @ share.T
    cov += np.diag(parts.noise**2 + rows.known) + rows.relate(share.sum(axis=1))
    off = 1.0 - share.sum(axis=1)
    dense = 0.5 * off @ np.linalg.solve(cov, off) + 0.5 * np.linalg.slogdet(cov)[1]
    assert Evidence(field, rows, prior).weigh(theta)[0] == pytest.approx(
        dense + prior.draw_to(theta)[0], rel=1e-10
    )


@pytest.fixture(scope="module")
def learnt():
    rng = np.random.default_rng(1)
    field = draw_field(rng, 10)
    rows = draw_rows(rng, field, 14)
    return learn(field, rows, make_prior(field), draws=4, spread=0.1)


@pytest.fixture
def asked():
    return draw_nets(
        np.random.default_rng(2), draw_field(np.random.default_rng(3), 40, kinds=5), 30
    )


def test_asking_in_chunks_equals_asking_at_once(learnt, asked, monkeypatch):
    whole = ask(learnt, asked)
    monkeypatch.setattr(queries, "_AT_ONCE", 300)
    assert len(list(queries.list_chunks(asked, len(learnt.field.labels)))) > 5
    parts = ask(learnt, asked)
    for name in ("total", "var", "own"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-9)


def test_variances_are_the_diagonal_of_the_joint_covariance(learnt, asked):
    """Pairs within nets and the matrix over all pieces are two ways to one number."""
    apart, together = ask(learnt, asked), ask(learnt, asked, joint=True)
    assert np.diag(together.cov) == pytest.approx(apart.var, rel=1e-8, abs=1e-12)
    assert together.total == pytest.approx(apart.total, rel=1e-12)
    assert apart.var[-1] == apart.total[-1] == 0.0


def test_asking_says_what_dense_conditioning_says(learnt, asked):
    """One draw, by the textbook: K_** - K_*·C⁻¹·K_*ᵀ, pieces and what nets are off by together."""
    one = Learnt(learnt.field, learnt.rows, learnt.level, learnt.thetas[:1], learnt.spread)
    known = know(one, one.thetas[0])
    rows, mean = one.rows, asked.field.mean(known.parts)
    share = rows.counts / rows.values[:, None] * one.field.mean(known.parts)
    cov = share @ relate_own(one.field, known.parts, LEVEL) @ share.T
    cov += np.diag(known.parts.noise**2 + rows.known) + rows.relate(share.sum(axis=1))
    across = known.relate(asked) @ share.T
    runs = np.zeros((asked.size, len(mean)))
    runs[asked.net, asked.piece] = asked.count * mean[asked.piece]
    costs = np.array([runs[:, asked.field.labels == kind].sum(axis=1) for kind in range(5)]).T
    above = one.spread * np.sqrt(costs * costs.sum(axis=1, keepdims=True))
    together = runs @ across + above[:, : rows.above.shape[1]] @ rows.above.T
    own = runs @ relate_own(asked.field, known.parts, LEVEL) @ runs.T + above @ above.T
    left = own - together @ np.linalg.solve(cov, together.T)
    answer = ask(one, asked)
    assert answer.var == pytest.approx(np.diag(left), rel=1e-7, abs=1e-12)
    shift = across @ np.linalg.solve(cov, 1.0 - share.sum(axis=1))
    own, used = mean * np.maximum(1.0 + shift, 0.05), np.unique(asked.piece)
    assert answer.own[used] == pytest.approx(own[used], rel=1e-8)
    drawn = rows.above.T @ np.linalg.solve(cov, 1.0 - share.sum(axis=1))
    total = np.bincount(asked.net, asked.count * own[asked.piece], asked.size)
    total = total + above[:, : rows.above.shape[1]] @ drawn
    assert answer.total == pytest.approx(total, rel=1e-8)


def test_a_piece_alone_is_as_unsure_as_foreseen(learnt, asked):
    """What a look at a piece would show is its own variance and the noise of the look."""
    one = Learnt(learnt.field, learnt.rows, learnt.level, learnt.thetas[:1])
    pieces = np.arange(len(asked.field.labels))
    gain, alone = foresee(one, asked), ask(one, asked.alone(pieces))
    noise = know(one, one.thetas[0]).parts.noise
    assert gain.own == pytest.approx(alone.total, rel=1e-9)
    assert gain.var == pytest.approx(alone.var + (noise * alone.total) ** 2, rel=1e-7)


def test_kernels_do_not_depend_on_how_many_rows_are_made_at_once(monkeypatch):
    rng = np.random.default_rng(4)
    one, two = draw_field(rng, 30), draw_field(rng, 20)
    parts = split(0.2 * rng.normal(size=COLUMNS + 4 + AXES + 2), COLUMNS, AXES)
    whole = relate(one, two, parts, LEVEL)
    room = np.empty((2, 30, 30))
    value, slope = (found.copy() for found in matern_within(one.places, room))
    monkeypatch.setattr(kernels, "_AT_ONCE", 50)
    assert relate(one, two, parts, LEVEL) == pytest.approx(whole, rel=1e-12)
    again = matern_within(one.places, room)
    assert again[0] == pytest.approx(value, rel=1e-9)
    assert again[1] == pytest.approx(slope, rel=1e-9)
    assert (again[0] == again[0].T).all()


def test_matern_falls_from_one():
    distance = np.linspace(0.0, 30.0, 200)
    value = kernels.matern(distance**2)
    assert value[0] == 1.0
    assert (np.diff(value) < 0).all()
    assert value[-1] < 1e-10


def test_a_mix_is_a_sparse_product():
    rng = np.random.default_rng(7)
    dense = (rng.random((13, 21)) < 0.3) * rng.normal(size=(13, 21))
    dense[4] = 0.0
    row, column = np.nonzero(dense)
    other = rng.normal(size=(21, 6))
    order = rng.permutation(len(row))
    mix = Mix(13, row[order], column[order])
    found = mix.times(dense[row, column][order], other)
    assert found == pytest.approx(dense @ other, abs=1e-12)


@pytest.mark.parametrize("size", [1, 64, 65, 200])
def test_factors_and_inverses_are_found_by_halves(size):
    rng = np.random.default_rng(size)
    half = rng.normal(size=(size, size))
    matrix = half @ half.T + np.eye(size)
    factor, inverse = factorise(matrix)
    assert factor == pytest.approx(np.linalg.cholesky(matrix), rel=1e-8, abs=1e-8)
    assert inverse @ factor == pytest.approx(np.eye(size), abs=1e-8)


@pytest.mark.parametrize("size", [1, 70])
def test_a_covariance_is_inverted(size):
    half = np.random.default_rng(size).normal(size=(size, size))
    matrix = half @ half.T + np.eye(size)
    inverse, half_log = invert(matrix)
    assert inverse == pytest.approx(np.linalg.inv(matrix), abs=1e-9)
    assert half_log == pytest.approx(0.5 * np.linalg.slogdet(matrix)[1])


def test_a_matrix_without_a_factor_gets_a_little_diagonal():
    """Equal rows leave nothing to divide by; rounding alone decides on which side of nothing."""
    matrix = np.ones((90, 90)) - 1e-12 * np.eye(90)
    factor, _ = factorise(matrix)
    assert factor @ factor.T == pytest.approx(matrix, abs=1e-6)
    assert np.isfinite(invert(matrix)[0]).all()


@pytest.mark.parametrize("work", [factorise, invert])
@pytest.mark.parametrize("size", [3, 90])
def test_what_is_no_covariance_is_refused(work, size):
    with pytest.raises(np.linalg.LinAlgError):
        work(-np.eye(size))


def test_large_groups_weigh_as_small_ones_do(monkeypatch):
    """Whether zeros are written down changes how long it takes, and nothing else."""
    rng = np.random.default_rng(8)
    field = draw_field(rng, 14)
    prior, rows = make_prior(field), draw_rows(rng, field, 19)
    theta = 0.3 * rng.normal(size=len(prior.medians)) - 1.0
    dense = Evidence(field, rows, prior).weigh(theta)
    monkeypatch.setattr(kernel_groups, "_SMALL", 0)
    sparse = Evidence(field, rows, prior).weigh(theta)
    assert sparse[0] == pytest.approx(dense[0], rel=1e-12)
    assert sparse[1] == pytest.approx(dense[1], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(700, 40), (30, 150), (0, 3), (3, 0)])
def test_products_in_one_thread_are_products(rows, columns):
    rng = np.random.default_rng(8)
    one, two = rng.normal(size=(rows, columns)), rng.normal(size=(columns, 70))
    assert multiply(one, two) == pytest.approx(one @ two, abs=1e-10)


PREDICT = """
import json, sys
before = set(sys.modules)
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.families import make_family
from joulecast.records import Setup
fitted = json.load(open(sys.argv[1]))
answer = AdditiveEstimator().predict(fitted, [make_family("lenet5:3,5,20,20")], Setup(batch=8))
assert answer.energy_j[0] > 0
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - {"joulecast"} - set(sys.stdlib_module_names)))
"""


def test_predicting_loads_numpy_alone(tmp_path):
    """Whoever fits may load more; an estimate is to be there at once."""
    world, setup = make_simulated_device(7, noise=0.0), Setup(batch=8)
    parts = [place.part for place in split_blocks(make_family("lenet5"))]
    trials = [*(make_isolated_trial(part, setup) for part in parts), Trial(Network(), Setup())]
    fitted = AdditiveEstimator().fit([observe(world, trial) for trial in trials])
    (tmp_path / "fit.json").write_text(json.dumps(fitted))
    words = [sys.executable, "-c", PREDICT, str(tmp_path / "fit.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["numpy"]


def test_what_whole_nets_are_off_by_is_learnt_for_nets_of_the_same_kinds():
    """Pieces alone say 1; whole nets of kind 0 cost 4 % more: so do others of it, not of kind 1."""
    rng = np.random.default_rng(8)
    field = draw_field(rng, 8, rates=0, kinds=1)
    field = Field(field.columns, np.array([0] * 4 + [1] * 4), field.places, field.rates)
    medians = np.array([0.1] * COLUMNS + [0.005] * 4 + [0.1] * AXES)
    prior = Prior(medians, np.full(len(medians), 0.01), 0.005)
    costs = field.columns @ prior.medians[:COLUMNS]
    whole = np.zeros((3, 8))
    whole[:, :4] = 1.0 + np.arange(12.0).reshape(3, 4) % 3
    counts = np.vstack([np.eye(8), whole])
    values = counts @ costs * np.array([1.0] * 8 + [1.04] * 3)
    above = np.zeros((11, 2))
    above[8:, 0] = 0.05
    rows = Rows(counts, values, np.full(11, 1e-6), above, np.zeros((11, 0)))
    found = learn(field, rows, prior, draws=0, spread=0.05)
    few = Nets(
        field.take(np.arange(4)), np.arange(4), 1, np.zeros(4, int), np.arange(4), np.ones(4)
    )
    assert ask(found, few).total == pytest.approx(1.04 * costs[:4].sum(), rel=0.012)
    nets_of = [np.arange(4), np.arange(4, 8)]
    asked = Nets(
        field, np.arange(8), 2, np.repeat([0, 1], 4), np.concatenate(nets_of), np.full(8, 2.0)
    )
    answer = ask(found, asked)
    plain = np.array([2.0 * costs[:4].sum(), 2.0 * costs[4:].sum()])
    off = answer.total / plain - 1.0
    assert off == pytest.approx([0.04, 0.0], abs=0.012)
    assert np.sqrt(answer.var[0]) / plain[0] < 0.5 * np.sqrt(answer.var[1]) / plain[1]
