"""Measure the peaks of a device at the start of a campaign, and read them from observations.

    product     FLOP/s of one large matrix product, for each precision
    copy        bytes per second of one large copy
    tiny        seconds per launch of a layer that is too small to matter

They take about two seconds and are measured once for each device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from joulecast.atlas.anchors import make_anchor_trials
from joulecast.atlas.device_scale import GIB, DeviceScale, assume_scale
from joulecast.campaign.trial_log import TrialLog
from joulecast.devices import multiplies_bf16
from joulecast.errors import ContaminatedError
from joulecast.kinds import network_work
from joulecast.measurer import TrialMeasurer
from joulecast.records import PHASES, Device, Observation, Trial

# A simulated device may have no limit.
_UNLIMITED_MEMORY_BYTES = 16 * GIB


@dataclass(frozen=True)
class MeasuredPeaks:
    """The fastest rates seen on a device; None if they were not measured.

    Attributes:
        flops_per_s: By precision.
        launch_s: Time of a launch that computes nothing worth mentioning.
    """

    flops_per_s: Mapping[str, float]
    bytes_per_s: float | None = None
    launch_s: float | None = None


def find_scale(measurer: TrialMeasurer) -> DeviceScale:
    """Return what is assumed about a measurer's device before anything was measured."""
    return assume_device_scale(measurer.runtime.device, measurer.runtime.modes)


def assume_device_scale(device: Device, modes: tuple[str, ...]) -> DeviceScale:
    """Return what is assumed about a device whose runtime has these modes."""
    memory_bytes = device.memory_bytes or _UNLIMITED_MEMORY_BYTES
    return assume_scale("graph" in modes, memory_bytes, has_bf16=multiplies_bf16())


def measure_anchors(trials: TrialLog, precision: str, phase: str = "train") -> None:
    """Time the anchors of one precision and phase that were never measured on this device.

    An anchor that the device refuses, or that cannot be measured undisturbed, is left out: other
    observations show the rates as well, only less directly.
    """
    seen = {one.trial for one in trials.stored}
    for trial in list_anchors(trials.measurer, precision, phase):
        if trial not in seen:
            measure_anchor(trials, trial, with_energy=False)
    # They are measured for every target, and count as points of none.
    trials.new = 0


def measure_anchor(trials: TrialLog, trial: Trial, *, with_energy: bool) -> None:
    """Measure an anchor, or note why it is left out."""
    try:
        trials.measure(trial, with_energy, reason="anchor")
    except ContaminatedError as error:
        trials.skipped.append(f"anchor: {error}")


def list_anchors(
    measurer: TrialMeasurer, precision: str, phase: str = "train"
) -> tuple[Trial, ...]:
    """Return the anchors that a campaign with this precision and phase needs."""
    scale = find_scale(measurer)
    own = {name: rate for name, rate in scale.flops_per_s.items() if name == precision}
    return make_anchor_trials(replace(scale, flops_per_s=own), measurer.runtime.modes, phase)


def read_peaks(
    observations: Iterable[Observation], scale: DeviceScale, modes: tuple[str, ...]
) -> MeasuredPeaks:
    """Return the peaks that the anchors among the observations show.

    Args:
        observations: Observations of one device.
        scale: What is assumed about the device.
        modes: Modes of its runtime.
    """
    anchors = {trial for phase in PHASES for trial in make_anchor_trials(scale, modes, phase)}
    flops_per_s: dict[str, float] = {}
    bytes_per_s = launch_s = None
    for one in observations:
        if not one.duration_s or one.trial not in anchors:
            continue
        work = network_work(one.trial.network, one.trial.setup).total
        duration_s = one.duration_s / one.trial.execution.copies
        precision = one.trial.setup.precision
        if not work.flops:
            bytes_per_s = max(bytes_per_s or 0.0, work.size_bytes / duration_s)
        elif one.trial.setup.batch == 1:
            launch_s = min(launch_s or duration_s, duration_s / max(1.0, work.launches))
        else:
            rate = max(flops_per_s.get(precision, 0.0), work.flops / duration_s)
            flops_per_s[precision] = rate
    return MeasuredPeaks(flops_per_s, bytes_per_s, launch_s)


def apply_peaks(scale: DeviceScale, peaks: MeasuredPeaks) -> DeviceScale:
    """Return a scale with measured rates in place of assumed ones."""
    return replace(
        scale,
        flops_per_s={**scale.flops_per_s, **peaks.flops_per_s},
        bytes_per_s=peaks.bytes_per_s or scale.bytes_per_s,
        launch_s=peaks.launch_s or scale.launch_s,
    )
