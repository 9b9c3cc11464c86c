"""Runs, attempts, executions, and events that can only be added."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the first tables."""
    _runs_and_attempts()
    _executions_and_events()
    _append_only()


def _runs_and_attempts() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("executor", sa.String(64)),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("finished_at", sa.String(32)),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_created_at", "runs", ["created_at"])
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("seed", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("executions", sa.Integer, nullable=False),
        sa.Column("outcome", sa.Text),
        sa.Column("started_at", sa.String(32)),
        sa.Column("finished_at", sa.String(32)),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_attempts_runs"),
        sa.UniqueConstraint("run", "number", name="uq_attempts_run"),
    )


def _executions_and_events() -> None:
    op.create_table(
        "executions",
        sa.Column("attempt", sa.String(80), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("executor", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("outcome", sa.Text),
        sa.Column("started_at", sa.String(32), nullable=False),
        sa.Column("finished_at", sa.String(32)),
        sa.PrimaryKeyConstraint("attempt", "number", name="pk_executions"),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.id"], name="fk_executions_attempts"),
    )
    op.create_table(
        "events",
        sa.Column("attempt", sa.String(80), nullable=False),
        sa.Column("execution", sa.Integer, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("attempt", "execution", "seq", name="pk_events"),
        sa.ForeignKeyConstraint(
            ["attempt", "execution"], ["executions.attempt", "executions.number"], name="fk_events_executions"
        ),
    )


def _append_only() -> None:
    """The database itself refuses to change or drop an event."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION woodshed_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ "
            "BEGIN RAISE EXCEPTION 'events are append-only'; END $$"
        )
        op.execute(
            "CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events "
            "FOR EACH ROW EXECUTE FUNCTION woodshed_append_only()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER events_no_{change.lower()} BEFORE {change} ON events "
            "BEGIN SELECT RAISE(ABORT, 'events are append-only'); END"
        )
