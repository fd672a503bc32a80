"""Record in the store how far a campaign is, and notice the request to stop it.

A campaign in one process is seen by all others with the same store, and any of them can set the
flag that ends it after its current measurement, as if its time were over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from joulecast.errors import JoulecastError
from joulecast.records import Profile

if TYPE_CHECKING:
    from joulecast.campaign.campaign import Progress
    from joulecast.store.campaigns import CampaignProgress, CampaignTables

STOPPED_BY_REQUEST = "it was stopped by request"
ATLAS_NAME = "atlas"
# Trials may take milliseconds, and nobody watches more closely.
_LEAST_PAUSE_S = 0.5


@runtime_checkable
class RecordingLog(Protocol):
    """Storage that keeps how far campaigns are; ``store.Store`` is one."""

    @property
    def campaigns(self) -> CampaignTables:
        """The campaigns of the store."""


class CampaignRecord:
    """A run of a campaign in the store.

    Args:
        tables: The campaigns of the store.
        key: The run.
        now: Returns seconds; progress is stored twice a second at most.
    """

    def __init__(
        self, tables: CampaignTables, key: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.key = key
        self._tables = tables
        self._now = now
        self._due_s = -math.inf
        self._moments: list[CampaignProgress] = []

    def store_progress(self, progress: Progress, *, is_last: bool = False) -> None:
        """Store how far the run is; moments that follow closely are stored together."""
        from joulecast.store.campaigns import CampaignProgress

        share = progress.uncertainty_share
        # An atlas has no uncertainty, and calls it 0.
        known = share if share and math.isfinite(share) else None
        self._moments.append(CampaignProgress(progress.elapsed_s, progress.points, known))
        if self._now() < self._due_s and not is_last:
            return
        self._due_s = self._now() + _LEAST_PAUSE_S
        self._tables.change(
            self.key,
            self._moments,
            reason=progress.reason,
            left_s=progress.left_s,
            total=progress.total,
        )
        self._moments = []

    def is_stop_requested(self) -> bool:
        """Return whether the run is to stop."""
        return self._tables.is_stop_requested(self.key)

    def finish(self, stopped: str) -> None:
        """Store that the run ended by itself or by request."""
        from joulecast.store.campaigns import DONE, STOPPED

        state = STOPPED if stopped == STOPPED_BY_REQUEST else DONE
        self._tables.finish(self.key, state, stopped)


class NoRecord:
    """A campaign that nobody else sees, as those of an evaluation."""

    key = ""

    def store_progress(self, progress: Progress, *, is_last: bool = False) -> None:
        """Do nothing."""

    def is_stop_requested(self) -> bool:
        """Return False."""
        return False

    def finish(self, stopped: str) -> None:
        """Do nothing."""


@contextmanager
def record_campaign(
    log: object, profile: Profile, name: str
) -> Iterator[CampaignRecord | NoRecord]:
    """Record a campaign in the store while a block runs; an error that leaves it is recorded too.

    Args:
        log: The storage of the campaign; only a store keeps records.
        profile: The profile that observations will belong to.
        name: What is profiled.
    """
    if not isinstance(log, RecordingLog):
        yield NoRecord()
        return
    from joulecast.store.campaigns import FAILED, INTERRUPTED

    tables = log.campaigns
    with tables.add(name, profile.device.name, profile.key, profile.provenance) as key:
        try:
            yield CampaignRecord(tables, key)
        except JoulecastError as error:
            tables.finish(key, FAILED, str(error))
            raise
        except BaseException as error:
            is_bug = isinstance(error, Exception)
            reason = f"{type(error).__name__}: {error}" if is_bug else "it was interrupted"
            tables.finish(key, FAILED if is_bug else INTERRUPTED, reason)
            raise
