"""The tables. Every row has a project, but for those of workers, limits and leases, which serve all. JSON is text;
times are ISO 8601 UTC text of fixed width, so they sort.

JSON stands in text columns because the same code serves SQLite and PostgreSQL, and because an event's data may hold
characters (NUL, lone surrogates from file names) that PostgreSQL's own JSON type refuses. A change here needs a
migration in ``migrations/versions``; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

HEAD = "0015"
"""The migration that these tables agree with."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("project", String(64), nullable=False),
    Column("spec", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("executor", String(64)),
    Column("created_at", String(32), nullable=False),
    Column("finished_at", String(32)),
    Column("reason", Text),
    Index("ix_runs_created_at", "created_at"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("run", String(64), nullable=False),
    Column("project", String(64), nullable=False),
    Column("number", Integer, nullable=False),
    Column("task", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("index", Integer, nullable=False),
    Column("seed", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("executions", Integer, nullable=False),
    Column("outcome", Text),
    Column("started_at", String(32)),
    Column("finished_at", String(32)),
    ForeignKeyConstraint(["run"], ["runs.id"]),
    UniqueConstraint("run", "number"),
    Index("ix_attempts_group", "run", "task", "agent"),
)

attempt_groups = Table(
    "attempt_groups",
    metadata,
    Column("run", String(64), primary_key=True),
    Column("task", Text, primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("project", String(64), nullable=False),
    Column("total", Integer, nullable=False),
    Column("open", Integer, nullable=False),
    Column("place", Integer),
    Column("completed_at", String(32)),
    Column("consumer", Text),
    Column("delivery", Integer, nullable=False),
    Column("leased_at", Float(53)),
    Column("lease_s", Float(53)),
    Column("acked_at", String(32)),
    ForeignKeyConstraint(["run"], ["runs.id"]),
    UniqueConstraint("run", "place"),
)

executions = Table(
    "executions",
    metadata,
    Column("attempt", String(80), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("project", String(64), nullable=False),
    Column("executor", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("outcome", Text),
    Column("started_at", String(32), nullable=False),
    Column("finished_at", String(32)),
    ForeignKeyConstraint(["attempt"], ["attempts.id"]),
)

events = Table(
    "events",
    metadata,
    Column("attempt", String(80), primary_key=True),
    Column("execution", Integer, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("project", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("at", String(32), nullable=False),
    Column("data", Text, nullable=False),
    ForeignKeyConstraint(["attempt", "execution"], ["executions.attempt", "executions.number"]),
)

regrades = Table(
    "regrades",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("run", String(64), nullable=False),
    Column("project", String(64), nullable=False),
    Column("rules", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
    ForeignKeyConstraint(["run"], ["runs.id"]),
    Index("ix_regrades_run", "run"),
)

regraded = Table(
    "regraded",
    metadata,
    Column("regrade", String(64), primary_key=True),
    Column("attempt", String(80), primary_key=True),
    Column("project", String(64), nullable=False),
    Column("execution", Integer, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("components", Text, nullable=False),
    ForeignKeyConstraint(["regrade"], ["regrades.id"]),
    ForeignKeyConstraint(["attempt"], ["attempts.id"]),
)

submissions = Table(
    "submissions",
    metadata,
    Column("run", String(64), primary_key=True),
    Column("project", String(64), nullable=False),
    Column("key", String(200)),
    Column("priority", Integer, nullable=False),
    Column("slots", Integer),
    Column("pool", Text, nullable=False, server_default=""),
    Column("not_before", String(32)),
    Column("run_s", Float(53)),
    Column("timed_at", Float(53)),
    Column("timed_until", Float(53)),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("created_at", String(32), nullable=False),
    ForeignKeyConstraint(["run"], ["runs.id"]),
    UniqueConstraint("project", "key"),
)

queued = Table(
    "queued",
    metadata,
    Column("attempt", String(80), primary_key=True),
    Column("run", String(64), nullable=False),
    Column("project", String(64), nullable=False),
    Column("number", Integer, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("lane", String(16), nullable=False),
    Column("deaths", Integer, nullable=False),
    Column("delayed_at", Float(53)),
    Column("delayed_until", Float(53)),
    Column("worker", String(64)),
    Column("claimed_at", String(32)),
    ForeignKeyConstraint(["attempt"], ["attempts.id"]),
    ForeignKeyConstraint(["run"], ["submissions.run"]),
    Index("ix_queued_ready", "run", "endpoint", "worker", "lane", "number", "delayed_until", "delayed_at"),
    Index("ix_queued_worker", "worker", sqlite_where=text("worker IS NOT NULL"),
          postgresql_where=text("worker IS NOT NULL")),
)

workers = Table(
    "workers",
    metadata,
    Column("executor", String(64), primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", String(32), nullable=False),
    Column("beat", Float(53), nullable=False),
    Column("slots", Integer, nullable=False),
    Column("busy", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("pool", Text, nullable=False),
    Column("boot", String(64), nullable=False, server_default=""),
)

limits = Table(
    "limits",
    metadata,
    Column("scope", String(400), primary_key=True),
    Column("slots", Integer),
    Column("per_minute", Float(53)),
    Column("tokens", Float(53), nullable=False),
    Column("filled", Float(53), nullable=False),
    Column("held_at", Float(53)),
    Column("held_until", Float(53)),
)

schedules = Table(
    "schedules",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("project", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    Column("declared", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("cursor", String(32), nullable=False),
    Column("failures", Integer, nullable=False),
    Column("created_at", String(32), nullable=False),
    UniqueConstraint("project", "name"),
)

firings = Table(
    "firings",
    metadata,
    Column("schedule", String(64), primary_key=True),
    Column("due", String(32), primary_key=True),
    Column("project", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("by", String(16), nullable=False),
    Column("count", Integer, nullable=False),
    Column("since", String(32)),
    Column("reason", Text),
    Column("run", String(64)),
    Column("files", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("settled_at", String(32)),
    ForeignKeyConstraint(["schedule"], ["schedules.id"]),
    Index("ix_firings_state", "state"),
)

fired_files = Table(
    "fired_files",
    metadata,
    Column("schedule", String(64), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("project", String(64), nullable=False),
    Column("path", Text, nullable=False),
    Column("due", String(32)),
    ForeignKeyConstraint(["schedule"], ["schedules.id"]),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(64), nullable=False),
    Column("until", Float(53), nullable=False),
)

ratings = Table(
    "ratings",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("attempt", String(80), nullable=False),
    Column("project", String(64), nullable=False),
    Column("stars", Integer, nullable=False),
    Column("note", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("at", String(32), nullable=False),
    ForeignKeyConstraint(["attempt"], ["attempts.id"]),
    Index("ix_ratings_attempt", "attempt"),
)

messages = Table(
    "messages",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("attempt", String(80), nullable=False),
    Column("run", String(64), nullable=False),
    Column("project", String(64), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("data", Text, nullable=False),
    Column("key", String(200)),
    Column("sent_at", String(32), nullable=False),
    Column("execution", Integer),
    Column("heard_at", String(32)),
    ForeignKeyConstraint(["attempt"], ["attempts.id"]),
    UniqueConstraint("attempt", "key"),
    Index("ix_messages_run", "run"),
)

rollout_requests = Table(
    "rollout_requests",
    metadata,
    Column("run", String(64), primary_key=True),
    Column("project", String(64), nullable=False),
    Column("key", String(200)),
    Column("digest", String(64), nullable=False),
    Column("endpoint", Text),
    Column("version", Text),
    Column("rank", BigInteger),
    Column("max_staleness", Integer),
    Column("on_stale", String(16), nullable=False),
    Column("stale_at", String(32)),
    Column("over_at", String(32)),
    Column("created_at", String(32), nullable=False),
    ForeignKeyConstraint(["run"], ["runs.id"]),
    UniqueConstraint("project", "key"),
    Index("ix_rollout_requests_over_at", "over_at", "created_at"),
)

policies = Table(
    "policies",
    metadata,
    Column("project", String(64), primary_key=True),
    Column("endpoint", Text, primary_key=True),
    Column("rank", BigInteger, primary_key=True),
    Column("version", Text, nullable=False),
    Column("announced_at", String(32), nullable=False),
    UniqueConstraint("project", "endpoint", "version"),
)
