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
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from joulecast.agent.client import RemoteMeasurer
from joulecast.campaign import CampaignResult, Progress, find_profile_key, run_campaign
from joulecast.campaign.trial_log import TimeGuidedLog
from joulecast.estimators import AUTO, choose_estimator, find_estimator
from joulecast.estimators.base import Target
from joulecast.fleet.fleet_devices import FleetDevice, OpenDevice, open_device
from joulecast.measurer.base import IDLE_TRIAL
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.records.codec import Amount, PositiveCount, Record, check_fields, stable_hash
from joulecast.store import Store
from joulecast.store.campaigns import (
    AWAY,
    DONE,
    FAILED,
    PARKED,
    READY,
    REFUSED,
    RUNNING,
    StoredCampaign,
)
from joulecast.system.errors import (
    ContaminatedError,
    DeviceAwayError,
    DeviceLostError,
    JoulecastError,
    MeterLostError,
    StoreError,
)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Pauses before a device that was away is tried again; they double."""
# Another worker that lost its scheduler may still wait for its last answer.
_CLAIM_WAIT_S = 20.0
# A budget of 0 would mean none.
_LEAST_LEFT_S = 1e-3
# The trial is not to blame, and the device or the store may be back soon.
_PASSING = (ContaminatedError, DeviceAwayError, DeviceLostError, MeterLostError, StoreError)


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


def run_device_campaign(
    store: Store,
    device: FleetDevice,
    request_key: str,
    patience_s: float,
    *,
    open_measurer: OpenDevice = open_device,
    now: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Run the campaign of a device until it is done or failed; the store says which.

    While the device is away it is tried again, less and less often; after ``patience_s`` it is
    parked.
    """
    tables, name = store.fleet, device.name
    away_since_s, pause_s = None, FIRST_PAUSE_S
    while True:
        try:
            with tables.claim_device(name, _CLAIM_WAIT_S) as is_held:
                if not is_held:
                    raise DeviceAwayError(f"another program measures on {name}: wait until it ends")
                return _attempt(store, device, request_key, open_measurer)
        except _PASSING as error:
            is_parked = away_since_s is not None and now() - away_since_s >= patience_s
            state, reason = PARKED if is_parked else AWAY, str(error)
            # A store that cannot be written now may be back after the pause.
            with suppress(StoreError):
                tables.change_campaign(request_key, name, state=state, reason=reason)
                if not isinstance(error, StoreError):
                    tables.change_device(name, state, reason)
        away_since_s = now() if away_since_s is None else away_since_s
        wait(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _attempt(
    store: Store, device: FleetDevice, request_key: str, open_measurer: OpenDevice
) -> None:
    """Run the campaign until it ends; raise one of _PASSING if it has to be tried again."""
    tables, name = store.fleet, device.name
    campaigns = {one.device: one for one in tables.list_campaigns(request_key)}
    if name not in campaigns or not campaigns[name].is_open:
        # An earlier attempt finished it, and was killed before it could say so.
        return
    try:
        opened = open_measurer(device)
    except DeviceAwayError:
        raise
    except JoulecastError as error:
        tables.change_device(name, REFUSED, str(error))
        tables.change_campaign(request_key, name, state=FAILED, reason=str(error))
        return
    with opened as measurer:
        tables.change_device(name, READY, profile_key=find_profile_key(measurer))
        tables.change_campaign(request_key, name, state=RUNNING, reason="")
        try:
            _measure(store, measurer, campaigns[name])
        except _PASSING:
            raise
        except JoulecastError as error:
            tables.change_campaign(request_key, name, state=FAILED, reason=str(error))


def _measure(store: Store, measurer: RemoteMeasurer, campaign: StoredCampaign) -> None:
    """Measure on a device that answers, and store how the campaign ended."""
    request = _load_request(store, campaign.request_key)
    run = stable_hash([campaign.request_key, campaign.device, campaign.requested_at_s])
    make_id = name_requests(run, store.load_observations(find_profile_key(measurer)))
    measurer = replace(measurer, run=run, rounds=request.rounds, make_id=make_id)
    left_s = request.seconds
    if left_s is not None:
        left_s = max(_LEAST_LEFT_S, left_s - campaign.elapsed_s)

    def record(progress: Progress | CampaignResult, **values: Any) -> None:
        is_known = math.isfinite(progress.uncertainty_share)
        store.fleet.change_campaign(
            campaign.request_key,
            campaign.device,
            points=progress.points,
            uncertainty_share=progress.uncertainty_share if is_known else None,
            elapsed_s=campaign.elapsed_s + progress.elapsed_s,
            **values,
        )

    result = run_campaign(
        measurer,
        TimeGuidedLog(store) if measurer.meter.is_recorder else store,
        find_estimator(choose_estimator(request.estimator, measurer.runtime.name)),
        Target(
            request.network,
            request.setup,
            request.acquisition,
            request.interval_share,
            networks=request.members,
        ),
        points=request.points,
        seconds=left_s,
        on_progress=lambda progress: record(progress, reason=progress.reason),
    )
    record(result, state=DONE, reason=result.stopped)


def name_requests(run: str, stored: Iterable[Observation]) -> Callable[[str, Trial | None], str]:
    """Return a function that names requests to an agent, as a killed worker would have."""
    counts = Counter(one.trial.key for one in stored if one.run == run)

    def make_id(task: str, trial: Trial | None) -> str:
        key = (trial or IDLE_TRIAL).key
        # An observation is stored before the next one is asked for.
        number = counts[key]
        counts[key] += 1
        return stable_hash([run, task, key, number])

    return make_id


@functools.lru_cache(maxsize=8)
def _load_request(store: Store, key: str) -> CampaignRequest:
    """Return a request, the same object for all devices: it may contain many networks."""
    return CampaignRequest.from_dict(store.fleet.load_request(key))
