"""Keep the progress of campaigns, the devices and requests of a fleet, and finished evaluations.

    run of a campaign      running ──▶ done         a limit was reached, or the target is known
                              ├──────▶ stopped      by request
                              ├──────▶ failed       by an error
                              └──────▶ interrupted  its process was interrupted or killed

    campaign of a fleet    waiting ──▶ running ──▶ done
                              │           ├──────▶ failed   it would fail again
                              └───────────┼──────▶ away     the device does not answer
                                          └──────▶ parked   it stayed away, and is not waited for

A fleet tries devices that are away or parked again, and remembers nothing outside of the store: the
programs that coordinate and measure may be killed. A run holds a claim as long as it lives, by
which other processes, such as the dashboard, see whether it still runs.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import sqlalchemy as sa

from joulecast.records import Json, stable_hash
from joulecast.store.database import (
    CAMPAIGN_PROGRESS,
    CAMPAIGNS,
    EVALUATIONS,
    FLEET_CAMPAIGNS,
    FLEET_DEVICES,
    FLEET_REQUESTS,
    Tables,
    transaction,
)
from joulecast.system.errors import MissingError

READY, REFUSED = "ready", "refused"
WAITING, RUNNING, AWAY, PARKED = "waiting", "running", "away", "parked"
DONE, FAILED, STOPPED, INTERRUPTED = "done", "failed", "stopped", "interrupted"
OPEN_STATES = (WAITING, RUNNING, AWAY, PARKED)
"""States of a fleet's campaigns that are still to be finished."""
MOST_LISTED = 200
"""How many runs of campaigns are listed, the latest first."""


@dataclass(frozen=True)
class CampaignProgress:
    """A moment of a run, with its device time so far; None before the uncertainty is known."""

    elapsed_s: float
    points: int
    uncertainty_share: float | None


