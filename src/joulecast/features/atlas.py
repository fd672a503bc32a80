"""Profile a device without a net: measure an atlas for any network, or anchors alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from joulecast.agent.addresses import is_remote
from joulecast.campaign import Progress
from joulecast.campaign.anchors import (
    ANCHORS_NAME,
    assume_device_scale,
    read_peaks,
    run_anchors,
)
from joulecast.campaign.atlas import (
    AtlasLimits,
    run_atlas,
    summarise_atlas,
)
from joulecast.campaign.trial_log import (
    ATLAS_NAME,
    CampaignRecord,
    describe_profile,
    record_campaign,
)
from joulecast.estimators import check_estimator
from joulecast.estimators.base import Estimator, Fitted
from joulecast.estimators.fitted_profile import match_device_sheet
from joulecast.estimators.plausibility import drop_contradicted
from joulecast.features.atlas_process import AtlasRequest, measure_in_workers
from joulecast.features.measurers import lock_device, open_any_measurer
from joulecast.features.options import MeasureOptions, ProfileOptions
from joulecast.features.profile_report import AnchorProfile, AtlasProfile
from joulecast.features.profiles import identify_profile
from joulecast.features.transfer_sources import make_estimator
from joulecast.measurer.base import TrialMeasurer
from joulecast.records import MODES, Observation, Profile
from joulecast.records.data_sheet import DataSheet
from joulecast.runtimes import find_hardware
from joulecast.store import open_store
from joulecast.system.errors import InputError, MissingError


def profile_atlas(
    measuring: MeasureOptions,
    profiling: ProfileOptions,
    store: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> AtlasProfile:
    """Measure an atlas of a device, fit an estimator, and return what is known now.

    Raises:
        MeasurementError: The device could not be measured, or another campaign runs on it.
    """
    limits = AtlasLimits(
        seconds=profiling.limit_s,
        points=profiling.points,
        retries_refused=profiling.retry_refused,
        phase=profiling.phase,
    )
    # Before anything is measured: an unknown estimator, or a store that cannot be opened.
    check_estimator(profiling.estimator)
    started_at_s = time.time()
    # Never opened: the device is left to the process that measures.
    own = describe_profile(open_any_measurer(measuring))
    if profiling.from_:
        estimator = make_estimator(profiling.estimator, profiling.from_, own, store)
    with lock_device(measuring.on) as lock_file, open_store(store) as opened:
        with record_campaign(opened, own, ATLAS_NAME) as record:
            tell = partial(_tell, record, on_progress)
            # A database in memory cannot be shared with another process; an agent is one already.
            is_here = not is_remote(measuring.on) and find_hardware(measuring.on) is not None
            if is_here and opened.place != ":memory:":
                request = AtlasRequest(measuring, limits, store, record.key)
                run = measure_in_workers(request, tell, lock_file)
            else:
                with open_any_measurer(measuring) as measurer:
                    run = run_atlas(
                        measurer,
                        opened,
                        limits,
                        on_progress=tell,
                        is_stop_requested=record.is_stop_requested,
                    )
            record.finish(run.stopped)
        if not run.profile_key:
            raise MissingError("nothing was measured yet: run the same command again")
        if not profiling.from_:
            own = opened.load_profile(run.profile_key)
            estimator = make_estimator(profiling.estimator, (), own, store)
        observations = drop_contradicted(opened.load_observations(run.profile_key))
        if on_progress is not None:
            text = f"fitting {estimator.name} to {len(observations)} observations"
            on_progress(Progress(len(observations), 0.0, run.elapsed_s, 0.0, text))
        fitted = _fit(estimator, observations)
        opened.save_fit(run.profile_key, estimator.name, fitted.to_dict())
        learnt = opened.load_profile(run.profile_key)
    # Workers that died could not tell how many trials are new.
    trials = {
        one.trial for one in observations if one.taken_at_s >= started_at_s and not one.refusal
    }
    run = replace(run, new=sum(bool(trial.network.layers) for trial in trials))
    modes = MODES if any(one.trial.mode == "graph" for one in learnt.observations) else ("eager",)
    peaks = read_peaks(learnt.observations, assume_device_scale(learnt.device, modes), modes)
    command = f"joulecast estimate NET --device {identify_profile(learnt, store)}"
    command += " --inference" if profiling.phase == "inference" else ""
    return AtlasProfile(learnt, command, run, summarise_atlas(learnt.observations, peaks))


def _tell(
    record: CampaignRecord, on_progress: Callable[[Progress], None] | None, progress: Progress
) -> None:
    """Record progress, and pass it on."""
    record.store_progress(progress)
    if on_progress is not None:
        on_progress(progress)


def _fit(estimator: Estimator, observations: Sequence[Observation]) -> Fitted:
    try:
        return estimator.fit(observations)
    except MissingError as error:
        raise MissingError(
            f"{len(observations)} observations are stored, too few to fit {estimator.name}: run "
            "the same command again to continue"
        ) from error


def profile_anchors(
    measuring: MeasureOptions,
    store: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> AnchorProfile:
    """Measure the anchors of a GPU, and return its rates beside those of its data sheet.

    Raises:
        InputError: The device is a processor.
        MissingError: The catalogue has no data sheet of the device.
        MeasurementError: The device could not be measured, or another campaign runs on it.
    """
    measurer = open_any_measurer(measuring)
    own = describe_profile(measurer)
    # Before anything is measured.
    sheet = _find_sheet(measurer, own, measuring.on)
    with measurer, lock_device(measuring.on), open_store(store) as opened:
        with record_campaign(opened, own, ANCHORS_NAME) as record:
            run = run_anchors(
                measurer,
                opened,
                sheet,
                on_progress=partial(_tell, record, on_progress),
                is_stop_requested=record.is_stop_requested,
            )
            record.finish(run.stopped)
        profile = opened.load_profile(own.key)
    command = f"joulecast estimate NET --device {identify_profile(profile, store)}"
    return AnchorProfile(profile, command, run, sheet)


def _find_sheet(measurer: TrialMeasurer, own: Profile, on: str) -> DataSheet:
    device = measurer.runtime.device
    if "graph" not in measurer.runtime.modes:
        raise InputError(
            f"anchors narrow the data sheet of a GPU, and {device.name} is a processor: give "
            f"--on cuda:0, or measure it with `joulecast profile NET --on {on}`"
        )
    sheet = match_device_sheet(device)
    if sheet is None:
        called = device.name if device.processor in ("", own.runtime) else device.processor
        raise MissingError(
            f"the catalogue has no data sheet of {called!r}: describe it in a TOML file with "
            f'aliases = ["{called}"], add that with `joulecast devices --add FILE.toml`, and run '
            "the same command again"
        )
    return sheet
