"""Whole runs of a stranger's log in a world whose law is known: overhead, noise, intervals."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from joulecast.errors import MissingError
from joulecast.estimators.additive.decompose import read_looks
from joulecast.estimators.additive.encode import ENERGY, IMPORTED_ENERGY, choose_words
from joulecast.estimators.additive.estimator import AdditiveEstimator, fit_model
from joulecast.estimators.additive.model import total_nets
from joulecast.estimators.additive.pieces import count_stands, make_overhead, split_pieces
from joulecast.estimators.additive.whole_runs import predict_runs
from joulecast.families import draw_family
from joulecast.gp.lognormal import lognormal_interval
from joulecast.records import Execution, Observation, Setup, Trial
from joulecast.simulation import make_simulated_device

SETUP = Setup(batch=32)
STEPS, EXTRA_J, EXTRA_S = 100, 60.0, 0.3
SOURCE = "somebody's log"
NOISE = 0.06


def draw(count, seed):
    rng = random.Random(seed)
    return [draw_family("cnn5", rng.randint) for _ in range(count)]


def run(world, network, noise=0.0):
    cost = world.true_cost(Trial(network, SETUP))
    return Observation(
        Trial(network, SETUP, Execution(steps=STEPS)),
        energy_j=(STEPS * cost.energy_j + EXTRA_J) * (1 + noise),
        duration_s=STEPS * cost.duration_s + EXTRA_S,
        provenance="imported",
        source=SOURCE,
    )


@pytest.fixture(scope="module")
def world():
    return make_simulated_device(201, noise=0.0)


@pytest.fixture(scope="module")
def learnt(world):
    """Forty runs whose joules were metered badly."""
    half = NOISE * np.random.default_rng(5).standard_normal(20)
    noises = np.concatenate([half, -half])  # in pairs: luck has no say in their mean
    return [
        run(world, net, noise) for net, noise in zip(draw(40, seed=1), noises.tolist(), strict=True)
    ]


@pytest.fixture(scope="module")
def fitted(learnt):
    return AdditiveEstimator().fit(learnt)


def test_how_far_repeats_differ_is_learnt(fitted):
    totals = predict_runs(fitted, draw(1, seed=2), SETUP, STEPS, SOURCE)
    assert 0.6 * NOISE < totals.repeat_share < 1.5 * NOISE


def test_a_run_is_its_steps_and_one_overhead(fitted, world):
    nets = draw(20, seed=3)
    short, long = (predict_runs(fitted, nets, SETUP, n, SOURCE) for n in (STEPS, 11 * STEPS))
    step = fitted.predict(nets, [SETUP] * len(nets))
    assert long.energy_j - short.energy_j == pytest.approx(10 * STEPS * step.energy_j, rel=1e-6)
    overhead_j = short.energy_j - STEPS * step.energy_j
    assert overhead_j == pytest.approx(overhead_j[0], rel=1e-6)
    truth_j = np.array([run(world, net).energy_j for net in nets])
    assert np.mean(np.abs(short.energy_j / truth_j - 1)) < NOISE


def test_intervals_hold_single_runs_and_narrow_with_repeats(fitted, world):
    nets = draw(200, seed=4)
    totals = predict_runs(fitted, nets, SETUP, STEPS, SOURCE)
    noises = NOISE * np.random.default_rng(6).standard_normal(len(nets))
    held = 0
    for at, net in enumerate(nets):
        low, high = lognormal_interval(totals.energy_j[at], totals.variance()[at], 0.95)
        held += low < run(world, net, noises[at]).energy_j < high
    assert held / len(nets) > 0.88
    assert np.all(totals.variance(4) < totals.variance())
    assert totals.variance(1e12) == pytest.approx(totals.energy_sd_j**2)


def test_a_strangers_run_is_no_steps_cost(world):
    """Asked about a net that ran, a step's estimate is not drawn to the run with its overhead."""
    nets = draw(25, seed=41)
    estimator = AdditiveEstimator()
    fitted = estimator.fit([run(world, net) for net in nets])
    assert fitted["runs"] == {}
    answer = fitted.predict(nets, [SETUP] * len(nets))
    truth_j = np.array([world.true_cost(Trial(net, SETUP)).energy_j for net in nets])
    share = EXTRA_J / STEPS / truth_j
    assert abs(np.median(answer.energy_j / truth_j - 1)) < 0.4 * np.median(share)


def test_what_is_kept_says_what_was_learnt(fitted, learnt):
    """An overhead has no rate that keeping could lose."""
    state, nets = fit_model(learnt), draw(5, seed=7)
    known = set(state.table.labels)
    paid = (make_overhead(SOURCE), 1 / STEPS)
    counts = [(*count_stands(split_pieces(net, SETUP, known)), paid) for net in nets]
    fresh = total_nets(state, counts, fitted["off_share"])
    kept = predict_runs(json.loads(json.dumps(fitted)), nets, SETUP, STEPS, SOURCE)
    assert kept.energy_j == pytest.approx(STEPS * fresh.energy_j, rel=1e-9)
    assert kept.energy_sd_j == pytest.approx(STEPS * np.sqrt(fresh.var), rel=1e-9)


def test_only_what_is_all_a_strangers_is_taken_loosely(learnt):
    own = replace(learnt[0], provenance="measured", source="")
    assert choose_words(read_looks(learnt))[1] == IMPORTED_ENERGY
    assert choose_words(read_looks([*learnt, own]))[1] == ENERGY


def test_another_source_was_not_learnt(fitted):
    with pytest.raises(MissingError, match="another log"):
        predict_runs(fitted, draw(1, seed=2), SETUP, STEPS, "another log")
