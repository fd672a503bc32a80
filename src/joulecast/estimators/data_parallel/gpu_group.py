"""Find out how the GPUs of a machine are connected, and what they draw while they wait."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.catalogue import match_data_sheet
from joulecast.errors import InputError
from joulecast.estimators.additive.datasheet_power import find_power_priors
from joulecast.estimators.additive.decompose import find_idle_power
from joulecast.records import DataSheet, Profile, Setup

# Runtimes that have nothing like DistributedDataParallel.
_ALONE = ("mnn", "onnx")


@dataclass(frozen=True)
class GpuGroup:
    """Equal GPUs of one machine.

    Attributes:
        link_bytes_per_s: Bandwidth from one of them to the others, in one direction.
        waiting_w: Power of one that waits; None if it is not known.
    """

    gpus: int
    link_bytes_per_s: float
    waiting_w: float | None = None


def find_gpu_group(
    profile: Profile, setup: Setup, gpus: int, link_bytes_per_s: float | None = None
) -> GpuGroup | None:
    """Return GPUs like that of a profile, connected as the catalogue says; None for one.

    Args:
        profile: Profile of one of them.
        setup: How each of them trains.
        gpus: Their number.
        link_bytes_per_s: Bandwidth between them instead of the catalogue's.

    Raises:
        InputError: The device is not a GPU, the network is not trained, or the bandwidth is not
            known.
    """
    if gpus == 1:
        return None
    name = profile.device.name
    if profile.covers.startswith("cpu") or profile.runtime.startswith(_ALONE):
        raise InputError(
            f"--gpus {gpus} needs a GPU that PyTorch trains on, and {name} with {profile.runtime} "
            "is not one: give another device"
        )
    if setup.phase == "inference":
        raise InputError(
            f"--gpus {gpus} is for training: GPUs that run inference share nothing, so each takes "
            "the energy and time of one; leave --gpus and --parallel out"
        )
    sheet = _find_sheet(profile)
    link = link_bytes_per_s or (sheet and sheet.link_bytes_per_s)
    if not link:
        raise InputError(
            f"the bandwidth between GPUs of {name} is not known: give --link-gb-s, in GB/s and one "
            "direction (450 for NVLink of an H100, 300 of an A100, 32 for PCIe 4.0, 16 for 3.0)"
        )
    return GpuGroup(gpus, link, _find_waiting_power(profile, sheet))


def _find_sheet(profile: Profile) -> DataSheet | None:
    device = profile.device
    return profile.data_sheet or match_data_sheet(device.processor) or match_data_sheet(device.name)


def _find_waiting_power(profile: Profile, sheet: DataSheet | None) -> float | None:
    """Return the power of the idle device at active clocks, as between two steps."""
    measured_w = find_idle_power(profile.observations)
    if measured_w is not None or sheet is None:
        return measured_w
    median_w, _ = find_power_priors(sheet).idle_w
    return median_w
