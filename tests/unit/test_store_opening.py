"""Opening a database: migrated, private, in WAL mode; and plain words when it cannot be opened or written."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from smalldisk import on_small_disk
from woodshed.errors import StoreFault, UsageError
from woodshed.store import Store
from woodshed.store.opening import alembic_config, open_engine
from woodshed.store.tables import HEAD, metadata

FILL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from fill import fill
fill(Path(sys.argv[1]))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chosen.db"
    found: str = request.getfixturevalue("postgresql_url")
    return found


def test_the_migrations_make_exactly_the_tables_the_code_uses(url: str, tmp_path: Path) -> None:
    """Nothing differs between a migrated database and the tables' description, constraints by name included."""
    engine = open_engine(url, tmp_path)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == HEAD
    engine.dispose()


def test_the_code_names_the_newest_migration(tmp_path: Path) -> None:
    """HEAD, which saves loading Alembic at every start, is the head of the migrations."""
    engine = open_engine(None, tmp_path)
    with engine.connect() as connection:
        assert ScriptDirectory.from_config(alembic_config(connection)).get_heads() == [HEAD]
    engine.dispose()


def test_many_processes_may_open_a_new_store_at_once(url: str, tmp_path: Path) -> None:
    """Four processes that start together all succeed, and the schema is made once."""
    code = (
        "import sys; from pathlib import Path; from woodshed.store import Store;"
        "sys.stdin.read(1); s = Store(sys.argv[1], Path(sys.argv[2])); print(len(s.runs())); s.close()"
    )
    openers = [
        subprocess.Popen([sys.executable, "-c", code, url, str(tmp_path)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("g")
        opener.stdin.flush()
    assert [opener.communicate() for opener in openers] == [("0\n", "")] * 4


def test_a_store_of_a_newer_woodshed_is_refused_untouched(url: str, tmp_path: Path) -> None:
    """A schema version unknown here is the user's to resolve; the message says how."""
    engine = open_engine(url, tmp_path)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(UsageError, match=r"newer Woodshed .*9999.*Update Woodshed"):
        Store(url, tmp_path)


def test_sqlite_is_in_wal_mode_enforces_keys_and_is_private(tmp_path: Path) -> None:
    """Pragmas hold on the connections the store uses; nobody else may read the files."""
    engine = open_engine(None, tmp_path / "new" / "home")
    with engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 30_000}
    for file in (tmp_path / "new" / "home").iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    assert (tmp_path / "new" / "home").stat().st_mode & 0o077 == 0
    engine.dispose()


@pytest.mark.parametrize("bad", ["mysql://host/x", "nonsense", "sqlite://", "sqlite:///:memory:", "oracle+what://x"])
def test_a_url_we_do_not_know_is_the_users_error(bad: str, tmp_path: Path) -> None:
    """The setting's name and a working form stand in the message."""
    with pytest.raises(UsageError, match=r"database_url: .*postgresql://"):
        Store(bad, tmp_path)


def test_an_unreachable_server_is_a_fault_without_the_password(tmp_path: Path) -> None:
    """The message tells where, never with what password."""
    with pytest.raises(StoreFault, match="opening the store") as caught:
        Store("postgresql://me:hunter2@127.0.0.1:1/x", tmp_path)
    assert "hunter2" not in str(caught.value)


def test_a_damaged_file_is_called_damaged(tmp_path: Path) -> None:
    """A file that is no database gives a plain sentence and what to do."""
    (tmp_path / "woodshed.db").write_bytes(b"not a database, whatever its name says" * 100)
    with pytest.raises(StoreFault, match="not a database; restore it"):
        Store(None, tmp_path)


def test_damage_inside_is_called_damaged(tmp_path: Path) -> None:
    """Pages overwritten in the middle of a good file are reported as damage when they are met."""
    Store(None, tmp_path).close()
    with sqlite3.connect(tmp_path / "woodshed.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    size = (tmp_path / "woodshed.db").stat().st_size
    with (tmp_path / "woodshed.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(StoreFault, match="damaged"), Store(None, tmp_path) as store:
        store.runs()


def test_a_file_that_may_not_be_opened_is_explained(tmp_path: Path) -> None:
    """A folder in the file's place is named, with its path."""
    (tmp_path / "woodshed.db").mkdir()
    with pytest.raises(StoreFault, match=r"opening the database: .*woodshed\.db"):
        Store(None, tmp_path)


def _fill_under(command: list[str], home: Path, tests: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, sys.executable, "-c", FILL, str(home), str(tests)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("way", ["tmpfs", "rlimit"])
def test_a_full_disk_is_a_plain_fault_and_nothing_is_lost(way: str, tmp_path: Path) -> None:
    """Writing until it is full gives StoreFault; what was counted before reads back, and work goes on with room."""
    home = tmp_path / "small"
    home.mkdir()
    command = on_small_disk(home, "1m") if way == "tmpfs" else ["sh", "-c", 'ulimit -f 2048 && exec "$@"', "sh"]
    done = _fill_under(command, home, Path(__file__).parent / "data")
    assert done.returncode == 0, done.stderr
    assert "kept everything" in done.stdout
