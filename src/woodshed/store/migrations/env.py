"""Runs the migrations on the connection, and inside the transaction, that opened the store."""

from __future__ import annotations

from alembic import context

from woodshed.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # the caller's transaction: SQLite's DDL is transactional once the driver keeps out of it
)
context.run_migrations()
