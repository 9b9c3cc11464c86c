"""The queue: what shared runs have waiting, the workers that take it, and the bounds that stand."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "submissions",
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("key", sa.String(200)),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("slots", sa.Integer),
        sa.Column("not_before", sa.String(32)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("run", name="pk_submissions"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_submissions_runs"),
        sa.UniqueConstraint("project", "key", name="uq_submissions_project"),
    )
    op.create_table(
        "queued",
        sa.Column("attempt", sa.String(80), nullable=False),
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("lane", sa.String(16), nullable=False),
        sa.Column("deaths", sa.Integer, nullable=False),
        sa.Column("available_at", sa.String(32)),
        sa.Column("worker", sa.String(64)),
        sa.Column("claimed_at", sa.String(32)),
        sa.PrimaryKeyConstraint("attempt", name="pk_queued"),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.id"], name="fk_queued_attempts"),
        sa.ForeignKeyConstraint(["run"], ["submissions.run"], name="fk_queued_submissions"),
    )
    op.create_index("ix_queued_run", "queued", ["run"])
    op.create_index("ix_queued_worker", "queued", ["worker"])
    op.create_table(
        "workers",
        sa.Column("executor", sa.String(64), nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("started_at", sa.String(32), nullable=False),
        sa.Column("beat", sa.Float(53), nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("busy", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("executor", name="pk_workers"),
    )
    op.create_table(
        "limits",
        sa.Column("scope", sa.String(400), nullable=False),
        sa.Column("slots", sa.Integer),
        sa.Column("per_minute", sa.Float(53)),
        sa.Column("tokens", sa.Float(53), nullable=False),
        sa.Column("filled", sa.Float(53), nullable=False),
        sa.Column("held_until", sa.Float(53)),
        sa.PrimaryKeyConstraint("scope", name="pk_limits"),
    )
