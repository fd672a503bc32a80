"""Decide which campaign runs when: one at a time on each device, all devices at once.

    store: open campaigns ──▶ submit ──▶ done or failed     the next campaign of the device
                                └──▶ away ──pause──▶ submit again; parked after a while

The coordinator remembers nothing but pauses: killed and started anew, it finds the open campaigns
in the store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from joulecast.errors import StoreError
from joulecast.fleet.device_campaign import CampaignOutcome
from joulecast.fleet.fleet_file import FleetDevice
from joulecast.printable import make_printable
from joulecast.store.campaigns import (
    AWAY,
    DONE,
    FAILED,
    OPEN_STATES,
    PARKED,
    FleetTables,
    StoredCampaign,
)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Pauses before a device that was away is tried again; they double."""
_POLL_S = 0.5
_LOG = logging.getLogger(__name__)


class PendingOutcome(Protocol):
    """An attempt that runs somewhere else: a future of Dask or of ``concurrent.futures``."""

    def done(self) -> bool:
        """Return whether it has ended."""

    def result(self) -> CampaignOutcome:
        """Return how it ended, or raise its error."""


Submit = Callable[[FleetDevice, str], PendingOutcome]
"""Starts the campaign of a device for the request of a key."""


@dataclass(frozen=True)
class FleetEvent:
    """Something that happened to a device, for people."""

    device: str
    text: str


@dataclass
class _Absence:
    """Since when a device is away, and when it is tried again."""

    since_s: float
    retry_s: float
    pause_s: float
    is_parked: bool = False


class Coordinator:
    """Runs the open campaigns of a fleet.

    Args:
        tables: The fleet of the store.
        devices: The devices of the fleet.
        submit: Starts a campaign.
        patience_s: How long a device may be away before it is parked.
        on_event: Called with what happens.
        now: Returns seconds since any fixed moment.
    """

    def __init__(
        self,
        tables: FleetTables,
        devices: Sequence[FleetDevice],
        submit: Submit,
        *,
        patience_s: float,
        on_event: Callable[[FleetEvent], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tables = tables
        self._devices = {one.name: one for one in devices}
        self._submit = submit
        self._patience_s = patience_s
        self._on_event = on_event
        self._now = now
        self._running: dict[str, tuple[StoredCampaign, PendingOutcome]] = {}
        self._absences: dict[str, _Absence] = {}

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Run campaigns until ``is_over``."""
        while not is_over():
            self.step()
            time.sleep(_POLL_S)

    def step(self) -> None:
        """Settle attempts that have ended, and start those that are due."""
        # Other programs see by its claim that the fleet is up.
        self._tables.renew_claims()
        for name, (campaign, attempt) in list(self._running.items()):
            if attempt.done():
                del self._running[name]
                self._settle(campaign, _take_outcome(attempt))
        for campaign in self._list_due():
            device = self._devices[campaign.device]
            if campaign.device not in self._absences:
                self._tell(campaign.device, f"profiling {campaign.name}")
            self._running[device.name] = campaign, self._submit(device, campaign.request_key)

    def _list_due(self) -> list[StoredCampaign]:
        """Return the earliest open campaign of each device that is free and not paused."""
        due: dict[str, StoredCampaign] = {}
        for campaign in self._tables.list_campaigns(states=OPEN_STATES):
            name = campaign.device
            absence = self._absences.get(name)
            is_paused = absence is not None and self._now() < absence.retry_s
            if name in self._devices and name not in self._running and not is_paused:
                due.setdefault(name, campaign)
        return list(due.values())

    def _settle(self, campaign: StoredCampaign, outcome: CampaignOutcome) -> None:
        name = campaign.device
        if outcome.state == AWAY:
            self._wait_for(campaign, outcome.reason)
            return
        self._absences.pop(name, None)
        if outcome.state == DONE:
            self._tell(name, f"{campaign.name} is profiled: {outcome.reason}")
            return
        # The attempt itself may have failed before it could store this.
        values = {"state": FAILED, "reason": outcome.reason}
        self._tables.change_campaign(campaign.request_key, name, **values)
        self._tell(name, f"failed: {outcome.reason}")

    def _wait_for(self, campaign: StoredCampaign, reason: str) -> None:
        """Let a device that is away be tried again later; park it if it stays away."""
        name, now_s = campaign.device, self._now()
        absence = self._absences.get(name)
        if absence is None:
            absence = self._absences[name] = _Absence(now_s, now_s, FIRST_PAUSE_S)
            self._tell(name, f"away: {reason}")
        elif now_s - absence.since_s >= self._patience_s and not absence.is_parked:
            absence.is_parked = True
            self._tell(name, f"parked: {reason}")
        absence.retry_s = now_s + absence.pause_s
        absence.pause_s = min(2 * absence.pause_s, LONGEST_PAUSE_S)
        state = PARKED if absence.is_parked else AWAY
        self._tables.change_campaign(campaign.request_key, name, state=state, reason=reason)
        self._tables.change_device(name, state, reason)

    def _tell(self, device: str, text: str) -> None:
        self._on_event(FleetEvent(device, text))


def _take_outcome(attempt: PendingOutcome) -> CampaignOutcome:
    """Return how an attempt ended; one that the store interrupted is repeated."""
    try:
        return attempt.result()
    except StoreError as error:
        return CampaignOutcome(AWAY, str(error), AWAY)
    except Exception as error:
        _LOG.exception("a campaign of the fleet failed")
        reason = make_printable(" ".join(f"{type(error).__name__}: {error}".split()))
        return CampaignOutcome(FAILED, reason)
