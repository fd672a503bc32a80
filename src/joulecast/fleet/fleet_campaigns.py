"""Run the campaigns of a fleet on Dask workers, and resume each where it stopped.

    store: open campaigns ──▶ submit ──▶ Dask ──▶ worker: run_device_campaign ──▶ store

Dask decides when a campaign runs. Each device is a resource of one worker, of which every campaign
takes all, so a device has one campaign at a time, the earliest request first. A worker that dies is
replaced, and Dask runs its campaigns again. Workers are few processes of many threads: a campaign
mostly waits for its agent. The coordinator remembers nothing: killed and started anew, it finds the
open campaigns in the store.

Every observation is stored as soon as it arrives, and the next trial depends on the store alone. A
request to the agent is named after the campaign, the trial and how many observations of it are
stored. If a worker dies before it has stored an answer, its successor asks under the same name and
receives the same answer: nothing is lost, and nothing is measured twice.

Anyone who can reach a scheduler of Dask can run code with it, so it listens on this machine only
and takes only connections with a certificate made for this cluster.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from typing import Any, Protocol, cast

from joulecast.agent.client import RemoteMeasurer
from joulecast.campaign import CampaignResult, Progress, find_profile_key, run_campaign
from joulecast.estimators import AUTO, choose_estimator, find_estimator
from joulecast.estimators.base import Target
from joulecast.fleet.fleet_devices import FleetDevice, OpenDevice, open_device
from joulecast.measurer.base import IDLE_TRIAL
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.records.codec import Amount, PositiveCount, Record, check_fields, stable_hash
from joulecast.store import Store, open_store
from joulecast.store.campaigns import (
    AWAY,
    DONE,
    FAILED,
    OPEN_STATES,
    PARKED,
    READY,
    REFUSED,
    RUNNING,
    WAITING,
    FleetTables,
    StoredCampaign,
)
from joulecast.system.errors import (
    ContaminatedError,
    DeviceAwayError,
    DeviceLostError,
    JoulecastError,
    MeterLostError,
    MissingError,
    StoreError,
)
from joulecast.system.printable import make_printable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Pauses before a device that was away is tried again; they double."""
# Another worker that lost its scheduler may still wait for its last answer.
_CLAIM_WAIT_S = 20.0
# A budget of 0 would mean none.
_LEAST_LEFT_S = 1e-3
# The trial is not to blame, and the device or the store may be back soon.
_PASSING = (ContaminatedError, DeviceAwayError, DeviceLostError, MeterLostError, StoreError)
STORE = "JOULECAST_STORE"
_HOST = "127.0.0.1"
_POLL_S = 0.5
_SETTINGS = {
    # A campaign is resumed however often its worker dies.
    "distributed.scheduler.allowed-failures": 10**6,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.nanny.pre-spawn-environ": {
        # Workers set up their logs before they are told anything else.
        "DASK_LOGGING__DISTRIBUTED": "critical",
        "OMP_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
    },
}
_OPENING = threading.Lock()
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class CampaignRequest(Record):
    """What every device of a request has to measure, and when to stop.

    Attributes:
        members: The networks to estimate; if empty, ``network`` and narrower ones.
        acquisition: How the next trial is chosen (see ``estimators.base.Target``).
        interval_share: Stop when the interval is within this share of the estimate.
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
        except JoulecastError as error:
            # It would fail again.
            return tables.change_campaign(request_key, name, state=FAILED, reason=str(error))
        away_since_s = now() if away_since_s is None else away_since_s
        wait(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _attempt(
    store: Store, device: FleetDevice, request_key: str, open_measurer: OpenDevice
) -> None:
    """Run the campaign to its end, unless an error ends this attempt, or the campaign for good."""
    tables, name = store.fleet, device.name
    campaigns = {one.device: one for one in tables.list_campaigns(request_key)}
    if name not in campaigns or not campaigns[name].is_open:
        # An earlier attempt finished it, and was killed before it could say so.
        return
    try:
        opened = open_measurer(device)
    except JoulecastError as error:
        if not isinstance(error, _PASSING):
            tables.change_device(name, REFUSED, str(error))
        raise
    with opened as measurer:
        tables.change_device(name, READY, profile_key=find_profile_key(measurer))
        tables.change_campaign(request_key, name, state=RUNNING, reason="")
        _measure(store, measurer, campaigns[name])


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
        store,
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


class PendingCampaign(Protocol):
    """A campaign that runs somewhere else: a future of Dask or of ``concurrent.futures``."""

    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...


Submit = Callable[[FleetDevice, str], PendingCampaign]
"""Starts the campaign of a device for the request of a key."""


def run_campaigns(
    tables: FleetTables,
    devices: Sequence[FleetDevice],
    submit: Submit,
    on_event: Callable[[str, str], None],
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Run the campaigns that are requested of a fleet, until ``is_over``.

    Campaigns that run then are not waited for. ``on_event`` is called with the name of a device
    and what happened to it.
    """
    known = {one.name: one for one in devices}
    running: dict[tuple[str, str], PendingCampaign] = {}
    shown: dict[tuple[str, str], str] = {}
    while not is_over():
        # Other programs see by its claim that the fleet is up.
        tables.renew_claims()
        # Before the store is read: what has ended has left its state there.
        ended = [key for key, campaign in running.items() if campaign.done()]
        for key in ended:
            error = running.pop(key).exception()
            if error is not None:
                _LOG.error("a campaign of the fleet failed", exc_info=error)
                reason = make_printable(" ".join(f"{type(error).__name__}: {error}".split()))
                tables.change_campaign(*key, state=FAILED, reason=reason)
        found = list(tables.list_campaigns(states=OPEN_STATES))
        for request_key, device in ended:
            finished = tables.list_campaigns(request_key, (DONE, FAILED))
            found += [one for one in finished if one.device == device]
        for one in found:
            key = one.request_key, one.device
            if one.is_open and key not in running and one.device in known:
                running[key] = submit(known[one.device], one.request_key)
                shown[key] = WAITING
            if key not in shown or one.state == shown[key]:
                continue
            shown[key] = one.state
            if one.state == RUNNING:
                on_event(one.device, f"profiling {one.name}")
            elif one.state == DONE:
                on_event(one.device, f"{one.name} is profiled: {one.reason}")
            elif one.state != WAITING:
                on_event(one.device, f"{one.state}: {one.reason}")
        time.sleep(_POLL_S)


