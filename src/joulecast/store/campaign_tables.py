"""Keep how far each run of a campaign is, and the request to stop it.

    running ──▶ done         a limit was reached, or the target is known well enough
       ├──────▶ stopped      somebody asked for it
       ├──────▶ failed       an error ended it
       └──────▶ interrupted  its process was interrupted or killed

A run holds a claim as long as it lives. Other processes, such as the dashboard, see by it whether
a run that is called running still is.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import sqlalchemy as sa

from joulecast.errors import MissingError, StoreError
from joulecast.records.codec import stable_hash
from joulecast.store.claims import Claims
from joulecast.store.rows import find_dialect
from joulecast.store.tables import CAMPAIGN_PROGRESS, CAMPAIGNS
from joulecast.store.transactions import Transactions

ONGOING, ENDED, STOPPED = "running", "done", "stopped"
BROKEN, INTERRUPTED = "failed", "interrupted"
MOST_LISTED = 200
"""How many runs are listed, the latest first."""


@dataclass(frozen=True)
class CampaignProgress:
    """A moment of a run.

    Attributes:
        uncertainty_share: Uncertainty of the estimate; None before it is known.
        elapsed_s: Device time of this run so far.
    """

    elapsed_s: float
    points: int
    uncertainty_share: float | None


@dataclass(frozen=True)
class RecordedCampaign:
    """A run of a campaign.

    Attributes:
        name: What is profiled: a network, or the atlas.
        device: Name of the device.
        profile_key: The profile that its observations belong to.
        state: ``running``, ``done``, ``stopped``, ``failed`` or ``interrupted``.
        reason: What is measured next and why, or why it ended.
        points: Observations that the target can use, those of earlier runs included.
        total: Number of points at which it ends at the latest; None if that is unknown.
        left_s: Estimated remaining time; None while no limit applies.
        started_at_s: In seconds since 1970, as ``changed_at_s``.
    """

    key: str
    name: str
    device: str
    profile_key: str
    provenance: str
    state: str = ONGOING
    reason: str = ""
    points: int = 0
    total: int | None = None
    uncertainty_share: float | None = None
    elapsed_s: float = 0.0
    left_s: float | None = None
    is_stop_requested: bool = False
    started_at_s: float = 0.0
    changed_at_s: float = 0.0

    @property
    def is_running(self) -> bool:
        """Whether it still measures."""
        return self.state == ONGOING


class CampaignTables:
    """The campaigns of a store; ``Store.campaigns`` returns them. Every method is a transaction."""

    def __init__(
        self, transactions: Transactions, claims: Claims, now: Callable[[], float]
    ) -> None:
        self._transactions = transactions
        self._claims = claims
        self._now = now

    @contextmanager
    def add(self, name: str, device: str, profile_key: str, provenance: str) -> Iterator[str]:
        """Add a run and hold its claim while a block runs; yield its key.

        Args:
            name: What is profiled.
            device: Name of the device.
            profile_key: The profile that its observations belong to.
            provenance: That of its observations.

        Raises:
            StoreError: The run cannot be claimed.
        """
        key = secrets.token_hex(8)
        # Before it is added, or readers could take it for dead.
        with self._claims.hold(_name_claim(key), 0.0) as is_held:
            if not is_held:
                raise StoreError("the campaign cannot be claimed in the store: start it again")
            now_s = self._now()
            self._insert(
                RecordedCampaign(
                    key,
                    name,
                    device,
                    profile_key,
                    provenance,
                    started_at_s=now_s,
                    changed_at_s=now_s,
                )
            )
            yield key

    def change(
        self,
        key: str,
        moments: Sequence[CampaignProgress],
        **values: str | float | int | None,
    ) -> None:
        """Store how far a run is.

        Args:
            key: The run.
            moments: Those since the last change, at least one, in order.
            values: Other fields of ``RecordedCampaign``, at the last moment.
        """
        rows = [{"campaign_key": key, **asdict(one)} for one in moments]
        latest = {**asdict(moments[-1]), **values, "changed_at_s": self._now()}

        def write(connection: sa.Connection) -> None:
            change = sa.update(CAMPAIGNS).where(CAMPAIGNS.c.key == key)
            connection.execute(change.values(**latest))
            connection.execute(sa.insert(CAMPAIGN_PROGRESS), rows)

        self._transactions.write(write)

    def finish(self, key: str, state: str, reason: str) -> None:
        """Store how a run ended."""
        values = {"state": state, "reason": reason, "left_s": None, "changed_at_s": self._now()}
        statement = sa.update(CAMPAIGNS).where(CAMPAIGNS.c.key == key).values(**values)
        self._transactions.write(lambda connection: connection.execute(statement) and None)

    def request_stop(self, key: str) -> RecordedCampaign:
        """Ask a run to stop after its current measurement; return it.

        Raises:
            MissingError: There is no such run, or it has ended.
        """
        found = self.find(key)
        if not found.is_running:
            raise MissingError(f"the campaign of {found.name} on {found.device} has ended")
        statement = sa.update(CAMPAIGNS).where(CAMPAIGNS.c.key == key)
        self._transactions.write(
            lambda connection: connection.execute(statement.values(is_stop_requested=True)) and None
        )
        return replace(found, is_stop_requested=True)

    def is_stop_requested(self, key: str) -> bool:
        """Return whether a run is to stop."""
        query = sa.select(CAMPAIGNS.c.is_stop_requested).where(CAMPAIGNS.c.key == key)
        return bool(self._transactions.read(lambda connection: connection.scalar(query)))

    def list_all(self) -> tuple[RecordedCampaign, ...]:
        """Return the runs, the latest first."""
        order = sa.desc(CAMPAIGNS.c.started_at_s), CAMPAIGNS.c.key
        return self._select(sa.select(CAMPAIGNS).order_by(*order).limit(MOST_LISTED))

    def find(self, key: str) -> RecordedCampaign:
        """Return a run.

        Raises:
            MissingError: There is none with this key.
        """
        found = self._select(sa.select(CAMPAIGNS).where(CAMPAIGNS.c.key == key))
        if not found:
            raise MissingError("there is no such campaign: choose one that the list shows")
        return found[0]

    def list_progress(self, key: str) -> tuple[CampaignProgress, ...]:
        """Return how a run got so far, in order."""
        table = CAMPAIGN_PROGRESS.c
        query = (
            sa.select(table.elapsed_s, table.points, table.uncertainty_share)
            .where(table.campaign_key == key)
            .order_by(table.id)
        )

        def read(connection: sa.Connection) -> tuple[CampaignProgress, ...]:
            return tuple(CampaignProgress(**row) for row in connection.execute(query).mappings())

        return self._transactions.read(read)

    def _insert(self, row: RecordedCampaign) -> None:
        def write(connection: sa.Connection) -> None:
            insert = find_dialect(connection).insert(CAMPAIGNS).values(**asdict(row))
            connection.execute(insert.on_conflict_do_nothing())

        self._transactions.write(write)

    def _select(self, query: sa.Select[tuple[object, ...]]) -> tuple[RecordedCampaign, ...]:
        def read(connection: sa.Connection) -> list[RecordedCampaign]:
            return [RecordedCampaign(**row) for row in connection.execute(query).mappings()]

        return tuple(map(self._notice_death, self._transactions.read(read)))

    def _notice_death(self, one: RecordedCampaign) -> RecordedCampaign:
        """Return a run as it is: one whose process has died does not say so itself."""
        if not one.is_running:
            return one
        if not self._claims.is_free(_name_claim(one.key)):
            return one
        reason = "its process was killed; the same command resumes it"
        return replace(one, state=INTERRUPTED, reason=reason, left_s=None)


def _name_claim(key: str) -> str:
    return stable_hash(["campaign", key])
