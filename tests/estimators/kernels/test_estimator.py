"""Test the estimators of kernels."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.base import Target
from joulecast.estimators.kernels import (
    CostPoint,
    KernelProcessEstimator,
    RunOverhead,
    fit_process,
    fit_setup,
    make_overhead_trial,
)
from joulecast.families import make_family
from joulecast.onnx_nets.fusion import find_fusion_table, list_kernels
from joulecast.operators import make_layer
from joulecast.records import Execution, Input, Network, Observation, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import EstimatorContract, observe
from kernel_examples import draw_convs, find_durations, make_linear


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


def make_points(kernels, power_w=10.0):
    durations = find_durations(kernels)
    return [
        CostPoint((one,), float(duration), 0.01, power_w, 0.01)
        for one, duration in zip(kernels, durations, strict=True)
    ]


def make_network_point(seed, factor):
    kernels = draw_convs(10, seed)
    total = factor * float(find_durations(kernels).sum())
    return CostPoint(tuple(kernels), total, 0.01, 10.0, 0.01)


def fit_points(*points):
    return fit_setup(RunOverhead(), points, fit_process)


def test_kinds_and_main_operators_have_regressions():
    model = fit_points(*make_points(draw_convs(20)))
    assert set(model.duration.regressions) == {"conv+relu", "conv+..."}
    assert model.duration.find_regression("conv+bn+add") is not None
    assert model.duration.find_regression("fc") is None
    assert model.power.mean.rates[-1] == pytest.approx(10.0)


def test_kind_with_few_kernels_costs_what_its_work_costs():
    model = fit_points(*make_points([*draw_convs(20), make_linear(100, 100)]))
    assert "fc" not in model.duration.regressions
    log_costs, cov = model.duration.predict([make_linear(200, 200), make_linear(300, 300)])
    assert np.isfinite(log_costs).all()
    # One rate for all of them: their errors are the same.
    assert cov[0, 1] == pytest.approx(cov[0, 0]) and cov[0, 0] >= 0.2**2


@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_whole_networks_show_a_factor(factor):
    networks = [make_network_point(seed, factor) for seed in range(5, 12)]
    model = fit_points(*make_points(draw_convs(60)), *networks)
    found = model.duration.factor
    assert np.exp(found.log_mean) == pytest.approx(factor, rel=0.04)
    assert found.count == 7 and found.log_variance < 0.03**2
    assert np.exp(model.power.factor.log_mean) == pytest.approx(1.0, rel=0.03)


def test_networks_alone_give_costs_by_work():
    model = fit_points(*(make_network_point(seed, 1.0) for seed in range(6)))
    assert not model.duration.regressions
    truth = find_durations(draw_convs(10, seed=9)).sum()
    found = np.exp(model.duration.predict(draw_convs(10, seed=9))[0]).sum()
    assert found == pytest.approx(truth, rel=0.4)


SETUP = Setup(batch=1, phase="inference")
NETWORK = make_family("cnn5:8,12,16,20", (3, 32, 32))
RUNTIME = "onnxruntime-1.31.1"
TARGET = Target(NETWORK, SETUP, networks=(NETWORK,), runtime=RUNTIME, uncertainty_share=0.2)


@pytest.fixture(scope="module")
def campaign():
    """All proposals of a campaign and what they were answered with."""
    device = make_simulated_device(3, noise=0.0)
    proposals, seen = [], []
    while True:
        proposal = KernelProcessEstimator().propose(TARGET, seen)
        proposals.append(proposal)
        if proposal.trial is None:
            return proposals, seen
        seen.append(replace(observe(device, proposal.trial), runtime=RUNTIME))


def test_campaign_measures_the_overhead_all_kinds_and_the_network(campaign):
    assert campaign[0][0].trial == make_overhead_trial(SETUP)
    table = find_fusion_table(RUNTIME, SETUP)
    measured = [list_kernels(seen.trial.network, SETUP, table) for seen in campaign[1][1:]]
    alone = {kernels[0].kind for kernels in measured if len(kernels) == 1}
    assert alone == {kernel.kind for kernel in list_kernels(NETWORK, SETUP, table)}
    assert alone == {"conv+relu", "maxpool", "fc"}
    assert Trial(NETWORK, SETUP) in [seen.trial for seen in campaign[1]]
    keys = [seen.trial.key for seen in campaign[1]]
    assert len(set(keys)) == len(keys)
    last = campaign[0][-1]
    assert "uncertainty" in last.reason or "measured" in last.reason
    assert last.uncertainty_share < 1.0


def test_kernel_that_reduces_the_variance_most_comes_next(campaign):
    device = make_simulated_device(3, noise=0.0)
    networks = tuple(make_family(f"cnn5:{c1},30,40,64", (3, 32, 32)) for c1 in (4, 20, 60))
    target = replace(TARGET, networks=networks, uncertainty_share=1e-6)
    seen = list(campaign[1])
    while "of the variance" not in (found := KernelProcessEstimator().propose(target, seen)).reason:
        seen.append(replace(observe(device, found.trial), runtime=RUNTIME))
    (kernel,) = list_kernels(found.trial.network, SETUP, find_fusion_table(RUNTIME, SETUP))
    assert kernel.kind == "conv+relu"
    assert found.trial.key not in {one.trial.key for one in seen}
    measured = [*seen, replace(observe(device, found.trial), runtime=RUNTIME)]
    after = KernelProcessEstimator().propose(target, measured)
    assert after.uncertainty_share < found.uncertainty_share


def test_probes_are_declined():
    found = KernelProcessEstimator().propose(replace(TARGET, acquisition="probe"), [])
    assert found.trial is None and not found.probes
