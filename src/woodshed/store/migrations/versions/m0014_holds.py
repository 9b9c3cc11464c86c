"""When an endpoint was held, so that a hold of an earlier boot of the machine is known for one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Holds that stand are over: of which boot they are is not known."""
    op.add_column("limits", sa.Column("held_at", sa.Float(53)))
