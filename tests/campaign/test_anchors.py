"""Anchors show the peaks of simulated devices, and are measured once."""

from dataclasses import replace

import pytest

from campaign_examples import MemoryLog, make_simulated_measurer
from joulecast.campaign.anchors import (
    GIB,
    MeasuredPeaks,
    apply_peaks,
    assume_scale,
    choose_anchor_scale,
    find_scale,
    list_anchors,
    make_anchor_trials,
    make_host_trials,
    make_layer_trials,
    measure_anchors,
    read_peaks,
    run_anchors,
)
from joulecast.campaign.trial_log import TrialLog
from joulecast.devices.data_sheets import find_data_sheet
from joulecast.operators import network_work, peak_memory
from joulecast.records import Device
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.store import open_store
from joulecast.system.errors import MeasurementError, NotTrainingError
from joulecast.torch_nets.runtime import TorchRuntime


@pytest.fixture
def trials():
    with make_simulated_measurer() as measurer:
        yield TrialLog(measurer, MemoryLog(), [])


def test_anchors_of_one_precision_take_two_seconds_and_are_measured_once(trials):
    started_s = trials.measurer.now()
    measure_anchors(trials, "bf16")
    assert trials.measurer.now() - started_s < 3.0
    seen = trials.log.observations
    assert {one.trial.setup.precision for one in seen} == {"bf16", "fp32"}
    assert len(seen) == 3 and all(one.energy_j is None for one in seen)
    assert trials.new == 0
    measure_anchors(trials, "bf16")
    assert len(trials.log.observations) == 3
    measure_anchors(trials, "tf32")
    assert len(trials.log.observations) == 4


def test_anchors_of_inference_do_not_train(trials):
    measure_anchors(trials, "bf16", "inference")
    assert {one.trial.setup.phase for one in trials.log.observations} == {"inference"}
    scale, modes = find_scale(trials.measurer), trials.measurer.runtime.modes
    peaks = read_peaks(trials.believed, scale, modes)
    measure_anchors(trials, "bf16")
    trained = read_peaks(trials.believed, scale, modes)
    # The rates are those of the device, whatever the phase.
    assert peaks.flops_per_s["bf16"] == pytest.approx(trained.flops_per_s["bf16"], rel=0.3)
    assert peaks.bytes_per_s == pytest.approx(trained.bytes_per_s, rel=0.3)


def test_unknown_precision_still_has_a_copy_and_a_launch(trials):
    assert len(list_anchors(trials.measurer, "fp16")) == 2


def test_peaks_are_read_from_anchors_and_replace_assumed_rates(trials):
    measure_anchors(trials, "bf16")
    scale, modes = find_scale(trials.measurer), trials.measurer.runtime.modes
    peaks = read_peaks(trials.believed, scale, modes)
    assert peaks.flops_per_s.keys() == {"bf16"}
    assert 1e12 < peaks.flops_per_s["bf16"] < 1e15
    assert 1e10 < peaks.bytes_per_s < 1e13
    assert 1e-7 < peaks.launch_s < 1e-4
    assert read_peaks([], scale, modes) == MeasuredPeaks({})
    measured = apply_peaks(scale, replace(peaks, launch_s=None))
    assert measured.flops_per_s == {**scale.flops_per_s, **peaks.flops_per_s}
    assert (measured.bytes_per_s, measured.launch_s) == (peaks.bytes_per_s, scale.launch_s)


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


# -- their sizes --------------------------------------------------------------------------------

SCALES = [assume_scale(True, size * GIB) for size in (4, 24, 141)]
SCALES += [assume_scale(False, size * GIB) for size in (2, 16, 256)]


def assume_step_s(trial, scale):
    work = network_work(trial.network, trial.setup).total
    return trial.execution.copies * scale.duration_s(work, trial.setup.precision)


def share_of_memory(trial, scale):
    return trial.execution.copies * peak_memory(trial.network, trial.setup) / scale.memory_bytes


@pytest.mark.parametrize("scale", SCALES)
def test_anchors_take_milliseconds_and_little_memory_in_every_precision(scale):
    *large, tiny = make_anchor_trials(scale, ("eager", "graph"))
    for trial in large:
        assert 0.002 < assume_step_s(trial, scale) < 0.06
        assert share_of_memory(trial, scale) < 0.6
    assert assume_step_s(tiny, scale) < 0.002 and tiny.setup.batch == 1
    *products, copy = large
    assert [trial.setup.precision for trial in products] == list(scale.flops_per_s)
    assert copy.network.layers[0].sizes["fn"] == "copy"
    assert {trial.execution.mode for trial in large} == {"graph"}
    assert {trial.execution.mode for trial in make_anchor_trials(scale)} == {"eager"}


def test_processor_has_few_copies_and_bf16_only_if_it_multiplies_it():
    for has_bf16, precisions in ((True, {"fp32", "bf16"}), (False, {"fp32"})):
        trials = make_anchor_trials(assume_scale(False, 4 * GIB, has_bf16=has_bf16))
        assert {trial.execution.copies for trial in trials} == {2}
        assert {trial.setup.precision for trial in trials} == precisions


@pytest.mark.parametrize("scale", SCALES)
def test_layers_multiply_in_every_precision_and_move_data_in_two(scale):
    trials = make_layer_trials(scale, ("eager", "graph"))
    kinds = {}
    for trial in trials:
        kinds.setdefault(trial.setup.precision, set()).add(trial.network.layers[0].kind)
        assert assume_step_s(trial, scale) < 0.5
        assert scale not in SCALES[:3] or share_of_memory(trial, scale) < 0.6
    assert kinds.keys() == scale.flops_per_s.keys()
    assert all({"conv2d", "linear", "sdpa", "lstm"} <= own for own in kinds.values())
    assert {"batch_norm", "layer_norm", "embedding", "pool"} <= kinds["fp32"]
    assert "layer_norm" not in kinds.get("tf32", set())


def test_anchors_and_layers_of_a_processor_run():
    runtime = TorchRuntime("cpu", Device("a-cpu"))
    scale = assume_scale(False, 4 * GIB, has_bf16=False)
    trials = (*make_anchor_trials(scale), *make_layer_trials(scale, ("eager",)))
    for trial in {one.network.layers[0].kind: one for one in trials}.values():
        small = replace(trial, setup=replace(trial.setup, batch=1))
        runtime.prepare(small).close()


def test_host_shows_only_in_eager_steps_beside_graphs():
    assert make_host_trials(("eager",)) == ()
    few, many = make_host_trials(("eager", "graph"))
    assert {few.execution.mode, many.execution.mode} == {"eager"}
    assert len(many.network.layers) > 3 * len(few.network.layers)
