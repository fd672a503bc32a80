"""Loaders are timed, and batches hide behind steps only where workers load them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from joulecast.features.run import LoadingTime, find_wait, time_loader
from joulecast.records import Setup
from joulecast.system.errors import InputError

SETUP = Setup(batch=4)


def make_clock(*times_s: float) -> Iterator[float]:
    return itertools.chain(times_s, itertools.count(times_s[-1] + 1.0))


def test_first_batch_is_not_counted() -> None:
    # It starts the workers.
    clock = make_clock(9.0, 9.5, 10.0, 10.5)
    found = time_loader([1, 2, 3, 4], 4, clock=lambda: next(clock))
    assert found == LoadingTime(0.5, 3, 0)


def test_timing_ends_after_seconds_and_batches() -> None:
    slow = make_clock(0.0, 6.0)
    assert time_loader(itertools.count(), 4, clock=lambda: next(slow)).batches == 1
    still = itertools.repeat(0.0)
    assert time_loader(itertools.count(), 4, clock=lambda: next(still)).batches == 200


def test_real_loader_is_timed() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(40, 3)), batch_size=4)
    found = time_loader(loader, 4)
    assert found.batches == 9 and found.workers == 0
    assert 0.0 < found.batch_s < 1.0


def test_loader_of_another_batch_size_or_without_batches_is_refused() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(40, 3)), batch_size=8)
    with pytest.raises(InputError, match="batches of 8, but the estimate is for 4: give batch=8"):
        time_loader(loader, 4)
    with pytest.raises(InputError, match="gave 1 batches: give one with at least 2"):
        time_loader([1], 4)
    with pytest.raises(InputError, match="gave 0 batches"):
        time_loader([], 4)


@pytest.mark.parametrize(
    ("workers", "accumulate", "wait_s"), [(0, 1, 0.03), (2, 1, 0.01), (2, 4, 0.025), (0, 4, 0.03)]
)
def test_device_waits_for_what_no_worker_hides(
    workers: int, accumulate: int, wait_s: float
) -> None:
    setup = Setup(batch=4, accumulate=accumulate)
    found = find_wait(LoadingTime(0.03, 9, workers), 0.02, setup, idle_w=7.0)
    assert found.wait_s == pytest.approx(wait_s)
    assert found.idle_w == 7.0


def test_fast_loader_hides_behind_the_step() -> None:
    assert find_wait(LoadingTime(0.01, 9, 1), 0.02, SETUP).wait_s == 0.0
