"""Steps of several GPUs: energies, intervals, covariances and notes follow from those of one."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators import Estimates
from joulecast.estimators.data_parallel import GpuGroup, replicate_step, replicate_steps
from joulecast.families import make_family
from joulecast.kinds import count_gradients
from joulecast.records import DataParallel, Estimate, LayerEstimate, Network, Setup

SETUP = Setup(10)
NET = make_family("cnn5:32,64,128,256", (3, 32, 32))
FOUR = GpuGroup(4, 300e9, 100.0)


def make_step(setup: Setup = SETUP) -> Estimate:
    """Return an estimate of one GPU, whose layers take the same energy."""
    energy_j = 0.2 * setup.samples_per_step
    layers = [
        LayerEstimate(layer.name, layer.kind, energy_j / len(NET.layers)) for layer in NET.layers
    ]
    return Estimate(
        energy_j,
        (energy_j / 1.1, energy_j * 1.1),
        0.95,
        duration_s=energy_j / 200.0,
        peak_memory_bytes=10**6,
        layers=tuple(layers),
        unseen_share=0.0,
        provenance="simulated",
        covers="gpu",
        device="test",
        estimator="additive",
        device_energy_j=0.9 * energy_j,
        host_share=0.1,
        uncertainty_sources={"durations": 0.6, "powers": 0.4},
        duration_interval_s=(energy_j / 220.0, energy_j / 180.0),
        notes=("A note.",),
    )


def replicate(
    setup: Setup = SETUP, group: GpuGroup = FOUR, net: Network = NET
) -> tuple[Estimate, Estimate, DataParallel]:
    """Return the step of one GPU, of several, and what these add."""
    step = make_step(setup)
    found = replicate_step(step, net, setup, group)
    assert found.data_parallel is not None
    return step, found, found.data_parallel


def test_one_gpu_is_the_plain_estimate() -> None:
    step = make_step()
    assert replicate_step(step, NET, SETUP, None) is step
    assert replicate_step(step, NET, SETUP, GpuGroup(1, 300e9)) is step
    assert step.gpus == 1 and "data_parallel" not in step.to_dict()


def test_energy_is_that_of_every_gpu_and_the_all_reduce() -> None:
    step, found, part = replicate()
    assert found.gpus == 4 and part.samples_per_step == 40
    assert found.energy_j == pytest.approx(4 * step.energy_j + part.added_j)
    assert found.duration_s == pytest.approx(step.duration_s + part.added_s)
    assert part.added_j > 0 and part.added_s >= part.exposed_s > 0
    assert sum(layer.energy_j for layer in found.layers) == pytest.approx(found.energy_j)
    assert found.layers[-1].name == "all-reduce" and not found.layers[-1].seen
    assert found.peak_memory_bytes == step.peak_memory_bytes + part.gradient_bytes
    assert found.device_energy_j == pytest.approx(4 * 0.9 * step.energy_j + part.added_j)
    assert found.host_share == pytest.approx(1.0 - found.device_energy_j / found.energy_j)


def test_gradients_are_fp32_weights_that_train() -> None:
    weights = sum(count_gradients(layer, SETUP) for layer in NET.layers)
    for setup in (SETUP, replace(SETUP, precision="bf16")):
        assert replicate(setup)[2].gradient_bytes == 4 * weights
    first, *others = NET.layers
    frozen = replace(NET, layers=(replace(first, trains=False), *others))
    less = replicate(net=frozen)[2].gradient_bytes
    assert less == 4 * (weights - count_gradients(first, SETUP))


def test_accumulated_gradients_are_reduced_once_an_update() -> None:
    one, four = (replicate(replace(SETUP, accumulate=n)) for n in (1, 4))
    assert four[2].gradient_bytes == one[2].gradient_bytes
    assert four[2].all_reduce_s == pytest.approx(one[2].all_reduce_s)
    assert four[2].samples_per_step == 160
    shares = [part.added_s / found.duration_s for _, found, part in (one, four)]
    assert shares[1] < shares[0]
    # Gradients that are only added up stay on their GPU.
    assert replicate(replace(SETUP, accumulate=0))[2].buckets == 0


def test_a_slow_link_makes_the_interval_wider() -> None:
    fast, slow = (replicate(group=GpuGroup(4, link, 100.0)) for link in (300e9, 0.05e9))
    widths = [found.interval_j[1] / found.interval_j[0] for _, found, _ in (fast, slow)]
    assert slow[1].energy_j > fast[1].energy_j and slow[1].duration_s > fast[1].duration_s
    assert widths[1] > widths[0] > 1.0
    sources = slow[1].uncertainty_sources
    assert next(iter(sources)) == "all-reduce" and sum(sources.values()) == pytest.approx(1.0)
    assert slow[1].duration_interval_s is not None
    low_s, high_s = slow[1].duration_interval_s
    assert low_s < slow[1].duration_s < high_s


def test_everything_that_is_modelled_says_so() -> None:
    step, found, part = replicate()
    measured = replicate_step(replace(step, provenance="measured"), NET, SETUP, FOUR)
    assert measured.provenance == "modelled" and found.provenance == "simulated"
    assert measured.data_parallel is not None
    assert measured.data_parallel.step_provenance == "measured"
    assert part.provenance == "modelled"
    (note,) = [note for note in found.notes if note.startswith("Modelled, not measured: a ring")]
    assert "75.0 % of 300 GB/s" in note and "100 W" in note
    assert Estimate.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_notes_say_what_is_counted_several_times_and_whether_it_fits() -> None:
    step = make_step()
    shared = replicate_step(replace(step, covers="gpu+cpu"), NET, SETUP, FOUR)
    assert "counted 4 times" in shared.notes[-1]
    full = replace(step, device_memory_bytes=step.peak_memory_bytes + 1)
    assert full.fits_memory
    found = replicate_step(full, NET, SETUP, FOUR)
    assert found.fits_memory is False
    assert any(note.startswith("It would not fit") for note in found.notes)


def test_waiting_power_is_a_share_of_the_step_if_nothing_is_known() -> None:
    step, _, part = replicate(group=GpuGroup(4, 300e9))
    assert 0 < part.waiting_w < step.energy_j / step.duration_s


def test_errors_that_rows_share_stay_shared() -> None:
    setups = [SETUP, SETUP, replace(SETUP, batch=20)]
    networks, groups = [NET] * 3, [None, FOUR, FOUR]
    steps = Estimates(
        tuple(make_step(setup) for setup in setups),
        np.array([0.01, 0.01, 0.04]),
        np.array([[0.01, 0.01, 0.018], [0.01, 0.01, 0.018], [0.018, 0.018, 0.04]]),
        (0, 0, 2),
    )
    found = replicate_steps(steps, networks, setups, groups)
    gpus = np.array([1.0, 4.0, 4.0])
    assert found.cov is not None and steps.cov is not None
    assert np.diag(found.cov) == pytest.approx(found.variance)
    added = found.cov - np.outer(gpus, gpus) * steps.cov
    assert added[0] == pytest.approx(np.zeros(3))
    assert added[1, 2] == pytest.approx(np.sqrt(added[1, 1] * added[2, 2]))
    # Four GPUs take more than four times the energy of one, however uncertain that is.
    assert found.probability_ratio_within(0, [1], [4.0])[0] < 0.1
    assert found[1].interval_j == replicate_step(steps[1], NET, SETUP, FOUR).interval_j


def test_estimators_of_whole_networks_are_replicated_too() -> None:
    step = replace(make_step(), layers=(), blocks=())
    found = replicate_step(step, NET, SETUP, FOUR)
    assert found.data_parallel is not None and found.data_parallel.exposed_s > 0
