"""Which GPUs can train together, how they are connected, and what they draw while they wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from joulecast.catalogue import find_data_sheet, make_sheet_profile, read_data_sheet
from joulecast.errors import InputError
from joulecast.estimators.data_parallel import find_gpu_group
from joulecast.records import Device, Network, Observation, Profile, Setup, Trial

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
