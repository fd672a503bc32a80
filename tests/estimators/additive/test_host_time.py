"""Issue times of steps: what all windows share is fitted, the error of one is not."""

import math
from dataclasses import replace

import numpy as np
import pytest

from host_time_examples import (
    CALLS_S,
    START_S,
    list_layers,
    observe_all,
    observe_host_bound,
    true_start,
    true_time,
)
from joulecast.estimators.additive.host_time import (
    combine_times,
    fit_host_time,
    update_host_time,
)
from joulecast.operators import HOST_CALLS


def fit(observations, unit="", start=None):
    """Fit a host, or update that of another device, to steps whose kernels take 10 us."""
    known = observations, np.full(len(observations), 1e-5), np.zeros(len(observations)), unit
    return fit_host_time(*known) if start is None else update_host_time(start, *known)


def predict_time(model, layer, count):
    return model.predict_issue_time({layer: count})[0]


def test_issue_times_are_recovered():
    model = fit(observe_all(noise=0.0))
    assert model.step_overhead_s == pytest.approx(START_S, rel=0.15)
    assert model.per_call_s[:3] == pytest.approx(CALLS_S[:3], rel=0.2)
    for layer in list_layers():
        expected_s = true_start(layer) + 20 * true_time(layer)
        assert predict_time(model, layer, 20.0) == pytest.approx(expected_s, rel=0.12)


def test_error_of_one_window_is_not_inherited_by_a_network():
    """A network runs the same block twelve times."""
    observations = observe_all(noise=0.2)
    model, errors, window_errors = fit(observations), [], []
    for one in observations:
        ((layer, copies),) = one.counts.items()
        expected_s = true_start(layer) + 12 * true_time(layer)
        errors.append(math.log(predict_time(model, layer, 12.0) / expected_s))
        window_errors.append(
            math.log(one.duration_s / (true_start(layer) + copies * true_time(layer)))
        )
    assert np.std(errors) < 0.7 * np.std(window_errors)


def test_structure_that_several_networks_show_has_its_own_factor():
    layer = list_layers()[-1]
    networks = [
        observe_host_bound(layer, float(n), 2.0 * n * true_time(layer), is_isolated=False)
        for n in (6, 8, 12)
    ]
    model = fit([*observe_all(noise=0.05), *networks])
    assert predict_time(model, layer, 10.0) == pytest.approx(20.0 * true_time(layer), rel=0.1)


def test_unseen_structure_takes_the_time_of_its_calls():
    observations = observe_all(noise=0.0)
    (unseen,) = observations[-1].counts
    others = [
        one
        for one in observations
        if unseen.structure not in {layer.structure for layer in one.counts}
    ]
    model = fit(others)
    assert unseen.structure not in model.structure_factors
    time_s, sd_s = model.predict_issue_time({unseen: 10.0})
    assert time_s == pytest.approx(true_start(unseen) + 10 * true_time(unseen), rel=0.15)
    assert sd_s > fit(observations).predict_issue_time({unseen: 10.0})[1]


def test_calls_between_layers_take_as_long_as_launches_and_less_at_inference():
    model = fit(observe_all(noise=0.0))
    for phase, name, share in (
        ("train", "launches", 1.0),
        ("inference", "inference launches", 0.5),
    ):
        counts = {next(layer for layer in list_layers() if layer.phase == phase): 3.0}
        more_s = model.predict_issue_time(counts, unattributed_calls=100.0)[0]
        more_s -= model.predict_issue_time(counts)[0]
        assert more_s == pytest.approx(100 * share * model.per_call_s[HOST_CALLS.index(name)])


def test_host_that_finished_early_has_not_bound_the_step():
    """Device times may be underestimated; issue times are measured."""
    observations = observe_all(noise=0.0)
    slow = [replace(one, duration_s=60.0 * one.issue_s) for one in observations[::3]]
    assert fit([*observations, *slow]).per_call_s == pytest.approx(
        fit(observations).per_call_s, rel=0.05
    )


def test_pace_of_another_host_is_uncertain():
    layer = list_layers()[-1]
    networks = [
        observe_host_bound(layer, float(n), n * true_time(layer), is_isolated=False)
        for n in (6, 8, 12)
    ]
    observations = [replace(one, unit="a") for one in [*observe_all(noise=0.05), *networks]]
    same, other = (fit(observations, unit) for unit in "ab")
    assert other.per_call_s == same.per_call_s
    assert other.sd_share > 0.2 > same.sd_share


def test_few_steps_set_the_pace_of_another_host():
    model = fit(observe_all(noise=0.0))
    layer = list_layers()[0]
    steps = [
        observe_host_bound(layer, n, 1.7 * predict_time(model, layer, n), is_isolated=False)
        for n in (20.0, 60.0)
    ]
    found = fit(steps, start=model)
    for other in list_layers():
        expected_s = 1.7 * predict_time(model, other, 30.0)
        assert predict_time(found, other, 30.0) == pytest.approx(expected_s, rel=0.02)
    assert found.network_count == 2
    assert fit([], start=model) == model
    many = observe_all(noise=0.0)
    assert fit(many, start=model.scale(3.0)) == model, "many steps replace another host"


def test_slower_of_host_and_device_decides():
    host_s, device_s = np.array([1.0, 2.0, 1.0]), np.array([2.0, 1.0, 1.0])
    duration_s, grad_host, grad_device = combine_times(host_s, device_s)
    assert duration_s == pytest.approx([2.0, 2.0, 2.0 ** (1 / 12)], rel=1e-4)
    step = 1e-6
    more_s = combine_times(host_s + step, device_s)[0]
    assert grad_host == pytest.approx((more_s - duration_s) / step, abs=1e-4)
    assert grad_host * host_s + grad_device * device_s == pytest.approx(duration_s)
