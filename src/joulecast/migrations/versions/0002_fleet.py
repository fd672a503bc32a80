"""Create the tables of a fleet: its devices, what was requested, and the progress of campaigns."""

import sqlalchemy as sa
from alembic import op

from joulecast.migrations import columns, reference

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "fleet_devices",
        sa.Column("name", sa.String(200), primary_key=True),
        *columns(sa.Text, "payload", "state", "reason"),
        *columns(sa.String(16), "profile_key"),
        *columns(sa.Text, "description"),
        *columns(sa.Double, "changed_at_s"),
    )
    op.create_table(
        "fleet_requests",
        sa.Column("key", sa.String(16), primary_key=True),
        *columns(sa.Text, "name", "payload"),
    )
    op.create_table(
        "fleet_campaigns",
        reference("request_key", "fleet_requests.key", primary_key=True),
        reference("device", "fleet_devices.name", 200, primary_key=True),
        *columns(sa.Text, "state", "reason"),
        *columns(sa.Integer, "points"),
        *columns(sa.Double, "uncertainty_share", nullable=True),
        *columns(sa.Double, "elapsed_s", "requested_at_s", "changed_at_s"),
    )
