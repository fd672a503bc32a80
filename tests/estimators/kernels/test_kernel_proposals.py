"""Test which kernels are measured next."""

from dataclasses import replace

import pytest

from joulecast.estimators.base import Target
from joulecast.estimators.kernels.estimator import (
    KernelProcessEstimator,
)
from joulecast.estimators.kernels.kernel_points import make_overhead_trial
from joulecast.families import make_family
from joulecast.fusion import find_fusion_table, list_kernels
from joulecast.records import Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import observe

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


def test_overhead_comes_first(campaign):
    assert campaign[0][0].trial == make_overhead_trial(SETUP)


def test_all_kinds_are_measured_as_the_runtime_fuses_them(campaign):
    table = find_fusion_table(RUNTIME, SETUP)
    measured = [list_kernels(seen.trial.network, SETUP, table) for seen in campaign[1][1:]]
    alone = {kernels[0].kind for kernels in measured if len(kernels) == 1}
    assert alone == {kernel.kind for kernel in list_kernels(NETWORK, SETUP, table)}
    assert alone == {"conv+relu", "maxpool", "fc"}


def test_whole_network_is_compared_with_its_sum(campaign):
    assert Trial(NETWORK, SETUP) in [seen.trial for seen in campaign[1]]


def test_no_trial_is_proposed_twice_and_the_end_is_explained(campaign):
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
