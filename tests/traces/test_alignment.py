"""Clocks with offset and drift are aligned within 5 ms; other traces are refused."""

import numpy as np
import pytest

from joulecast.system.errors import InputError
from joulecast.traces.alignment import MOST_DRIFT, align_clocks, attach_energies, split_pulses
from joulecast.traces.power_trace import make_trace
from simulated_traces import WALL_S, Instrument, read_live, record_trials

LIMIT_S = 0.005


def list_groups(observations):
    return [group for one in observations for group in split_pulses(one)]


def find_error(found, instrument, device):
    times = np.linspace(0, device.now(), 40)
    return np.abs(found.convert(WALL_S + times) - instrument.read_clock(times)).max()


@pytest.mark.parametrize(
    "instrument",
    [
        Instrument(),
        Instrument(offset_s=-123_456.7, drift=100e-6),
        Instrument(offset_s=9e8, drift=-450e-6, rate_hz=200),
        Instrument(offset_s=17.25, drift=30e-6, rate_hz=50, noise_share=0.02),
    ],
)
def test_offset_and_drift_are_found(recording, instrument):
    device, observed = recording
    found = align_clocks(make_trace(*instrument.sample(device)), list_groups(observed))
    assert find_error(found, instrument, device) < LIMIT_S
    assert found.drift == pytest.approx(instrument.drift, abs=5e-5)
    assert found.residual_s < LIMIT_S
    assert all(found.matched)


def test_part_of_a_recording_is_found_in_a_short_trace(recording):
    device, observed = recording
    instrument = Instrument(offset_s=-7.0, drift=80e-6)
    half = device.now() / 2
    found = align_clocks(make_trace(*instrument.sample(device, half)), list_groups(observed))
    assert {None, True} == set(found.matched)
    last = observed[-2].pulses[-1].end_s
    expected = instrument.read_clock(last - WALL_S)
    assert found.convert(last) == pytest.approx(expected, abs=LIMIT_S)


def make_square_wave(times):
    return 50 + 20 * (np.arange(len(times)) // 100 % 2)


OTHERS = {
    "constant": lambda times: np.full(len(times), 5.0),
    "noise": lambda times: 50 + np.random.default_rng(1).standard_normal(len(times)),
    "square wave": make_square_wave,
    "random switching": lambda times: (
        50 + 20 * (np.cumsum(np.random.default_rng(2).random(len(times)) < 0.01) % 2)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_power_without_our_pulses_is_refused(recording, name):
    times = np.arange(0, 80, 0.002)
    trace = make_trace(times, OTHERS[name](times))
    with pytest.raises(InputError, match="recorded during this run"):
        align_clocks(trace, list_groups(recording[1]))


def test_trace_of_another_run_is_refused(recording):
    other, _ = record_trials(seed=4, count=5)
    with pytest.raises(InputError, match="recorded during this run"):
        align_clocks(make_trace(*Instrument().sample(other)), list_groups(recording[1]))


def test_slow_samples_are_refused(recording):
    device, observed = recording
    trace = make_trace(*Instrument(rate_hz=20).sample(device))
    with pytest.raises(InputError, match="50 ms apart: record at least 40 a second"):
        align_clocks(trace, list_groups(observed))


def test_drift_beyond_the_limit_is_not_taken_for_an_alignment(recording):
    device, observed = recording
    instrument = Instrument(drift=100 * MOST_DRIFT)
    (result,) = attach_energies(make_trace(*instrument.sample(device)), observed, "t")
    assert not result.completed


@pytest.mark.parametrize("rate_hz", [50, 200, 2000])
def test_energies_are_those_of_a_live_meter(recording, rate_hz):
    device, observed = recording
    instrument = Instrument(offset_s=1234.5, drift=-120e-6, rate_hz=rate_hz)
    (run,) = attach_energies(make_trace(*instrument.sample(device)), observed, "t.csv")
    assert not run.refused
    for recorded, completed in run.completed:
        assert completed.energy_j == pytest.approx(read_live(device, recorded), rel=0.005)
        assert completed.source == "t.csv"
        assert completed.duration_s == recorded.duration_s
    assert [one for one, _ in run.completed] == observed


def test_trials_outside_the_trace_are_refused_with_the_reason(recording):
    device, observed = recording
    end_s = device.now() / 2
    trace = make_trace(*Instrument(offset_s=5.0).sample(device, 0.0, end_s))
    (run,) = attach_energies(trace, observed, "t.csv")
    assert 0 < len(run.completed) < len(observed)
    for recorded, completed in run.completed:
        assert completed.energy_j == pytest.approx(read_live(device, recorded), rel=0.005)
    assert all("the trace ends" in reason for _, reason in run.refused)
    assert {one.trial.key for one, _ in run.refused}.isdisjoint(
        one.trial.key for one, _ in run.completed
    )


def test_trial_with_missing_samples_is_refused(recording):
    device, observed = recording
    times, powers = Instrument().sample(device)
    window = observed[2].windows[1]
    inside = (times > window.start_s - 1e9 + 0.2) & (times < window.start_s - 1e9 + 0.5)
    (run,) = attach_energies(make_trace(times[~inside], powers[~inside]), observed, "t.csv")
    assert [(one, reason) for one, reason in run.refused] == [
        (observed[2], "the trace has no sample for 0.301 s of it")
    ]


def test_trial_whose_pulses_do_not_match_is_refused(recording):
    device, observed = recording
    times, powers = Instrument().sample(device)
    first, last = observed[1].pulses[0].start_s - 1e9, observed[1].pulses[3].end_s - 1e9
    hidden = (times > first - 0.1) & (times < last + 0.1)
    powers = np.where(hidden, powers.mean(), powers)
    (run,) = attach_energies(make_trace(times, powers), observed, "t.csv")
    assert [one for one, _ in run.refused] == [observed[1]]
    assert "pulses are not where" in run.refused[0][1]
