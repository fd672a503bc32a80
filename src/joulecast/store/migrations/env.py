"""Run migrations on the connection of the store.

The store has begun a transaction, so a migration is applied completely or not at all.
"""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,
)
context.run_migrations()
