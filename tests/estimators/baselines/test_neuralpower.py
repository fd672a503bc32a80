"""NeuralPower for training: what it profiles, what it learns, and what it says of the unknown."""

import random
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from joulecast.estimators.base import Target
from joulecast.estimators.baselines.neuralpower import NeuralPowerEstimator
from joulecast.estimators.baselines.stages import Stage, list_stages, read_stage
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


def cost(stage: Stage) -> tuple[float, float]:
    """A device without any quirks: seconds follow bytes and FLOPs, watts are always the same."""
    work = stage.work
    seconds = 1e-5 * work.launches + 1e-11 * work.size_bytes + 1e-12 * work.flops
    return 20.0 * seconds, seconds


def observe(trial: Trial) -> Observation:
    seen = read_stage(Observation(trial))
    energy_j, duration_s = cost(seen.stage)
    times = trial.execution.copies * trial.execution.steps
    return Observation(trial, energy_j * times, None, duration_s * times)


def run_campaign(target: Target, refuse=lambda trial: False, most: int = 1000):
    """What is observed and what is refused until the estimator asks for no more."""
    seen = []
    while len(seen) < most:
        proposal = NeuralPowerEstimator().propose(target, seen)
        if proposal.trial is None:
            break
        trial = proposal.trial
        seen.append(Observation(trial) if refuse(trial) else observe(trial))
    return seen


@cache
def profile(family: str = FAMILY, most: int = 1000):
    seen = run_campaign(Target(make_family(family), SETUP), most=most)
    return seen, NeuralPowerEstimator().fit(seen)


def sum_stages(network: Network) -> tuple[float, float]:
    stages = [s for place in split_network(network) for s in list_stages(place.part, SETUP)]
    return tuple(map(sum, zip(*map(cost, stages), strict=True)))


# -- what it profiles ---------------------------------------------------------------------------


def test_every_kind_is_profiled_at_twenty_sizes_in_all_stages():
    seen, _ = profile("lenet5")
    sizes: dict[str, dict[str, set]] = {}
    for stage in (read_stage(one).stage for one in seen):
        kind, _, name = stage.kind.partition(" ")
        sizes.setdefault(kind, {}).setdefault(name, set()).add(stage.part)
    assert len(sizes) == 4  # first and second convolution, linears with ReLU, output
    for stages in sizes.values():
        assert stages["forward"] == stages["backward"] == stages["update"]
        # The first convolution has six widths and no more.
        assert len(stages["forward"]) in (6, 20)


def test_it_stops_and_says_why():
    seen, _ = profile("lenet5")
    end = NeuralPowerEstimator().propose(Target(make_family("lenet5"), SETUP), seen)
    assert end.trial is None and "20 sizes" in end.reason
    assert end.points == len(seen) and end.uncertainty_share == 0.0


def test_nothing_is_proposed_twice_and_points_count_up():
    seen, _ = profile()
    assert len({one.trial.key for one in seen}) == len(seen)
    ends = [NeuralPowerEstimator().propose(TARGET, seen[:n]) for n in (0, 5, 50)]
    assert [end.points for end in ends] == [0, 5, 50]
    assert all(a.uncertainty_share >= b.uncertainty_share for a, b in pairwise(ends))


def test_a_campaign_that_was_cut_goes_on_in_any_order():
    seen, _ = profile()
    half = list(seen[:40])
    random.Random(0).shuffle(half)
    assert NeuralPowerEstimator().propose(TARGET, half).trial == seen[40].trial


def test_all_kinds_are_served_however_short_the_budget():
    seen, _ = profile()
    first = {read_stage(one).stage.kind for one in seen[:12]}
    assert len(first) == 12  # four kinds, three stages


def test_sizes_reach_from_one_end_to_the_other_and_fill_what_lies_between():
    seen, _ = profile("lenet5")
    linears = [read_stage(one).stage.part.layers[0] for one in seen]
    widths = {
        layer.sizes["cout"] for layer in linears if layer.kind == "linear" and layer.tail
    }  # of 1..120
    assert min(widths) == 1 and max(widths) == 120
    assert all(any(low <= width < low + 30 for width in widths) for low in range(0, 120, 30))


