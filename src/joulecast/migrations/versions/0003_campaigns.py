"""Create the tables of campaigns, their progress, and finished evaluations."""

import sqlalchemy as sa
from alembic import op

from joulecast.migrations import columns, reference

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "campaigns",
        sa.Column("key", sa.String(16), primary_key=True),
        *columns(sa.Text, "name", "device"),
        *columns(sa.String(16), "profile_key"),
        *columns(sa.Text, "provenance", "state", "reason"),
        *columns(sa.Integer, "points"),
        *columns(sa.Integer, "total", nullable=True),
        *columns(sa.Double, "uncertainty_share", nullable=True),
        *columns(sa.Double, "elapsed_s"),
        *columns(sa.Double, "left_s", nullable=True),
        *columns(sa.Boolean, "is_stop_requested"),
        *columns(sa.Double, "started_at_s", "changed_at_s"),
    )
    op.create_table(
        "campaign_progress",
        sa.Column("id", sa.Integer, primary_key=True),
        reference("campaign_key", "campaigns.key", index=True),
        *columns(sa.Double, "elapsed_s"),
        *columns(sa.Integer, "points"),
        *columns(sa.Double, "uncertainty_share", nullable=True),
    )
    op.create_table(
        "evaluations",
        sa.Column("name", sa.String(80), primary_key=True),
        *columns(sa.String(16), "profile_key"),
        *columns(sa.Text, "payload"),
        *columns(sa.Double, "made_at_s"),
    )
