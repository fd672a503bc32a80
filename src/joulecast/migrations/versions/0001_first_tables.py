"""Create the first tables: profiles, observations and fits."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "profiles",
        sa.Column("key", sa.String(16), primary_key=True),
        sa.Column("device_name", sa.Text, nullable=False),
        sa.Column("power_mode", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("runtime", sa.Text, nullable=False),
        sa.Column("covers", sa.Text, nullable=False),
        sa.Column("provenance", sa.Text, nullable=False),
        sa.Column("created_at_s", sa.Double, nullable=False),
    )
    op.create_table(
        "observations",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "profile_key",
            sa.String(16),
            sa.ForeignKey("profiles.key", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("trial_key", sa.String(16), nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("taken_at_s", sa.Double, nullable=False),
        sa.Column("digest", sa.String(16), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.UniqueConstraint("profile_key", "trial_key", "digest"),
    )
    op.create_table(
        "fits",
        sa.Column(
            "profile_key",
            sa.String(16),
            sa.ForeignKey("profiles.key", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("estimator", sa.Text, primary_key=True),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("fitted_at_s", sa.Double, nullable=False),
        sa.Column("observation_count", sa.Integer, nullable=False),
    )