@dataclass(frozen=True)
class RecordedCampaign:
    """A run of a campaign.

    Attributes:
        name: What is profiled: a network, or the atlas.
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
    state: str = RUNNING
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
        return self.state == RUNNING


@dataclass(frozen=True)
class StoredDevice:
    """A device of the fleet, and what is known about it.

    Attributes:
        payload: What the fleet file says about it, as JSON values.
        state: ``ready``, ``away``, ``parked``, or ``refused`` if something is to be corrected.
        reason: The whole sentence.
        profile_key: The profile that its observations belong to; empty before it answered once.
        description: Device, runtime and meter, as the agent found them.
        changed_at_s: When this became known, in seconds since 1970.
    """

    name: str
    payload: Json
    state: str
    reason: str
    profile_key: str
    description: str
    changed_at_s: float


@dataclass(frozen=True)
class StoredCampaign:
    """A campaign on one device of a fleet.

    Attributes:
        request_key: What was requested; the same for all devices.
        name: Name of the network.
        elapsed_s: Device time so far, earlier attempts included.
    """

    request_key: str
    name: str
    device: str
    state: str
    reason: str
    points: int
    uncertainty_share: float | None
    elapsed_s: float
    requested_at_s: float
    changed_at_s: float

    @property
    def is_open(self) -> bool:
        """Whether it is still to be finished."""
        return self.state in OPEN_STATES


@dataclass(frozen=True)
class StoredEvaluation:
    """The result of an evaluation, as ``Evaluation.to_dict`` wrote it."""

    name: str
    profile_key: str
    payload: Json
    made_at_s: float


class CampaignTables(Tables):
    """The campaigns that were run with a store; ``Store.campaigns`` returns them."""

    @contextmanager
    def add(self, name: str, device: str, profile_key: str, provenance: str) -> Iterator[str]:
        """Add a run and hold its claim while a block runs; yield its key."""
        key = secrets.token_hex(8)
        # Before it is added, or readers could take it for dead.
        with self.database.claims.hold(_name_claim(key), 0.0):
            now_s = self.database.now()
            row = RecordedCampaign(
                key, name, device, profile_key, provenance, started_at_s=now_s, changed_at_s=now_s
            )
            insert = self.database.insert(CAMPAIGNS).values(**asdict(row))
            self.database.execute(insert.on_conflict_do_nothing())
            yield key

    @transaction(writes=True)
    def change(
        self,
        connection: sa.Connection,
        key: str,
        moments: Sequence[CampaignProgress],
        *,
        reason: str = "",
        left_s: float | None = None,
        total: int | None = None,
    ) -> None:
        """Store the progress of a run: the moments since the last change, at least one."""
        rows = [{"campaign_key": key, **asdict(one)} for one in moments]
        values = {
            "reason": reason,
            "left_s": left_s,
            "total": total,
            "changed_at_s": self.database.now(),
        }
        change = sa.update(CAMPAIGNS).where(CAMPAIGNS.c.key == key)
        connection.execute(change.values(**asdict(moments[-1]), **values))
        connection.execute(sa.insert(CAMPAIGN_PROGRESS), rows)

    def finish(self, key: str, state: str, reason: str) -> None:
        """Store how a run ended."""
        ended = {"state": state, "reason": reason, "left_s": None}
        now_s = self.database.now()
        self.database.update(CAMPAIGNS, CAMPAIGNS.c.key == key, **ended, changed_at_s=now_s)

    def request_stop(self, key: str) -> RecordedCampaign:
        """Ask a run to stop after its current measurement; MissingError if it has ended."""
        found = self.find(key)
        if not found.is_running:
            raise MissingError(f"the campaign of {found.name} on {found.device} has ended")
        self.database.update(CAMPAIGNS, CAMPAIGNS.c.key == key, is_stop_requested=True)
        return replace(found, is_stop_requested=True)

    def is_stop_requested(self, key: str) -> bool:
        """Return whether a run is to stop."""
        query = sa.select(CAMPAIGNS.c.is_stop_requested).where(CAMPAIGNS.c.key == key)
        return any(row["is_stop_requested"] for row in self.database.select(query))

    def list_all(self) -> tuple[RecordedCampaign, ...]:
        """Return the runs, the latest first."""
        order = sa.desc(CAMPAIGNS.c.started_at_s), CAMPAIGNS.c.key
        return self._select(sa.select(CAMPAIGNS).order_by(*order).limit(MOST_LISTED))

    def find(self, key: str) -> RecordedCampaign:
        """Return a run; MissingError if there is none with this key."""
        found = self._select(sa.select(CAMPAIGNS).where(CAMPAIGNS.c.key == key))
        if not found:
            raise MissingError("there is no such campaign: choose one that the list shows")
        return found[0]

    def list_progress(self, key: str) -> tuple[CampaignProgress, ...]:
        """Return the moments of a run, in order."""
        table = CAMPAIGN_PROGRESS.c
        query = (
            sa.select(table.elapsed_s, table.points, table.uncertainty_share)
            .where(table.campaign_key == key)
            .order_by(table.id)
        )
        return tuple(CampaignProgress(**row) for row in self.database.select(query))

    def _select(self, query: sa.Select[Any]) -> tuple[RecordedCampaign, ...]:
        found = [RecordedCampaign(**row) for row in self.database.select(query)]
        return tuple(map(self._notice_death, found))

    def _notice_death(self, one: RecordedCampaign) -> RecordedCampaign:
        """Return a run as interrupted if its process has died, which could not say so itself."""
        if not one.is_running or not self.database.claims.is_free(_name_claim(one.key)):
            return one
        reason = "its process was killed; the same command resumes it"
        return replace(one, state=INTERRUPTED, reason=reason, left_s=None)


class FleetTables(Tables):
    """The fleet of a store; ``Store.fleet`` returns it."""

    def claim_device(self, name: str, wait_s: float) -> AbstractContextManager[bool]:
        """Claim a device, so that no other process measures on it; yield whether it succeeded."""
        return self.database.claims.hold(stable_hash(["fleet device", name]), wait_s)

    def claim_fleet(self, wait_s: float = 0.0) -> AbstractContextManager[bool]:
        """Claim the whole fleet, as its coordinator does; yield whether it succeeded."""
        return self.database.claims.hold(stable_hash(["fleet coordinator"]), wait_s)

    def renew_claims(self) -> None:
        """Claim again what a server forgot when it restarted."""
        self.database.claims.renew()

    def is_up(self) -> bool:
        """Return whether a coordinator is running."""
        with self.claim_fleet() as is_free:
            return not is_free

    def list_devices(self) -> tuple[StoredDevice, ...]:
        """Return the devices of the fleet by name."""
        rows = self.database.select(sa.select(FLEET_DEVICES).order_by(FLEET_DEVICES.c.name))
        return tuple(StoredDevice(**_parse_payload(row)) for row in rows)

    @transaction(writes=True)
    def replace_devices(self, connection: sa.Connection, devices: Mapping[str, Json]) -> None:
        """Make these the devices of the fleet; those that left lose their open campaigns."""
        new = {"state": AWAY, "reason": "", "profile_key": "", "description": ""}
        connection.execute(sa.delete(FLEET_DEVICES).where(FLEET_DEVICES.c.name.not_in(devices)))
        for name, payload in devices.items():
            row = {"name": name, "payload": json.dumps(payload)}
            insert = self.database.insert(FLEET_DEVICES)
            insert = insert.values(**row, **new, changed_at_s=self.database.now())
            connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=row))

    def change_device(
        self,
        name: str,
        state: str,
        reason: str = "",
        *,
        profile_key: str = "",
        description: str = "",
    ) -> None:
        """Store what was found out about a device; an empty profile or description is kept."""
        known = {"profile_key": profile_key, "description": description}
        values: Json = {key: value for key, value in known.items() if value}
        values |= {"state": state, "reason": reason, "changed_at_s": self.database.now()}
        self.database.update(FLEET_DEVICES, FLEET_DEVICES.c.name == name, **values)

    @transaction(writes=True)
    def add_request(
        self, connection: sa.Connection, name: str, payload: Json, devices: Iterable[str]
    ) -> str:
        """Request a campaign for a network on devices; return the key of the request.

        What is already requested and not finished continues; what was finished starts again.
        """
        key, insert, now_s = stable_hash(payload), self.database.insert, self.database.now()
        start = {
            "state": WAITING, "reason": "", "points": 0, "uncertainty_share": None,
            "elapsed_s": 0.0, "requested_at_s": now_s, "changed_at_s": now_s,
        }  # fmt: skip
        row = {"key": key, "name": name, "payload": json.dumps(payload)}
        connection.execute(insert(FLEET_REQUESTS).values(**row).on_conflict_do_nothing())
        for device in devices:
            statement = insert(FLEET_CAMPAIGNS).values(request_key=key, device=device, **start)
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["request_key", "device"],
                    set_=start,
                    where=FLEET_CAMPAIGNS.c.state.not_in((WAITING, RUNNING)),
                )
            )
        return key

    def load_request(self, key: str) -> Json:
        """Return what a request says, as JSON values."""
        query = sa.select(FLEET_REQUESTS.c.payload).where(FLEET_REQUESTS.c.key == key)
        (row,) = self.database.select(query)
        payload: Json = json.loads(row["payload"])
        return payload

    def list_campaigns(
        self, request_key: str | None = None, states: Sequence[str] | None = None
    ) -> tuple[StoredCampaign, ...]:
        """Return campaigns, of one request or in some states alone, the earliest request first."""
        table = FLEET_CAMPAIGNS
        query = (
            sa.select(table, FLEET_REQUESTS.c.name)
            .join(FLEET_REQUESTS, FLEET_REQUESTS.c.key == table.c.request_key)
            .order_by(table.c.requested_at_s, table.c.request_key, table.c.device)
        )
        if request_key is not None:
            query = query.where(table.c.request_key == request_key)
        if states is not None:
            query = query.where(table.c.state.in_(states))
        return tuple(StoredCampaign(**row) for row in self.database.select(query))

    def change_campaign(self, request_key: str, device: str, **values: Any) -> None:
        """Store the progress of a campaign: fields of ``StoredCampaign``."""
        table = FLEET_CAMPAIGNS
        is_campaign = (table.c.request_key == request_key) & (table.c.device == device)
        now_s = self.database.now()
        self.database.update(table, is_campaign, **values, changed_at_s=now_s)


class EvaluationTable(Tables):
    """The latest result of each evaluation; ``Store.evaluations`` returns them."""

    def save(self, name: str, profile_key: str, payload: Json) -> None:
        """Store the result of an evaluation; it replaces another one of the same name."""
        row = {
            "profile_key": profile_key,
            "payload": json.dumps(payload),
            "made_at_s": self.database.now(),
        }
        insert = self.database.insert(EVALUATIONS).values(name=name, **row)
        # An evaluation that is computed again with the same result stays as it is.
        is_new = EVALUATIONS.c.payload != row["payload"]
        self.database.execute(
            insert.on_conflict_do_update(index_elements=["name"], set_=row, where=is_new)
        )

    def list_all(self) -> tuple[StoredEvaluation, ...]:
        """Return the evaluations, the latest first."""
        query = sa.select(EVALUATIONS).order_by(sa.desc(EVALUATIONS.c.made_at_s))
        rows = self.database.select(query)
        return tuple(StoredEvaluation(**_parse_payload(row)) for row in rows)


def _parse_payload(row: sa.RowMapping) -> dict[str, Any]:
    return {**row, "payload": json.loads(row["payload"])}


def _name_claim(key: str) -> str:
    return stable_hash(["campaign", key])
