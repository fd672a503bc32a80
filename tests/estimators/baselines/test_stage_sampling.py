"""Test what NeuralPower measures next: sizes that fill the range of every layer type."""

import random
from dataclasses import replace
from itertools import pairwise

from joulecast.estimators.base import Target
from joulecast.estimators.baselines.neuralpower import NeuralPowerEstimator
from joulecast.estimators.baselines.stages import read_stage
from joulecast.families import make_family
from joulecast.testing.estimators import FAMILY, SETUP

TARGET = Target(make_family(FAMILY), SETUP)


def test_every_type_is_profiled_at_twenty_sizes_in_all_stages(ideal):
    seen, _ = ideal.profile("lenet5")
    sizes: dict[str, dict[str, set]] = {}
    for stage in (read_stage(one).stage for one in seen):
        part_type, _, name = stage.type_key.partition(" ")
        sizes.setdefault(part_type, {}).setdefault(name, set()).add(stage.part)
    assert len(sizes) == 4  # first and second convolution, linear with ReLU, output
    for stages in sizes.values():
        assert stages["forward"] == stages["backward"] == stages["update"]
        # The first convolution has only six widths.
        assert len(stages["forward"]) in (6, 20)


def test_campaign_stops_with_a_reason(ideal):
    seen, _ = ideal.profile("lenet5")
    end = NeuralPowerEstimator().propose(Target(make_family("lenet5"), SETUP), seen)
    assert end.trial is None and "20 sizes" in end.reason
    assert end.points == len(seen) and end.uncertainty_share == 0.0


def test_nothing_is_proposed_twice_and_points_are_counted(ideal):
    seen, _ = ideal.profile()
    assert len({one.trial.key for one in seen}) == len(seen)
    ends = [NeuralPowerEstimator().propose(TARGET, seen[:n]) for n in (0, 5, 50)]
    assert [end.points for end in ends] == [0, 5, 50]
    assert all(a.uncertainty_share >= b.uncertainty_share for a, b in pairwise(ends))


def test_interrupted_campaign_continues_whatever_the_order(ideal):
    seen, _ = ideal.profile()
    half = list(seen[:40])
    random.Random(0).shuffle(half)
    assert NeuralPowerEstimator().propose(TARGET, half).trial == seen[40].trial


def test_first_trials_cover_all_types(ideal):
    seen, _ = ideal.profile()
    first = {read_stage(one).stage.type_key for one in seen[:12]}
    assert len(first) == 12  # four types, three stages


def test_sizes_fill_the_range_and_include_both_ends(ideal):
    seen, _ = ideal.profile("lenet5")
    linears = [read_stage(one).stage.part.layers[0] for one in seen]
    widths = {
        layer.sizes["cout"] for layer in linears if layer.kind == "linear" and layer.tail
    }  # of 1..120
    assert min(widths) == 1 and max(widths) == 120
    assert all(any(low <= width < low + 30 for width in widths) for low in range(0, 120, 30))


def test_inference_has_one_stage(ideal):
    target = Target(make_family(FAMILY), replace(SETUP, phase="inference"))
    seen = ideal.run_campaign(target, points=30)
    assert {one.trial.execution.stage for one in seen} == {"forward"}


def test_networks_of_the_target_widen_the_range(ideal):
    wide = make_family("lenet5:6,16,200,84")
    seen = ideal.run_campaign(replace(TARGET, networks=(wide,)), points=40)
    fitted = NeuralPowerEstimator().fit(seen)
    found = fitted.predict([wide], [SETUP])
    assert found.unseen_share == (0.0,)


def test_refused_size_is_replaced_by_another(ideal):
    def refuse(trial):
        return (
            trial.execution.stage == "backward" and trial.network.layers[0].sizes.get("cin") == 150
        )

    seen = ideal.run_campaign(TARGET, refuse)
    assert len({one.trial.key for one in seen}) == len(seen)
    (refused,) = {one.trial.network for one in seen if one.energy_j is None}
    stages = [one.trial.execution.stage for one in seen if one.trial.network == refused]
    assert stages == ["forward", "backward"]
    linears = [one.trial for one in seen if one.trial.network.layers[0].tail]
    updated = [trial for trial in linears if trial.network.layers[0].kind == "linear"]
    assert sum(trial.execution.stage == "update" for trial in updated) == 20


def test_type_that_is_always_refused_is_given_up(ideal):
    seen = ideal.run_campaign(TARGET, lambda trial: trial.network.layers[0].kind == "conv2d")
    refused = [one for one in seen if one.energy_j is None]
    assert 0 < len(refused) <= 10
    assert len(seen) > 60
