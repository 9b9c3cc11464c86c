"""Shared runs have deadlines, and workers tell since when their machine is up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; runs that wait already have no deadline, and of workers that work nothing is known."""
    op.add_column("submissions", sa.Column("run_s", sa.Float(53)))
    op.add_column("submissions", sa.Column("ends_at", sa.String(32)))
    op.add_column("workers", sa.Column("boot", sa.String(64), nullable=False, server_default=""))