def test_what_has_no_weights_has_no_update_and_a_sum_no_backward():
    seen, _ = profile("transformer:16,1", 120)
    stages: dict[str, set[str]] = {}
    for stage in (read_stage(one).stage for one in seen):
        stages.setdefault(stage.part.layers[0].kind, set()).add(stage.name)
    assert stages["sdpa"] == {"forward", "backward"}
    assert stages["elementwise"] == {"forward"}
    assert stages["linear"] == {"forward", "backward", "update"}


def test_inference_has_one_stage():
    target = Target(make_family(FAMILY), replace(SETUP, phase="inference"))
    seen = run_campaign(target, most=30)
    assert {one.trial.execution.stage for one in seen} == {"forward"}


def test_nets_that_matter_widen_the_range():
    wide = make_family("lenet5:6,16,200,84")
    seen = run_campaign(replace(TARGET, networks=(wide,)), most=40)
    fitted = NeuralPowerEstimator().fit(seen)
    answer = fitted.predict([wide], [SETUP])
    assert answer.unseen_share == (0.0,)


def test_a_refused_size_is_left_alone_and_another_takes_its_place():
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


def test_a_kind_that_is_always_refused_is_given_up():
    seen = run_campaign(TARGET, lambda trial: trial.network.layers[0].kind == "conv2d")
    refused = [one for one in seen if one.energy_j is None]
    assert 0 < len(refused) <= 10
    assert len(seen) > 60


# -- what it learns -----------------------------------------------------------------------------


def test_it_recovers_a_device_without_quirks():
    _, fitted = profile("lenet5")
    rng = random.Random(4)
    nets = [draw_family("lenet5", rng.randint) for _ in range(10)]
    answer = fitted.predict(nets, [SETUP] * len(nets))
    truth = np.array([sum_stages(net) for net in nets])
    assert answer.energy_j == pytest.approx(truth[:, 0], rel=0.02)
    assert answer.duration_s == pytest.approx(truth[:, 1], rel=0.02)
    assert answer.unseen_share == (0.0,) * 10


def test_it_comes_near_a_simulated_device_that_has_quirks():
    world, nets = make_simulated_device(11, noise=0.0), draw_networks(12)
    fitted = NeuralPowerEstimator().fit(make_observations())
    answer = fitted.predict(nets, [SETUP] * len(nets))
    truth = [world.true_cost(Trial(net, SETUP)).energy_j for net in nets]
    errors = np.abs(answer.energy_j / truth - 1.0)
    # So small a net waits for its host, in each stage by itself: too much, as the paper found.
    assert (answer.energy_j > truth).all()
    assert errors.mean() < 0.35


@pytest.mark.parametrize("many", [{"copies": 16}, {"steps": 7}], ids=["copies", "steps"])
def test_copies_and_steps_are_divided_out(many):
    seen, fitted = profile()
    trials = [replace(one.trial, execution=replace(one.trial.execution, **many)) for one in seen]
    fits = (fitted, NeuralPowerEstimator().fit([observe(trial) for trial in trials]))
    nets = draw_networks(3)
    one, two = (fit.predict(nets, [SETUP] * len(nets)).energy_j for fit in fits)
    assert one == pytest.approx(two, rel=1e-3)


def test_only_layers_alone_are_learnt_from():
    seen, _ = profile()
    good = seen[0]
    assert NeuralPowerEstimator().uses(good)
    for how in ({"stage": "step"}, {"mode": "graph"}, {"copies": 1}):
        changed = replace(good.trial, execution=replace(good.trial.execution, **how))
        assert not NeuralPowerEstimator().uses(replace(good, trial=changed))
    for lack in ({"energy_j": None}, {"duration_s": None}, {"source": "elsewhere"}):
        assert not NeuralPowerEstimator().uses(replace(good, **lack))


def test_power_and_time_never_leave_what_is_possible():
    seen, _ = profile()
    rng = random.Random(1)
    wild = [replace(one, energy_j=one.energy_j * rng.lognormvariate(0, 2)) for one in seen]
    fitted = NeuralPowerEstimator().fit(wild)
    nets = [draw_family("lenet5", rng.randint) for _ in range(20)]
    answer = fitted.predict(nets, [SETUP] * len(nets))
    assert (answer.energy_j > 0).all() and (answer.duration_s > 0).all()
    assert all(row.energy_j >= 0 for rows in answer.layers for row in rows)


