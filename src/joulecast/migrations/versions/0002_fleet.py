"""Create the tables of a fleet: its devices, what was requested, and how far campaigns are."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "fleet_devices",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("profile_key", sa.String(16), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("changed_at_s", sa.Double, nullable=False),
    )
    op.create_table(
        "fleet_requests",
        sa.Column("key", sa.String(16), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
    op.create_table(
        "fleet_campaigns",
        sa.Column(
            "request_key",
            sa.String(16),
            sa.ForeignKey("fleet_requests.key", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column(
            "device",
            sa.String(200),
            sa.ForeignKey("fleet_devices.name", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("points", sa.Integer, nullable=False),
        sa.Column("uncertainty_share", sa.Double, nullable=True),
        sa.Column("elapsed_s", sa.Double, nullable=False),
        sa.Column("requested_at_s", sa.Double, nullable=False),
        sa.Column("changed_at_s", sa.Double, nullable=False),
    )
