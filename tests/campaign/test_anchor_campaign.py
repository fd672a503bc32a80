"""Anchors of a simulated GPU: what is measured, how long it takes, and what is not repeated."""

from dataclasses import replace

import pytest

from campaign_examples import make_simulated_measurer
from joulecast.campaign.anchors import GIB, assume_scale, choose_anchor_scale, run_anchors
from joulecast.catalogue import find_data_sheet
from joulecast.errors import MeasurementError, NotTrainingError
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.store import open_store

SHEET = find_data_sheet("nvidia-a10")


def test_anchors_are_measured_in_seconds_and_once():
    with make_simulated_measurer() as measurer, open_store(":memory:") as log:
        first = run_anchors(replace(measurer, rounds=1), log, SHEET)
        again = run_anchors(replace(measurer, rounds=1), log, SHEET)
        stored = log.load_observations(first.profile_key)
    assert first.elapsed_s < 30 and first.new == first.trials
    assert 0 < first.with_energy < first.trials
    assert first.peaks.flops_per_s.keys() == {"fp32", "tf32", "bf16"}
    assert first.peaks.bytes_per_s and first.peaks.launch_s
    assert again.new == 0 and (again.trials, again.peaks) == (first.trials, first.peaks)
    idle = [one for one in stored if not one.trial.network.layers]
    assert len(idle) == 1 and idle[0].energy_j


def test_precisions_are_those_of_the_data_sheet():
    scale = assume_scale(True, 16 * GIB)
    assert list(choose_anchor_scale(scale, SHEET).flops_per_s) == ["fp32", "tf32", "bf16"]
    assert list(choose_anchor_scale(scale, find_data_sheet("t4")).flops_per_s) == ["fp32", "fp16"]


def test_stop_is_heeded_and_what_was_measured_stays():
    asked = []
    with make_simulated_measurer() as measurer, open_store(":memory:") as log:
        run = run_anchors(
            replace(measurer, rounds=1),
            log,
            SHEET,
            is_stop_requested=lambda: asked.append(1) or len(asked) > 2,
        )
    assert run.trials == 2 and "request" in run.stopped


def test_device_that_refuses_all_anchors_is_an_error(monkeypatch):
    def refuse(self, trial):
        raise NotTrainingError("nothing trains here; use another device")

    monkeypatch.setattr(SimulatedRuntime, "prepare", refuse)
    with (
        make_simulated_measurer() as measurer,
        open_store(":memory:") as log,
        pytest.raises(MeasurementError, match="no anchor"),
    ):
        run_anchors(measurer, log, SHEET)
