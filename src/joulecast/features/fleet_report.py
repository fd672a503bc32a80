"""Report a fleet: its devices, its queue of campaigns, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from joulecast.store.campaigns import FAILED, READY, StoredCampaign, StoredDevice
from joulecast.system.units import format_duration, format_share
from joulecast.views.report import Heading, Report, Table, Text, make_table
from joulecast.views.words import format_time, plural


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
    ready_text = f"{ready} of {plural(len(devices), 'device')} ready"
    faults = _list_faults(devices, campaigns)
    blocks = (
        Text(f"{state}: {ready_text}, {plural(waiting, 'open campaign')}.", "lead"),
        Heading("Devices"),
        _list_devices(devices, points),
        Heading("Queue"),
        _list_queue(campaigns) if campaigns else Text("Nothing was requested yet."),
        Heading("Faults"),
        faults if faults.rows else Text("There are none."),
    )
    return Report("Fleet", blocks, "measured", "fleet")


def _list_devices(devices: Sequence[StoredDevice], points: Mapping[str, int]) -> Table:
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
    return make_table(columns, rows, "Devices of the fleet")


def _list_queue(campaigns: Sequence[StoredCampaign]) -> Table:
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
    return make_table(columns, rows, "Campaigns, the earliest request first")


def _list_faults(devices: Sequence[StoredDevice], campaigns: Sequence[StoredCampaign]) -> Table:
    broken = [(one.name, one.state, one.reason) for one in devices if one.state != READY]
    failed = [
        (f"{one.device}: {one.name}", one.state, one.reason)
        for one in campaigns
        if one.state == FAILED
    ]
    rows = tuple((*found[:2], found[2] or "–") for found in (*broken, *failed))
    return make_table(("where", "state", "reason"), rows, "What is wrong")
