"""Profile the devices of a fleet, and forecast a run on each of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from joulecast.estimators import check_estimator
from joulecast.features.estimate import estimate_net
from joulecast.features.nets import ResolvedNet
from joulecast.features.options import EstimateOptions, ProfileOptions
from joulecast.features.profiles import SHORT_KEY
from joulecast.fleet import fleet_campaigns
from joulecast.fleet.fleet_campaigns import CampaignRequest
from joulecast.fleet.fleet_devices import DeviceCheck, check_devices, read_fleet
from joulecast.fleet.fleet_forecast import FleetEstimate, RunQuestion, forecast_fleet
from joulecast.records import Estimate, Json, Setup
from joulecast.store import Store, open_store
from joulecast.store.campaigns import (
    AWAY,
    FAILED,
    OPEN_STATES,
    READY,
    RUNNING,
    WAITING,
    StoredCampaign,
    StoredDevice,
)
from joulecast.store.places import IN_MEMORY, choose_place
from joulecast.system.errors import DeviceAwayError, InputError, MissingError
from joulecast.system.units import format_duration, format_share
from joulecast.views.report import Block, Report, Reportable, Text, make_table
from joulecast.views.words import format_optional, format_time, plural

_NOT_UP = "start it with `joulecast fleet up FILE`, where FILE lists its devices"
# A command that only looks whether a fleet is up holds its claim for a moment.
_CLAIM_WAIT_S = 2.0
_POLL_S = 0.5
# Each uses up to 16 connections, and a PostgreSQL server has 100 by default.
_MOST_WORKERS = 4
_CHECK_UP_S = 5.0


@dataclass(frozen=True)
class FleetStatus(Reportable):
    """What the store knows about a fleet."""

    is_up: bool  # whether a coordinator is running
    devices: tuple[StoredDevice, ...]
    campaigns: tuple[StoredCampaign, ...]
    points: Mapping[str, int]  # observations of each device's profile, by the profile's key

    def to_dict(self) -> Json:
        devices = [
            {**asdict(one), "observations": self.points.get(one.profile_key, 0)}
            for one in self.devices
        ]
        campaigns = [asdict(one) for one in self.campaigns]
        return {"is_up": self.is_up, "devices": devices, "campaigns": campaigns}

    def report(self) -> Report:
        ready = sum(one.state == READY for one in self.devices)
        waiting = sum(one.is_open for one in self.campaigns)
        state = "up" if self.is_up else "not up (joulecast fleet up FILE)"
        lead = (
            f"The fleet is {state}: {ready} of {plural(len(self.devices), 'device')} ready, "
            f"{plural(waiting, 'open campaign')}."
        )
        devices = [
            (
                one.name,
                one.state,
                f"{self.points.get(one.profile_key, 0):,}",
                one.profile_key[:SHORT_KEY] or "-",
                format_time(one.changed_at_s),
                one.description or str(one.payload.get("address", "")),
            )
            for one in self.devices
        ]
        columns = ("device", "state", ">observations", "profile", "last change", "~found")
        queue: Block = Text("Nothing was requested yet.")
        if self.campaigns:
            rows = [(one.name, *list_campaign_cells(one, self.is_up)) for one in self.campaigns]
            title = "Campaigns, the earliest request first"
            queue = make_table(("network", *CAMPAIGN_COLUMNS), rows, title)
        faults = [(one.name, one.state, one.reason) for one in self.devices if one.state != READY]
        faults += [
            (f"{one.device}: {one.name}", one.state, one.reason)
            for one in self.campaigns
            if one.state == FAILED
        ]
        wrong: Block = Text("Nothing is wrong.")
        if faults:
            wrong = make_table(("where", "state", "~reason"), faults, "What is wrong")
        table = make_table(columns, devices, "Devices of the fleet")
        return Report("", (Text(lead, "lead"), table, queue, wrong), "measured", "fleet")


CAMPAIGN_COLUMNS = ("device", "state", ">points", ">±", ">time", "~why")


def list_campaign_cells(campaign: StoredCampaign, is_up: bool = True) -> tuple[str, ...]:
    """Return the cells of ``CAMPAIGN_COLUMNS``."""
    state = "stopped" if campaign.state == RUNNING and not is_up else campaign.state
    share = format_optional(campaign.uncertainty_share or None, format_share)
    elapsed = format_duration(campaign.elapsed_s) if campaign.elapsed_s else "-"
    return campaign.device, state, f"{campaign.points:,}", share, elapsed, campaign.reason


def run_fleet(
    file: str,
    store: str | None = None,
    *,
    workers: int | None = None,
    patience_s: float = 120.0,
    on_start: Callable[[Sequence[DeviceCheck]], None],
    on_event: Callable[[str, str], None],
) -> None:
    """Run the campaigns of a fleet file until the process is interrupted.

    Args:
        file: The fleet file.
        store: Path or URL of the store.
        workers: Processes that drive the agents; by default one per processor, but at most four.
        patience_s: How long a device may be away before it is parked.
        on_start: Called once with what the devices answered.
        on_event: Called with the name of a device and what happened to it.

    Raises:
        InputError: Another process runs the fleet of this store.
        DeviceAwayError: No device answers, and nothing is left to do.
    """
    devices = read_fleet(file)
    place = choose_place(store)
    if place == IN_MEMORY:
        raise InputError("a fleet needs a store that its workers share: give a file or a URL")
    if "://" not in place:
        # Workers may have another current folder.
        place = str(Path(place).absolute())
    with open_store(place) as opened, opened.fleet.claim_fleet(_CLAIM_WAIT_S) as is_free:
        if not is_free:
            raise InputError(
                f"another process runs the fleet of the store {opened.place}: stop it, or choose "
                "another store with --store or JOULECAST_STORE"
            )
        opened.fleet.replace_devices({one.name: one.to_dict() for one in devices})
        checks = check_devices(devices)
        for one in checks:
            found = {"profile_key": one.profile_key, "description": one.description}
            opened.fleet.change_device(one.device.name, one.state, one.reason, **found)
        # Agents may still be busy with what a coordinator before this one asked for.
        has_work = opened.fleet.list_campaigns(states=OPEN_STATES)
        if not has_work and not any(one.is_ready for one in checks):
            first = checks[0]
            others = f" (and {len(checks) - 1} others)" if len(checks) > 1 else ""
            raise DeviceAwayError(
                f"no device of the fleet is ready: {first.device.name}{others}: {first.reason}"
            )
        workers = workers or min(_MOST_WORKERS, os.cpu_count() or 1)
        with fleet_campaigns.open_cluster(devices, place, workers, patience_s) as submit:
            on_start(checks)
            fleet_campaigns.run_campaigns(opened.fleet, devices, submit, on_event)


def find_fleet_status(store: str | None = None) -> FleetStatus:
    """Return what the store knows about a fleet, or raise MissingError if it has none."""
    with _open_fleet(store) as opened:
        counts = {one.key: one.observation_count for one in opened.list_profiles()}
        fleet = opened.fleet
        return FleetStatus(fleet.is_up(), fleet.list_devices(), fleet.list_campaigns(), counts)


def request_profiles(
    net: ResolvedNet,
    setup: Setup,
    devices: Sequence[str],
    profiling: ProfileOptions,
    rounds: int,
    store: str | None = None,
) -> str:
    """Request a profiling campaign on devices of a fleet that is up; return the request's key.

    Raises:
        InputError: The fleet has no device of that name.
        MissingError: The fleet is not up.
    """
    # Now, before devices are asked in vain.
    check_estimator(profiling.estimator)
    with _open_fleet(store) as opened:
        known = [one.name for one in opened.fleet.list_devices()]
        names = known if tuple(devices) == ("all",) else devices
        for name in names:
            if name not in known:
                choices = f"give all, or some of {', '.join(known)}"
                raise InputError(f"the fleet has no device {name!r}: {choices}")
        if not opened.fleet.is_up():
            raise MissingError(f"the fleet is not up: {_NOT_UP}")
        request = CampaignRequest(
            net.network,
            setup,
            net.draw_members(),
            profiling.acquisition,
            profiling.interval_share,
            profiling.estimator,
            rounds,
            profiling.points,
            profiling.limit_s,
        )
        return opened.fleet.add_request(net.network.name, request.to_dict(), names)


def follow_request(
    key: str,
    store: str | None = None,
    on_change: Callable[[Sequence[StoredCampaign]], None] | None = None,
    waits: bool = True,
) -> tuple[StoredCampaign, ...]:
    """Wait until the campaigns of a request have ended or are parked; return them.

    ``on_change`` is called with the campaigns twice a second.

    Raises:
        MissingError: The fleet went down.
    """
    with _open_fleet(store) as opened:
        check_s = time.monotonic() + _CHECK_UP_S
        while True:
            campaigns = opened.fleet.list_campaigns(key)
            if on_change is not None:
                on_change(campaigns)
            if not waits or not any(one.state in (WAITING, RUNNING, AWAY) for one in campaigns):
                return campaigns
            if time.monotonic() > check_s:
                check_s = time.monotonic() + _CHECK_UP_S
                if not opened.fleet.is_up():
                    raise MissingError(f"the fleet went down; to resume, {_NOT_UP}")
            time.sleep(_POLL_S)


def forecast_net(
    net: ResolvedNet, setup: Setup, question: RunQuestion, options: EstimateOptions
) -> FleetEstimate:
    """Forecast a run of a net on every device of a fleet."""
    with _open_fleet(options.store) as opened:

        def estimate(profile_key: str) -> Estimate:
            try:
                profile = opened.load_profile(profile_key)
            except MissingError as error:
                raise MissingError("no profile yet: run `joulecast fleet profile NET`") from error
            return estimate_net(profile, net.network, setup, options)

        found = forecast_fleet(opened.fleet.list_devices(), question, estimate)
    return FleetEstimate(
        net.network.name,
        setup,
        question.steps,
        options.level,
        question.confidence,
        question.deadline_s,
        found,
    )


@contextmanager
def _open_fleet(store: str | None) -> Iterator[Store]:
    """Open a store that has a fleet."""
    with open_store(store, create=False) as opened:
        if not opened.exists or not opened.fleet.list_devices():
            raise MissingError(f"the store {opened.place} has no fleet: {_NOT_UP}")
        yield opened
