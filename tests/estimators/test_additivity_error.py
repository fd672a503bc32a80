"""Errors of sums over parts, by method."""

from joulecast.estimators import additivity_error
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator


def test_every_method_has_its_error():
    assert SubtractiveEstimator.sum_error_sd_share == additivity_error.SUBTRACTED_SUM_ERROR_SD_SHARE


def test_isolated_layers_have_the_smallest_error():
    shares = [value for name, value in vars(additivity_error).items() if name.endswith("_SHARE")]
    assert min(shares) == additivity_error.ISOLATED_SUM_ERROR_SD_SHARE > 0
    assert max(shares) <= 0.1
