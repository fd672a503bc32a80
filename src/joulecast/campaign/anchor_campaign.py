"""Measure the anchors of a GPU alone, to narrow what its data sheet says.

    products in each precision of the data sheet   square, tall, wide, and many small ones at once
    convolutions in each precision                 what layers of ordinary sizes reach
    a copy, an empty launch                        bandwidth, and what a kernel costs at least
    eager steps of two small networks              how fast the host issues kernels

Durations of all of them take a few seconds of device time. Energies, of a square product in
each precision and of the copy, take one more window of the meter each. What was measured before is
not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from joulecast.atlas.anchors import (
    make_anchor_trials,
    make_host_trials,
    make_layer_trials,
    make_shape_trials,
)
from joulecast.atlas.device_scale import DeviceScale
from joulecast.campaign.anchor_rates import (
    MeasuredPeaks,
    find_scale,
    measure_anchor,
    read_peaks,
)
from joulecast.campaign.campaign import Progress
from joulecast.campaign.campaign_record import STOPPED_BY_REQUEST
from joulecast.campaign.trial_log import ObservationLog, TrialLog, describe_profile
from joulecast.errors import MeasurementError
from joulecast.measurer import TrialMeasurer
from joulecast.records import FLOAT_PRECISIONS, DataSheet, Trial

ANCHORS_NAME = "anchors"
_STOPPED = "every anchor was measured"


@dataclass(frozen=True)
class AnchorRun:
    """What measuring the anchors of a device did.

    Attributes:
        trials: Anchors of which the device has a duration now.
        with_energy: Those of them whose energy was measured.
        new: Number of measurements of this run.
        peaks: The fastest rates seen.
        skipped: Anchors that the device refused, with the reasons.
        disturbances: How often something disturbed a measurement, by name.
    """

    profile_key: str
    trials: int
    with_energy: int
    new: int
    elapsed_s: float
    stopped: str
    peaks: MeasuredPeaks
    skipped: tuple[str, ...] = ()
    disturbances: Mapping[str, int] = field(default_factory=dict)


def run_anchors(
    measurer: TrialMeasurer,
    log: ObservationLog,
    sheet: DataSheet,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    is_stop_requested: Callable[[], bool] = lambda: False,
) -> AnchorRun:
    """Measure the anchors of a device that were not measured yet, and the idle device.

    Args:
        measurer: Measures trials.
        log: Stores observations as they are made.
        sheet: The device's data sheet, which says the precisions that it has.
        on_progress: Called before every measurement and at the end.
        is_stop_requested: Asked before every measurement; True ends the campaign.

    Raises:
        MeasurementError: The device refused all anchors.
    """
    started_s, key = measurer.now(), describe_profile(measurer).key
    log_ = TrialLog(measurer, log, list(log.load_observations(key)))
    scale, modes = choose_anchor_scale(find_scale(measurer), sheet), measurer.runtime.modes
    planned = _plan(scale, modes)
    left = _find_left(log_, planned)
    count, stopped = len(left), _STOPPED

    def tell(done: int, reason: str) -> None:
        elapsed_s = measurer.now() - started_s
        left_s = elapsed_s * (count - done) / done if done else None
        if on_progress is not None:
            on_progress(Progress(done, 0.0, elapsed_s, left_s, reason, count))

    for done, (trial, with_energy) in enumerate(left):
        if is_stop_requested():
            stopped = STOPPED_BY_REQUEST
            break
        tell(done, f"anchor in {trial.setup.precision}")
        measure_anchor(log_, trial, with_energy=with_energy)
        if done == 0 and log_.new:
            # After the first load, when clock rates are up as they are between steps.
            log_.measure_idle()
    tell(count, stopped)
    measured = {one.trial for one in log_.believed if one.duration_s} & planned.keys()
    metered = {one.trial for one in log_.believed if one.energy_j} & planned.keys()
    if not measured and log_.skipped:
        raise MeasurementError(f"no anchor could be measured: {log_.skipped[0]}")
    return AnchorRun(
        key,
        len(measured),
        len(metered),
        log_.new,
        measurer.now() - started_s,
        stopped,
        read_peaks(log_.believed, scale, modes),
        tuple(log_.skipped),
        dict(measurer.disturbances),
    )


def choose_anchor_scale(scale: DeviceScale, sheet: DataSheet) -> DeviceScale:
    """Return a scale with the precisions of a data sheet, and fp16 only if it has no bf16."""
    assumed = {**scale.flops_per_s, "fp16": scale.flops_per_s.get("bf16", 0.0)}
    wanted = [
        name
        for name in FLOAT_PRECISIONS
        if name in sheet.flops_per_s and not (name == "fp16" and "bf16" in sheet.flops_per_s)
    ]
    return replace(scale, flops_per_s={name: assumed[name] for name in wanted})


def _plan(scale: DeviceScale, modes: tuple[str, ...]) -> dict[Trial, bool]:
    """Return the anchors, and whether the energy of each is measured."""
    *large, tiny = make_anchor_trials(scale, modes)
    shapes, layers = make_shape_trials(scale, modes), make_layer_trials(scale, modes)
    others = (*shapes, *layers, tiny, *make_host_trials(modes))
    return {**dict.fromkeys(large, True), **dict.fromkeys(others, False)}


def _find_left(log: TrialLog, planned: Mapping[Trial, bool]) -> list[tuple[Trial, bool]]:
    timed = {one.trial for one in log.stored if one.duration_s}
    metered = {one.trial for one in log.stored if one.energy_j}
    return [
        (trial, with_energy)
        for trial, with_energy in planned.items()
        if trial not in (metered if with_energy else timed)
    ]
