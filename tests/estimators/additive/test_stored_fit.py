"""Fits as JSON."""

from joulecast.estimators.additive.estimator import AdditiveEstimator


def test_restored_fit_is_extended_as_the_first_one(device, observations, fitted):
    """A stored fit knows which observations it has seen."""
    restored = AdditiveEstimator().load(fitted.to_dict())
    assert restored.observation_count == fitted.observation_count
    assert AdditiveEstimator().fit(observations[::-1], restored) is restored
