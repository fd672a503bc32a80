"""Define the tables of the store, as of the newest migration.

    profiles ─┬─ observations    one row each, in the order they were added; one is replaced
              │                  only where a power trace provides its energy
              └─ fits            one row per estimator: the latest

Records are stored as JSON text, in which floats keep all their digits.
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


def _profile_key(**options: Any) -> sa.Column[str]:
    profile = sa.ForeignKey("profiles.key", ondelete="CASCADE")
    return sa.Column("profile_key", sa.String(16), profile, nullable=False, **options)


OBSERVATIONS = sa.Table(
    "observations",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    _profile_key(),
    sa.Column("trial_key", sa.String(16), nullable=False),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("taken_at_s", sa.Double, nullable=False),
    # A hash of the observation, so that adding it again has no effect.
    sa.Column("digest", sa.String(16), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.UniqueConstraint("profile_key", "trial_key", "digest"),
)
FITS = sa.Table(
    "fits",
    METADATA,
    _profile_key(primary_key=True),
    sa.Column("estimator", sa.Text, primary_key=True),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("fitted_at_s", sa.Double, nullable=False),
    sa.Column("observation_count", sa.Integer, nullable=False),
)
