"""A database is opened with its schema at HEAD, whoever opened it first and however many open it at once."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from woodshed.errors import StoreFault, UsageError
from woodshed.store.tables import HEAD

_RESTED_S = 1.0

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another process's transaction. Ours last milliseconds; a slow disk may stretch one."""

_MIGRATION_LOCK = 0x776F6F64  # "wood": the key of PostgreSQL's advisory lock around migrations

READS = {"woodshed_reads": True}
"""Execution options of a connection that only reads: on SQLite it does not take the write lock."""


def open_engine(url: str | None, home: Path) -> sa.Engine:
    """An engine on ``url`` (default: ``woodshed.db`` in ``home``) whose schema is at HEAD.

    Raises UsageError for a URL that cannot be understood or a schema newer than this program, StoreFault otherwise.
    """
    engine = _sqlite(home / "woodshed.db") if url is None else _by_url(url)
    try:
        with faults(engine, "opening the store"):
            _migrate(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def make_sqlite(path: Path) -> None:
    """An SQLite file stands at ``path`` in WAL mode, private to its owner if it is new. Raises StoreFault."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        _write_ahead(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreFault(f"opening the database: {explain(error)} ({path})") from error


def _sqlite(path: Path) -> sa.Engine:
    make_sqlite(path)
    url = sa.URL.create("sqlite", database=str(path.absolute()))
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _connected)
    event.listen(engine, "begin", _begin)
    return engine


def guest_sqlite(path: Path, connected: Callable[[sqlite3.Connection], None]) -> sa.Engine:
    """An engine on a WAL file for a library that begins its own transactions; ``connected`` prepares each connection.

    They are immediate, wait for other writers, keep foreign keys, and are synced like our own. Raises StoreFault.
    """
    make_sqlite(path)
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path.absolute())))

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = "IMMEDIATE"
        connection.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_S * 1000)}")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=NORMAL")
        connected(connection)

    return engine


def _by_url(url: str) -> sa.Engine:
    remedy = "Use sqlite:////absolute/path.db or postgresql://user@host/name."
    try:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "sqlite":
            if parsed.database in (None, "", ":memory:"):
                raise UsageError("a database in memory would forget the run", field="database_url", remedy=remedy)
            return _sqlite(Path(str(parsed.database)))
        if parsed.get_backend_name() != "postgresql":
            raise UsageError(f"no database we know: {parsed.drivername}", field="database_url", remedy=remedy)
        parsed = parsed.set(drivername="postgresql+psycopg")
        engine = sa.create_engine(parsed, connect_args={"connect_timeout": 10})
        event.listen(engine, "checkin", _rests)
        event.listen(engine, "checkout", _wakes)
        return engine
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError, ValueError) as error:
        raise UsageError(f"cannot be understood ({error})", field="database_url", remedy=remedy) from None


def _rests(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info["rests_since"] = time.monotonic()


def _wakes(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
    """A connection that has rested is asked whether its server is still there; a new one takes its place if not.

    Not one that was just used, which would cost every short transaction another trip to the server.
    """
    if time.monotonic() - record.info.get("rests_since", math.inf) > _RESTED_S:
        try:
            connection.execute("SELECT 1")
            connection.rollback()
        except Exception as error:
            raise sa.exc.DisconnectionError("the server has gone away") from error


def _write_ahead(path: Path) -> None:
    """Switch the file to WAL before anyone else does; the mode is part of the file.

    SQLite answers "locked" at once, without its busy timeout, when two processes switch a new file together.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise OSError(f"SQLite cannot use its write-ahead log here (mode {mode}); choose a local disk")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        finally:
            connection.close()


def _connected(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves: the driver's own comes after the first read
    connection.execute("PRAGMA synchronous=NORMAL")  # a crash of the machine may lose the last moments, never the file
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get("woodshed_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _migrate(engine: sa.Engine) -> None:
    """Bring the schema to HEAD inside one transaction, alone."""
    with engine.connect().execution_options(**READS) as connection:
        if _version(connection) == HEAD:
            return
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        version = _version(connection)
        if version == HEAD:
            return
        _upgrade(connection, version)


def _version(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return version


def _upgrade(connection: sa.Connection, version: str | None) -> None:
    from alembic import command  # costs 0.2 s, needed only when there is something to migrate
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

    config = alembic_config(connection)
    try:
        if version is not None:
            ScriptDirectory.from_config(config).get_revision(version)
    except CommandError:
        raise UsageError(
            f"the store was written by a newer Woodshed (schema {version}, known here: {HEAD})",
            file=connection.engine.url.render_as_string(), remedy="Update Woodshed, or choose another WOODSHED_HOME.",
        ) from None
    command.upgrade(config, "head")


def alembic_config(connection: sa.Connection) -> Any:
    """Alembic's configuration for the migrations in this package, run on ``connection``'s own transaction."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


@contextmanager
def faults(engine: sa.Engine, doing: str) -> Iterator[None]:
    """Whatever the database says leaves as a StoreFault in plain words; SQL and parameters stay out of the message."""
    try:
        yield
    except (DBAPIError, sa.exc.TimeoutError, OSError) as error:
        raise StoreFault(f"{doing}: {explain(error)} ({engine.url.render_as_string(hide_password=True)})") from error


_PLAIN = (
    ("database or disk is full", "the disk is full; make room and resume"),
    ("no space left", "the disk is full; make room and resume"),
    ("database is locked", "another process holds the database locked; end it and resume"),
    ("malformed", "the database file is damaged; restore it from a backup, or choose another WOODSHED_HOME"),
    ("not a database", "the file is not a database; restore it from a backup, or choose another WOODSHED_HOME"),
    ("readonly", "the database is read-only; check its permissions and the file system"),
    ("unable to open", "the database file cannot be opened; check its permissions and the file system"),
    ("disk i/o error", "the disk failed or has no room left; check it and resume"),
)


def explain(error: BaseException) -> str:
    """One plain sentence for a database's or the system's error."""
    original = getattr(error, "orig", None) or error
    text = " ".join(str(original).split())
    return next((plain for mark, plain in _PLAIN if mark in text.lower()), f"{type(original).__name__}: {text}")
