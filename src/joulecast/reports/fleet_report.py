"""Report a fleet: its devices, its queue of campaigns, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from joulecast.reports.report import Report, ReportTable, Section
from joulecast.reports.report_values import count_things, format_time
from joulecast.store.campaigns import FAILED, READY, StoredCampaign, StoredDevice
from joulecast.units import format_duration, format_share


def report_fleet(
    devices: Sequence[StoredDevice],
    campaigns: Sequence[StoredCampaign],
    points: Mapping[str, int],
    *,
    is_up: bool,
) -> Report:
    """Return the report of a fleet.

    Args:
        devices: Its devices.
        campaigns: What was requested of them.
        points: Observations of each device's profile, by the profile's key.
        is_up: Whether a coordinator is running.
    """
    ready = sum(one.state == READY for one in devices)
    waiting = sum(one.is_open for one in campaigns)
    state = "The fleet is up" if is_up else "The fleet is down"
    ready_text = f"{ready} of {count_things(len(devices), 'device')} ready"
    faults = _list_faults(devices, campaigns)
    return Report(
        "fleet",
        "Fleet",
        f"{state}: {ready_text}, {count_things(waiting, 'open campaign')}.",
        "measured",
        (
            Section("Devices", (), (_list_devices(devices, points),)),
            Section(
                "Queue",
                () if campaigns else ("Nothing was requested yet.",),
                (_list_queue(campaigns),),
            ),
            Section("Faults", () if faults.rows else ("There are none.",), (faults,)),
        ),
        (
            ("Coordinator", "up" if is_up else "down"),
            ("Ready", f"{ready} of {len(devices)}"),
            ("Open campaigns", str(waiting)),
            ("Faults", str(len(faults.rows))),
        ),
    )


def _list_devices(devices: Sequence[StoredDevice], points: Mapping[str, int]) -> ReportTable:
    rows = tuple(
        (
            one.name,
            one.state,
            one.description or "–",
            f"{points.get(one.profile_key, 0):,}",
            format_time(one.changed_at_s),
        )
        for one in devices
    )
    columns = ("device", "state", "found", ">observations", "last change")
    return ReportTable("Devices of the fleet", columns, rows)


def _list_queue(campaigns: Sequence[StoredCampaign]) -> ReportTable:
    rows = tuple(
        (
            one.name,
            one.device,
            one.state,
            str(one.points),
            "–" if one.uncertainty_share is None else f"± {format_share(one.uncertainty_share)}",
            format_duration(one.elapsed_s),
            one.reason or "–",
        )
        for one in campaigns
    )
    columns = ("network", "device", "state", ">points", ">uncertainty", ">device time", "now")
    return ReportTable("Campaigns, the earliest request first", columns, rows)


def _list_faults(
    devices: Sequence[StoredDevice], campaigns: Sequence[StoredCampaign]
) -> ReportTable:
    broken = [(one.name, one.state, one.reason) for one in devices if one.state != READY]
    failed = [
        (f"{one.device}: {one.name}", one.state, one.reason)
        for one in campaigns
        if one.state == FAILED
    ]
    rows = tuple((*found[:2], found[2] or "–") for found in (*broken, *failed))
    return ReportTable("What is wrong", ("where", "state", "reason"), rows)
