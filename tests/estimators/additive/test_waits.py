"""Steps that wait for their device: durations between waits, and what their issue time tells."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from additive_examples import make_waiting, observe_step
from joulecast.estimators.additive.host_time import (
    ROUND_TRIP_S,
    WaitingStep,
    add_waits,
    divide_waiting_step,
)
from joulecast.estimators.additive.observations import decompose_observations
from joulecast.families import make_family
from joulecast.records import Setup, StepTotals, Trial
from joulecast.records.network import WAIT_BINS
from joulecast.system.errors import InputError

SHARES = st.floats(0.01, 1.0)
TIMES_S = st.floats(1e-4, 1.0)


@st.composite
def draw_steps(draw: st.DrawFn) -> WaitingStep:
    """Draw a step with at least one wait."""
    count = draw(st.integers(1, 8))
    host, device = (np.array([draw(SHARES) for _ in range(count)]) for _ in range(2))
    waits = np.array([float(draw(st.integers(0, 3))) for _ in range(count)])
    waits[draw(st.integers(0, count - 1))] += 1.0
    return WaitingStep(host / host.sum(), device / device.sum(), waits)


@given(draw_steps(), TIMES_S, TIMES_S)
def test_duration_is_between_the_longer_time_and_both(step, host_s, device_s):
    found_s, grads = add_waits(step, np.array([host_s]), device_s, np.zeros(1))
    beside_s = float(found_s[0])
    assert max(host_s, device_s) - 1e-9 <= beside_s <= host_s + device_s + 1e-9
    assert 0.0 <= grads[0] <= 1.0 + 1e-9


@given(draw_steps(), TIMES_S, TIMES_S, st.integers(0, 7))
def test_more_waits_and_more_work_take_longer(step, host_s, device_s, place):
    hosts_s, waits_s = np.array([host_s, 1.1 * host_s]), np.array([1e-3, 1.1e-3])
    before_s, grads = add_waits(step, hosts_s, device_s, waits_s)
    assert before_s[1] >= before_s[0]
    more = step.waits.copy()
    more[place % len(more)] += 1.0
    after_s, _ = add_waits(step._replace(waits=more), hosts_s, device_s, waits_s)
    assert (after_s >= before_s + waits_s - 1e-9).all()
    # The longest sequence may change: durations are convex in the device's time.
    longer_s, later = add_waits(step, hosts_s, 1.01 * device_s, waits_s)
    change = (longer_s - before_s) / (0.01 * device_s)
    assert (grads - 1e-6 <= change).all() and (change <= later + 1e-6).all()


@given(st.integers(1, 8), TIMES_S, TIMES_S, TIMES_S)
def test_alike_parts_only_add_round_trips(count, host_s, device_s, wait_s):
    even = np.full(count, 1.0 / count)
    step = WaitingStep(even, even, np.ones(count))
    found_s, _ = add_waits(step, np.array([host_s]), device_s, np.array([wait_s]))
    assert found_s[0] == pytest.approx(max(host_s, device_s) + count * wait_s)


def test_what_ends_a_step_is_not_hidden_behind_the_next():
    """Without a wait, the host issues the next step while the device updates the weights."""
    step = WaitingStep(np.array([0.5, 0.5, 0.0]), np.array([0.1, 0.1, 0.8]), np.array([1.0, 0, 0]))
    found_s, _ = add_waits(step, np.array([1.0]), 1.0, np.array([0.01]))
    assert found_s[0] == pytest.approx(0.5 + 0.8 + 0.1 + 0.01)


def test_waits_of_another_number_of_parts_are_refused():
    with pytest.raises(InputError, match="3 numbers: give 20"):
        StepTotals(1.0, 1.0, 1, waits=(1, 0, 1))


def test_inference_waits_in_the_forward_pass_alone():
    waits = [0] * (2 * WAIT_BINS)
    waits[3], waits[-1] = 2, 5
    network = make_waiting(*waits)
    for setup, count in ((Setup(), 7), (Setup(phase="inference"), 2)):
        step = divide_waiting_step(network, setup)
        assert step is not None and step.waits.sum() == count
        assert step.host_shares.sum() == pytest.approx(1.0)
        assert step.device_shares.sum() == pytest.approx(1.0)
    assert divide_waiting_step(make_family("lenet5"), Setup()) is None
    assert divide_waiting_step(make_waiting(), Setup()) is None


def test_issue_time_of_a_step_that_waits_tells_nothing_about_the_host(device):
    plain = observe_step(device, Trial(make_family("lenet5"), Setup()))
    waiting = replace(plain, trial=replace(plain.trial, network=make_waiting(1, 0)))
    issued = [one.issue_s for one in decompose_observations([plain, waiting])]
    assert issued == [plain.issue_s, None]


def test_waiting_takes_time_at_idle_power(model, fitted):
    """Ten waits at the start of forward, then one in each of ten parts of it."""
    early, even = ((10, *[0] * 19), (*[1] * 10, *[0] * 10))
    networks = [make_family("lenet5"), make_waiting(*early), make_waiting(*even)]
    for setup in (Setup(batch=32), Setup(batch=32, accumulate=3)):
        found = fitted.predict(networks, [setup] * 3)
        added_s, added_j = (one[1:] - one[0] for one in (found.duration_s, found.energy_j))
        pace = model.host_time.pace
        assert (added_s > 9.5 * pace * ROUND_TRIP_S * setup.accumulate).all()
        assert added_j == pytest.approx(model.idle_w * added_s, rel=0.05)
    graphs = fitted.predict(networks, [Setup(batch=32, cuda_graphs=True)] * 3)
    assert np.ptp(graphs.duration_s) == pytest.approx(0.0, abs=1e-12)
