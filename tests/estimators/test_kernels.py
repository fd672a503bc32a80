"""Sums of kernels: reading, fitting, predicting and proposing."""

import random
from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators import find_estimator
from joulecast.estimators.base import Target
from joulecast.estimators.kernels import (
    CostPoint,
    FittedKernels,
    KernelProcessEstimator,
    RunOverhead,
    count_kernels,
    fit_mean,
    fit_process,
    fit_setup,
    make_overhead_trial,
    name_setup,
    read_points,
)
from joulecast.families import draw_family, make_family
from joulecast.onnx_nets.fusion import FUSION_TABLES, find_fusion_table, list_kernels
from joulecast.operators import make_layer, make_op
from joulecast.records import Execution, Input, Network, Observation, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.system.errors import InputError
from joulecast.testing.estimators import EstimatorContract, observe, run_short_campaign
from joulecast.variants import REPEATED, Block, make_isolated_trial

SETUP = Setup(batch=1, phase="inference")
TABLE = FUSION_TABLES["onnxruntime"]


def make_conv(cin, cout, side, kernel=3):
    """Return a convolution with an activation as one kernel."""
    sizes = {"cin": cin, "cout": cout, "space": (side, side), "kernel": kernel}
    relu = make_op("elementwise", fn="relu")
    return fuse(make_layer("conv2d", (relu,), padding=kernel // 2, **sizes), cin, side, side)


def make_linear(cin, cout):
    return fuse(make_layer("linear", cin=cin, cout=cout), cin)


def fuse(layer, *shape):
    (found,) = list_kernels(Network((layer,), Input(shape)), SETUP, TABLE)
    return found


def draw_convs(count, seed=0):
    """Return convolutions of random sizes."""
    draw = random.Random(seed)
    return [
        make_conv(
            draw.randint(4, 128), draw.randint(4, 128), draw.randint(4, 56), draw.choice((1, 3, 5))
        )
        for _ in range(count)
    ]


def find_durations(kernels):
    """Return a smooth law: rates that depend on the channels, and the start of a kernel."""
    rates = [1e9 * (1.0 - np.exp(-one.features["C_out"] / 60.0)) for one in kernels]
    work = zip(kernels, rates, strict=True)
    return np.array([one.flops / rate + one.size_bytes / 5e9 + 2e-6 for one, rate in work])


SHAPE = (3, 64, 64)
ESTIMATOR = KernelProcessEstimator()


class TestKernelProcesses(EstimatorContract):
    make_estimator = KernelProcessEstimator


@pytest.mark.parametrize("kind", [{}, [], 5, {"mean": {}}])
def test_damaged_fits_are_refused(kind):
    fit = fit_setup(RunOverhead(), make_points(draw_convs(20)), fit_process)
    data = FittedKernels(TABLE.name, {name_setup(SETUP): fit}, 20, 1).to_dict()
    assert ESTIMATOR.load(data).to_dict() == data
    (setup,) = data["setups"].values()
    setup["duration"]["kinds"]["conv+relu"] = kind
    with pytest.raises(InputError, match=r"duration\.kinds\.conv\+relu"):
        ESTIMATOR.load(data)


@pytest.fixture(scope="module")
def device():
    return make_simulated_device(5, noise=0.0)


def draw_resnets(count, seed):
    draw = random.Random(seed)
    return tuple(draw_family("resnet", draw.randint, SHAPE) for _ in range(count))


@pytest.fixture(scope="module")
def fitted(device):
    """A fit to 45 trials that a campaign for a family proposes."""
    target = Target(make_family("resnet", SHAPE), SETUP, networks=draw_resnets(4, 0))
    return ESTIMATOR.fit(run_short_campaign(ESTIMATOR, target, 45, device))


def test_unseen_members_are_predicted(device, fitted):
    networks = draw_resnets(8, 1)
    truth = [device.true_cost(Trial(network, SETUP)) for network in networks]
    found = fitted.predict(networks, [SETUP] * 8)
    energies = np.array([cost.energy_j for cost in truth])
    durations = np.array([cost.duration_s for cost in truth])
    assert np.abs(found.energy_j / energies - 1.0).mean() < 0.1
    assert np.abs(found.duration_s / durations - 1.0).mean() < 0.1
    assert (np.abs(found.energy_j - energies) < 2.5 * found.energy_sd_j).mean() > 0.7
    assert (found.duration_sd_s > 0).all()


def test_durations_without_energies_give_no_energy(device):
    network = make_family("cnn5")
    metered = run_short_campaign(ESTIMATOR, Target(network, SETUP), 12, device)
    timed = [replace(one, energy_j=None, energy_sd_j=None) for one in metered]
    found = ESTIMATOR.fit(timed).predict([network], [SETUP], joint=True, per_layer=True)
    expected = ESTIMATOR.fit(metered).predict([network], [SETUP])
    assert found.duration_s == pytest.approx(expected.duration_s)
    assert np.isnan(found.energy_j).all() and np.isnan(found.energy_sd_j).all()
    assert found.layers == ((),)


def test_unmeasured_kinds_are_named_and_equal_networks_share_their_scatter(fitted):
    found = fitted.predict([make_family("transformer")], [SETUP])
    assert 0.3 < found.unseen_share[0] <= 1.0
    assert "attention" in found.notes[0][0]
    one, other = draw_resnets(2, 2)
    cov = fitted.predict([one, other, one], [SETUP] * 3, joint=True).energy_cov
    assert cov[0, 2] == pytest.approx(cov[0, 0])
    assert cov[0, 1] < np.sqrt(cov[0, 0] * cov[1, 1])


def fit_convs(count=60):
    kernels = draw_convs(count)
    return fit_process(kernels, find_durations(kernels), np.full(count, 0.01))


def test_unseen_kernels_are_predicted_and_similar_ones_err_alike():
    others = draw_convs(40, seed=1)
    means, cov = fit_convs().predict(others)
    errors = np.log(find_durations(others)) - means
    assert np.abs(errors).mean() < 0.05
    assert (np.abs(errors) < 1.96 * np.sqrt(np.diag(cov))).mean() > 0.85
    assert np.linalg.eigvalsh(cov).min() > -1e-9
    similar = [make_conv(300, 300, 90), make_conv(301, 300, 90), make_conv(3, 4, 5)]
    _, cov = fit_convs(12).predict(similar)
    correlation = cov / np.sqrt(np.outer(np.diag(cov), np.diag(cov)))
    assert correlation[0, 1] > 0.5 > correlation[0, 2]


def test_powers_are_not_proportional_to_work():
    kernels = draw_convs(30)
    fitted = fit_process(kernels, np.full(30, 12.0), np.full(30, 0.01), by_work=False)
    means, _ = fitted.predict([make_conv(3, 3, 3), make_conv(500, 500, 100)])
    assert np.exp(means) == pytest.approx(12.0, rel=0.05)


def test_costs_of_kernels_that_ran_together_are_divided():
    kernels = draw_convs(40)
    rates = np.array([2e-12, 3e-10, 0.0, 5e-6])
    groups = [kernels[at : at + 2] for at in range(0, 40, 2)]
    costs = np.array([(count_kernels(group) @ rates).sum() for group in groups])
    assert fit_mean(groups, costs).rates == pytest.approx(rates, rel=1e-3, abs=1e-20)


def make_observation(trial, duration_s, energy_j=None, **more):
    return Observation(trial, energy_j, duration_s=duration_s, duration_sd_s=0.0, **more)


@pytest.fixture
def trial():
    return make_isolated_trial(Block(REPEATED, make_conv(8, 16, 10).network.layers), SETUP)


def test_kernels_cost_what_is_left_of_a_run(trial):
    copies = trial.execution.copies
    empty = make_observation(make_overhead_trial(SETUP), 1e-3, 2e-3)
    seen = make_observation(trial, 1e-3 + copies * 4e-3, 2e-3 + copies * 12e-3)
    network = make_observation(Trial(make_family("resnet18", (3, 32, 32)), SETUP), 1.0)
    _, (point,) = read_points([network], TABLE)
    assert not point.is_single
    assert sum(kernel.count for kernel in point.kernels) > len(point.kernels)
    overhead, (point,) = read_points([seen, empty], TABLE)
    assert overhead.duration_s == 1e-3 and overhead.energy_j == 2e-3
    assert point.is_single and point.kernels[0].count == copies
    assert point.duration_s == pytest.approx(copies * 4e-3)
    assert point.power_w == pytest.approx(3.0)
    ten = replace(trial, execution=replace(trial.execution, steps=10))
    for other, overheads, duration_s in (
        (make_observation(trial, 2.0), (), 2.0),
        (make_observation(ten, 20.0), (), 2.0),
        # Some of it belongs to the kernel, whatever the overhead.
        (make_observation(trial, 4e-4), (empty,), 4e-5),
    ):
        _, (point,) = read_points([other, *overheads], TABLE)
        assert point.duration_s == pytest.approx(duration_s) and point.power_w is None


def test_batch_size_and_loss_do_not_tell_setups_of_inference_apart():
    assert name_setup(SETUP) == name_setup(Setup(8, "inference", optimizer="adam", loss="mse"))
    assert name_setup(SETUP) != name_setup(replace(SETUP, threads=2))
    assert name_setup(Setup()) != name_setup(Setup(optimizer="adam"))


def test_only_whole_steps_with_a_duration_are_read(trial):
    graph = make_observation(Trial(trial.network, SETUP, Execution(mode="graph")), 1.0)
    some = make_observation(trial, 1.0), Observation(trial, energy_j=1.0), graph
    assert [ESTIMATOR.uses(one) for one in some] == [True, False, False]
    assert ESTIMATOR.fit(some).observation_count == 1


def test_compiled_setups_run_other_kernels_than_eager_ones():
    """A chain of activations is one kernel where it is compiled, and several where it is not."""
    setups, observations = [Setup(4, "inference", compiled=flag) for flag in (False, True)], []
    for width in (1000, 2000, 4000, 8000, 16000, 32000):
        layers = [make_layer("elementwise", fn=fn, shape=(width,)) for fn in ("gelu", "tanh")]
        for setup in setups:
            trial = Trial(Network(tuple(layers), Input((width,))), setup, Execution(copies=2))
            one = make_observation(trial, 1e-9 * width, 2e-9 * width, runtime="torch-2.13.0")
            observations.append(one)
    fitted = ESTIMATOR.fit(observations)
    eager, compiled = (set(fitted.find_model(one)[0].duration.regressions) for one in setups)
    assert "pointwise" in compiled and "pointwise" not in eager
    assert ESTIMATOR.load(fitted.to_dict()).table == "torch"


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


def test_kinds_and_main_operators_have_regressions_and_others_cost_their_work():
    model = fit_points(*make_points([*draw_convs(20), make_linear(100, 100)]))
    assert set(model.duration.regressions) == {"conv+relu", "conv+..."}
    assert model.duration.find_regression("conv+bn+add") is not None
    assert model.duration.find_regression("fc") is None
    assert model.power.mean.rates[-1] == pytest.approx(10.0)
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


NETWORK = make_family("cnn5:8,12,16,20", (3, 32, 32))
RUNTIME = "onnxruntime-1.31.1"
TARGET = Target(NETWORK, SETUP, networks=(NETWORK,), runtime=RUNTIME, uncertainty_share=0.2)


SIMULATED = make_simulated_device(3, noise=0.0)


def follow_proposals(target, seen, is_last):
    """Return proposals up to the last, and what they were answered with."""
    proposals, seen = [], list(seen)
    while True:
        proposals.append(ESTIMATOR.propose(target, seen))
        if is_last(proposals[-1]):
            return proposals, seen
        seen.append(replace(observe(SIMULATED, proposals[-1].trial), runtime=RUNTIME))


@pytest.fixture(scope="module")
def campaign():
    return follow_proposals(TARGET, (), lambda proposal: proposal.trial is None)


def test_campaign_measures_the_overhead_all_kinds_and_the_network(campaign):
    proposals, seen = campaign
    assert proposals[0].trial == make_overhead_trial(SETUP)
    table = find_fusion_table(RUNTIME, SETUP)
    measured = [list_kernels(one.trial.network, SETUP, table) for one in seen[1:]]
    alone = {kernels[0].kind for kernels in measured if len(kernels) == 1}
    assert alone == {kernel.kind for kernel in list_kernels(NETWORK, SETUP, table)}
    assert alone == {"conv+relu", "maxpool", "fc"}
    keys = [one.trial.key for one in seen]
    assert Trial(NETWORK, SETUP).key in keys and len(set(keys)) == len(keys)
    last = proposals[-1]
    assert "uncertainty" in last.reason or "measured" in last.reason
    assert last.uncertainty_share < 1.0
    # Kernels and empty graphs are no variants: others would take them for these.
    for name in ("subtractive", "ampere"):
        assert not any(map(find_estimator(name).uses, seen[:5]))


def test_kernel_that_reduces_the_variance_most_comes_next(campaign):
    networks = tuple(make_family(f"cnn5:{c1},30,40,64", (3, 32, 32)) for c1 in (4, 20, 60))
    target = replace(TARGET, networks=networks, uncertainty_share=1e-6)
    (*_, found), seen = follow_proposals(
        target, campaign[1], lambda proposal: "of the variance" in proposal.reason
    )
    (kernel,) = list_kernels(found.trial.network, SETUP, find_fusion_table(RUNTIME, SETUP))
    assert kernel.kind == "conv+relu"
    assert found.trial.key not in {one.trial.key for one in seen}
    measured = [*seen, replace(observe(SIMULATED, found.trial), runtime=RUNTIME)]
    assert ESTIMATOR.propose(target, measured).uncertainty_share < found.uncertainty_share
