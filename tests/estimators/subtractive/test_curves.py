"""Test curves: which observations they use, and what subtraction adds to the variance."""

from dataclasses import replace

import pytest

from joulecast.estimators.subtractive.curves import read_point
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.families import make_family
from joulecast.records import Execution, Trial
from joulecast.testing.estimators import FAMILY, SETUP, make_observations


def test_only_whole_eager_steps_of_variants_are_used():
    seen = make_observations()[0]
    assert SubtractiveEstimator().uses(seen)
    for execution in (
        Execution(stage="forward"),
        Execution(mode="graph"),
        Execution(copies=2),
        Execution(upstream="random"),
    ):
        assert not SubtractiveEstimator().uses(
            replace(seen, trial=replace(seen.trial, execution=execution))
        )
    whole = Trial(make_family(FAMILY), SETUP)
    assert not SubtractiveEstimator().uses(replace(seen, trial=whole))


def test_energy_of_many_steps_counts_per_step():
    seen = make_observations()[4]
    many = replace(
        seen,
        trial=replace(seen.trial, execution=Execution(steps=10)),
        energy_j=10 * seen.energy_j,
        energy_sd_j=10 * seen.energy_sd_j,
    )
    one, ten = read_point(seen, "energy"), read_point(many, "energy")
    assert ten.value == pytest.approx(one.value)
    assert ten.variance == pytest.approx(one.variance)
