"""The tables of the store, as they are at the head of ``joulecast/migrations``.

    profiles ─┬─ observations    one row each, in the order they were made, never changed
              └─ fits            one row per estimator, the last one

Records are kept as JSON text: floats keep all their digits there, in SQLite and in PostgreSQL.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

METADATA = sa.MetaData()
PROFILES = sa.Table(
    "profiles",
    METADATA,
    sa.Column("key", sa.String(16), primary_key=True),
    sa.Column("device_name", sa.Text, nullable=False),
    sa.Column("power_mode", sa.Text, nullable=False),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("runtime", sa.Text, nullable=False),
    sa.Column("covers", sa.Text, nullable=False),
    sa.Column("provenance", sa.Text, nullable=False),
    sa.Column("created_at_s", sa.Double, nullable=False),
)


def _owner(**options: Any) -> sa.Column[str]:
    profile = sa.ForeignKey("profiles.key", ondelete="CASCADE")
    return sa.Column("profile_key", sa.String(16), profile, nullable=False, **options)


OBSERVATIONS = sa.Table(
    "observations",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    _owner(),
    sa.Column("trial_key", sa.String(16), nullable=False),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("taken_at_s", sa.Double, nullable=False),
    # Of all that was seen: the same observation is kept once, however often it arrives.
    sa.Column("digest", sa.String(16), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.UniqueConstraint("profile_key", "trial_key", "digest"),
)
FITS = sa.Table(
    "fits",
    METADATA,
    _owner(primary_key=True),
    sa.Column("estimator", sa.Text, primary_key=True),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("fitted_at_s", sa.Double, nullable=False),
    sa.Column("observation_count", sa.Integer, nullable=False),
)
