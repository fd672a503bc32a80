"""Create the tables of campaigns, their progress, and finished evaluations."""

from alembic import op

from joulecast.store.database import CAMPAIGN_PROGRESS, CAMPAIGNS, EVALUATIONS, METADATA

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables."""
    METADATA.create_all(op.get_bind(), [CAMPAIGNS, CAMPAIGN_PROGRESS, EVALUATIONS])
