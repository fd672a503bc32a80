"""Create the tables of a fleet: its devices, what was requested, and the progress of campaigns."""

from alembic import op

from joulecast.store.database import FLEET_CAMPAIGNS, FLEET_DEVICES, FLEET_REQUESTS, METADATA

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables."""
    METADATA.create_all(op.get_bind(), [FLEET_DEVICES, FLEET_REQUESTS, FLEET_CAMPAIGNS])
