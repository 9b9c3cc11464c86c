"""Alembic migrations of the store; run by opening it."""
