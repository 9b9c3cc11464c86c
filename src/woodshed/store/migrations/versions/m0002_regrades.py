"""Regrades: what other rules make of a finished run, beside its verdicts, which stay."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables; like events, their rows can only be added."""
    op.create_table(
        "regrades",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("rules", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_regrades"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_regrades_runs"),
    )
    op.create_index("ix_regrades_run", "regrades", ["run"])
    op.create_table(
        "regraded",
        sa.Column("regrade", sa.String(64), nullable=False),
        sa.Column("attempt", sa.String(80), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("execution", sa.Integer, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("components", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("regrade", "attempt", name="pk_regraded"),
        sa.ForeignKeyConstraint(["regrade"], ["regrades.id"], name="fk_regraded_regrades"),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.id"], name="fk_regraded_attempts"),
    )
    for table in ("regrades", "regraded"):
        _append_only(table)


def _append_only(table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION woodshed_append_only()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        )
