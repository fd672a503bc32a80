"""Create the tables of campaigns: how far each is, how it got there, and finished evaluations."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "campaigns",
        sa.Column("key", sa.String(16), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("profile_key", sa.String(16), nullable=False),
        sa.Column("provenance", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("points", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer, nullable=True),
        sa.Column("uncertainty_share", sa.Double, nullable=True),
        sa.Column("elapsed_s", sa.Double, nullable=False),
        sa.Column("left_s", sa.Double, nullable=True),
        sa.Column("is_stop_requested", sa.Boolean, nullable=False),
        sa.Column("started_at_s", sa.Double, nullable=False),
        sa.Column("changed_at_s", sa.Double, nullable=False),
    )
    op.create_table(
        "campaign_progress",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "campaign_key",
            sa.String(16),
            sa.ForeignKey("campaigns.key", ondelete="CASCADE"),
            nullable=False,
            index=True,
        ),
        sa.Column("elapsed_s", sa.Double, nullable=False),
        sa.Column("points", sa.Integer, nullable=False),
        sa.Column("uncertainty_share", sa.Double, nullable=True),
    )
    op.create_table(
        "evaluations",
        sa.Column("name", sa.String(80), primary_key=True),
        sa.Column("profile_key", sa.String(16), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("made_at_s", sa.Double, nullable=False),
    )
