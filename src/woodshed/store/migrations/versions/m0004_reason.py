"""Why a run is paused stands with it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("runs", sa.Column("reason", sa.Text))
