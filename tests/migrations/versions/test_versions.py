"""The migrations create the tables that the store uses."""

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from joulecast.store import open_store
from joulecast.store.database import HEAD, METADATA, VERSION_TABLE


def test_migrations_create_the_tables_of_the_store(tmp_path):
    path = tmp_path / "store.sqlite"
    open_store(path).close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        options = {"compare_type": True, "version_table": VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert context.get_current_revision() == HEAD
        assert compare_metadata(context, METADATA) == []
        assert connection.scalar(sa.text("PRAGMA journal_mode")) == "wal"
    engine.dispose()
