"""Test the estimators of kernels."""

from dataclasses import replace

from joulecast.estimators.kernels.estimator import KernelProcessEstimator
from joulecast.kinds import make_layer
from joulecast.records import Execution, Input, Network, Observation, Setup, Trial
from joulecast.testing.estimators import EstimatorContract


class TestKernelProcesses(EstimatorContract):
    def make_estimator(self):
        return KernelProcessEstimator()


def test_compiled_setups_run_other_kernels_than_eager_ones():
    """A chain of activations is one kernel where it is compiled, and several where it is not."""
    eager = Setup(batch=4, phase="inference")
    observations = [
        Observation(
            Trial(make_chain(width), setup, Execution(copies=2)),
            2e-9 * width,
            duration_s=1e-9 * width,
            runtime="torch-2.13.0",
        )
        for setup in (eager, replace(eager, compiled=True))
        for width in (1000, 2000, 4000, 8000, 16000, 32000)
    ]
    fitted = KernelProcessEstimator().fit(observations)
    kinds = {
        bool(setup.compiled): set(fitted.find_model(setup)[0].duration.regressions)
        for setup in (eager, replace(eager, compiled=True))
    }
    assert "pointwise" in kinds[True] and "pointwise" not in kinds[False]
    assert KernelProcessEstimator().load(fitted.to_dict()).table == "torch"


def make_chain(width: int) -> Network:
    layers = [make_layer("elementwise", fn=fn, shape=(width,)) for fn in ("gelu", "tanh")]
    return Network(tuple(layers), Input((width,)))
