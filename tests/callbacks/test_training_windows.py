"""Which windows of a run are steps, and which of them a profile may learn."""

from __future__ import annotations

import pytest

from joulecast.callbacks.training_windows import (
    ContentCounter,
    TrainingWindow,
    WindowContent,
    sum_windows,
    summarise_steps,
)
from joulecast.features.monitor import WindowEnergy


def make_window(energy_j=10.0, duration_s=1.0, faults=(), error="", **content) -> TrainingWindow:
    content = {"steps": 5, "batches": 5, "is_warm": True, **content}
    energy = WindowEnergy(
        "training", energy_j, duration_s, "cpu", "nvml", "gpu", "measured", faults, (), error
    )
    return TrainingWindow(energy, WindowContent(**content))


def test_sums_separate_steps_from_evaluation_and_from_the_start():
    windows = [
        make_window(100.0, steps=0, is_warm=False, is_mixed=True),  # the start
        make_window(30.0, steps=3, is_warm=False),
        make_window(10.0),
        make_window(10.0),
        make_window(16.0, steps=5, is_mixed=True),  # with an evaluation of 6 J
    ]
    sums = sum_windows(windows)
    assert sums.energy_j == pytest.approx(166.0)
    assert (sums.steps, sums.steady_steps, sums.steady_j) == (18, 10, 20.0)
    assert sums.other_j_per_step == pytest.approx(6.0 / 15)


def test_time_that_could_not_be_read_has_the_mean_power_of_the_rest():
    sums = sum_windows([make_window(10.0), make_window(None, 0.5)])
    assert sums.energy_j == pytest.approx(15.0)
    assert sums.unread_share == pytest.approx(1 / 3)


def test_a_run_that_could_mostly_not_be_read_has_no_energy():
    sums = sum_windows([make_window(10.0, 1.0), make_window(None, 2.0)])
    assert sums.energy_j is None and sums.power_w is None


def test_nothing_measured_is_no_energy():
    assert sum_windows([]).energy_j is None


def test_a_profile_learns_the_median_of_steady_windows():
    windows = [make_window(energy_j) for energy_j in (9.0, 10.0, 20.0)]
    windows.append(make_window(1000.0, is_mixed=True))
    found, reason = summarise_steps(windows, accumulate=1)
    assert not reason
    assert (found.energy_j, found.duration_s, found.count, found.steps) == (2.0, 0.2, 3, 15)
    assert found.energy_sd_j > 0


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        ({"waiting_s": 0.2}, "more than 5.00 % of the time passed between steps"),
        ({"odd_batches": 1}, "batches differ in shape"),
        ({"batches": 10}, "the module is not called 1 times a step"),
        ({"faults": ("other load: python",)}, "the meter reported other load: python"),
        ({"energy_j": None}, "the meter reported no energy"),
        ({"error": "KeyError"}, "training ended by KeyError"),
    ],
)
def test_windows_that_are_not_comparable_are_not_learnt(spoilt, reason):
    found, why = summarise_steps([make_window(), make_window(), make_window(**spoilt)], 1)
    assert found is None
    assert why.startswith(reason)


def test_few_windows_are_not_learnt():
    found, why = summarise_steps([make_window()], 1)
    assert found is None
    assert why == "1 of the 3 windows that are needed contain steps alone"


def test_batches_are_counted_per_accumulated_step():
    windows = [make_window(steps=5, batches=20) for _ in range(3)]
    assert summarise_steps(windows, 4)[0] is not None
    assert summarise_steps(windows, 2)[0] is None


def test_a_counter_counts_one_window_at_a_time():
    counter = ContentCounter()
    assert counter.content.is_mixed
    counter.begin(is_warm=True, is_mixed=False)
    counter.add(steps=1, waiting_s=0.5)
    counter.add(steps=1)
    assert counter.content.is_steady
    assert (counter.content.steps, counter.content.waiting_s) == (2, 0.5)
    counter.mark_mixed()
    assert not counter.content.is_steady
