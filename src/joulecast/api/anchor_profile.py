"""Measure the anchors of a GPU, which narrow the estimates that start from its data sheet."""

from __future__ import annotations

from collections.abc import Callable

from joulecast.api.measurers import lock_device, open_any_measurer
from joulecast.api.options import MeasureOptions
from joulecast.campaign import Progress
from joulecast.campaign.anchors import ANCHORS_NAME, AnchorRun, run_anchors
from joulecast.campaign.trial_log import describe_profile, record_campaign
from joulecast.errors import InputError, MissingError
from joulecast.estimators.sheet_start import match_device_sheet
from joulecast.measurer import TrialMeasurer
from joulecast.records import DataSheet, Profile
from joulecast.store import open_store


def profile_anchors(
    measuring: MeasureOptions,
    store: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[AnchorRun, DataSheet, Profile]:
    """Measure the anchors of a GPU; return what was done, its data sheet and its profile.

    Args:
        measuring: Device, meter and rounds.
        store: Path or URL of the store that receives every observation at once.
        on_progress: Called before every measurement and at the end.

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

            def tell(progress: Progress) -> None:
                record.store_progress(progress)
                if on_progress is not None:
                    on_progress(progress)

            run = run_anchors(
                measurer,
                opened,
                sheet,
                on_progress=tell,
                is_stop_requested=record.is_stop_requested,
            )
            record.finish(run.stopped)
        return run, sheet, opened.load_profile(own.key)


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
