"""The all-reduce: ring, buckets, what hides behind the backward pass, and what it costs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulecast.catalogue import find_data_sheet, make_sheet_profile, read_data_sheet
from joulecast.errors import InputError
from joulecast.estimators import Estimates
from joulecast.estimators.data_parallel import (
    BUCKET_BYTES,
    AllReduceCost,
    BackwardPart,
    GpuGroup,
    RingAssumptions,
    expected_maximum,
    find_gpu_group,
    find_spread,
    model_all_reduce,
    replicate_step,
    replicate_steps,
    ring_assumptions,
)
from joulecast.families import make_family
from joulecast.kinds import count_gradients
from joulecast.records import (
    DataParallel,
    Device,
    Estimate,
    LayerEstimate,
    Network,
    Observation,
    Profile,
    Setup,
    Trial,
)

LINK = 100e9
# A ring at full speed and nothing else.
IDEAL = RingAssumptions(
    efficiency=1.0,
    hop_s=0.0,
    contention_share=0.0,
    speed_sd_share=0.0,
    byte_j=0.0,
    waiting_w=0.0,
)


def spread_evenly(size_bytes: float, backward_s: float, count: int = 100) -> list[BackwardPart]:
    return [BackwardPart(backward_s / count, size_bytes / count)] * count


def model(
    assumed: RingAssumptions, gpus: int = 4, size_bytes: float = 1e9, backward_s: float = 1.0
) -> AllReduceCost:
    return model_all_reduce(gpus, LINK, 1.5, spread_evenly(size_bytes, backward_s), assumed)


@pytest.mark.parametrize(("gpus", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_a_ring_sends_twice_all_but_its_own_part(gpus: int, factor: float) -> None:
    found = model(IDEAL, gpus)
    assert found.all_reduce_s == pytest.approx(factor * 1e9 / LINK)
    assert found.gradient_bytes == pytest.approx(1e9)


def test_only_the_last_bucket_is_exposed_if_the_link_is_fast() -> None:
    found = model(IDEAL)
    # 10 MB parts: one of them fills the first bucket, three fill each of the others.
    last_bytes = (100 - 1) % 3 * 10e6 or 30e6
    assert found.buckets == 34
    assert found.exposed_s == pytest.approx(1.5 * last_bytes / LINK)
    assert found.added_s == found.exposed_s


def test_a_slow_link_exposes_what_the_backward_pass_cannot_hide() -> None:
    found = model(IDEAL, backward_s=0.005)
    # It starts after the first of 100 parts.
    assert found.exposed_s == pytest.approx(found.all_reduce_s + 0.00005 - 0.005)


def test_gradients_that_come_last_wait_longest() -> None:
    """An embedding is the first layer, so its gradient is the last: nothing is left to hide it."""
    large, small = BackwardPart(0.5, 5e8), BackwardPart(0.5, 1e6)
    first = model_all_reduce(4, LINK, 1.5, [large, small], IDEAL)
    last = model_all_reduce(4, LINK, 1.5, [small, large], IDEAL)
    assert last.all_reduce_s == pytest.approx(first.all_reduce_s)
    assert last.exposed_s > 100 * first.exposed_s


def test_every_bucket_costs_its_hops() -> None:
    hop = replace(IDEAL, hop_s=1e-5)
    found, without = model(hop), model(IDEAL)
    assert found.all_reduce_s - without.all_reduce_s == pytest.approx(34 * 6 * 1e-5)
    assert model(hop, size_bytes=BUCKET_BYTES).buckets < 4


def test_slower_kernels_and_the_slowest_gpu_add_time() -> None:
    plain = model(IDEAL)
    slower = model(replace(IDEAL, contention_share=0.2))
    hidden_s = plain.all_reduce_s - plain.exposed_s
    assert slower.added_s - plain.added_s == pytest.approx(0.2 * hidden_s)
    late = model(replace(IDEAL, speed_sd_share=0.01))
    assert late.added_s - plain.added_s == pytest.approx(0.01 * expected_maximum(4) * 1.5)


def test_energy_is_waiting_and_bytes_of_all_gpus() -> None:
    found = model(replace(IDEAL, waiting_w=100.0, byte_j=1e-10))
    assert found.added_j == pytest.approx(4 * (100.0 * found.added_s + 1e-10 * 1.5e9))


def test_expected_maximum_of_normals() -> None:
    """Exact values are 0.564, 1.029 and 1.424."""
    found = [expected_maximum(count) for count in (1, 2, 4, 8)]
    assert found == pytest.approx([0.0, 0.564, 1.029, 1.424], abs=0.03)


def test_frozen_weights_need_no_all_reduce() -> None:
    found = model_all_reduce(4, LINK, 1.5, [BackwardPart(1.0, 0.0)], ring_assumptions(LINK, 100.0))
    assert (found.buckets, found.all_reduce_s, found.exposed_s) == (0, 0.0, 0.0)


def test_pcie_is_less_efficient_and_less_certain_than_nvlink() -> None:
    parts = spread_evenly(1e9, 0.05)
    spreads = []
    for link in (32e9, 300e9):
        ring = 4, link, 0.1, parts, ring_assumptions(link, 100.0)
        found, (sd_s, sd_j) = model_all_reduce(*ring), find_spread(*ring)
        assert sd_s > 0 and sd_j > 0
        spreads.append(sd_s / found.added_s)
    assert ring_assumptions(32e9, 1.0).efficiency < ring_assumptions(300e9, 1.0).efficiency
    assert spreads[0] > spreads[1]


TRAINING = Setup(8)
A100 = Profile(Device("a100", "NVIDIA A100-SXM4-40GB"), "torch-2.6.0", "gpu", "measured", ())


def test_the_catalogue_knows_the_link() -> None:
    found = find_gpu_group(A100, TRAINING, 4)
    assert found is not None and (found.gpus, found.link_bytes_per_s) == (4, 300e9)
    sheet = find_data_sheet("nvidia-a100-sxm4-40gb")
    assert found.waiting_w is not None and found.waiting_w >= (sheet.idle_w or 0.0)
    assert 0.1 * sheet.power_limit_w < found.waiting_w < 0.5 * sheet.power_limit_w
    own = find_gpu_group(A100, TRAINING, 4, 32e9)
    assert own is not None and own.link_bytes_per_s == 32e9


def test_a_measured_idle_power_comes_first() -> None:
    idle = Observation(Trial(Network(), Setup()), energy_j=240.0, duration_s=2.0)
    found = find_gpu_group(replace(A100, observations=(idle,)), TRAINING, 2)
    assert found is not None and found.waiting_w == 120.0


def test_a_users_own_data_sheet_is_used(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text(
        'name = "my-card"\nunits = 46\nclock_mhz = 1725\nbandwidth_gb_s = 448\nmemory_gib = 8\n'
        "power_limit_w = 220\nlink_gb_s = 31.5\ntflops = { fp32 = 20.3 }\n"
    )
    found = find_gpu_group(make_sheet_profile(read_data_sheet(path)), TRAINING, 2)
    assert found is not None and found.link_bytes_per_s == 31.5e9
    assert found.waiting_w is not None and 20 < found.waiting_w < 110


def test_one_gpu_is_no_group() -> None:
    assert find_gpu_group(A100, TRAINING, 1) is None


def test_an_unknown_link_names_the_option() -> None:
    unknown = Profile(Device("simulated-7"), "simulated", "device", "simulated", ())
    with pytest.raises(InputError, match="give --link-gb-s"):
        find_gpu_group(unknown, TRAINING, 4)
    found = find_gpu_group(unknown, TRAINING, 4, 300e9)
    assert found is not None and found.waiting_w is None


@pytest.mark.parametrize(
    ("covers", "runtime"), [("cpu", "torch-2.6.0"), ("gpu", "mnn-3.0"), ("gpu", "onnxruntime-1.20")]
)
def test_processors_and_other_frameworks_are_refused(covers: str, runtime: str) -> None:
    with pytest.raises(InputError, match="--gpus 4 needs a GPU that PyTorch trains on"):
        find_gpu_group(replace(A100, covers=covers, runtime=runtime), TRAINING, 4)


def test_inference_is_refused() -> None:
    with pytest.raises(InputError, match="--gpus 4 is for training"):
        find_gpu_group(A100, Setup(8, phase="inference"), 4)


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
