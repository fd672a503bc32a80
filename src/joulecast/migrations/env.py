"""What alembic runs to change a store's schema, on the connection that the store hands over.

The store has begun a transaction already, so that a change is made whole or not at all.
"""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,
)
context.run_migrations()
