"""Create the first tables: profiles, observations and fits."""

import sqlalchemy as sa
from alembic import op

from joulecast.migrations import columns, reference

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "profiles",
        sa.Column("key", sa.String(16), primary_key=True),
        *columns(sa.Text, "device_name", "power_mode", "device", "runtime", "covers", "provenance"),
        *columns(sa.Double, "created_at_s"),
    )
    op.create_table(
        "observations",
        sa.Column("id", sa.Integer, primary_key=True),
        reference("profile_key", "profiles.key"),
        *columns(sa.String(16), "trial_key"),
        *columns(sa.Text, "run"),
        *columns(sa.Double, "taken_at_s"),
        *columns(sa.String(16), "digest"),
        *columns(sa.Text, "payload"),
        sa.UniqueConstraint("profile_key", "trial_key", "digest"),
    )
    op.create_table(
        "fits",
        reference("profile_key", "profiles.key", primary_key=True),
        sa.Column("estimator", sa.Text, primary_key=True),
        *columns(sa.Text, "payload"),
        *columns(sa.Double, "fitted_at_s"),
        *columns(sa.Integer, "observation_count"),
    )
