"""Deadlines of runs are told by the clock that heartbeats are told by, which nobody sets."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from woodshed.store import clock

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Runs whose time runs have as much of it left as they had."""
    for name in ("timed_at", "timed_until"):
        op.add_column("submissions", sa.Column(name, sa.Float(53)))
    connection = op.get_bind()
    at, wall = clock.seconds(connection), datetime.now(UTC)
    told = sa.table("submissions", *map(sa.column, ("run", "ends_at", "timed_at", "timed_until")))
    for run, ends_at in connection.execute(sa.select(told.c.run, told.c.ends_at).where(told.c.ends_at.is_not(None))):
        left = (datetime.fromisoformat(ends_at) - wall).total_seconds()
        connection.execute(sa.update(told).where(told.c.run == run).values(timed_at=at, timed_until=at + left))
    op.drop_column("submissions", "ends_at")
