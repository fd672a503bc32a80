"""Test the estimators of kernels."""

from joulecast.estimators.kernels.kernel_estimators import (
    KernelForestEstimator,
    KernelProcessEstimator,
)
from joulecast.testing.estimators import EstimatorContract


class TestKernelProcesses(EstimatorContract):
    def make_estimator(self):
        return KernelProcessEstimator()


class TestKernelForests(EstimatorContract):
    def make_estimator(self):
        return KernelForestEstimator()
