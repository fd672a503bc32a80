"""The all-reduce: ring, buckets, what hides behind the backward pass, and what it costs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from joulecast.devices.data_sheets import find_data_sheet, make_sheet_profile, read_data_sheet
from joulecast.estimators import Estimates
from joulecast.estimators.data_parallel import (
    BUCKET_BYTES,
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


def spread_evenly(size_bytes, backward_s, count=100):
    return [BackwardPart(backward_s / count, size_bytes / count)] * count


# A ring at full speed and nothing else.
IDEAL = Ring(
    4, LINK, 1.5, spread_evenly(1e9, 1.0), waiting_w=0.0, efficiency=1.0, hop_s=0.0,
    contention_share=0.0, speed_sd_share=0.0, byte_j=0.0,
)  # fmt: skip


def model(**changes):
    return model_all_reduce(replace(IDEAL, **changes))


PLAIN = model()


@pytest.mark.parametrize(("gpus", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_a_ring_sends_twice_all_but_its_own_part(gpus, factor):
    found = model(gpus=gpus)
    assert found.all_reduce_s == pytest.approx(factor * 1e9 / LINK)
    assert found.gradient_bytes == pytest.approx(1e9)


def test_what_the_backward_pass_cannot_hide_is_exposed():
    # 10 MB parts: one of them fills the first bucket, three fill each of the others; a fast link
    # exposes the last bucket alone.
    assert PLAIN.buckets == 34
    assert PLAIN.added_s == PLAIN.exposed_s == pytest.approx(1.5 * 30e6 / LINK)
    slow = model(backward=spread_evenly(1e9, 0.005))
    # It starts after the first of 100 parts.
    assert slow.exposed_s == pytest.approx(slow.all_reduce_s + 0.00005 - 0.005)


def test_gradients_that_come_last_wait_longest():
    """An embedding is the first layer, so its gradient is the last: nothing is left to hide it."""
    large, small = BackwardPart(0.5, 5e8), BackwardPart(0.5, 1e6)
    first, last = model(backward=[large, small]), model(backward=[small, large])
    assert last.all_reduce_s == pytest.approx(first.all_reduce_s)
    assert last.exposed_s > 100 * first.exposed_s


def test_hops_slower_kernels_the_slowest_gpu_and_waiting_are_added():
    added_s = model(hop_s=1e-5).all_reduce_s - PLAIN.all_reduce_s
    assert added_s == pytest.approx(34 * 6 * 1e-5)
    assert model(backward=spread_evenly(BUCKET_BYTES, 1.0)).buckets < 4
    slower, late = model(contention_share=0.2), model(speed_sd_share=0.01)
    hidden_s = PLAIN.all_reduce_s - PLAIN.exposed_s
    assert slower.added_s - PLAIN.added_s == pytest.approx(0.2 * hidden_s)
    assert late.added_s - PLAIN.added_s == pytest.approx(0.01 * expected_maximum(4) * 1.5)
    found = model(waiting_w=100.0, byte_j=1e-10)
    assert found.added_j == pytest.approx(4 * (100.0 * found.added_s + 1e-10 * 1.5e9))


def test_pcie_is_less_efficient_and_less_certain_than_nvlink():
    parts = spread_evenly(1e9, 0.05)
    pcie, nvlink = (make_ring(4, link, 0.1, parts, 100.0) for link in (32e9, 300e9))
    assert pcie.efficiency < nvlink.efficiency
    shares = [find_spread(one)[0] / model_all_reduce(one).added_s for one in (pcie, nvlink)]
    assert shares[0] > shares[1] > 0
    assert find_spread(pcie)[1] > 0
    # Exact values are 0.564, 1.029 and 1.424.
    found = [expected_maximum(count) for count in (1, 2, 4, 8)]
    assert found == pytest.approx([0.0, 0.564, 1.029, 1.424], abs=0.03)


TRAINING = Setup(8)
A100 = Profile(Device("a100", "NVIDIA A100-SXM4-40GB"), "torch-2.6.0", "gpu", "measured", ())
UNKNOWN = Profile(Device("simulated-7"), "simulated", "device", "simulated", ())


def test_link_and_waiting_power_come_from_the_catalogue_unless_they_are_known():
    found = find_gpu_group(A100, TRAINING, 4)
    assert (found.gpus, found.link_bytes_per_s) == (4, 300e9)
    sheet = find_data_sheet("nvidia-a100-sxm4-40gb")
    assert max(sheet.idle_w or 0.0, 0.1 * sheet.power_limit_w) < found.waiting_w
    assert found.waiting_w < 0.5 * sheet.power_limit_w
    assert find_gpu_group(A100, TRAINING, 1) is None
    assert find_gpu_group(A100, TRAINING, 4, 32e9).link_bytes_per_s == 32e9
    idle = Observation(Trial(Network(), Setup()), energy_j=240.0, duration_s=2.0)
    measured = replace(A100, observations=(idle,))
    assert find_gpu_group(measured, TRAINING, 2).waiting_w == 120.0
    # Of an unknown device, it is a share of the power of its step.
    unknown = find_gpu_group(UNKNOWN, TRAINING, 4, 300e9)
    assert unknown.waiting_w is None
    step, _, part = replicate(group=unknown)
    assert 0 < part.waiting_w < step.energy_j / step.duration_s


def test_a_users_own_data_sheet_is_used(tmp_path):
    path = tmp_path / "card.toml"
    path.write_text(
        'name = "my-card"\nunits = 46\nclock_mhz = 1725\nbandwidth_gb_s = 448\nmemory_gib = 8\n'
        "power_limit_w = 220\nlink_gb_s = 31.5\ntflops = { fp32 = 20.3 }\n"
    )
    found = find_gpu_group(make_sheet_profile(read_data_sheet(path)), TRAINING, 2)
    assert found.link_bytes_per_s == 31.5e9 and 20 < found.waiting_w < 110


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
def test_what_no_gpus_train_together_is_refused(profile, setup, named):
    with pytest.raises(InputError, match=named):
        find_gpu_group(profile, setup, 4)


SETUP = Setup(10)
NET = make_family("cnn5:32,64,128,256", (3, 32, 32))
FOUR = GpuGroup(4, 300e9, 100.0)


def make_step(setup=SETUP, **changes):
    """Return an estimate of one GPU, whose layers take the same energy."""
    energy_j = 0.2 * setup.samples_per_step
    share_j = energy_j / len(NET.layers)
    layers = tuple(LayerEstimate(layer.name, layer.kind, share_j) for layer in NET.layers)
    step = Estimate(
        energy_j, (energy_j / 1.1, energy_j * 1.1), 0.95, energy_j / 200.0, 10**6, layers, 0.0,
        "simulated", "gpu", "test", "additive", device_energy_j=0.9 * energy_j, host_share=0.1,
        uncertainty_sources={"durations": 0.6, "powers": 0.4},
        duration_interval_s=(energy_j / 220.0, energy_j / 180.0), notes=("A note.",),
    )  # fmt: skip
    return replace(step, **changes)


def replicate(setup=SETUP, group=FOUR, net=NET, **changes):
    """Return the step of one GPU, of several, and what these add."""
    step = make_step(setup, **changes)
    found, _ = replicate_step(step, net, setup, group)
    return step, found, found.data_parallel


def test_one_gpu_is_the_plain_estimate():
    step = make_step()
    for group in (None, GpuGroup(1, 300e9)):
        assert replicate_step(step, NET, SETUP, group) == (step, 0.0)
    assert step.gpus == 1 and "data_parallel" not in step.to_dict()


def test_energy_is_that_of_every_gpu_and_the_all_reduce():
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
    # Estimators of whole networks tell nothing of layers.
    assert replicate(layers=(), blocks=())[2].exposed_s > 0


def test_gradients_are_fp32_weights_that_train():
    weights = sum(count_gradients(layer, SETUP) for layer in NET.layers)
    for setup in (SETUP, replace(SETUP, precision="bf16")):
        assert replicate(setup)[2].gradient_bytes == 4 * weights
    first, *others = NET.layers
    frozen = replace(NET, layers=(replace(first, trains=False), *others))
    less = replicate(net=frozen)[2].gradient_bytes
    assert less == 4 * (weights - count_gradients(first, SETUP))


def test_accumulated_gradients_are_reduced_once_an_update():
    (_, one, once), (_, four, often) = (replicate(replace(SETUP, accumulate=n)) for n in (1, 4))
    assert often.gradient_bytes == once.gradient_bytes
    assert often.all_reduce_s == pytest.approx(once.all_reduce_s)
    assert often.samples_per_step == 160
    assert often.added_s / four.duration_s < once.added_s / one.duration_s
    # Gradients that are only added up stay on their GPU.
    assert replicate(replace(SETUP, accumulate=0))[2].buckets == 0


def test_a_slow_link_makes_the_interval_wider():
    fast, slow = (replicate(group=GpuGroup(4, link, 100.0))[1] for link in (300e9, 0.05e9))
    widths = [found.interval_j[1] / found.interval_j[0] for found in (fast, slow)]
    assert slow.energy_j > fast.energy_j and slow.duration_s > fast.duration_s
    assert widths[1] > widths[0] > 1.0
    sources = slow.uncertainty_sources
    assert next(iter(sources)) == "all-reduce" and sum(sources.values()) == pytest.approx(1.0)
    low_s, high_s = slow.duration_interval_s
    assert low_s < slow.duration_s < high_s


def test_everything_that_is_modelled_says_so():
    _, found, part = replicate()
    _, measured, measured_part = replicate(provenance="measured", covers="gpu+cpu")
    assert measured.provenance == "modelled" and found.provenance == "simulated"
    assert measured_part.step_provenance == "measured" and part.provenance == "modelled"
    (note,) = [note for note in found.notes if note.startswith("Modelled, not measured: a ring")]
    assert "75.0 % of 300 GB/s" in note and "100 W" in note
    assert Estimate.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert "counted 4 times" in measured.notes[-1]
    full, found, _ = replicate(device_memory_bytes=10**6 + 1)
    assert full.fits_memory and found.fits_memory is False
    assert any(note.startswith("It would not fit") for note in found.notes)


def test_errors_that_rows_share_stay_shared():
    setups = [SETUP, SETUP, replace(SETUP, batch=20)]
    cov = np.array([[0.01, 0.01, 0.018], [0.01, 0.01, 0.018], [0.018, 0.018, 0.04]])
    steps = Estimates(tuple(map(make_step, setups)), np.diag(cov).copy(), cov, (0, 0, 2))
    found = replicate_steps(steps, [NET] * 3, setups, [None, FOUR, FOUR])
    gpus = np.array([1.0, 4.0, 4.0])
    assert np.diag(found.cov) == pytest.approx(found.variance)
    added = found.cov - np.outer(gpus, gpus) * steps.cov
    assert added[0] == pytest.approx(np.zeros(3))
    assert added[1, 2] == pytest.approx(np.sqrt(added[1, 1] * added[2, 2]))
    # Four GPUs take more than four times the energy of one, however uncertain that is.
    assert found.probability_ratio_within(0, [1], [4.0])[0] < 0.1
    assert found[1].interval_j == replicate()[1].interval_j
