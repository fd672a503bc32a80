"""Anchors take milliseconds on any device and show every rate of it."""

from dataclasses import replace

import pytest

from joulecast.atlas.anchors import make_anchor_trials, make_host_trials, make_layer_trials
from joulecast.atlas.device_scale import GIB, DeviceScale, assume_scale
from joulecast.estimators.additive.layers import set_up_layer
from joulecast.kinds import Work, peak_memory
from joulecast.records import Device, Trial
from joulecast.runtimes.torch.runtime import TorchRuntime
from joulecast.variants import read_isolated_part

SCALES = [assume_scale(True, size * GIB) for size in (4, 24, 141)]
SCALES += [assume_scale(False, size * GIB) for size in (2, 16, 256)]


def assume_step_s(trial: Trial, scale: DeviceScale) -> float:
    part = read_isolated_part(trial)
    assert part is not None
    piece = set_up_layer(part, trial.setup)
    work = Work(piece.flops, piece.size_bytes, piece.launches)
    return trial.execution.copies * scale.duration_s(work, trial.setup.precision)


@pytest.mark.parametrize("scale", SCALES)
def test_anchors_take_milliseconds_and_little_memory(scale: DeviceScale) -> None:
    *large, tiny = make_anchor_trials(scale, ("eager", "graph"))
    for trial in large:
        assert 0.002 < assume_step_s(trial, scale) < 0.06
        used_bytes = trial.execution.copies * peak_memory(trial.network, trial.setup)
        assert used_bytes < 0.6 * scale.memory_bytes
    assert assume_step_s(tiny, scale) < 0.002


@pytest.mark.parametrize("scale", SCALES)
def test_every_precision_has_a_matrix_product(scale: DeviceScale) -> None:
    *products, copy, tiny = make_anchor_trials(scale)
    assert [trial.setup.precision for trial in products] == list(scale.flops_per_s)
    assert copy.network.layers[0].sizes["fn"] == "copy"
    assert tiny.setup.batch == 1


def test_anchors_run_as_graphs_where_the_runtime_has_them() -> None:
    for modes, expected in ((("eager",), "eager"), (("eager", "graph"), "graph")):
        trials = make_anchor_trials(SCALES[0], modes)
        assert {trial.execution.mode for trial in trials} == {expected}


def test_processor_has_few_copies_and_bf16_only_if_it_multiplies_it() -> None:
    with_bf16 = make_anchor_trials(assume_scale(False, 4 * GIB))
    without = make_anchor_trials(assume_scale(False, 4 * GIB, has_bf16=False))
    assert {trial.execution.copies for trial in with_bf16} == {2}
    assert {trial.setup.precision for trial in with_bf16} == {"fp32", "bf16"}
    assert {trial.setup.precision for trial in without} == {"fp32"}


def test_anchors_of_a_processor_run() -> None:
    runtime = TorchRuntime("cpu", Device("a-cpu"))
    for trial in make_anchor_trials(assume_scale(False, 4 * GIB)):
        runtime.prepare(trial).close()


def test_layers_multiply_in_every_precision_and_move_data_in_two() -> None:
    for scale in SCALES:
        trials = make_layer_trials(scale, ("eager", "graph"))
        kinds = {
            precision: {
                trial.network.layers[0].kind
                for trial in trials
                if trial.setup.precision == precision
            }
            for precision in scale.flops_per_s
        }
        assert all({"conv2d", "linear", "sdpa", "lstm"} <= own for own in kinds.values())
        assert {"batch_norm", "layer_norm", "embedding", "pool"} <= kinds["fp32"]
        assert "layer_norm" not in kinds.get("tf32", set())
        assert all(assume_step_s(trial, scale) < 0.5 for trial in trials)
    for scale in SCALES[:3]:
        for trial in make_layer_trials(scale, ("eager", "graph")):
            used_bytes = trial.execution.copies * peak_memory(trial.network, trial.setup)
            assert used_bytes < 0.6 * scale.memory_bytes


def test_layers_of_a_processor_run() -> None:
    runtime = TorchRuntime("cpu", Device("a-cpu"))
    for trial in make_layer_trials(assume_scale(False, 4 * GIB, has_bf16=False)):
        small = replace(trial, setup=replace(trial.setup, batch=1))
        runtime.prepare(small).close()


def test_host_shows_only_in_eager_steps_beside_graphs() -> None:
    assert make_host_trials(("eager",)) == ()
    few, many = make_host_trials(("eager", "graph"))
    assert {few.execution.mode, many.execution.mode} == {"eager"}
    assert len(many.network.layers) > 3 * len(few.network.layers)
