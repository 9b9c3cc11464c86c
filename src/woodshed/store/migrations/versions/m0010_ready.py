"""What is ready of a run is counted, and taken in order, without reading everything that waits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index; it begins with the run, so that the old one has nothing to do any more.

    That of workers has no longer what nobody has: SQLite would take it for what waits, and read all of that.
    """
    op.create_index("ix_queued_ready", "queued", ["run", "endpoint", "worker", "lane", "number", "available_at"])
    op.drop_index("ix_queued_run", "queued")
    op.drop_index("ix_queued_worker", "queued")
    had = sa.text("worker IS NOT NULL")
    op.create_index("ix_queued_worker", "queued", ["worker"], sqlite_where=had, postgresql_where=had)
