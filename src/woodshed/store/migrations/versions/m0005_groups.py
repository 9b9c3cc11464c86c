"""Groups: what is open of each task and agent of a run, and who consumes it once nothing is."""

from __future__ import annotations

from itertools import count, groupby

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_FILL = """
INSERT INTO attempt_groups (run, task, agent, project, total, open, completed_at, delivery)
SELECT run, task, agent, min(project), count(*), sum(CASE WHEN state = 'done' THEN 0 ELSE 1 END),
       CASE WHEN sum(CASE WHEN state = 'done' THEN 0 ELSE 1 END) = 0 THEN max(finished_at) END, 0
FROM attempts GROUP BY run, task, agent
"""


def upgrade() -> None:
    """Make the table, and fill it for the runs that there are."""
    op.create_index("ix_attempts_group", "attempts", ["run", "task", "agent"])
    op.create_table(
        "attempt_groups",
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("open", sa.Integer, nullable=False),
        sa.Column("place", sa.Integer),
        sa.Column("completed_at", sa.String(32)),
        sa.Column("consumer", sa.Text),
        sa.Column("delivery", sa.Integer, nullable=False),
        sa.Column("leased_at", sa.Float(53)),
        sa.Column("lease_s", sa.Float(53)),
        sa.Column("acked_at", sa.String(32)),
        sa.PrimaryKeyConstraint("run", "task", "agent", name="pk_attempt_groups"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_attempt_groups_runs"),
        sa.UniqueConstraint("run", "place", name="uq_attempt_groups_run"),
    )
    op.execute(_FILL)
    _place()


def _place() -> None:
    """What was complete has its place in the order of completion."""
    groups = sa.table("attempt_groups", *map(sa.column, ("run", "task", "agent", "place", "completed_at")))
    complete = (sa.select(groups.c.run, groups.c.task, groups.c.agent).where(groups.c.completed_at.is_not(None))
                .order_by(groups.c.run, groups.c.completed_at, groups.c.task, groups.c.agent))
    found = op.get_bind().execute(complete).all()
    for _, rows in groupby(found, key=lambda row: row.run):
        for place, row in zip(count(1), rows, strict=False):
            this = sa.and_(groups.c.run == row.run, groups.c.task == row.task, groups.c.agent == row.agent)
            op.execute(sa.update(groups).where(this).values(place=place))
