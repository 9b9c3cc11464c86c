"""Clock: seconds by which leases and heartbeats are told, of a clock that nobody sets.

The database server's on PostgreSQL, which all machines share; the time since boot on SQLite, whose users share a
machine. There a reading may be of an earlier boot: one that lies further ahead than :data:`SKEW_S` is.
"""

from __future__ import annotations

import time

import sqlalchemy as sa

SKEW_S = 5.0


def seconds(connection: sa.Connection) -> float:
    """What the clock says now."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(_SERVER).scalar_one())
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_SERVER = sa.text("SELECT extract(epoch FROM clock_timestamp())")
