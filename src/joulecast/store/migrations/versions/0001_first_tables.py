"""Create the first tables: profiles, observations and fits."""

from alembic import op

from joulecast.store.database import FITS, METADATA, OBSERVATIONS, PROFILES

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    METADATA.create_all(op.get_bind(), [PROFILES, OBSERVATIONS, FITS])
