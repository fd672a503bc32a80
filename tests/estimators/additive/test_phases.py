"""Observations of training and of inference."""

from dataclasses import replace

from additive_examples import SETUP, draw_networks, observe_idle, observe_step
from joulecast.estimators.additive.observations import split_phases
from joulecast.records import Trial


def _observe(device, phase, count):
    network = draw_networks(1, seed=3)[0]
    one = observe_step(device, Trial(network, replace(SETUP, phase=phase)))
    return [replace(one, run=f"{phase} {at}") for at in range(count)]


def test_phases_with_many_energies_are_apart_and_share_the_idle_device(device):
    training, inferences = _observe(device, "train", 60), _observe(device, "inference", 60)
    idle = observe_idle(device)
    found = split_phases([*training, idle, *inferences])
    assert found == ([*training, idle], [idle, *inferences])


def test_few_inferences_stay_with_training_steps(device):
    observations = _observe(device, "train", 60) + _observe(device, "inference", 59)
    assert split_phases(observations) == (observations, [])
