"""Migrate stores to a newer schema with alembic; ``store/database.py`` runs the migrations.

``versions`` has one file per migration, whose effect never changes after its release. Tables are
written with the two functions below, here and in the store.
"""

from typing import Any

import sqlalchemy as sa


def columns(kind: Any, *names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    """Return columns of one type."""
    return [sa.Column(name, kind, nullable=nullable) for name in names]


def reference(name: str, target: str, length: int = 16, **options: Any) -> sa.Column[str]:
    """Return a column that refers to another table; rows are deleted with what they refer to."""
    key = sa.ForeignKey(target, ondelete="CASCADE")
    return sa.Column(name, sa.String(length), key, nullable=False, **options)
