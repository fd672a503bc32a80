"""The all-reduce: ring, buckets, what hides behind the backward pass, and what it costs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulecast.devices.data_sheets import find_data_sheet, make_sheet_profile, read_data_sheet
from joulecast.estimators import Estimates
from joulecast.estimators.data_parallel import (
    BUCKET_BYTES,
    AllReduceCost,
    BackwardPart,
    GpuGroup,
    Ring,
    expected_maximum,
    find_gpu_group,
    find_spread,
    make_ring,
    model_all_reduce,
    replicate_step,
    replicate_steps,
)
from joulecast.families import make_family
from joulecast.operators import count_gradients
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
from joulecast.system.errors import InputError

LINK = 100e9


def spread_evenly(size_bytes: float, backward_s: float, count: int = 100) -> list[BackwardPart]:
    return [BackwardPart(backward_s / count, size_bytes / count)] * count


# A ring at full speed and nothing else.
IDEAL = Ring(
    4, LINK, 1.5, spread_evenly(1e9, 1.0), waiting_w=0.0, efficiency=1.0, hop_s=0.0,
    contention_share=0.0, speed_sd_share=0.0, byte_j=0.0,
)  # fmt: skip


def model(**changes: object) -> AllReduceCost:
    return model_all_reduce(replace(IDEAL, **changes))


@pytest.mark.parametrize(("gpus", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_a_ring_sends_twice_all_but_its_own_part(gpus: int, factor: float) -> None:
    found = model(gpus=gpus)
    assert found.all_reduce_s == pytest.approx(factor * 1e9 / LINK)
    assert found.gradient_bytes == pytest.approx(1e9)


def test_only_the_last_bucket_is_exposed_if_the_link_is_fast() -> None:
    found = model()
    # 10 MB parts: one of them fills the first bucket, three fill each of the others.
    last_bytes = (100 - 1) % 3 * 10e6 or 30e6
    assert found.buckets == 34
    assert found.exposed_s == pytest.approx(1.5 * last_bytes / LINK)
    assert found.added_s == found.exposed_s


def test_a_slow_link_exposes_what_the_backward_pass_cannot_hide() -> None:
    found = model(backward=spread_evenly(1e9, 0.005))
    # It starts after the first of 100 parts.
    assert found.exposed_s == pytest.approx(found.all_reduce_s + 0.00005 - 0.005)


def test_gradients_that_come_last_wait_longest() -> None:
    """An embedding is the first layer, so its gradient is the last: nothing is left to hide it."""
    large, small = BackwardPart(0.5, 5e8), BackwardPart(0.5, 1e6)
    first = model(backward=[large, small])
    last = model(backward=[small, large])
    assert last.all_reduce_s == pytest.approx(first.all_reduce_s)
    assert last.exposed_s > 100 * first.exposed_s


def test_every_bucket_costs_its_hops() -> None:
    added_s = model(hop_s=1e-5).all_reduce_s - model().all_reduce_s
    assert added_s == pytest.approx(34 * 6 * 1e-5)
    assert model(backward=spread_evenly(BUCKET_BYTES, 1.0)).buckets < 4


def test_slower_kernels_and_the_slowest_gpu_add_time() -> None:
    plain = model()
    slower = model(contention_share=0.2)
    hidden_s = plain.all_reduce_s - plain.exposed_s
    assert slower.added_s - plain.added_s == pytest.approx(0.2 * hidden_s)
    late = model(speed_sd_share=0.01)
    assert late.added_s - plain.added_s == pytest.approx(0.01 * expected_maximum(4) * 1.5)


def test_energy_is_waiting_and_bytes_of_all_gpus() -> None:
    found = model(waiting_w=100.0, byte_j=1e-10)
    assert found.added_j == pytest.approx(4 * (100.0 * found.added_s + 1e-10 * 1.5e9))


def test_expected_maximum_of_normals() -> None:
    """Exact values are 0.564, 1.029 and 1.424."""
    found = [expected_maximum(count) for count in (1, 2, 4, 8)]
    assert found == pytest.approx([0.0, 0.564, 1.029, 1.424], abs=0.03)


def test_pcie_is_less_efficient_and_less_certain_than_nvlink() -> None:
    parts = spread_evenly(1e9, 0.05)
    pcie, nvlink = (make_ring(4, link, 0.1, parts, 100.0) for link in (32e9, 300e9))
    assert pcie.efficiency < nvlink.efficiency
    shares = [find_spread(one)[0] / model_all_reduce(one).added_s for one in (pcie, nvlink)]
    assert shares[0] > shares[1] > 0
    assert find_spread(pcie)[1] > 0


TRAINING = Setup(8)
A100 = Profile(Device("a100", "NVIDIA A100-SXM4-40GB"), "torch-2.6.0", "gpu", "measured", ())


def test_the_catalogue_knows_the_link() -> None:
    found = find_gpu_group(A100, TRAINING, 4)
    assert found is not None and (found.gpus, found.link_bytes_per_s) == (4, 300e9)
    sheet = find_data_sheet("nvidia-a100-sxm4-40gb")
    assert found.waiting_w is not None and found.waiting_w >= (sheet.idle_w or 0.0)
    assert 0.1 * sheet.power_limit_w < found.waiting_w < 0.5 * sheet.power_limit_w
    assert find_gpu_group(A100, TRAINING, 1) is None
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


UNKNOWN = Profile(Device("simulated-7"), "simulated", "device", "simulated", ())


@pytest.mark.parametrize(
    ("profile", "setup", "named"),
    [
        (UNKNOWN, TRAINING, "link_gb_s"),
        (replace(A100, covers="cpu"), TRAINING, "PyTorch"),
        (replace(A100, runtime="mnn-3.0"), TRAINING, "PyTorch"),
        (replace(A100, runtime="onnxruntime-1.20"), TRAINING, "PyTorch"),
        (A100, Setup(8, phase="inference"), "training"),
    ],
)
def test_what_no_gpus_train_together_is_refused(profile: Profile, setup: Setup, named: str) -> None:
    with pytest.raises(InputError, match=named):
        find_gpu_group(profile, setup, 4)


def test_the_power_of_an_unknown_device_that_waits_is_a_share_of_its_step() -> None:
    found = find_gpu_group(UNKNOWN, TRAINING, 4, 300e9)
    assert found is not None and found.waiting_w is None
    step, _, part = replicate(group=found)
    assert 0 < part.waiting_w < step.energy_j / step.duration_s


SETUP = Setup(10)
NET = make_family("cnn5:32,64,128,256", (3, 32, 32))
FOUR = GpuGroup(4, 300e9, 100.0)


def make_step(setup: Setup = SETUP) -> Estimate:
    """Return an estimate of one GPU, whose layers take the same energy."""
    energy_j = 0.2 * setup.samples_per_step
    share_j = energy_j / len(NET.layers)
    layers = tuple(LayerEstimate(layer.name, layer.kind, share_j) for layer in NET.layers)
    return Estimate(
        energy_j, (energy_j / 1.1, energy_j * 1.1), 0.95, energy_j / 200.0, 10**6, layers, 0.0,
        "simulated", "gpu", "test", "additive", device_energy_j=0.9 * energy_j, host_share=0.1,
        uncertainty_sources={"durations": 0.6, "powers": 0.4},
        duration_interval_s=(energy_j / 220.0, energy_j / 180.0), notes=("A note.",),
    )  # fmt: skip


def replicate(
    setup: Setup = SETUP, group: GpuGroup = FOUR, net: Network = NET
) -> tuple[Estimate, Estimate, DataParallel]:
    """Return the step of one GPU, of several, and what these add."""
    step = make_step(setup)
    found, _ = replicate_step(step, net, setup, group)
    assert found.data_parallel is not None
    return step, found, found.data_parallel


def test_one_gpu_is_the_plain_estimate() -> None:
    step = make_step()
    for group in (None, GpuGroup(1, 300e9)):
        assert replicate_step(step, NET, SETUP, group) == (step, 0.0)
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
    measured, _ = replicate_step(replace(step, provenance="measured"), NET, SETUP, FOUR)
    assert measured.provenance == "modelled" and found.provenance == "simulated"
    assert measured.data_parallel is not None
    assert measured.data_parallel.step_provenance == "measured"
    assert part.provenance == "modelled"
    (note,) = [note for note in found.notes if note.startswith("Modelled, not measured: a ring")]
    assert "75.0 % of 300 GB/s" in note and "100 W" in note
    assert Estimate.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_notes_say_what_is_counted_several_times_and_whether_it_fits() -> None:
    step = make_step()
    shared, _ = replicate_step(replace(step, covers="gpu+cpu"), NET, SETUP, FOUR)
    assert "counted 4 times" in shared.notes[-1]
    full = replace(step, device_memory_bytes=step.peak_memory_bytes + 1)
    assert full.fits_memory
    found, _ = replicate_step(full, NET, SETUP, FOUR)
    assert found.fits_memory is False
    assert any(note.startswith("It would not fit") for note in found.notes)


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
    assert found[1].interval_j == replicate_step(steps[1], NET, SETUP, FOUR)[0].interval_j


def test_estimators_of_whole_networks_are_replicated_too() -> None:
    step = replace(make_step(), layers=(), blocks=())
    found, _ = replicate_step(step, NET, SETUP, FOUR)
    assert found.data_parallel is not None and found.data_parallel.exposed_s > 0
