"""Interpolation of estimates: its error, and what it leaves exact."""

from __future__ import annotations

import random

import numpy as np
import pytest

from joulecast.uses.search import NumberRange, screen_randomly
from joulecast.uses.search.interpolation import Coordinates, fit_interpolator

COUNT = 96


@pytest.fixture(scope="module")
def screener(make_cnn_screener):
    return make_cnn_screener("50%")


@pytest.fixture(scope="module")
def interpolator(screener):
    rng = random.Random(4)
    return fit_interpolator(screener, [screener.space.draw(rng) for _ in range(COUNT)])


def test_interpolated_energies_are_near_exact_ones(screener, interpolator):
    rng = random.Random(5)
    drawn = [screener.space.draw(rng) for _ in range(60)]
    exact, found = screener.screen(drawn), interpolator.screen(drawn)
    errors = [np.log(a.energy_j / b.energy_j) for a, b in zip(found, exact, strict=True)]
    rms = float(np.sqrt(np.mean(np.square(errors))))
    assert rms < 0.1
    # What it says about its own error holds for candidates that it has not learnt.
    assert 0.3 < rms / interpolator.log_error_sd < 3.0
    same = [a.is_within_budget == b.is_within_budget for a, b in zip(found, exact, strict=True)]
    assert np.mean(same) >= 0.9


def test_interpolated_candidates_are_complete_and_say_so(screener, interpolator):
    rng = random.Random(6)
    params = screener.space.draw(rng)
    (exact,), (found,) = screener.screen([params]), interpolator.screen([params])
    assert found.is_interpolated and not exact.is_interpolated
    assert found.network == exact.network and found.setup == exact.setup
    assert found.steps == exact.steps and found.to_dict().keys() == exact.to_dict().keys()
    assert found.parameters == pytest.approx(exact.parameters, rel=0.1)
    assert found.duration_s == pytest.approx(exact.duration_s, rel=0.1)
    assert found.interval_j[0] < found.energy_j < found.interval_j[1]
    assert found.estimate.provenance == exact.estimate.provenance


def test_learnt_candidates_are_reproduced(interpolator):
    learnt = interpolator.learnt[:20]
    found = interpolator.screen([one.params for one in learnt])
    ratios = [a.energy_j / b.energy_j for a, b in zip(found, learnt, strict=True)]
    assert ratios == pytest.approx([1.0] * len(ratios), abs=0.05)


def test_interval_contains_the_error_of_interpolation(screener, interpolator):
    rng = random.Random(7)
    drawn = [screener.space.draw(rng) for _ in range(20)]
    exact, found = screener.screen(drawn), interpolator.screen(drawn)
    widths = [
        np.log(one.interval_j[1] / one.interval_j[0])
        / np.log(two.interval_j[1] / two.interval_j[0])
        for one, two in zip(found, exact, strict=True)
    ]
    assert np.median(widths) >= 0.9


def test_coordinates_leave_out_what_does_not_vary(make_cnn_screener):
    vary = {"c1": (32,), "c2": NumberRange(8, 64, 8), "precision": ("fp32", "bf16"), "lr": (0.1, 1)}
    coordinates = Coordinates.of(make_cnn_screener("50%", **vary).space)
    assert coordinates.sizes == ("c2", "c3", "c4")
    assert dict(coordinates.choices) == {"precision": ("fp32", "bf16")}
    points = coordinates.find([{"c2": 8, "c3": 16, "c4": 24, "precision": "bf16"}])
    assert points.shape == (1, len(coordinates.is_size))
    assert points[0, -2:].tolist() == [0.0, 1.0]


def test_many_candidates_are_interpolated_and_the_largest_are_exact(screener):
    found = screen_randomly(screener, 700, 8)
    assert 0 < found.interpolated_count < 700
    assert not any(one.is_interpolated for one in found.within_budget[:8])
    assert found.to_dict()["interpolated"] == found.interpolated_count


def test_small_spaces_are_estimated_exactly(make_cnn_screener):
    fixed = {"c1": (16,), "c2": (16,), "c3": (16,), "c4": NumberRange(8, 64, 8)}
    found = screen_randomly(make_cnn_screener("50%", **fixed), 2000, 8)
    assert found.interpolated_count == 0 and len(found.candidates) == 2000
    assert len({one.network.name for one in found.candidates}) == 8
