"""Schedules, their firings, and who sees to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("declared", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("cursor", sa.String(32), nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schedules"),
        sa.UniqueConstraint("project", "name", name="uq_schedules_project"),
    )
    op.create_table(
        "firings",
        sa.Column("schedule", sa.String(64), nullable=False),
        sa.Column("due", sa.String(32), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("by", sa.String(16), nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("since", sa.String(32)),
        sa.Column("reason", sa.Text),
        sa.Column("run", sa.String(64)),
        sa.Column("files", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("settled_at", sa.String(32)),
        sa.PrimaryKeyConstraint("schedule", "due", name="pk_firings"),
        sa.ForeignKeyConstraint(["schedule"], ["schedules.id"], name="fk_firings_schedules"),
    )
    op.create_index("ix_firings_state", "firings", ["state"])
    op.create_table(
        "fired_files",
        sa.Column("schedule", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("due", sa.String(32)),
        sa.PrimaryKeyConstraint("schedule", "sha256", name="pk_fired_files"),
        sa.ForeignKeyConstraint(["schedule"], ["schedules.id"], name="fk_fired_files_schedules"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("until", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
