"""Test NeuralPower for training: what it profiles, what it fits, and what it extrapolates."""

import random
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from joulecast.estimators.base import Target
from joulecast.estimators.baselines.neuralpower import NeuralPowerEstimator
from joulecast.estimators.baselines.stages import LayerStage, list_stages, read_stage
from joulecast.families import draw_family, make_family
from joulecast.kinds import make_layer
from joulecast.records import Input, Network, Observation, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import (
    FAMILY,
    SETUP,
    EstimatorContract,
    draw_networks,
    make_observations,
)
from joulecast.variants import split_network

TARGET = Target(make_family(FAMILY), SETUP)


class TestNeuralPower(EstimatorContract):
    def make_estimator(self) -> NeuralPowerEstimator:
        return NeuralPowerEstimator()


def find_cost(stage: LayerStage) -> tuple[float, float]:
    """Return energy and duration on an ideal device: linear in the work, at constant power."""
    work = stage.work
    seconds = 1e-5 * work.launches + 1e-11 * work.size_bytes + 1e-12 * work.flops
    return 20.0 * seconds, seconds


def observe(trial: Trial) -> Observation:
    seen = read_stage(Observation(trial))
    energy_j, duration_s = find_cost(seen.stage)
    times = trial.execution.copies * trial.execution.steps
    return Observation(trial, energy_j * times, None, duration_s * times)


def run_campaign(target: Target, refuse=lambda trial: False, points: int = 1000):
    """Return observations, and refusals, until the estimator proposes nothing more."""
    seen = []
    while len(seen) < points:
        proposal = NeuralPowerEstimator().propose(target, seen)
        if proposal.trial is None:
            break
        trial = proposal.trial
        seen.append(Observation(trial) if refuse(trial) else observe(trial))
    return seen


@cache
def profile(family: str = FAMILY, points: int = 1000):
    seen = run_campaign(Target(make_family(family), SETUP), points=points)
    return seen, NeuralPowerEstimator().fit(seen)


def sum_stages(network: Network) -> tuple[float, float]:
    stages = [s for placed in split_network(network) for s in list_stages(placed.part, SETUP)]
    return tuple(map(sum, zip(*map(find_cost, stages), strict=True)))


# -- proposals ----------------------------------------------------------------------------------


def test_every_type_is_profiled_at_twenty_sizes_in_all_stages():
    seen, _ = profile("lenet5")
    sizes: dict[str, dict[str, set]] = {}
    for stage in (read_stage(one).stage for one in seen):
        part_type, _, name = stage.type_key.partition(" ")
        sizes.setdefault(part_type, {}).setdefault(name, set()).add(stage.part)
    assert len(sizes) == 4  # first and second convolution, linear with ReLU, output
    for stages in sizes.values():
        assert stages["forward"] == stages["backward"] == stages["update"]
        # The first convolution has only six widths.
        assert len(stages["forward"]) in (6, 20)


def test_campaign_stops_with_a_reason():
    seen, _ = profile("lenet5")
    end = NeuralPowerEstimator().propose(Target(make_family("lenet5"), SETUP), seen)
    assert end.trial is None and "20 sizes" in end.reason
    assert end.points == len(seen) and end.uncertainty_share == 0.0


def test_nothing_is_proposed_twice_and_points_are_counted():
    seen, _ = profile()
    assert len({one.trial.key for one in seen}) == len(seen)
    ends = [NeuralPowerEstimator().propose(TARGET, seen[:n]) for n in (0, 5, 50)]
    assert [end.points for end in ends] == [0, 5, 50]
    assert all(a.uncertainty_share >= b.uncertainty_share for a, b in pairwise(ends))


def test_interrupted_campaign_continues_whatever_the_order():
    seen, _ = profile()
    half = list(seen[:40])
    random.Random(0).shuffle(half)
    assert NeuralPowerEstimator().propose(TARGET, half).trial == seen[40].trial


def test_first_trials_cover_all_types():
    seen, _ = profile()
    first = {read_stage(one).stage.type_key for one in seen[:12]}
    assert len(first) == 12  # four types, three stages


def test_sizes_fill_the_range_and_include_both_ends():
    seen, _ = profile("lenet5")
    linears = [read_stage(one).stage.part.layers[0] for one in seen]
    widths = {
        layer.sizes["cout"] for layer in linears if layer.kind == "linear" and layer.tail
    }  # of 1..120
    assert min(widths) == 1 and max(widths) == 120
    assert all(any(low <= width < low + 30 for width in widths) for low in range(0, 120, 30))


