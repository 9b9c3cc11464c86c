"""Requests of rollouts, and the policies that they are held against."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "rollout_requests",
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("key", sa.String(200)),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("endpoint", sa.Text),
        sa.Column("version", sa.Text),
        sa.Column("rank", sa.BigInteger),
        sa.Column("max_staleness", sa.Integer),
        sa.Column("on_stale", sa.String(16), nullable=False),
        sa.Column("stale_at", sa.String(32)),
        sa.Column("over_at", sa.String(32)),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("run", name="pk_rollout_requests"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_rollout_requests_run_runs"),
        sa.UniqueConstraint("project", "key", name="uq_rollout_requests_project"),
    )
    op.create_index("ix_rollout_requests_over_at", "rollout_requests", ["over_at", "created_at"])
    op.create_table(
        "policies",
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("rank", sa.BigInteger, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("announced_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("project", "endpoint", "rank", name="pk_policies"),
        sa.UniqueConstraint("project", "endpoint", "version", name="uq_policies_project"),
    )
