"""How a store gets from one schema to the next, for alembic; ``store.py`` runs it.

One file a change stands in ``versions``. A change is never edited once it is released.
"""
