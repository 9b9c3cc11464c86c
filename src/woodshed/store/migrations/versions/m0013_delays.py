"""Delays of attempts are told by the clock that heartbeats are told by, which nobody sets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Retries that wait now are free at once: when they were given back is not known by that clock."""
    op.drop_index("ix_queued_ready", "queued")
    op.drop_column("queued", "available_at")
    for name in ("delayed_at", "delayed_until"):
        op.add_column("queued", sa.Column(name, sa.Float(53)))
    op.create_index("ix_queued_ready", "queued",
                    ["run", "endpoint", "worker", "lane", "number", "delayed_until", "delayed_at"])
