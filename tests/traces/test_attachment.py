"""Energies from a trace are those of a live meter within 0.5 %; what it lacks is refused."""

import numpy as np
import pytest

from joulecast.traces.alignment import attach_energies
from joulecast.traces.power_trace import make_trace
from simulated_traces import Instrument, read_live


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
