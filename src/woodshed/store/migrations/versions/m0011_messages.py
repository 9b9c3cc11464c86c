"""Messages to attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "messages",
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("attempt", sa.String(80), nullable=False),
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("key", sa.String(200)),
        sa.Column("sent_at", sa.String(32), nullable=False),
        sa.Column("execution", sa.Integer),
        sa.Column("heard_at", sa.String(32)),
        sa.PrimaryKeyConstraint("number", name="pk_messages"),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.id"], name="fk_messages_attempts"),
        sa.UniqueConstraint("attempt", "key", name="uq_messages_attempt"),
    )
    op.create_index("ix_messages_run", "messages", ["run"])
