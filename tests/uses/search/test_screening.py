"""Screening: estimates, budgets and confidence of candidates."""

from __future__ import annotations

import json
import random

import pytest

from joulecast.errors import InputError
from joulecast.uses.search import screen_randomly


def test_screened_candidate_has_the_estimate(make_cnn_screener):
    screener = make_cnn_screener("50%")
    rng = random.Random(1)
    drawn = [screener.space.draw(rng) for _ in range(20)]
    candidates = screener.screen(drawn)
    for params, candidate in zip(drawn, candidates, strict=True):
        alone = screener.screen([params])[0]
        assert candidate.energy_j == pytest.approx(alone.energy_j)
        assert candidate.energy_j == pytest.approx(100 * candidate.estimate.energy_j)
        assert candidate.interval_j[0] < candidate.energy_j < candidate.interval_j[1]
        assert candidate.is_within_budget == (candidate.budget_probability >= 0.9)
        assert candidate.budget_probability == pytest.approx(alone.budget_probability, abs=1e-6)


def test_budget_per_run_equals_budget_per_step(make_cnn_screener):
    rng = random.Random(2)
    run = make_cnn_screener("20J")
    drawn = [run.space.draw(rng) for _ in range(20)]
    step = make_cnn_screener("0.2J/step")
    assert [one.budget_probability for one in run.screen(drawn)] == pytest.approx(
        [one.budget_probability for one in step.screen(drawn)]
    )
    assert run.compute_run_limit_j(100) == pytest.approx(step.compute_run_limit_j(100))


def test_higher_confidence_admits_fewer_candidates(make_cnn_screener):
    counts = [
        sum(
            one.is_within_budget
            for one in screen_randomly(make_cnn_screener("50%", confidence), 200, 3).candidates
        )
        for confidence in (0.1, 0.5, 0.99)
    ]
    assert counts[0] >= counts[1] >= counts[2] and counts[0] > counts[2]


def test_confidence_must_be_a_probability(make_cnn_screener):
    for confidence in (0.0, 1.0, 90.0):
        with pytest.raises(InputError, match="give a probability"):
            make_cnn_screener("50%", confidence)


def test_original_exceeds_half_of_itself(make_cnn_screener):
    screener = make_cnn_screener("50%")
    largest = {name: one.bounds[1] for name, one in screener.space.dimensions.items()}
    assert screener.screen([largest])[0].budget_probability < 1e-6
    network, setup = screener.space.original
    original = screener.fitted_profile.estimate([network], setup)[0]
    assert screener.limit_j == pytest.approx(50 * original.energy_j)


def test_random_screening_reports_size_and_not_quality(make_cnn_screener):
    found = screen_randomly(make_cnn_screener("50%"), 100, 5)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["screened"] == 100 and data["provenance"] == "simulated"
    assert data["within_budget"] == len(found.within_budget)
    assert {"parameters", "budget_probability", "interval_j"} <= set(data["candidates"][0])
    assert not any("score" in one or "quality" in one for one in data["candidates"])
    assert screen_randomly(make_cnn_screener("50%"), 100, 5).candidates == found.candidates
