"""Test stages of isolated layers, and which observations show one."""

from dataclasses import replace

import pytest

from joulecast.estimators.baselines.neuralpower import NeuralPowerEstimator
from joulecast.estimators.baselines.stages import read_stage
from joulecast.testing.estimators import SETUP, draw_networks


def test_stages_without_work_are_left_out(ideal):
    seen, _ = ideal.profile("transformer:16,1", 120)
    stages: dict[str, set[str]] = {}
    for stage in (read_stage(one).stage for one in seen):
        stages.setdefault(stage.part.layers[0].kind, set()).add(stage.name)
    assert stages["sdpa"] == {"forward", "backward"}
    assert stages["elementwise"] == {"forward"}
    assert stages["linear"] == {"forward", "backward", "update"}


@pytest.mark.parametrize("many", [{"copies": 16}, {"steps": 7}], ids=["copies", "steps"])
def test_energy_is_divided_by_copies_and_steps(ideal, many):
    seen, fitted = ideal.profile()
    trials = [replace(one.trial, execution=replace(one.trial.execution, **many)) for one in seen]
    fits = (fitted, NeuralPowerEstimator().fit([ideal.observe(trial) for trial in trials]))
    nets = draw_networks(3)
    one, two = (fit.predict(nets, [SETUP] * len(nets)).energy_j for fit in fits)
    assert one == pytest.approx(two, rel=1e-3)


def test_only_isolated_layers_are_used(ideal):
    seen, _ = ideal.profile()
    good = seen[0]
    assert NeuralPowerEstimator().uses(good)
    for change in ({"stage": "step"}, {"mode": "graph"}, {"copies": 1}):
        changed = replace(good.trial, execution=replace(good.trial.execution, **change))
        assert not NeuralPowerEstimator().uses(replace(good, trial=changed))
    for lack in ({"energy_j": None}, {"duration_s": None}, {"source": "elsewhere"}):
        assert not NeuralPowerEstimator().uses(replace(good, **lack))
