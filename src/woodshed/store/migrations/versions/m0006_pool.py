"""A shared run may be for the workers of one pool."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; runs that wait already are for workers without a pool."""
    op.add_column("submissions", sa.Column("pool", sa.Text, nullable=False, server_default=""))