def test_noise_widens_the_interval():
    seen, fitted = profile()
    rng = random.Random(2)
    noisy = [replace(one, energy_j=one.energy_j * rng.lognormvariate(0, 0.5)) for one in seen]
    nets = draw_networks(5)
    calm, wild = (
        f.predict(nets, [SETUP] * len(nets))
        for f in (fitted, NeuralPowerEstimator().fit(noisy))
    )
    assert (wild.energy_sd_j / wild.energy_j > calm.energy_sd_j / calm.energy_j).all()


def test_weights_are_updated_once_however_often_they_are_used():
    _, fitted = profile()
    network = draw_networks(1)[0]
    changes = {"calls": {"calls": 3}, "tied": {"tied": True}}
    place = split_network(network)[2]
    costs = {stage.name: cost(stage)[0] for stage in list_stages(place.part, SETUP)}
    once = fitted.predict([network], [SETUP]).energy_j[0]
    extra = {}
    for name, change in changes.items():
        layers = list(network.layers)
        layers[2] = replace(layers[2], **change)
        changed = replace(network, layers=tuple(layers))
        extra[name] = fitted.predict([changed], [SETUP]).energy_j[0] - once
    assert extra["calls"] == pytest.approx(2 * (costs["forward"] + costs["backward"]), rel=0.05)
    assert extra["tied"] == pytest.approx(-costs["update"], rel=0.05)


# -- what it says of the unknown ----------------------------------------------------------------


def test_a_kind_that_was_never_seen_is_guessed_and_says_so():
    _, fitted = profile()
    layers = make_family(FAMILY).layers
    new = replace(make_layer("linear", (), cin=16, cout=16), name="new")  # no ReLU: another kind
    network = replace(make_family(FAMILY), layers=(*layers[:-1], new, layers[-1]))
    answer = fitted.predict([network], [SETUP])
    rows = {row.name: row for row in answer.layers[0]}
    assert [name for name, row in rows.items() if not row.seen] == ["new"]
    assert answer.unseen_share[0] == pytest.approx(rows["new"].energy_j / answer.energy_j[0])
    truth = sum(cost(stage)[0] for stage in list_stages(split_network(network)[-2].part, SETUP))
    assert rows["new"].energy_j == pytest.approx(truth, rel=0.3)
    known = fitted.predict([make_family(FAMILY)], [SETUP])
    assert answer.energy_sd_j[0] / answer.energy_j[0] > known.energy_sd_j[0] / known.energy_j[0]


def test_beyond_the_sizes_that_were_seen_costs_follow_the_work():
    _, fitted = profile()
    nets = [make_family(f"lenet5:4,6,{width},16") for width in (24, 240, 2400)]
    answer = fitted.predict(nets, [SETUP] * len(nets))
    truth = [sum_stages(net)[0] for net in nets]
    assert answer.energy_j == pytest.approx(truth, rel=0.25)
    assert answer.unseen_share[0] == 0.0 < answer.unseen_share[1] < answer.unseen_share[2]
    shares = answer.energy_sd_j / answer.energy_j
    assert shares[2] > shares[0]


def test_predicting_needs_numpy_alone(monkeypatch):
    _, fitted = profile()
    for name in ("sklearn", "sklearn.linear_model", "scipy", "scipy.optimize"):
        monkeypatch.setitem(sys.modules, name, None)
    assert fitted.predict(draw_networks(2), [SETUP] * 2).energy_j.all()


def test_a_single_layer_net_is_one_output():
    _, fitted = profile()
    layer = make_layer("linear", (), cin=16, cout=10)
    network = Network((replace(layer, input_grad=False),), Input((16,)))
    answer = fitted.predict([network], [SETUP])
    assert answer.energy_j[0] > 0 and len(answer.layers[0]) == 1


def test_batches_do_not_mix():
    seen, fitted = profile()
    other = Setup(batch=20)
    both = [*seen, *run_campaign(replace(TARGET, setup=other), most=120)]
    again = NeuralPowerEstimator().fit(both)
    nets = draw_networks(3)
    one, two = (f.predict(nets, [SETUP] * len(nets)).energy_j for f in (fitted, again))
    assert one == pytest.approx(two)
    assert again.predict(nets, [other] * len(nets)).unseen_share == (0.0,) * 3
