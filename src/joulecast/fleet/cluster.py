"""Run campaigns on Dask workers beside the coordinator.

Workers are few processes of many threads: a campaign mostly waits for its agent. Each device is a
resource of one worker, of which every campaign takes all, so that Dask runs one at a time on it. A
worker that dies is replaced, and Dask runs its campaigns again; they resume from the store.

Whoever can reach a scheduler of Dask can run code with it, so it listens on this machine only and
takes only connections with a certificate made for this cluster.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any

from joulecast.errors import MissingError
from joulecast.fleet.coordinator import PendingOutcome, Submit
from joulecast.fleet.device_campaign import CampaignOutcome, run_device_campaign
from joulecast.fleet.fleet_file import FleetDevice
from joulecast.store import Store, open_store

STORE = "JOULECAST_STORE"
_HOST = "127.0.0.1"
_QUIET = "critical"
_SETTINGS = {
    # A campaign is resumed however often its worker dies.
    "distributed.scheduler.allowed-failures": 10**6,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.nanny.pre-spawn-environ": {
        # Workers set up their logs before they are told anything else.
        "DASK_LOGGING__DISTRIBUTED": _QUIET,
        "OMP_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
    },
}
_OPENING = threading.Lock()


@contextmanager
def open_cluster(devices: Sequence[FleetDevice], store: str, workers: int) -> Iterator[Submit]:
    """Start workers; yield the function that starts a campaign on one of them.

    Args:
        devices: The devices of the fleet.
        store: Path or URL of the store.
        workers: Number of processes.

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
    shares = [list(devices[place::workers]) for place in range(min(workers, len(devices)))]
    worker_spec = {
        place: {"cls": Nanny, "options": _describe_worker(share, store, security)}
        for place, share in enumerate(shares)
    }
    options = {"host": _HOST, "port": 0, "dashboard_address": f"{_HOST}:0", "security": security}
    scheduler_spec = {"cls": Scheduler, "options": options}
    with dask.config.set(_SETTINGS), ExitStack() as stack:
        with _hold_signals():
            cluster = stack.enter_context(
                SpecCluster(
                    worker_spec, scheduler_spec, security=security, silence_logs=logging.CRITICAL
                )
            )
            client = stack.enter_context(Client(cluster, set_as_default=False))

        def submit(device: FleetDevice, request_key: str) -> PendingOutcome:
            attempt: PendingOutcome = client.submit(
                run_on_worker,
                device,
                request_key,
                pure=False,
                resources={_name_resource(device): 1},
            )
            return attempt

        yield submit


def run_on_worker(device: FleetDevice, request_key: str) -> CampaignOutcome:
    """Run the campaign of a device with the store of this worker."""
    with _OPENING:
        store = _open_worker_store()
    return run_device_campaign(store, device, request_key)


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


@functools.cache
def _open_worker_store() -> Store:
    """Open the store once for all threads: a server has few connections."""
    return open_store(os.environ[STORE])


def _describe_worker(devices: Sequence[FleetDevice], store: str, security: Any) -> dict[str, Any]:
    return {
        "nthreads": len(devices),
        "resources": {_name_resource(one): 1 for one in devices},
        # Passwords are not among the arguments of tasks, which Dask shows in its logs.
        "env": {STORE: store},
        "host": _HOST,
        "dashboard_address": f"{_HOST}:0",
        "security": security,
        # Memory is limited by nobody: profiles of all devices have to fit.
        "memory_limit": 0,
    }


def _name_resource(device: FleetDevice) -> str:
    return f"device {device.name}"
