"""Migrate stores to a newer schema with alembic; ``store/database.py`` runs the migrations.

``versions`` has one file per migration, which never changes after its release.
"""
