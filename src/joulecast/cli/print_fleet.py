"""Print what ``joulecast fleet`` finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from joulecast.cli.progress import show_bar
from joulecast.cli.setups import describe_setup, is_inference, name_activity
from joulecast.cli.streams import write_message
from joulecast.cli.terminal import (
    Json,
    format_interval,
    format_level,
    format_optional,
    label_provenance,
    make_console,
    plural,
    print_notes,
    print_table,
)
from joulecast.features.fleet import FleetStatus
from joulecast.features.profiles import SHORT_KEY
from joulecast.fleet.fleet_devices import DeviceCheck
from joulecast.fleet.fleet_forecast import DeviceForecast, FleetEstimate
from joulecast.records import describe_inference, name_step
from joulecast.store.campaigns import DONE, RUNNING, StoredCampaign, StoredDevice
from joulecast.units import format_duration, format_energy, format_share

# Probabilities that are not worth printing.
_IMPOSSIBLE, _CERTAIN = 0.0005, 0.9995
_NEXT = "joulecast fleet profile NET --devices all"


def print_checks(checks: Sequence[DeviceCheck]) -> None:
    """Print what the devices of a fleet answered."""
    console = make_console()
    rows = [(one.device.name, one.state, one.description or one.device.address) for one in checks]
    print_table(console, ("device", "state", "~found"), rows)
    print_notes(console, [f"{one.device.name}: {one.reason}" for one in checks if one.reason])
    ready = sum(one.is_ready for one in checks)
    console.print(f"{ready} of {plural(len(checks), 'device')} ready. Next, elsewhere: {_NEXT}")


def describe_checks(checks: Sequence[DeviceCheck]) -> Json:
    """Return what the devices of a fleet answered as JSON values."""
    return {
        "devices": [
            {
                "name": one.device.name,
                "state": one.state,
                "reason": one.reason,
                "profile_key": one.profile_key,
                "description": one.description,
            }
            for one in checks
        ]
    }


def print_event(device: str, text: str) -> None:
    """Print what happened to a device, on stderr."""
    write_message(f"{time.strftime('%H:%M:%S')}  {device}: {text}")


@contextmanager
def show_fleet() -> Iterator[Callable[[Sequence[StoredCampaign]], None]]:
    """Yield a function that shows how far campaigns are."""
    with show_bar() as update:

        def tell(campaigns: Sequence[StoredCampaign]) -> None:
            done = sum(one.state == DONE for one in campaigns)
            running = [one for one in campaigns if one.state == RUNNING]
            points = sum(one.points for one in campaigns)
            detail = f"{running[0].device}: {running[0].reason}" if running else ""
            text = f"{done} of {plural(len(campaigns), 'device')}  {plural(points, 'point')}"
            update(done / len(campaigns), text, detail)

        yield tell


def print_campaigns(campaigns: Sequence[StoredCampaign]) -> None:
    """Print how campaigns ended."""
    console = make_console()
    rows = [_make_campaign_row(one, is_up=True) for one in campaigns]
    columns = ("device", "state", ">points", ">±", ">time", "~why")
    print_table(console, columns, rows)
    done = sum(one.state == DONE for one in campaigns)
    console.print(f"{done} of {plural(len(campaigns), 'device')} profiled.")
    name = campaigns[0].name if campaigns else "NET"
    console.print(f"Next: joulecast fleet estimate {name} --steps 1000", soft_wrap=True)


def describe_status(status: FleetStatus) -> Json:
    """Return the state of a fleet as JSON values."""
    return {
        "is_up": status.is_up,
        "devices": [
            {**asdict(one), "observations": status.points.get(one.profile_key, 0)}
            for one in status.devices
        ],
        "campaigns": [asdict(one) for one in status.campaigns],
    }


def print_status(status: FleetStatus) -> None:
    """Print the devices of a fleet and their campaigns."""
    console = make_console()
    rows = [_make_device_row(one, status) for one in status.devices]
    columns = ("device", "state", ">observations", "profile", "~found")
    title = "The fleet is up." if status.is_up else "The fleet is not up: joulecast fleet up FILE"
    print_table(console, columns, rows, title=title)
    if status.campaigns:
        made = [(one.name, *_make_campaign_row(one, status.is_up)) for one in status.campaigns]
        print_table(console, ("network", "device", "state", ">points", ">±", ">time", "~why"), made)
    shown = {one.reason for one in status.campaigns}
    unshown = [one for one in status.devices if one.reason and one.reason not in shown]
    print_notes(console, [f"{one.name}: {one.reason}" for one in unshown])


def print_forecast(found: FleetEstimate) -> None:
    """Print what a run takes on every device of a fleet."""
    console = make_console()
    verb, count = name_activity(found.setup), plural(found.steps, name_step(found.setup))
    limit = "" if found.deadline_s is None else f" within {format_duration(found.deadline_s)}"
    title = f"{verb} {found.network} ({describe_setup(found.setup)}) for {count}{limit}"
    columns = [
        "device", ">energy", format_level(found.level), ">time", ">battery", "finishes", "~why not",
    ]  # fmt: skip
    rows = [list(_make_forecast_row(one)) for one in found.devices]
    if is_inference(found.setup):
        place = columns.index(">time") + 1
        columns.insert(place, ">latency")
        for row, one in zip(rows, found.devices, strict=True):
            row.insert(place, format_optional(_find_latency(one, found.steps), format_duration))
    print_table(console, columns, rows, title=title)
    able = [one for one in found.devices if one.can_finish]
    console.print(
        f"{len(able)} of {plural(len(found.devices), 'device')} can finish, with a probability of "
        f"at least {format_share(found.confidence)}."
    )


def describe_forecast(found: FleetEstimate) -> Json:
    """Return what a run takes on every device of a fleet as JSON values."""
    data = found.to_dict()
    for row, one in zip(data["devices"], found.devices, strict=True):
        latency_s = _find_latency(one, found.steps)
        row.update(describe_inference(found.setup, one.step_energy_j, latency_s))
    return data


def _find_latency(one: DeviceForecast, steps: int) -> float | None:
    return None if one.duration_s is None else one.duration_s / steps


def _make_device_row(device: StoredDevice, status: FleetStatus) -> tuple[str, ...]:
    count = status.points.get(device.profile_key, 0)
    address = str(device.payload.get("address", ""))
    key = device.profile_key[:SHORT_KEY] or "-"
    return device.name, device.state, f"{count:,}", key, device.description or address


def _make_campaign_row(campaign: StoredCampaign, is_up: bool) -> tuple[str, ...]:
    state = "stopped" if campaign.state == RUNNING and not is_up else campaign.state
    share = format_optional(campaign.uncertainty_share or None, format_share)
    elapsed = format_duration(campaign.elapsed_s) if campaign.elapsed_s else "-"
    return campaign.device, state, f"{campaign.points:,}", share, elapsed, campaign.reason


def _make_forecast_row(one: DeviceForecast) -> tuple[str, ...]:
    answer = {True: "yes", False: "no", None: "unknown"}[one.can_finish]
    if one.probability is not None and _IMPOSSIBLE < one.probability < _CERTAIN:
        answer += f", {format_share(one.probability)}"
    if one.energy_j is None or one.interval_j is None:
        return one.name, "-", "-", "-", "-", answer, one.reason
    return (
        one.name,
        format_energy(one.energy_j) + label_provenance(one.provenance),
        format_interval(one.interval_j, format_energy),
        format_optional(one.duration_s, format_duration),
        format_optional(one.battery_share, format_share),
        answer,
        f"{one.obstacle}: {one.reason}" if one.obstacle else "",
    )
