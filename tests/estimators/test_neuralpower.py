"""NeuralPower for training."""

from joulecast.estimators.neuralpower import NeuralPowerEstimator
from joulecast.testing.estimators import EstimatorContract


class TestNeuralPower(EstimatorContract):
    def make_estimator(self) -> NeuralPowerEstimator:
        return NeuralPowerEstimator()
