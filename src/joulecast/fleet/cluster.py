"""Run the campaigns of a fleet on Dask workers: all devices at once, one campaign each at a time.

    store: open campaigns ──▶ submit ──▶ Dask ──▶ worker: run_device_campaign ──▶ store

Dask decides when a campaign runs. Each device is a resource of one worker, of which every campaign
takes all, so a device has one campaign at a time, the earliest request first. A worker that dies is
replaced, and Dask runs its campaigns again; they resume from the store. Workers are few processes
of many threads: a campaign mostly waits for its agent.

The coordinator remembers nothing else: killed and started anew, it finds the open campaigns in the
store.

Anyone who can reach a scheduler of Dask can run code with it, so it listens on this machine only
and takes only connections with a certificate made for this cluster.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Protocol, cast

from joulecast.fleet.device_campaign import run_device_campaign
from joulecast.fleet.fleet_devices import FleetDevice
from joulecast.store import Store, open_store
from joulecast.store.campaigns import DONE, FAILED, OPEN_STATES, RUNNING, WAITING, FleetTables
from joulecast.system.errors import MissingError
from joulecast.system.printable import make_printable

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
