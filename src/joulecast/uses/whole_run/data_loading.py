"""Time a data loader, and find out how long a device waits for its batches.

A loader with worker processes loads the next batches while a step runs, so the device waits only
where a batch takes longer to load than to train. Without workers the training process itself loads
each batch, and the device waits all the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError
from joulecast.records import Setup
from joulecast.records.codec import Record

_MOST_BATCHES = 200
_MOST_SECONDS = 5.0


@dataclass(frozen=True)
class LoadingTime(Record):
    """What a loader takes on this machine.

    Attributes:
        batch_s: Time per batch when nothing else runs, without the first one.
        batches: Number of batches that were loaded to find out.
        workers: Processes that load beside the training process.
    """

    batch_s: float
    batches: int
    workers: int = 0


@dataclass(frozen=True)
class DataWait(Record):
    """How long the device waits for each batch, and what it draws meanwhile.

    Attributes:
        wait_s: Time per batch that does not hide behind the step.
        idle_w: Power of the waiting device; None if it is not known.
    """

    loading: LoadingTime
    wait_s: float
    idle_w: float | None = None


def time_loader(
    loader: Iterable[Any], batch: int, clock: Callable[[], float] = time.perf_counter
) -> LoadingTime:
    """Load batches for a few seconds and return what one takes.

    Args:
        loader: A PyTorch ``DataLoader``, or anything that gives batches.
        batch: Batch size that is expected of it.
        clock: Returns the time in seconds.

    Raises:
        InputError: It gives fewer than two batches, or batches of another size.
    """
    own_batch = getattr(loader, "batch_size", None)
    if own_batch is not None and own_batch != batch:
        raise InputError(
            f"the loader gives batches of {own_batch}, but the estimate is for {batch}: give "
            f"--batch {own_batch}, or another loader"
        )
    batches = iter(loader)
    count, started_s, ended_s = -1, 0.0, 0.0
    # The first batch also starts the workers.
    for count, _ in enumerate(batches):
        ended_s = clock()
        started_s = started_s if count else ended_s
        if count == _MOST_BATCHES or ended_s - started_s > _MOST_SECONDS:
            break
    if count < 1:
        raise InputError(f"the loader gave {count + 1} batches: give one with at least 2")
    workers = int(getattr(loader, "num_workers", 0))
    return LoadingTime((ended_s - started_s) / count, count, workers)


def find_wait(
    loading: LoadingTime, step_s: float, setup: Setup, idle_w: float | None = None
) -> DataWait:
    """Return how long a device waits for each batch.

    Args:
        loading: What loading takes.
        step_s: Duration of a step.
        setup: How many batches a step has.
        idle_w: Power of the waiting device.
    """
    hidden_s = step_s / max(1, setup.accumulate) if loading.workers else 0.0
    return DataWait(loading, max(0.0, loading.batch_s - hidden_s), idle_w)