def test_stages_without_work_are_left_out():
    seen, _ = profile("transformer:16,1", 120)
    stages: dict[str, set[str]] = {}
    for stage in (read_stage(one).stage for one in seen):
        stages.setdefault(stage.part.layers[0].kind, set()).add(stage.name)
    assert stages["sdpa"] == {"forward", "backward"}
    assert stages["elementwise"] == {"forward"}
    assert stages["linear"] == {"forward", "backward", "update"}


def test_inference_has_one_stage():
    target = Target(make_family(FAMILY), replace(SETUP, phase="inference"))
    seen = run_campaign(target, points=30)
    assert {one.trial.execution.stage for one in seen} == {"forward"}


def test_networks_of_the_target_widen_the_range():
    wide = make_family("lenet5:6,16,200,84")
    seen = run_campaign(replace(TARGET, networks=(wide,)), points=40)
    fitted = NeuralPowerEstimator().fit(seen)
    found = fitted.predict([wide], [SETUP])
    assert found.unseen_share == (0.0,)


def test_refused_size_is_replaced_by_another():
    def refuse(trial):
        return (
            trial.execution.stage == "backward" and trial.network.layers[0].sizes.get("cin") == 150
        )

    seen = run_campaign(TARGET, refuse)
    assert len({one.trial.key for one in seen}) == len(seen)
    (refused,) = {one.trial.network for one in seen if one.energy_j is None}
    stages = [one.trial.execution.stage for one in seen if one.trial.network == refused]
    assert stages == ["forward", "backward"]
    linears = [one.trial for one in seen if one.trial.network.layers[0].tail]
    updated = [trial for trial in linears if trial.network.layers[0].kind == "linear"]
    assert sum(trial.execution.stage == "update" for trial in updated) == 20


def test_type_that_is_always_refused_is_given_up():
    seen = run_campaign(TARGET, lambda trial: trial.network.layers[0].kind == "conv2d")
    refused = [one for one in seen if one.energy_j is None]
    assert 0 < len(refused) <= 10
    assert len(seen) > 60


# -- fits ---------------------------------------------------------------------------------------


def test_ideal_device_is_recovered():
    _, fitted = profile("lenet5")
    rng = random.Random(4)
    nets = [draw_family("lenet5", rng.randint) for _ in range(10)]
    found = fitted.predict(nets, [SETUP] * len(nets))
    truth = np.array([sum_stages(net) for net in nets])
    assert found.energy_j == pytest.approx(truth[:, 0], rel=0.02)
    assert found.duration_s == pytest.approx(truth[:, 1], rel=0.02)
    assert found.unseen_share == (0.0,) * 10


def test_estimates_are_near_a_simulated_device():
    world, nets = make_simulated_device(11, noise=0.0), draw_networks(12)
    fitted = NeuralPowerEstimator().fit(make_observations())
    found = fitted.predict(nets, [SETUP] * len(nets))
    truth = [world.true_cost(Trial(net, SETUP)).energy_j for net in nets]
    errors = np.abs(found.energy_j / truth - 1.0)
    # Such small networks wait for the host in each stage: an overestimate, as in the paper.
    assert (found.energy_j > truth).all()
    assert errors.mean() < 0.35


@pytest.mark.parametrize("many", [{"copies": 16}, {"steps": 7}], ids=["copies", "steps"])
def test_energy_is_divided_by_copies_and_steps(many):
    seen, fitted = profile()
    trials = [replace(one.trial, execution=replace(one.trial.execution, **many)) for one in seen]
    fits = (fitted, NeuralPowerEstimator().fit([observe(trial) for trial in trials]))
    nets = draw_networks(3)
    one, two = (fit.predict(nets, [SETUP] * len(nets)).energy_j for fit in fits)
    assert one == pytest.approx(two, rel=1e-3)


def test_only_isolated_layers_are_used():
    seen, _ = profile()
    good = seen[0]
    assert NeuralPowerEstimator().uses(good)
    for change in ({"stage": "step"}, {"mode": "graph"}, {"copies": 1}):
        changed = replace(good.trial, execution=replace(good.trial.execution, **change))
        assert not NeuralPowerEstimator().uses(replace(good, trial=changed))
    for lack in ({"energy_j": None}, {"duration_s": None}, {"source": "elsewhere"}):
        assert not NeuralPowerEstimator().uses(replace(good, **lack))


