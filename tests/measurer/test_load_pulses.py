"""Load pulses: recorded exactly, and different for every trial."""

import pytest

from joulecast.families import make_family
from joulecast.measurer import MeasureClock, make_measurer
from joulecast.measurer.windows import PULSES, draw_pulses
from joulecast.meters.file import LaterMeter
from joulecast.records import Observation, Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device

CNN = Trial(make_family("cnn5:8,16,16,32"), Setup(batch=8))
LENET = Trial(make_family("lenet5"), Setup(batch=8))


def record(trial, seed=3):
    device = make_simulated_device(seed)
    meter = LaterMeter("device", "simulated", now=device.now, wall=lambda: 1e9 + device.now())
    clock = MeasureClock(device.now, device.sleep)
    with make_measurer(SimulatedRuntime(device), meter, clock=clock) as measurer:
        return device, measurer.measure(trial)


def test_every_trial_has_pulses_of_its_own():
    drawn = {
        tuple(draw_pulses(trial, place)) for trial in (CNN, LENET) for place in ("before", "after")
    }
    assert len(drawn) == 4
    assert list(draw_pulses(CNN, "before")) == list(draw_pulses(CNN, "before"))
    assert all(0.1 < length_s < 0.5 for pulses in drawn for pair in pulses for length_s in pair)


def test_windows_lie_between_the_pulses_and_all_of_them_are_loaded():
    device, observed = record(CNN)
    assert len(observed.pulses) == 2 * PULSES
    assert len(observed.windows) == observed.count == 3
    before, after = observed.pulses[PULSES - 1], observed.pulses[PULSES]
    assert before.end_s < observed.windows[0].start_s
    assert observed.windows[-1].end_s < after.start_s
    idle_w = device.chip.idle_w
    for one in (*observed.windows, *observed.pulses):
        start_s, end_s = one.start_s - 1e9, one.end_s - 1e9
        power_w = (device.energy_at(end_s) - device.energy_at(start_s)) / (end_s - start_s)
        assert power_w > 1.05 * idle_w
    for one, following in zip(observed.pulses, observed.pulses[1:PULSES], strict=False):
        gap_s = following.start_s - one.end_s
        rest_j = device.energy_at(following.start_s - 1e9) - device.energy_at(one.end_s - 1e9)
        assert rest_j / gap_s == pytest.approx(idle_w, rel=1e-3)


def test_windows_count_their_steps_and_survive_json():
    _, observed = record(LENET)
    for window in observed.windows:
        step_s = (window.end_s - window.start_s) / window.steps
        assert step_s == pytest.approx(observed.duration_s, rel=0.2)
    assert Observation.from_dict(observed.to_dict()) == observed
