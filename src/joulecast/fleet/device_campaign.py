"""Run the campaign of one device, and resume it where it stopped.

Every observation is stored as soon as it arrives, and the next trial depends on the store alone. A
request to the agent is named after the campaign, the trial and how many observations of it are
stored. If a worker dies before it has stored an answer, its successor asks under the same name and
receives the same answer: nothing is lost, and nothing is measured twice.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from joulecast.agent.client import RemoteMeasurer
from joulecast.campaign import CampaignResult, Progress, find_profile_key, run_campaign
from joulecast.campaign.time_guidance import TimeGuidedLog
from joulecast.errors import (
    ContaminatedError,
    DeviceAwayError,
    DeviceLostError,
    JoulecastError,
    MeterLostError,
    StoreError,
)
from joulecast.estimators import AUTO, choose_estimator, find_estimator
from joulecast.estimators.base import Target
from joulecast.fleet.fleet_checks import OpenDevice, open_device
from joulecast.fleet.fleet_file import FleetDevice
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.records.codec import Record, check_fields
from joulecast.records.field_checks import Amount, PositiveCount
from joulecast.records.hashing import stable_hash
from joulecast.store import Store
from joulecast.store.campaigns import (
    AWAY,
    DONE,
    FAILED,
    READY,
    REFUSED,
    RUNNING,
    StoredCampaign,
)

# Another worker that lost its scheduler may still wait for its last answer.
_CLAIM_WAIT_S = 20.0
_LEAST_PAUSE_S = 1.0
# A budget of 0 would be none.
_LEAST_LEFT_S = 1e-3
# The trial is not to blame, and the device may be back soon.
_PASSING = (ContaminatedError, DeviceAwayError, DeviceLostError, MeterLostError)

IDLE_TRIAL = Trial(Network(), Setup())


@dataclass(frozen=True)
class CampaignRequest(Record):
    """What every device of a request has to measure, and when to stop.

    Attributes:
        network: The network that the profiles are for.
        setup: How it is trained.
        members: The networks to estimate; if empty, ``network`` and narrower ones.
        acquisition: How the next trial is chosen (see ``estimators.base.Target``).
        interval_share: Stop when the interval is within this share of the estimate.
        estimator: Name of the estimator to measure for.
        rounds: Windows of each measurement.
        points: Largest number of observations; None for any.
        seconds: Longest device time; None for any.
    """

    network: Network
    setup: Setup
    members: tuple[Network, ...] = ()
    acquisition: str = "target"
    interval_share: Amount = 0.05
    estimator: str = AUTO
    rounds: PositiveCount = 3
    points: PositiveCount | None = None
    seconds: Amount | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class CampaignOutcome:
    """How an attempt at a campaign ended.

    Attributes:
        state: ``done``, ``failed`` (it would fail again) or ``away`` (try again later).
        reason: Why.
        device_state: What this tells about the device: ``ready``, ``away`` or ``refused``.
    """

    state: str
    reason: str
    device_state: str = READY


def run_device_campaign(
    store: Store, device: FleetDevice, request_key: str, open_measurer: OpenDevice = open_device
) -> CampaignOutcome:
    """Run the campaign of a device until it is done or the device is away; store how it ended.

    Args:
        store: Receives every observation, and says what is still to do.
        device: The device.
        request_key: What was requested.
        open_measurer: Opens the measurer of the device.

    Raises:
        StoreError: The store cannot be read or written.
    """
    tables, name = store.fleet, device.name
    with tables.claim_device(name, _CLAIM_WAIT_S) as is_held:
        if not is_held:
            reason = f"another program measures on {name}: wait until it ends"
            return CampaignOutcome(AWAY, reason, AWAY)
        campaign = _find_campaign(store, request_key, name)
        if campaign is None or not campaign.is_open:
            # An earlier attempt finished it, and was killed before it could say so.
            return CampaignOutcome(DONE, "")
        tables.change_campaign(request_key, name, state=RUNNING, reason="")
        outcome = _attempt(store, device, campaign, open_measurer)
        if outcome.state != AWAY:
            tables.change_campaign(request_key, name, state=outcome.state, reason=outcome.reason)
        shown = "" if outcome.device_state == READY else outcome.reason
        tables.change_device(name, outcome.device_state, shown)
        return outcome


def _attempt(
    store: Store, device: FleetDevice, campaign: StoredCampaign, open_measurer: OpenDevice
) -> CampaignOutcome:
    try:
        opened = open_measurer(device)
    except DeviceAwayError as error:
        return CampaignOutcome(AWAY, str(error), AWAY)
    except JoulecastError as error:
        return CampaignOutcome(FAILED, str(error), REFUSED)
    try:
        with opened as measurer:
            result = _measure(store, measurer, campaign)
            return CampaignOutcome(DONE, result.stopped)
    except _PASSING as error:
        return CampaignOutcome(AWAY, str(error), AWAY)
    except StoreError:
        raise
    except JoulecastError as error:
        return CampaignOutcome(FAILED, str(error))


def _measure(store: Store, measurer: RemoteMeasurer, campaign: StoredCampaign) -> CampaignResult:
    """Run the campaign on a device that answers."""
    request = _load_request(store, campaign.request_key)
    profile_key = find_profile_key(measurer)
    store.fleet.change_device(campaign.device, READY, profile_key=profile_key)
    run = stable_hash([campaign.request_key, campaign.device, campaign.requested_at_s])
    names = RequestNames(run, store.load_observations(profile_key))
    measurer = replace(measurer, run=run, rounds=request.rounds, make_id=names.make_id)
    target = Target(
        request.network,
        request.setup,
        request.acquisition,
        request.interval_share,
        networks=request.members,
    )
    left_s = request.seconds
    if left_s is not None:
        left_s = max(_LEAST_LEFT_S, left_s - campaign.elapsed_s)
    result = run_campaign(
        measurer,
        TimeGuidedLog(store) if measurer.meter.is_recorder else store,
        find_estimator(choose_estimator(request.estimator, measurer.runtime.name)),
        target,
        points=request.points,
        seconds=left_s,
        on_progress=_make_recorder(store, campaign),
    )
    _record(store, campaign, result)
    return result


class RequestNames:
    """Names of requests to an agent, the same for a worker and for its successor.

    Args:
        run: Identifies the campaign.
        stored: Observations of the profile.
    """

    def __init__(self, run: str, stored: Iterable[Observation]) -> None:
        self._run = run
        self._counts = Counter(one.trial.key for one in stored if one.run == run)

    def make_id(self, task: str, trial: Trial | None) -> str:
        """Return the name of the next request for a trial; for the idle device without one."""
        key = (trial or IDLE_TRIAL).key
        # An observation is stored before the next one is asked for.
        number = self._counts[key]
        self._counts[key] += 1
        return stable_hash([self._run, task, key, number])


@functools.lru_cache(maxsize=8)
def _load_request(store: Store, key: str) -> CampaignRequest:
    """Return a request, the same object for all devices: it may contain many networks."""
    return CampaignRequest.from_dict(store.fleet.load_request(key))


def _find_campaign(store: Store, request_key: str, device: str) -> StoredCampaign | None:
    found = store.fleet.list_campaigns(request_key)
    return next((one for one in found if one.device == device), None)


def _make_recorder(store: Store, campaign: StoredCampaign) -> Callable[[Progress], None]:
    """Return a function that stores how far the campaign is, at most once a second."""
    due_s = 0.0

    def record(now: Progress) -> None:
        nonlocal due_s
        if time.monotonic() < due_s:
            return
        due_s = time.monotonic() + _LEAST_PAUSE_S
        _record(store, campaign, now, reason=now.reason)

    return record


def _record(
    store: Store, campaign: StoredCampaign, now: Progress | CampaignResult, **values: str
) -> None:
    """Store how far a campaign is."""
    is_known = math.isfinite(now.uncertainty_share)
    store.fleet.change_campaign(
        campaign.request_key,
        campaign.device,
        points=now.points,
        uncertainty_share=now.uncertainty_share if is_known else None,
        elapsed_s=campaign.elapsed_s + now.elapsed_s,
        **values,
    )
