"""What people thought of attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "ratings",
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("attempt", sa.String(80), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("stars", sa.Integer, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_ratings"),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.id"], name="fk_ratings_attempt_attempts"),
    )
    op.create_index("ix_ratings_attempt", "ratings", ["attempt"])