def test_energies_and_durations_are_positive_whatever_the_noise():
    seen, _ = profile()
    rng = random.Random(1)
    noisy = [replace(one, energy_j=one.energy_j * rng.lognormvariate(0, 2)) for one in seen]
    fitted = NeuralPowerEstimator().fit(noisy)
    nets = [draw_family("lenet5", rng.randint) for _ in range(20)]
    found = fitted.predict(nets, [SETUP] * len(nets), per_layer=True)
    assert (found.energy_j > 0).all() and (found.duration_s > 0).all()
    assert all(row.energy_j >= 0 for rows in found.layers for row in rows)


def test_noise_widens_the_interval():
    seen, fitted = profile()
    rng = random.Random(2)
    noisy = [replace(one, energy_j=one.energy_j * rng.lognormvariate(0, 0.5)) for one in seen]
    nets = draw_networks(5)
    exact, uncertain = (
        f.predict(nets, [SETUP] * len(nets)) for f in (fitted, NeuralPowerEstimator().fit(noisy))
    )
    shares = [one.energy_sd_j / one.energy_j for one in (exact, uncertain)]
    assert (shares[1] > shares[0]).all()


def test_weights_are_updated_once_per_step():
    _, fitted = profile()
    network = draw_networks(1)[0]
    changes = {"calls": {"calls": 3}, "tied": {"tied": True}}
    placed = split_network(network)[2]
    costs = {stage.name: find_cost(stage)[0] for stage in list_stages(placed.part, SETUP)}
    once = fitted.predict([network], [SETUP]).energy_j[0]
    extra = {}
    for name, change in changes.items():
        layers = list(network.layers)
        layers[2] = replace(layers[2], **change)
        changed = replace(network, layers=tuple(layers))
        extra[name] = fitted.predict([changed], [SETUP]).energy_j[0] - once
    assert extra["calls"] == pytest.approx(2 * (costs["forward"] + costs["backward"]), rel=0.05)
    assert extra["tied"] == pytest.approx(-costs["update"], rel=0.05)


# -- extrapolation ------------------------------------------------------------------------------


def test_unseen_type_is_estimated_from_rates():
    _, fitted = profile()
    layers = make_family(FAMILY).layers
    new = replace(make_layer("linear", (), cin=16, cout=16), name="new")  # no ReLU: another type
    network = replace(make_family(FAMILY), layers=(*layers[:-1], new, layers[-1]))
    found = fitted.predict([network], [SETUP], per_layer=True)
    rows = {row.name: row for row in found.layers[0]}
    assert [name for name, row in rows.items() if not row.seen] == ["new"]
    assert found.unseen_share[0] == pytest.approx(rows["new"].energy_j / found.energy_j[0])
    truth = sum(
        find_cost(stage)[0] for stage in list_stages(split_network(network)[-2].part, SETUP)
    )
    assert rows["new"].energy_j == pytest.approx(truth, rel=0.3)
    known = fitted.predict([make_family(FAMILY)], [SETUP])
    assert found.energy_sd_j[0] / found.energy_j[0] > known.energy_sd_j[0] / known.energy_j[0]


def test_costs_beyond_observed_sizes_follow_the_work():
    _, fitted = profile()
    nets = [make_family(f"lenet5:4,6,{width},16") for width in (24, 240, 2400)]
    found = fitted.predict(nets, [SETUP] * len(nets))
    truth = [sum_stages(net)[0] for net in nets]
    assert found.energy_j == pytest.approx(truth, rel=0.25)
    assert found.unseen_share[0] == 0.0 < found.unseen_share[1] < found.unseen_share[2]
    shares = found.energy_sd_j / found.energy_j
    assert shares[2] > shares[0]


def test_prediction_needs_numpy_alone(monkeypatch):
    _, fitted = profile()
    for name in ("sklearn", "sklearn.linear_model", "scipy", "scipy.optimize"):
        monkeypatch.setitem(sys.modules, name, None)
    assert fitted.predict(draw_networks(2), [SETUP] * 2).energy_j.all()


def test_network_of_one_layer_is_an_output():
    _, fitted = profile()
    layer = make_layer("linear", (), cin=16, cout=10)
    network = Network((replace(layer, input_grad=False),), Input((16,)))
    found = fitted.predict([network], [SETUP], per_layer=True)
    assert found.energy_j[0] > 0 and len(found.layers[0]) == 1


def test_setups_are_fitted_separately():
    seen, fitted = profile()
    other = Setup(batch=20)
    both = [*seen, *run_campaign(replace(TARGET, setup=other), points=120)]
    again = NeuralPowerEstimator().fit(both)
    nets = draw_networks(3)
    one, two = (f.predict(nets, [SETUP] * len(nets)).energy_j for f in (fitted, again))
    assert one == pytest.approx(two)
    assert again.predict(nets, [other] * len(nets)).unseen_share == (0.0,) * 3
