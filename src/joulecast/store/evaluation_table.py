"""Keep the latest result of each evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from joulecast.records import Json
from joulecast.store.rows import find_dialect
from joulecast.store.tables import EVALUATIONS
from joulecast.store.transactions import Transactions


@dataclass(frozen=True)
class StoredEvaluation:
    """The result of an evaluation.

    Attributes:
        name: Identifies the evaluation.
        profile_key: The profile of its device.
        payload: The result, as ``Evaluation.to_dict`` wrote it.
        made_at_s: When it was computed, in seconds since 1970.
    """

    name: str
    profile_key: str
    payload: Json
    made_at_s: float


class EvaluationTable:
    """The evaluations of a store; ``Store.evaluations`` returns them."""

    def __init__(self, transactions: Transactions, now: Callable[[], float]) -> None:
        self._transactions = transactions
        self._now = now

    def save(self, name: str, profile_key: str, payload: Json) -> None:
        """Store the result of an evaluation; it replaces another one of the same name."""
        row = {
            "profile_key": profile_key,
            "payload": json.dumps(payload),
            "made_at_s": self._now(),
        }

        def write(connection: sa.Connection) -> None:
            insert = find_dialect(connection).insert(EVALUATIONS).values(name=name, **row)
            # An evaluation that is computed again with the same result stays as it is.
            is_new = EVALUATIONS.c.payload != row["payload"]
            connection.execute(
                insert.on_conflict_do_update(index_elements=["name"], set_=row, where=is_new)
            )

        self._transactions.write(write)

    def list_all(self) -> tuple[StoredEvaluation, ...]:
        """Return the evaluations, the latest first."""

        def read(connection: sa.Connection) -> tuple[StoredEvaluation, ...]:
            query = sa.select(EVALUATIONS).order_by(sa.desc(EVALUATIONS.c.made_at_s))
            rows = connection.execute(query).mappings()
            return tuple(
                StoredEvaluation(**{**row, "payload": json.loads(row["payload"])}) for row in rows
            )

        return self._transactions.read(read)