@contextmanager
def open_cluster(
    devices: Sequence[FleetDevice], store: str, workers: int, patience_s: float
) -> Iterator[Submit]:
    """Start worker processes; yield the function that starts a campaign on one of them.

    Raises:
        MissingError: Dask is not installed.
    """
    try:
        import dask
        from distributed import Client, Nanny, Scheduler, SpecCluster
        from distributed.security import Security

        security = Security.temporary()
    except ImportError as error:
        raise MissingError("a fleet needs Dask: run pip install 'joulecast[fleet]'") from error
    shared = {"host": _HOST, "dashboard_address": f"{_HOST}:0", "security": security}
    worker_spec = {}
    for place in range(min(workers, len(devices))):
        share = devices[place::workers]
        options = {
            "nthreads": len(share),
            "resources": {_name_resource(one): 1 for one in share},
            # Passwords are not among the arguments of tasks, which Dask shows in its logs.
            "env": {STORE: store},
            # Memory is not limited: profiles of all devices have to fit.
            "memory_limit": 0,
            **shared,
        }
        worker_spec[place] = {"cls": Nanny, "options": options}
    scheduler_spec = {"cls": Scheduler, "options": {"port": 0, **shared}}
    with dask.config.set(_SETTINGS), ExitStack() as stack:
        with _hold_signals():
            cluster = stack.enter_context(
                SpecCluster(
                    worker_spec, scheduler_spec, security=security, silence_logs=logging.CRITICAL
                )
            )
            client = stack.enter_context(Client(cluster, set_as_default=False))

        def submit(device: FleetDevice, request_key: str) -> PendingCampaign:
            task, resources = (device, request_key, patience_s), {_name_resource(device): 1}
            future = client.submit(run_on_worker, *task, pure=False, resources=resources)
            return cast(PendingCampaign, future)

        yield submit


def run_on_worker(device: FleetDevice, request_key: str, patience_s: float) -> None:
    """Run the campaign of a device with the store of this worker."""
    with _OPENING:
        store = _open_worker_store()
    run_device_campaign(store, device, request_key, patience_s)


@functools.cache
def _open_worker_store() -> Store:
    """Open the store once for all threads: a server has few connections."""
    return open_store(os.environ[STORE])


@contextmanager
def _hold_signals() -> Iterator[None]:
    """Hold signals back until the cluster is up, and for ever in its threads and workers.

    Workers inherit what the thread that starts them holds back: Ctrl-C reaches all processes of a
    terminal, but only the coordinator knows what to do.
    """
    # Python's own helper process would let signals through again in the thread that starts it.
    resource_tracker.ensure_running()
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _name_resource(device: FleetDevice) -> str:
    return f"device {device.name}"
