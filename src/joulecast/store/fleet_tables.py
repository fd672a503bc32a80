"""Keep the devices of a fleet, what was requested of them, and how far each campaign is.

    waiting ──▶ running ──▶ done
       ▲           ├──────▶ failed     it would fail again
       │           ├──────▶ away       the device does not answer; it is tried again
       └───────────┴──────▶ parked     it stayed away; it is tried again, but not waited for

Whatever a fleet has to remember is here: programs that coordinate and measure may be killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from joulecast.records import Json, stable_hash
from joulecast.store.claims import Claims
from joulecast.store.rows import find_dialect
from joulecast.store.tables import FLEET_CAMPAIGNS, FLEET_DEVICES, FLEET_REQUESTS
from joulecast.store.transactions import Transactions

READY, REFUSED = "ready", "refused"
WAITING, RUNNING, AWAY, PARKED = "waiting", "running", "away", "parked"
DONE, FAILED = "done", "failed"
OPEN_STATES = (WAITING, RUNNING, AWAY, PARKED)
"""States of campaigns that the coordinator still has to finish."""


@dataclass(frozen=True)
class StoredDevice:
    """A device of the fleet, and what is known about it.

    Attributes:
        payload: What the fleet file says about it, as JSON values.
        state: ``ready``, ``away``, ``parked``, or ``refused`` where something is to be corrected.
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
    """A campaign on one device.

    Attributes:
        request_key: What was requested; the same for all devices.
        name: Name of the network.
        points: Observations that the target can use so far.
        uncertainty_share: Uncertainty of the estimate so far; None before it is known.
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
        """Whether the coordinator still has to finish it."""
        return self.state in OPEN_STATES


class FleetTables:
    """The fleet of a store; ``Store.fleet`` returns it. Every method is one transaction."""

    def __init__(
        self, transactions: Transactions, claims: Claims, now: Callable[[], float]
    ) -> None:
        self._transactions = transactions
        self._claims = claims
        self._now = now

    # -----------------------------------------------------------------------------------------
    # Claims

    def claim_device(self, name: str, wait_s: float) -> AbstractContextManager[bool]:
        """Claim a device, so that no other process measures on it; yield whether it succeeded."""
        return self._claims.hold(stable_hash(["fleet device", name]), wait_s)

    def claim_fleet(self, wait_s: float = 0.0) -> AbstractContextManager[bool]:
        """Claim the whole fleet, as its coordinator does; yield whether it succeeded."""
        return self._claims.hold(stable_hash(["fleet coordinator"]), wait_s)

    def renew_claims(self) -> None:
        """Claim again what a server has forgotten by restarting."""
        self._claims.renew()

    def is_up(self) -> bool:
        """Return whether a coordinator is running."""
        with self.claim_fleet() as is_free:
            return not is_free

    # -----------------------------------------------------------------------------------------
    # Devices

    def list_devices(self) -> tuple[StoredDevice, ...]:
        """Return the devices of the fleet by name."""

        def read(connection: sa.Connection) -> tuple[StoredDevice, ...]:
            query = sa.select(FLEET_DEVICES).order_by(FLEET_DEVICES.c.name)
            rows = connection.execute(query).mappings()
            return tuple(
                StoredDevice(**{**row, "payload": json.loads(row["payload"])}) for row in rows
            )

        return self._transactions.read(read)

    def replace_devices(self, devices: Mapping[str, Json]) -> None:
        """Make these the devices of the fleet; those that left lose their open campaigns.

        Args:
            devices: Descriptions by name.
        """

        def replace(connection: sa.Connection) -> None:
            gone = FLEET_DEVICES.c.name.not_in(devices)
            connection.execute(sa.delete(FLEET_DEVICES).where(gone))
            for name, payload in devices.items():
                row = {"name": name, "payload": json.dumps(payload)}
                new = {"state": AWAY, "changed_at_s": self._now()}
                empty = dict.fromkeys(("reason", "profile_key", "description"), "")
                insert = find_dialect(connection).insert(FLEET_DEVICES)
                statement = insert.values(**row, **new, **empty)
                connection.execute(
                    statement.on_conflict_do_update(index_elements=["name"], set_=row)
                )

        self._transactions.write(replace)

    def change_device(
        self,
        name: str,
        state: str,
        reason: str = "",
        *,
        profile_key: str = "",
        description: str = "",
    ) -> None:
        """Store what was found out about a device.

        Args:
            name: The device.
            state: A state of ``StoredDevice``.
            reason: Why it is not ready.
            profile_key: Its profile; empty keeps the known one.
            description: What its agent found; empty keeps the known one.
        """
        known = {"profile_key": profile_key, "description": description}
        values = {key: value for key, value in known.items() if value}
        values |= {"state": state, "reason": reason}
        self._update(FLEET_DEVICES, FLEET_DEVICES.c.name == name, values)

    # -----------------------------------------------------------------------------------------
    # Requests and campaigns

    def add_request(self, name: str, payload: Json, devices: Iterable[str]) -> str:
        """Request a campaign on devices; return the key of the request.

        What is already requested and not finished continues; what was finished starts again.

        Args:
            name: Name of the network.
            payload: What each campaign has to do, as JSON values.
            devices: Names of devices.
        """
        key = stable_hash(payload)

        def add(connection: sa.Connection) -> None:
            insert = find_dialect(connection).insert
            row = {"key": key, "name": name, "payload": json.dumps(payload)}
            connection.execute(insert(FLEET_REQUESTS).values(**row).on_conflict_do_nothing())
            start = {
                "state": WAITING, "reason": "", "points": 0, "uncertainty_share": None,
                "elapsed_s": 0.0, "requested_at_s": self._now(), "changed_at_s": self._now(),
            }  # fmt: skip
            for device in devices:
                statement = insert(FLEET_CAMPAIGNS).values(request_key=key, device=device, **start)
                connection.execute(
                    statement.on_conflict_do_update(
                        index_elements=["request_key", "device"],
                        set_=start,
                        where=FLEET_CAMPAIGNS.c.state.not_in((WAITING, RUNNING)),
                    )
                )

        self._transactions.write(add)
        return key

    def load_request(self, key: str) -> Json:
        """Return what a request says, as JSON values."""

        def read(connection: sa.Connection) -> Json:
            query = sa.select(FLEET_REQUESTS.c.payload).where(FLEET_REQUESTS.c.key == key)
            payload: Json = json.loads(connection.execute(query).scalar_one())
            return payload

        return self._transactions.read(read)

    def list_campaigns(
        self, request_key: str | None = None, states: Sequence[str] | None = None
    ) -> tuple[StoredCampaign, ...]:
        """Return campaigns, the earliest request first.

        Args:
            request_key: Only those of one request.
            states: Only those in one of these states.
        """
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

        def read(connection: sa.Connection) -> tuple[StoredCampaign, ...]:
            return tuple(StoredCampaign(**row) for row in connection.execute(query).mappings())

        return self._transactions.read(read)

    def change_campaign(self, request_key: str, device: str, **values: Any) -> None:
        """Store how far a campaign is.

        Args:
            request_key: The request.
            device: The device.
            values: Fields of ``StoredCampaign``.
        """
        table = FLEET_CAMPAIGNS
        is_campaign = (table.c.request_key == request_key) & (table.c.device == device)
        self._update(table, is_campaign, values)

    def _update(self, table: sa.Table, where: sa.ColumnElement[bool], values: Json) -> None:
        statement = sa.update(table).where(where).values(**values, changed_at_s=self._now())
        self._transactions.write(lambda connection: connection.execute(statement) and None)
