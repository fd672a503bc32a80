"""Curves of single layers, sampled from a fitted profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from additive_examples import draw_networks, observe_blocks, observe_idle, observe_step
from joulecast.estimators import fit_profile
from joulecast.features.layer_curves import (
    describe_layer_curve,
    find_layer_curves,
    list_layer_curves,
    sample_layer_curve,
)
from joulecast.records import Execution, Profile, Trial
from joulecast.simulation import make_simulated_device
from joulecast.system.errors import InputError, MissingError


@pytest.fixture(scope="module")
def profile():
    device = make_simulated_device(201, noise=0.0)
    observations = [*observe_blocks(device, draw_networks(6, seed=1)), observe_idle(device)]
    # A forward pass alone is not a step: no point of a curve.
    trial = observations[0].trial
    forward = observe_step(device, Trial(trial.network, trial.setup, Execution("forward")))
    first = observations[0]
    return Profile(
        first.device, first.runtime, first.covers, first.provenance, (*observations, forward)
    )


@pytest.fixture(scope="module")
def curves(profile):
    return list_layer_curves(profile)


def test_curves_have_the_measured_points_of_whole_steps(profile, curves):
    counts = [len(curve.points) for curve in curves]
    assert counts == sorted(counts, reverse=True) and counts[0] >= 5
    steps = [one for one in profile.observations if one.trial.execution.stage == "step"]
    assert sum(counts) <= len(steps) - 1
    one, *_ = find_layer_curves(curves, kind="conv2d", image="48x48")
    assert one.features == ("cin", "cout") and one.setup.batch == 32
    assert describe_layer_curve(one)["point_count"] == len(one.points)


def test_sampled_curve_passes_through_its_points(profile, curves):
    curve, *_ = find_layer_curves(curves, kind="conv2d", image="48x48")
    sampled = sample_layer_curve(fit_profile(profile), curve)
    assert len(sampled.means_j) == len(sampled.axes[0]) * len(sampled.axes[1])
    assert max(abs(point.error_percent) for point in sampled.points) < 10
    widths, energy_j = sampled.next_point
    assert widths not in {point.widths for point in sampled.points}
    assert min(sampled.means_j) <= energy_j <= max(sampled.means_j)


def test_unknown_choices_are_explained(curves):
    with pytest.raises(MissingError, match="no layer with kind lstm was measured"):
        find_layer_curves(curves, kind="lstm")
    with pytest.raises(MissingError, match="joulecast profile NET"):
        find_layer_curves((), kind="conv2d")


def test_estimator_without_single_layers_is_refused(profile, curves):
    fitted = fit_profile(profile)
    other = replace(fitted, fitted=object())
    with pytest.raises(InputError, match="does not predict single layers"):
        sample_layer_curve(other, curves[0])
