"""Durations of the host's calls, by type."""

import numpy as np
import pytest

from host_time_examples import CALLS_S, START_S, observe_all
from joulecast.estimators.additive.host_time import (
    TimedStep,
    _LeastSquares,
    fit_call_durations,
)
from joulecast.kinds import HOST_CALLS


def test_durations_of_calls_are_recovered():
    observations = observe_all(noise=0.0)
    steps = [TimedStep(one, one.duration_s) for one in observations]
    fitted = fit_call_durations(steps, 30e-6)
    assert fitted.step_overhead_s == pytest.approx(START_S, rel=0.15)
    assert fitted.per_call_s[:3] == pytest.approx(CALLS_S[:3], rel=0.2)
    assert fitted.per_call_s[4:] == pytest.approx(CALLS_S[4:], rel=0.2)
    # Casts come with products, and few of them: they are drawn to the duration of a launch.
    assert sum(fitted.per_call_s[2:4]) == pytest.approx(sum(CALLS_S[2:4]), rel=0.25)
    assert fitted.per_call_s[3] == pytest.approx(CALLS_S[3], rel=0.5)
    factors = list(fitted.structure_factors.values())
    assert factors == pytest.approx([1.0] * len(factors), abs=0.1)


def test_jacobian_equals_finite_differences():
    steps = [TimedStep(one, one.duration_s) for one in observe_all(noise=0.1)[::9]]
    structures = sorted({piece.structure for one in steps for piece in one.observation.counts})
    problem = _LeastSquares.make(steps, structures)
    rng = np.random.default_rng(0)
    theta = np.log(30e-6) * np.ones(1 + len(HOST_CALLS) + len(structures))
    theta[1 + len(HOST_CALLS) :] = 0.1 * rng.normal(size=len(structures))
    differences = [
        problem.residuals(theta + step) - problem.residuals(theta - step)
        for step in 1e-6 * np.eye(len(theta))
    ]
    expected = np.array(differences).T / 2e-6
    assert problem.jacobian(theta) == pytest.approx(expected, abs=1e-5)
